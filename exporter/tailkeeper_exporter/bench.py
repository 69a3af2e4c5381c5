"""How fast our page parser is next to prometheus_client's, measured in one run on one page.

Used by ``tailkeeper bench exporter``. Reads no files and prints nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypedDict

from prometheus_client.parser import text_string_to_metric_families

from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.exposition import PageParser


class Timing(TypedDict):
    min: float
    median: float


class ParseBench(TypedDict):
    """``ratio`` is prometheus_client's time divided by ours, from the medians; times in milliseconds per page."""

    page_bytes: int
    samples: int
    ours_ms: Timing
    prometheus_client_ms: Timing
    ratio: float


def bench_parse(page: bytes, rounds: int, wanted: Mapping[str, Kind] | None = None) -> ParseBench:
    """CPU time of both parsers on ``page``, alternating, so that a busy machine is no matter.

    Without ``wanted`` ours keeps every sample, as prometheus_client does. One page is parsed by each before the clock
    runs: ours then has its series texts, as it has from the second page of a backend on.
    """
    if rounds < 1:
        raise ValueError(f"rounds: {rounds} is not at least 1")
    parser = PageParser(wanted)
    samples = parser.parse(page).series
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours.append(_timed_ms(lambda: parser.parse(page)))
        theirs.append(_timed_ms(lambda: [family.samples for family in text_string_to_metric_families(page.decode())]))
    return {
        "page_bytes": len(page),
        "samples": samples,
        "ours_ms": _timing(ours),
        "prometheus_client_ms": _timing(theirs),
        "ratio": statistics.median(theirs) / statistics.median(ours),
    }


def _timed_ms(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return (time.thread_time() - start) * 1_000


def _timing(times_ms: list[float]) -> Timing:
    return {"min": min(times_ms), "median": statistics.median(times_ms)}
