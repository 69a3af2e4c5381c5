"""Drift on simulated queues, at a small scale: the measured table must not change unnoticed. A minute of CPU at most."""

from __future__ import annotations

import pytest

from tailkeeper.bench_drift import Size, stream_bench
from tailkeeper.driftlab.null_weeks import simulate
from tailkeeper.driftlab.streams import DRIFTS, HARMLESS, KINDS, stream, with_drift
from tailkeeper_watchdog.drift import AS_WRITTEN, PACED, BlockE, Rows, fit

BASELINE, BEGINS, ENDS = 20_000, 22_000, 34_000
WITHIN = {"all_x1.2": 4_000, "all_x1.5": 1_000, "stalls_2pct": 5_000, "engine_x1.2": 4_000}
"""Twice the measured median and more: one seed is no median."""


def alarms(rows: Rows) -> list[int]:
    test = BlockE(fit(rows[:BASELINE], model_id="m", created_at_s=0.0))
    return [BASELINE + alarm.row for alarm in test.update_many(rows[BASELINE:])]


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_day_without_drift_is_silent(kind: str) -> None:
    assert alarms(stream(KINDS[kind], 120_000, seed=41)) == []


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_drift_is_found_and_what_is_harmless_is_not(kind: str, drift: str) -> None:
    found = alarms(with_drift(KINDS[kind], ENDS, 42, drift, BEGINS))
    if drift in HARMLESS:
        assert found == []
    else:
        assert BEGINS < found[0] <= BEGINS + WITHIN[drift]


@pytest.mark.parametrize("design", [AS_WRITTEN, PACED], ids=lambda design: design.name)
def test_a_fleet_without_drift_is_not_paged(design) -> None:  # type: ignore[no-untyped-def]
    seen = simulate(design, backends=2_000, blocks=6_048, seed=1)
    assert seen.false_pages == 0
    assert seen.alarms <= 2_000 * 0.7, "one nominal alarm a day for each backend, and this is 0.7 days"


def test_the_peers_run_beside_it() -> None:
    pytest.importorskip("river")
    size = Size(1, quiet_rows=4_000, clean_rows=1_500, horizon_rows=2_500, kswin_rows=200)
    detectors = stream_bench(size, 1, ("iid",))["kinds"]["iid"]["detectors"]
    assert {"adwin", "page_hinkley", "kswin", "ks", "block_e", "block_e_as_written"} <= set(detectors)
    assert detectors["kswin"]["drifts"] == {}
    assert detectors["ks"]["drifts"]["all_x1.5"]["found_share"] == 1.0
