"""``tailkeeper bench p99``: an exact sliding P99 as the watchdog uses it, beside its peers. Measures and decides nothing.

Every structure gets the same samples in the same run, in turns, and must give the same values at every query; one that
differs ends the run. A tick is one batch in and one P99 out, which is what the watchdog does for each backend and signal.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import inf
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tailkeeper_watchdog.scoring.ring import LatencyRing

Q = 0.99
WINDOWS = (1_000, 10_000, 100_000)
TICK_BATCHES = (5, 50)
"""Samples of one backend in a tick: ten requests a second at ticks of 0.5 s and 5 s."""
BULK_BATCH = 200
FLEET_SAMPLES = 300_000
"""In all windows of one structure together: more than a core's cache holds, as in a fleet."""
ROUNDS = 41

Samples = NDArray[np.float64]


class Sliding(Protocol):
    """The last N latencies in seconds: batches in, oldest first, and the value of rank ⌊0.99 · (n − 1)⌋ out."""

    def extend(self, latencies_s: Samples) -> None: ...

    def p99_s(self) -> float: ...


class TailRing:
    """The watchdog's own."""

    def __init__(self, size: int) -> None:
        self._ring = LatencyRing(size)

    def extend(self, latencies_s: Samples) -> None:
        self._ring.extend(latencies_s)

    def p99_s(self) -> float:
        found = self._ring.quantile(Q)
        assert found is not None
        return found.value


class _PlainRing:
    """A ring of samples and nothing beside it, checked as the watchdog's own checks them."""

    def __init__(self, size: int) -> None:
        self._values: Samples = np.zeros(size)
        self._next = self._filled = 0

    def extend(self, latencies_s: Samples) -> None:
        good = latencies_s[(latencies_s >= 0) & (latencies_s < inf)]
        size = self._values.size
        good = good[-size:]
        first = min(good.size, size - self._next)
        self._values[self._next : self._next + first] = good[:first]
        self._values[: good.size - first] = good[first:]
        self._next = (self._next + good.size) % size
        self._filled = min(size, self._filled + good.size)


class PartitionRing(_PlainRing):
    """A partial sort at each query."""

    def p99_s(self) -> float:
        rank = int(Q * (self._filled - 1))
        return float(np.partition(self._values[: self._filled], rank)[rank])


class PercentileRing(_PlainRing):
    """What most people write."""

    def p99_s(self) -> float:
        return float(np.percentile(self._values[: self._filled], 100 * Q, method="lower"))


class SortedWindow:
    """A ``SortedList`` of all samples beside their order of arrival."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._order: deque[float] = deque()
        self._sorted: Any = import_module("sortedcontainers").SortedList()

    def extend(self, latencies_s: Samples) -> None:
        for value in latencies_s[(latencies_s >= 0) & (latencies_s < inf)].tolist():
            if len(self._order) == self._size:
                self._sorted.remove(self._order.popleft())
            self._order.append(value)
            self._sorted.add(value)

    def p99_s(self) -> float:
        return float(self._sorted[int(Q * (len(self._order) - 1))])


def structures() -> dict[str, Callable[[int], Sliding]]:
    """Ours and its peers by name; ``sorted_list`` only where it is installed."""
    found: dict[str, Callable[[int], Sliding]] = {
        "tail_ring": TailRing,
        "ring_partition": PartitionRing,
        "numpy_percentile": PercentileRing,
    }
    return found | ({"sorted_list": SortedWindow} if find_spec("sortedcontainers") else {})


def p99_bench(seed: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Median times of an update, a query and a whole tick, by window and structure. Raises RuntimeError where two disagree."""
    random = np.random.default_rng(seed)
    return {"quantile": Q, "rounds": rounds, "windows": [_window(size, rounds, random) for size in WINDOWS]}


def _window(size: int, rounds: int, random: np.random.Generator) -> dict[str, Any]:
    """As many windows of ``size`` as hold ``FLEET_SAMPLES``, for each structure: those of a fleet are not all in the cache."""
    count = max(1, FLEET_SAMPLES // size)
    fleets = {name: [build(size) for _ in range(count)] for name, build in structures().items()}
    full = _latencies(random, count, size)
    for windows in fleets.values():
        _tick(windows, full)
    figures: dict[str, dict[str, float]] = {name: {} for name in fleets}
    for batch in (BULK_BATCH, *TICK_BATCHES):
        for name, (update_s, query_s) in _timed(fleets, batch, rounds, random).items():
            if batch == BULK_BATCH:
                figures[name] |= {"ns_per_update": _round(1e9 * update_s / batch), "us_per_query": _round(1e6 * query_s)}
            else:
                figures[name][f"us_per_tick_of_{batch}"] = _round(1e6 * (update_s + query_s))
    return {"window": size, "windows_at_once": count, "structures": figures}


def _latencies(random: np.random.Generator, count: int, batch: int) -> list[Samples]:
    """Lognormal around 0.2 s, the level of all of them a fifth up or down, as a queue's is."""
    level = 0.2 * random.uniform(0.8, 1.2)
    return [random.lognormal(np.log(level), 0.6, batch) for _ in range(count)]


def _timed(
    fleets: dict[str, list[Sliding]], batch: int, rounds: int, random: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Median seconds of one batch in and of one query, by structure. Everybody has a turn in each round, by another order."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in fleets}
    names = list(fleets)
    for turn in range(rounds):
        given = _latencies(random, len(fleets[names[0]]), batch)
        told = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            told[name], *times = _tick(fleets[name], given)
            spent[name].append((times[0], times[1]))
        if any(values != told[names[0]] for values in told.values()):
            raise RuntimeError(f"the structures disagree on the P99 of a window of {batch} new samples")
    return {name: (median(u for u, _ in times), median(q for _, q in times)) for name, times in spent.items()}


def _tick(windows: list[Sliding], given: list[Samples]) -> tuple[list[float], float, float]:
    """All batches in, then all quantiles out, as the watchdog does: the quantiles, and CPU seconds of one batch and one query."""
    started = time.thread_time()
    for window, batch in zip(windows, given, strict=True):
        window.extend(batch)
    between = time.thread_time()
    told = [window.p99_s() for window in windows]
    ended = time.thread_time()
    return told, (between - started) / len(windows), (ended - between) / len(windows)


def _round(value: float) -> float:
    return float(f"{value:.3g}")
