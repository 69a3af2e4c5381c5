"""``tailkeeper bench tick`` over fleets of several sizes: each in a process of its own, and how the cost of a tick grows.

The figures of one size are those of ``bench.tick_bench``. Progress goes to stderr; what the watchdog logs of thousands of
decisions goes nowhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from math import log
from multiprocessing import get_context
from typing import Any

import structlog

from tailkeeper.bench import tick_bench
from tailkeeper.progress import OneLine

MOST = 10_000
COSTS = ("tick_seconds", "tick_cpu_seconds")
"""Of which the medians are compared."""


def sizes_in(words: Iterable[str]) -> list[int]:
    """The sizes that ``100,1000`` or several such words name, ascending. Raises ValueError."""
    sizes = set()
    for word in ",".join(words).split(","):
        if not word.isdecimal() or not 1 <= int(word) <= MOST:
            raise ValueError(f"{word!r} is refused; allowed are 1 to {MOST:,} backends, and commas between several sizes")
        sizes.add(int(word))
    return sorted(sizes)


def ticks_of(sizes: Sequence[int], ticks: int, seed: int) -> dict[str, Any]:
    """The figures of the one size, or of several as ``runs`` with ``growth_exponents``.

    Memory is the most that a process ever had, so that one process for all would tell that of the largest for each that follows.
    """
    if len(sizes) == 1:
        return _quietly(sizes[0], ticks, seed)
    runs = []
    for size in sizes:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            runs.append(process.submit(_quietly, size, ticks, seed).result())
    return {"runs": runs, "growth_exponents": growth_exponents(runs)}


def _quietly(size: int, ticks: int, seed: int) -> dict[str, Any]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    progress = OneLine(sys.stderr)
    try:
        return tick_bench(size, ticks, seed, progress.say)
    finally:
        progress.end()


def growth_exponents(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """From each size to the next: 1 is linear growth, less is better. Of p50 by the wall and by the CPU, and of memory."""
    found = []
    for smaller, larger in pairwise(runs):
        times = log(larger["backends"] / smaller["backends"])
        costs = {name: log(larger[name]["p50"] / smaller[name]["p50"]) / times for name in COSTS}
        memory = log(larger["rss_bytes"] / smaller["rss_bytes"]) / times
        found.append({"from": smaller["backends"], "to": larger["backends"], **costs, "rss_bytes": memory})
    return found
