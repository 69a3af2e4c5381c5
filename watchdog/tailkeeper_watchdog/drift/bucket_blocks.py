"""Readings of a cumulative histogram cut into blocks: what Prometheus alone can say of ten seconds. Pure.

A restart of the engine, other bounds, a gap or a step of the clock ends the block that was open and makes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import le, lt

from tailkeeper_exporter.readings import Histogram

GAP_S = 60.0
"""Two readings further apart than this say nothing of what was between them."""
MOST_BOUNDS = 500
MOST_READINGS = 600
"""In one block: a backend that finishes nothing for so long gives no block, and holds no more memory."""


@dataclass(frozen=True, slots=True)
class BucketReading:
    """One scrape at monotonic ``at_s``: the latency histogram since the engine's start, and the load. None is unknown."""

    at_s: float
    histogram: Histogram | None
    running: float | None = None
    waiting: float | None = None
    tokens_total: float | None = None


@dataclass(frozen=True, slots=True)
class BucketBlock:
    """What was finished in one block. ``load`` is mean running, mean waiting and tokens per second; None where unknown."""

    histogram: Histogram
    load: tuple[float, float, float] | None


class BucketCutter:
    """Turns readings into blocks of at least ``block_s`` and at least ``min_requests`` requests."""

    __slots__ = ("_block_s", "_min_requests", "_readings", "broken")

    def __init__(self, block_s: float, min_requests: int) -> None:
        self._block_s, self._min_requests = block_s, min_requests
        self._readings: list[BucketReading] = []
        self.broken = 0
        """Blocks given up for a restart, a gap, a step of the clock or other bounds."""

    def add(self, reading: BucketReading) -> BucketBlock | None:
        """The block that this reading completes, if it does."""
        usable = _is_usable(reading, self._readings[-1].histogram if self._readings else None)
        if not usable or not self._follows(reading):
            self.broken += bool(self._readings)
            self._readings = [reading] if usable else []
            return None
        self._readings.append(reading)
        histogram = _between(self._readings[0], reading)
        long_enough = reading.at_s - self._readings[0].at_s >= self._block_s
        if histogram is None or not long_enough or histogram.count < self._min_requests:
            return None
        block = BucketBlock(histogram, _load(self._readings))
        self._readings = [reading]
        return block

    def _follows(self, reading: BucketReading) -> bool:
        if not self._readings:
            return True
        last = self._readings[-1]
        near = 0 < reading.at_s - last.at_s <= GAP_S and len(self._readings) < MOST_READINGS
        return near and _rose(last, reading)


def _between(first: BucketReading, last: BucketReading) -> Histogram | None:
    if first.histogram is None or last.histogram is None:
        return None
    return last.histogram.minus(first.histogram)


def _rose(first: BucketReading, last: BucketReading) -> bool:
    """Whether there is something between them that could be told: as ``_between`` decides, without making it."""
    before, after = first.histogram, last.histogram
    if before is None or after is None or (after.bounds is not before.bounds and after.bounds != before.bounds):
        return False
    return not any(map(lt, after.counts, before.counts))


def _is_usable(reading: BucketReading, before: Histogram | None) -> bool:
    """A time, and counts that rise over at least two ascending bounds. Those of the usable histogram ``before`` ascend."""
    histogram = reading.histogram
    if histogram is None or not abs(reading.at_s) < 1e12 or not 2 <= len(histogram.bounds) <= MOST_BOUNDS:
        return False
    bounds, counts = histogram.bounds, histogram.counts
    if (before is None or bounds is not before.bounds) and (bounds[0] <= 0 or not _rises(bounds)):
        return False
    return len(bounds) == len(counts) and counts[0] >= 0 and _rises(counts)


def _rises(values: Sequence[float]) -> bool:
    """False for NaN too."""
    return all(map(le, values, islice(values, 1, None)))


def _load(readings: Sequence[BucketReading]) -> tuple[float, float, float] | None:
    running, waiting = _mean([r.running for r in readings]), _mean([r.waiting for r in readings])
    first, last = readings[0], readings[-1]
    if running is None or waiting is None or first.tokens_total is None or last.tokens_total is None:
        return None
    tokens = last.tokens_total - first.tokens_total
    return (running, waiting, tokens / (last.at_s - first.at_s)) if 0 <= tokens < 1e15 else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and 0 <= value < 1e9]
    return sum(known) / len(known) if len(known) == len(values) else None
