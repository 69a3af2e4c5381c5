"""The baseline that the demo ships with: of its own engines, and good for finding the fault `slow`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from tailkeeper_demo.faults import Fault, FaultKind
from tailkeeper_demo.stack import ENGINES, MODEL, REQUESTS_PER_S
from tailkeeper_watchdog.baseline_set import Form
from tailkeeper_watchdog.baseline_store import read_file
from tailkeeper_watchdog.drift import BucketBaseline, BucketE
from tools.record_demo_baseline import BLOCK_S, SimulatedEngine

USUAL_PER_S = REQUESTS_PER_S / ENGINES


def shipped() -> BucketBaseline:
    found = read_file(Path(str(resources.files("tailkeeper_demo") / "baselines.json"))).models[MODEL, Form.BUCKETS]
    assert isinstance(found, BucketBaseline)
    return found


def test_it_knows_the_load_of_the_demo() -> None:
    assert not shipped().is_raw


@pytest.mark.parametrize("seed", [900, 901])
def test_engines_without_a_fault_raise_no_alarm(seed: int) -> None:
    engine, test = SimulatedEngine(seed, USUAL_PER_S, 600), BucketE(shipped())
    for block in range(1, 60):
        engine.clock.run_until(block * BLOCK_S)
        assert test.update(engine.read()) is None
    assert test.evidence.blocks > 50


@pytest.mark.parametrize("seed", [950, 953])
def test_a_slow_engine_at_half_of_its_share_is_found(seed: int) -> None:
    """At half, because that is where the policy puts it within seconds."""
    engine, test, found = SimulatedEngine(seed, USUAL_PER_S / 2, 320), BucketE(shipped()), []
    for block in range(1, 32):
        if block == 20:
            engine.slow(Fault(FaultKind.SLOW, 120.0))
        engine.clock.run_until(block * BLOCK_S)
        if test.update(engine.read()) is not None:
            found.append(block)
    assert found
    assert min(found) > 20
