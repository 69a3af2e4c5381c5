"""The baseline that the demo ships with: of its own engines behind their taps, and good for finding the fault `slow`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

import pytest

from tailkeeper_demo.faults import Fault, FaultKind
from tailkeeper_demo.stack import ENGINES, MODEL, REQUESTS_PER_S
from tailkeeper_watchdog.baseline_set import Form
from tailkeeper_watchdog.baseline_store import read_file
from tailkeeper_watchdog.detectors.block_e import rows_of, with_prompts
from tailkeeper_watchdog.drift import Baseline, BlockE, Rows
from tailkeeper_watchdog.drift_watch import RECENT_ROWS
from tools.record_demo_baseline import SimulatedEngine

USUAL_PER_S = REQUESTS_PER_S / ENGINES
ACTED_ON_AFTER_S = 7.0
"""So long the policy needs to see the mean step time and to halve the weight."""
TICK_S = 0.5


@cache
def shipped() -> Baseline:
    found = read_file(Path(str(resources.files("tailkeeper_demo") / "baselines.json"))).models[MODEL, Form.ROWS]
    assert isinstance(found, Baseline)
    return found


def alarms(engine: SimulatedEngine, until_s: float, slow_at_s: float | None = None) -> list[float]:
    """When the test over what the taps tell raised an alarm, tick by tick."""
    test, found, ticks = BlockE(shipped()), [], int(until_s / TICK_S)
    known: list[tuple[float | None, ...]] = []
    for tick in range(1, ticks + 1):
        if slow_at_s is not None and tick * TICK_S == slow_at_s:
            engine.slow(Fault(FaultKind.SLOW, 600.0))
        rows = rows_of(engine.records(tick * TICK_S), tick * TICK_S)
        known = [*known, *rows][-RECENT_ROWS:]
        if rows and test.update_many(Rows.of(with_prompts(rows, known))):
            found.append(tick * TICK_S)
    assert test.evidence.blocks > until_s / 20
    return found


def test_it_knows_the_load_of_the_demo() -> None:
    assert not shipped().is_raw
    assert shipped().fit_ratio == pytest.approx(0.88, abs=0.05)


@pytest.mark.parametrize(("seed", "share"), [(900, 1.0), (902, 1.34)])
def test_engines_without_a_fault_raise_no_alarm_whatever_their_share(seed: int, share: float) -> None:
    """A third more is what the others get while one is out."""
    assert not alarms(SimulatedEngine(seed, share * USUAL_PER_S, 600), 600)


@pytest.mark.parametrize(("seed", "at_s"), [(950, 40.0), (953, 61.5)])
def test_a_slow_engine_is_found_within_a_minute_though_it_gets_half_of_its_share_by_then(seed: int, at_s: float) -> None:
    engine = SimulatedEngine(seed, USUAL_PER_S, at_s + 60.0, halved_at_s=at_s + ACTED_ON_AFTER_S)
    found = alarms(engine, at_s + 60.0, at_s)
    assert found
    assert found[0] > at_s
