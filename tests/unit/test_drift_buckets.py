"""The form over histogram buckets: what it finds, and what makes no block."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.drift import (
    BLOCK_E,
    BucketBaseline,
    BucketCollector,
    BucketE,
    BucketReading,
    Rows,
    bucket_baseline_from_document,
)
from tailkeeper_watchdog.drift.bucket_blocks import BucketCutter
from tailkeeper_watchdog.drift.bucket_e import log_odds
from tests.drift_streams import loaded

BOUNDS_S = (*(0.01 * 2**k for k in range(8)), inf)
SCRAPE_S = 5.0


def scrapes(rows: Rows, *, knows_load: bool = True) -> Iterator[BucketReading]:
    """What a histogram and two gauges would have said every five seconds."""
    at_s, latency_s = rows.table[:, 0], rows.table[:, 1]
    place = np.searchsorted(BOUNDS_S, latency_s)
    for now_s in np.arange(at_s[0], at_s[-1], SCRAPE_S):
        seen = int(np.searchsorted(at_s, now_s))
        counts = np.cumsum(np.bincount(place[:seen], minlength=len(BOUNDS_S))).astype(float)
        load = rows.table[max(seen - 40, 0) : seen, 4:].mean(axis=0).tolist() if knows_load and seen else [None, None]
        histogram = Histogram(BOUNDS_S, tuple(counts.tolist()), float(latency_s[:seen].sum()))
        yield BucketReading(float(now_s), histogram, load[0], load[1], float(rows.table[:seen, 2].sum()))


@cache
def small_baseline(knows_load: bool = True) -> BucketBaseline:
    collector = BucketCollector(requests=5_000, seconds=600.0)
    for reading in scrapes(loaded(6_000, 1), knows_load=knows_load):
        collector.add(reading)
    return collector.fit(model_id="m", created_at_s=0.0)


def alarms(rows: Rows, baseline: BucketBaseline) -> int:
    test = BucketE(baseline)
    return sum(test.update(reading) is not None for reading in scrapes(rows, knows_load=not baseline.is_raw))


@pytest.mark.parametrize("knows_load", [True, False])
def test_no_drift_is_silent_and_half_as_slow_again_is_found(knows_load: bool) -> None:
    baseline = small_baseline(knows_load)
    assert baseline.is_raw is not knows_load
    assert alarms(loaded(20_000, 2), baseline) == 0
    assert alarms(loaded(4_000, 3, 1.5), baseline) > 0


@pytest.mark.parametrize("knows_load", [True, False])
def test_a_bucket_baseline_survives_json(knows_load: bool) -> None:
    baseline = small_baseline(knows_load)
    assert bucket_baseline_from_document(json.loads(json.dumps(baseline.document(), allow_nan=False))) == baseline


DAMAGE: dict[str, Any] = {
    "version": 9,
    "kind": "block_e",
    "design": "none",
    "fit_ratio": nan,
    "bounds_s": [0.2, 0.1],
    "limits_s": [0.05, 0.1, 0.3],
    "weights": [[1.0, 2.0, 3.0, nan]] * 3,
    "most_load": [1.0],
    "statistics": [[1.0, 0.0] * 20] * 3,
    "min_requests": "many",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_document_names_its_field(name: str) -> None:
    document = copy.deepcopy(small_baseline().document())
    document[name] = DAMAGE[name]
    with pytest.raises(ValueError, match=rf"baseline\.{name}"):
        bucket_baseline_from_document(document)


def ready(at_s: float, finished: float, bounds_s: tuple[float, ...] = BOUNDS_S) -> BucketReading:
    return BucketReading(at_s, Histogram(bounds_s, (finished,) * len(bounds_s), 0.0), 1.0, 0.0, finished * 100)


NO_BLOCK: dict[str, Callable[[], list[BucketReading]]] = {
    "nothing finished": lambda: [ready(0, 5), ready(10, 5)],
    "too few finished": lambda: [ready(0, 5), ready(10, 8)],
    "too short": lambda: [ready(0, 5), ready(9, 500)],
    "restart": lambda: [ready(0, 500), ready(10, 80)],
    "gap": lambda: [ready(0, 5), ready(61, 500)],
    "unknown between": lambda: [ready(0, 5), BucketReading(5, None), ready(10, 500)],
    "other bounds": lambda: [ready(0, 5), ready(10, 500, (1.0, 2.0, inf))],
    "clock set back": lambda: [ready(100, 5), ready(50, 500)],
    "same moment": lambda: [ready(0, 5), ready(0, 500)],
    "no time": lambda: [ready(0, 5), ready(nan, 500)],
    "counts that fall over the bounds": lambda: [ready(0, 5), BucketReading(10, Histogram((1.0, inf), (9.0, 3.0), 0.0))],
    "NaN counts": lambda: [ready(0, 5), BucketReading(10, Histogram((1.0, inf), (nan, nan), 0.0))],
    "negative counts": lambda: [ready(0, 5), BucketReading(10, Histogram((1.0, inf), (-5.0, 3.0), 0.0))],
    "no bounds": lambda: [ready(0, 5), BucketReading(10, Histogram((), (), 0.0))],
}


@pytest.mark.parametrize("readings", NO_BLOCK.values(), ids=NO_BLOCK)
def test_this_makes_no_block(readings: Callable[[], list[BucketReading]]) -> None:
    cutter = BucketCutter(10.0, 5)
    assert [cutter.add(reading) for reading in readings()][-1] is None


def test_a_block_says_what_was_finished_and_under_what_load() -> None:
    cutter = BucketCutter(10.0, 5)
    blocks = [cutter.add(ready(at_s, 10 * at_s)) for at_s in (0, 5, 10, 15, 20)]
    assert [block.histogram.count for block in blocks if block] == [100, 100]
    assert [block.load for block in blocks if block] == [(1.0, 0.0, 1000.0)] * 2
    assert cutter.broken == 0


def test_unknown_load_other_bounds_and_a_load_never_seen_are_no_evidence() -> None:
    test = BucketE(small_baseline())
    for reading in scrapes(loaded(1_000, 4, 5.0), knows_load=False):
        assert test.update(reading) is None
    assert (test.evidence.blocks, test.abstained) == (0, 0)
    assert test.unknown > 5
    for reading in scrapes(loaded(1_000, 4, 5.0)):
        test.update(replace(reading, at_s=reading.at_s + 1e6, running=1e6))
    assert test.evidence.blocks == 0
    assert test.abstained > 5


def test_a_collector_says_what_is_missing() -> None:
    collector = BucketCollector()
    for reading in scrapes(loaded(500, 5)):
        collector.add(reading)
    assert str(collector.missing()).startswith("a baseline needs 20,000 requests and 40 min; so far ")
    with pytest.raises(ValueError, match="40 min"):
        collector.fit(model_id="m", created_at_s=0.0)


@pytest.mark.parametrize(("limit_s", "above"), [(0.005, 95.0), (0.01, 90.0), (0.02, 30.0), (0.04, 0.0), (1.0, 0.0)])
def test_requests_above_a_limit(limit_s: float, above: float) -> None:
    histogram = Histogram((0.01, 0.02, 0.04, inf), (10.0, 70.0, 100.0, 100.0), 1.0)
    assert log_odds(histogram, limit_s) == pytest.approx(np.log((above + 0.5) / (100.5 - above)))


def test_between_two_bounds_it_is_linear_in_the_logarithm() -> None:
    histogram = Histogram((0.01, 0.02, 0.04, inf), (10.0, 70.0, 100.0, 100.0), 1.0)
    assert log_odds(histogram, 0.01 * 2**0.5) == pytest.approx(np.log(60.5 / 40.5))


def test_the_design_is_the_same_as_for_requests() -> None:
    assert small_baseline().design is BLOCK_E


def test_a_page_whose_lower_bucket_rises_by_more_than_all_of_them_ends_no_tick() -> None:
    histogram = Histogram((0.1, 1.0, inf), (50.0, 120.0, 100.0), 30.0)
    assert log_odds(histogram, 1.0) == pytest.approx(np.log(0.5 / 100.5))
