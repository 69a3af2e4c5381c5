"""What a number knows about itself: the one place that says what unknown is.

A reading is PRESENT (a value and when it was taken), ABSENT (never offered), STALE (offered once, too old now) or
INVALID (offered, but not a possible value). Only PRESENT has a value; nothing here or elsewhere turns one status into
another silently. Pure: no clocks, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from operator import sub
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Status(StrEnum):
    """The four things a reading can be."""

    PRESENT = "present"
    ABSENT = "absent"
    STALE = "stale"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """One value with its status.

    ``taken_s`` is the monotonic time at which the value was taken, in seconds; ``reason`` says why there is no value.
    """

    status: Status
    _value: T | None = None
    taken_s: float | None = None
    reason: str | None = None

    @property
    def value(self) -> T | None:
        """The value when PRESENT, else None. Zero is a measurement; None is not."""
        return self._value if self.status is Status.PRESENT else None

    @property
    def is_present(self) -> bool:
        return self.status is Status.PRESENT

    def age_s(self, now: float) -> float | None:
        """Seconds since the value was taken; None where none ever was."""
        return None if self.taken_s is None else max(0.0, now - self.taken_s)

    def at(self, now: float, stale_after_s: float) -> Reading[T]:
        """The same reading as seen at ``now``: PRESENT becomes STALE past ``stale_after_s``, and says so."""
        age = self.age_s(now)
        if self.status is Status.PRESENT and age is not None and age > stale_after_s:
            return Reading(Status.STALE, self._value, self.taken_s, f"{age:.1f} s old, limit {stale_after_s:g} s")
        return self

    def map(self, function: Callable[[T], U]) -> Reading[U]:
        """A reading of the same status with ``function`` applied to a present value."""
        if self.status is Status.PRESENT and self._value is not None:
            return Reading(Status.PRESENT, function(self._value), self.taken_s)
        return Reading(self.status, None, self.taken_s, self.reason)


def present(value: T, taken_s: float) -> Reading[T]:
    """A value taken at monotonic time ``taken_s``."""
    return Reading(Status.PRESENT, value, taken_s)


def absent(reason: str = "not offered") -> Reading[float]:
    """The source does not offer this."""
    return Reading(Status.ABSENT, reason=reason)


def invalid(reason: str, taken_s: float | None = None) -> Reading[float]:
    """The source offered something that cannot be a value of this metric."""
    return Reading(Status.INVALID, None, taken_s, reason)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative bucket counts. ``bounds`` are upper bounds in base units, the last is +Inf; ``sum`` in base units."""

    bounds: tuple[float, ...]
    counts: Sequence[float]
    """A tuple; an array of doubles where many are kept."""
    sum: float

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def minus(self, earlier: Histogram) -> Histogram | None:
        """What was observed since ``earlier``; None where the two cannot be compared (other bounds, or a reset)."""
        if self.bounds is not earlier.bounds and self.bounds != earlier.bounds:
            return None
        counts = tuple(map(sub, self.counts, earlier.counts))
        if counts and min(counts) < 0:
            return None
        return Histogram(self.bounds, counts, self.sum - earlier.sum)


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile that cannot be read without its sample count.

    ``saturated`` means that it lies above the last finite bucket bound: ``value`` is then a lower bound only.
    """

    value: float
    samples: int
    saturated: bool = False


def bucket_quantile(histogram: Histogram, q: float) -> Quantile | None:
    """Quantile ``q`` by linear interpolation inside a bucket, as Prometheus' ``histogram_quantile`` does.

    None where there is no observation or no finite bucket. Where the rank falls above the last finite bound the value
    is that bound and ``saturated`` is set (field report A3: it would read exactly that bound for ever).
    """
    total, bounds, counts = histogram.count, histogram.bounds, histogram.counts
    if not 0 < total < inf or len(bounds) < 2:
        return None
    rank = q * total
    index = bisect_left(counts, rank)
    if index >= len(bounds) - 1:
        return Quantile(bounds[-2], int(total), saturated=True)
    lower_bound, lower_count = (bounds[index - 1], counts[index - 1]) if index else (0.0, 0.0)
    inside = counts[index] - lower_count
    share = (rank - lower_count) / inside if inside > 0 else 1.0
    return Quantile(lower_bound + (bounds[index] - lower_bound) * share, int(total))
