"""Ring buffer of real latencies, one per (backend, signal): exact P99 by lower rank over the last N samples.

The ring is a value that the loop owns: a batch goes in at a tick, then one quantile is asked. Beside the samples in order of
arrival it keeps the largest of them sorted (the tail), so that a P99 is a look at the tail and no search through the ring.
What leaves and comes is compared with the smallest of the tail in one go; only the few above it are touched one by one. When
so many of the tail have left that the rank asked for is no longer in it, it is taken from the ring anew.

Why not a partial sort at each query (`tailkeeper bench p99` has both, docs/performance.md the figures): at the default 1,000
samples a tick with up to some ten new samples costs less this way, one without any a quarter, and one with fifty a quarter
more; from 10,000 samples on a tick costs half and less, and what it costs hardly grows with the window.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import inf

import numpy as np
from numpy.typing import NDArray

from tailkeeper_exporter.readings import Quantile

DEFAULT_SIZE = 1_000
TAIL_SHARE = 0.01
"""The tail is made for P99; lower quantiles are searched for in the ring."""
TAIL_SPARE = 32
"""How many more values than a P99 needs are kept at least, so that those which leave are seldom missed."""

FEW = 24
"""Up to so many values a plain loop is quicker than the fixed cost of NumPy's calls."""


class LatencyRing:
    """The last ``size`` finite, non-negative latencies, in seconds. Raises ValueError for a size below 1."""

    __slots__ = ("_filled", "_keep", "_next", "_tail", "_values")

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        if size < 1:
            raise ValueError(f"size: {size} is refused; a ring holds at least one sample")
        self._values: NDArray[np.float64] = np.zeros(size)
        self._next = 0
        self._filled = 0
        self._keep = int(2 * TAIL_SHARE * size) + TAIL_SPARE
        self._tail: list[float] = []
        """The largest values of the ring, ascending; empty where that is not known."""

    def __len__(self) -> int:
        return self._filled

    def extend(self, latencies_s: NDArray[np.float64]) -> int:
        """Add samples, oldest first; impossible ones (NaN, infinite, negative) are left out. Returns how many those were."""
        possible = (latencies_s >= 0) & (latencies_s < inf)
        good = latencies_s[possible]
        dropped = int(latencies_s.size - good.size)
        size = self._values.size
        good = good[-size:]
        room = size - self._next
        if good.size <= room:
            self._put(good)
        else:
            self._put(good[:room])
            self._put(good[room:])
        return dropped

    def _put(self, good: NDArray[np.float64]) -> None:
        """Write where there is room without going round, and keep the tail true."""
        begin, end = self._next, self._next + good.size
        if self._tail:
            self._follow(self._values[begin : min(end, self._filled)], good)
        self._values[begin:end] = good
        self._filled = max(self._filled, end)
        self._next = end % self._values.size

    def _follow(self, leaving: NDArray[np.float64], coming: NDArray[np.float64]) -> None:
        """The tail without what leaves and with what comes, as far as either belongs to it.

        Of values equal to the smallest of the tail some may stand in it and some not. While one of them is left in it, taking
        that one out is right either way; when none is, the one that leaves was not in it.
        """
        tail = self._tail
        floor = tail[0]
        for value in _at_least(floor, coming):
            insort(tail, value)
        for value in _at_least(floor, leaving):
            place = bisect_left(tail, value)
            if place < len(tail) and tail[place] == value:
                del tail[place]
        if len(tail) > self._keep:
            del tail[: len(tail) - self._keep]

    def quantile(self, q: float) -> Quantile | None:
        """A value really observed: the sample of rank ⌊q · (n − 1)⌋. None while empty."""
        if not self._filled:
            return None
        rank = int(q * (self._filled - 1))
        from_top = self._filled - rank
        if from_top > len(self._tail):
            if from_top > self._keep:
                return Quantile(float(np.partition(self._values[: self._filled], rank)[rank]), self._filled)
            self._take_tail()
        return Quantile(self._tail[-from_top], self._filled)

    def _take_tail(self) -> None:
        values = self._values[: self._filled]
        if values.size > self._keep:
            values = np.partition(values, values.size - self._keep)[-self._keep :]
        self._tail = np.sort(values).tolist()


def _at_least(floor: float, values: NDArray[np.float64]) -> list[float]:
    if values.size <= FEW:
        return [value for value in values.tolist() if value >= floor]
    found: list[float] = values[values >= floor].tolist()
    return found
