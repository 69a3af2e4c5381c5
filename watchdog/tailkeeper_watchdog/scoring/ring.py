"""Ring buffer of real latencies, one per (backend, signal): exact P99 by lower rank over the last N samples.

The ring is a value that the loop owns; batches go in once a tick, which costs O(batch), and a quantile is a partial
sort in NumPy (5 µs at 1,000 samples).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailkeeper_exporter.readings import Quantile

DEFAULT_SIZE = 1_000


class LatencyRing:
    """The last ``size`` finite, non-negative latencies, in seconds."""

    __slots__ = ("_filled", "_next", "_values")

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        if size < 1:
            raise ValueError(f"size: {size} is refused; a ring holds at least one sample")
        self._values: NDArray[np.float64] = np.zeros(size)
        self._next = 0
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    def extend(self, latencies_s: NDArray[np.float64]) -> int:
        """Add samples, oldest first; impossible ones (NaN, infinite, negative) are left out. Returns how many those were."""
        good = latencies_s[np.isfinite(latencies_s) & (latencies_s >= 0)]
        dropped = int(latencies_s.size - good.size)
        size = self._values.size
        good = good[-size:]
        first = min(good.size, size - self._next)
        self._values[self._next : self._next + first] = good[:first]
        self._values[: good.size - first] = good[first:]
        self._next = (self._next + good.size) % size
        self._filled = min(size, self._filled + good.size)
        return dropped

    def clear(self) -> None:
        """Forget everything: an engine that restarted opens a new baseline."""
        self._next = self._filled = 0

    def quantile(self, q: float) -> Quantile | None:
        """A value really observed: the sample of rank ⌊q · (n − 1)⌋. None while empty."""
        if not self._filled:
            return None
        rank = int(q * (self._filled - 1))
        value = float(np.partition(self._values[: self._filled], rank)[rank])
        return Quantile(value, self._filled)
