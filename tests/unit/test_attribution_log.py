"""What is remembered of requests: bounded, sampled evenly when it is much, and never another number than was told."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from tailkeeper_watchdog.attribution.request_log import (
    FLEET_ROWS,
    MAX_ROWS,
    MAX_VALUES,
    MIN_ROWS,
    OTHER,
    ROW,
    RequestLog,
    joined,
    rows_per_backend,
    thinned,
)
from tailkeeper_watchdog.attribution.resources import LINES, ResourceLog
from tailkeeper_watchdog.attribution.segments import codes_of
from tailkeeper_watchdog.model import RequestRecord


def _record(start: float = 0.0, tenant: str | None = None) -> RequestRecord:
    return RequestRecord("a", "ok", 0.5, None, 2.0, start_unix_s=start, tenant=tenant)


@pytest.mark.parametrize(("backends", "rows"), [(1, MAX_ROWS), (100, MAX_ROWS), (200, 5_000), (2_000, 500), (20_000, MIN_ROWS)])
def test_a_larger_fleet_leaves_less_for_each(backends: int, rows: int) -> None:
    assert rows_per_backend(backends) == rows
    assert backends > 2_000 or backends * rows * ROW.itemsize <= FLEET_ROWS * 60


def test_the_newest_are_kept_in_order() -> None:
    log = RequestLog()
    for batch in range(7):
        log.extend([_record(batch * 100.0 + i) for i in range(100)], 1_000.0 * batch, 500)
    kept = log.between(0.0, float("inf")).rows["start"]
    assert (len(log), kept[0], kept[-1]) == (500, 200.0, 699.0)
    assert np.all(np.diff(kept) > 0)


def test_a_busy_backend_keeps_every_second_record_and_still_counts_them_all() -> None:
    log = RequestLog()
    for second in range(400):
        log.extend([_record(float(second))] * 50, float(second), 1_000)
    found = log.between(0.0, 400.0)
    seconds = 400.0 - float(found.rows["at"].min())
    assert seconds > 60, "without sampling it would reach back 20 s"
    assert found.total == pytest.approx(50 * seconds, rel=0.15)
    assert len(log) == 1_000
    assert log.size_bytes == 1_000 * ROW.itemsize


def test_unknown_numbers_stay_unknown() -> None:
    log = RequestLog()
    log.extend([_record()], 1.0, 500)
    (row,) = log.between(0.0, 2.0).rows
    assert isnan(row["itl_s"])
    assert isnan(row["prompt_tokens"])
    assert row["e2e_s"] == 2.0


def test_a_tenant_per_request_does_not_fill_the_memory() -> None:
    log = RequestLog()
    log.extend([_record(tenant=f"t{n}") for n in range(5_000)], 1.0, 10_000)
    assert len(log.values("tenant")) == MAX_VALUES + 1
    assert log.values("tenant")[-1] == OTHER
    assert np.unique(codes_of(log.between(0.0, 2.0).rows, "tenant")).size == MAX_VALUES + 1


def test_a_thinned_sample_says_how_many_it_stands_for() -> None:
    log = RequestLog()
    log.extend([_record(float(i)) for i in range(2_000)], 1.0, 10_000)
    whole = log.between(0.0, 2.0)
    few = thinned(whole, 300, np.random.default_rng(1))
    assert (len(few), few.total, few.span_s) == (300, 2_000, 1_999.0)
    assert np.all(np.diff(few.rows["start"]) > 0)


def test_the_lines_of_resources_are_bounded() -> None:
    log = ResourceLog()
    width = log.before(0.0).shape[1]
    for minute in range(3 * LINES):
        log.add(np.full(width, float(minute)), 60.0 * minute)
    assert log.before(float("inf"))[:, 0].tolist() == [float(m) for m in range(2 * LINES, 3 * LINES)]
    assert len(log.before(60.0 * (2 * LINES + 3))) == 3


def test_no_resample_of_a_small_sample_is_all_of_it() -> None:
    log = RequestLog()
    log.extend([_record(float(i)) for i in range(20)], 1.0, 500)
    sample, rng = log.between(0.0, 2.0), np.random.default_rng(1)
    drawn = [sample.redrawn(rng, 1_000).rows["start"].tolist() for _ in range(5)]
    assert all(len(rows) == 20 for rows in drawn)
    assert all(len(set(rows)) < 20 for rows in drawn)


def test_samples_of_several_backends_become_one_in_common_codes() -> None:
    first, second = RequestLog(), RequestLog()
    first.extend([_record(float(i), tenant="gold") for i in range(4)], 1.0, 500)
    second.extend([_record(float(i), tenant=("silver", "gold")[i % 2]) for i in range(8)], 1.0, 500)
    parts = [log.between(0.0, 2.0) for log in (first, second)]
    sample = joined(parts, {"tenant": ("unlabelled", "bronze", "gold")})
    assert sample.names["tenant"] == ("unlabelled", "bronze", "gold", "silver")
    assert [sample.names["tenant"][code] for code in sample.rows["tenant"]] == ["gold"] * 4 + ["silver", "gold"] * 4
    assert (sample.total, sample.span_s) == (12, 3.0 + 7.0)
    assert len(joined([], {})) == 0
