"""Whether a forecast may be shown: only while its own measured error is better than that of doing nothing. Pure.

Doing nothing is to say that the next half minute will be as this one. Both are scored on the same forecasts, when their
time has come.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from enum import StrEnum
from math import ceil

MATURED = 240
"""Errors that the bound is taken from: an hour at one each 15 s."""
MIN_MATURED = 40
"""Fewer than these make no 99th percentile of anything: it would be their maximum."""
ON_BELOW = 0.95
"""Of the last value's bound and of its mean error. It goes off as soon as either is worse than the last value's; the gap
between the two keeps a forecast from flickering."""
QUANTILE = 0.99


class State(StrEnum):
    """Why there is a forecast, or none."""

    LEARNING = "learning"
    ON = "on"
    OFF = "off"


SENTENCES = {
    State.LEARNING: "too few forecasts have been judged yet",
    State.ON: "its errors are smaller than those of the last value",
    State.OFF: "switched off: the last value forecasts as well or better",
}


class Errors:
    """The last ``MATURED`` absolute errors, and their 99th percentile: an error really made, that 99 in 100 did not exceed."""

    __slots__ = ("_newest", "_sorted", "_total")

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, error: float) -> None:
        if len(self._newest) == MATURED:
            oldest = self._newest.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
            self._total -= oldest
        self._newest.append(error)
        self._total += error
        insort(self._sorted, error)

    @property
    def bound(self) -> float | None:
        return self._sorted[ceil(QUANTILE * len(self._sorted)) - 1] if self._sorted else None

    @property
    def mean(self) -> float | None:
        return self._total / len(self._sorted) if self._sorted else None


class Trust:
    """The errors of one backend's forecasts and of its last values, in seconds, and what follows from them."""

    __slots__ = ("last_value", "model", "state")

    def __init__(self) -> None:
        self.model = Errors()
        self.last_value = Errors()
        self.state = State.LEARNING

    def learn(self, actual_s: float, predicted_s: float, last_value_s: float) -> None:
        """A forecast has come true, or not."""
        self.model.add(abs(predicted_s - actual_s))
        self.last_value.add(abs(last_value_s - actual_s))
        if len(self.model) < MIN_MATURED:
            return
        if all(ours < ON_BELOW * theirs for ours, theirs in self._pairs()):
            self.state = State.ON
        elif self.state is State.LEARNING or any(ours > theirs for ours, theirs in self._pairs()):
            self.state = State.OFF

    def _pairs(self) -> tuple[tuple[float, float], ...]:
        """Bound and mean error, each beside the last value's: a forecast that is only better when it is worst is not better."""
        pairs = ((self.model.bound, self.last_value.bound), (self.model.mean, self.last_value.mean))
        return tuple((ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None)
