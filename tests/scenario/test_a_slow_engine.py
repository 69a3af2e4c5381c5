"""The demo's engines in the pure core, on a simulated clock: one becomes slow, and is found, explained, and the only one."""

from __future__ import annotations

from importlib import resources
from math import fsum
from pathlib import Path

import pytest

from tailkeeper_demo.faults import Fault, FaultKind
from tailkeeper_demo.stack import ENGINES, MODEL, REQUESTS_PER_S
from tailkeeper_exporter.state import State
from tailkeeper_watchdog import core
from tailkeeper_watchdog.baseline_store import read_file
from tailkeeper_watchdog.detectors import block_e
from tailkeeper_watchdog.model import Backend, BackendObservation, Finding, FindingKind, FleetSnapshot, Slo, Target
from tools.record_demo_baseline import SimulatedEngine

NAMES = tuple(f"sim-{letter}" for letter in "abcd"[:ENGINES])
VICTIM = NAMES[1]
WEIGHTS = {"latency": 0.35, "error_rate": 0.4, "cpu_usage": 0.15, "uptime": 0.1}
SLOW_AT_S, ACTED_ON_AT_S, END_S = 30, 37.0, 90


def _engines(seed: int) -> dict[str, SimulatedEngine]:
    """The victim loses half of its share when the policy has acted, which the others get."""
    usual = REQUESTS_PER_S / ENGINES
    return {
        name: SimulatedEngine(seed + number, usual * (1.0 if name == VICTIM else 1.15), END_S, halved_at_s=halved, backend=name)
        for number, name in enumerate(NAMES)
        for halved in [ACTED_ON_AT_S if name == VICTIM else float("inf")]
    }


def _findings(seed: int) -> tuple[Finding, ...]:
    """Those of ``block_e`` that are open a minute after the victim became slow."""
    given = read_file(Path(str(resources.files("tailkeeper_demo") / "baselines.json")))
    memory = core.Memory(detectors={"block_e": block_e.Memory(given=given)})
    rules = core.Rules(Slo(), WEIGHTS, {}, 3.0)
    engines, fleet = _engines(seed), tuple(Backend(name, MODEL, (Target("edge", name, "llm"),)) for name in NAMES)
    for second in range(1, END_S + 1):
        if second == SLOW_AT_S:
            engines[VICTIM].slow(Fault(FaultKind.SLOW, 600.0))
        records = tuple(r for engine in engines.values() for r in engine.records(float(second)))
        seen = {name: BackendObservation(name, State.SERVING, 0.0) for name in NAMES}
        snapshot = FleetSnapshot(second, float(second), float(second), fleet, seen)
        memory, situation = core.score_fleet(snapshot, records, memory, rules)
        memory, symptoms = core.detect_all(situation, memory, ())
        memory = core.attribute(core.keep_book(memory, symptoms, situation), records, (), situation)
    return tuple(f for f in memory.book.open_findings if f.kind is FindingKind.BLOCK_E)


def test_it_alone_is_found_within_a_minute_and_its_own_steps_are_named() -> None:
    (found,) = _findings(40)
    assert found.backend == VICTIM
    assert SLOW_AT_S < found.since_unix_s <= SLOW_AT_S + 60
    assert found.evidence["ratio"] > 1.2
    own = sum(s.share for s in found.shares if (s.dimension, s.value) in {("stage", "prefill"), ("stage", "decode")})
    assert own > 0.6
    assert fsum(s.share for s in found.shares) == pytest.approx(1.0, abs=1e-9)
    assert found.evidence["attribution"]["before_is"] == "its pool now"
