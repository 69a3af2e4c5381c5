"""An engine that was started anew begins a new baseline: what its ring holds is of another life, and is forgotten."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.core import Memory, PolicySetting, Rules, score_fleet
from tailkeeper_watchdog.model import Backend, BackendObservation, FleetSnapshot, Mode, RequestRecord, Situation, Slo
from tailkeeper_watchdog.policy_params import GpuHealthGateParams
from tailkeeper_watchdog.samples import OUTCOME_SLOT

WEIGHTS = {"latency": 0.35, "error_rate": 0.40, "cpu_usage": 0.15, "uptime": 0.10}
RULES = Rules(Slo(), WEIGHTS, {"gpu_health_gate": PolicySetting(Mode.OBSERVE, GpuHealthGateParams())}, 3.0)
OK, TOKENS = OUTCOME_SLOT["ok"], catalog.GENERATED_TOKENS.name
SLOW, FAST = 2.0, 0.1


def saw(counters: Mapping[str, float], state: State = State.SERVING, age_s: float = 0.0, name: str = "a") -> BackendObservation:
    return BackendObservation(name, state, age_s, None, {key: present(value, 0.0) for key, value in counters.items()})


def step(memory: Memory, now: float, seen: BackendObservation, ttft_s: tuple[float, ...] = ()) -> tuple[Memory, Situation]:
    records = tuple(RequestRecord("a", "ok", value, None, None) for value in ttft_s)
    return score_fleet(FleetSnapshot(1, now, now, (Backend("a"),), {"a": seen}), records, memory, RULES)


def lived() -> Memory:
    """A backend with a ring of slow requests, at 1,000 of them and 50,000 tokens."""
    memory, _ = step(Memory(), 0.0, saw({OK: 900.0, TOKENS: 40_000.0}))
    return step(memory, 5.0, saw({OK: 1_000.0, TOKENS: 50_000.0}), (SLOW,) * 100)[0]


def test_a_ring_outlives_ticks_without_a_restart() -> None:
    _, situation = step(lived(), 10.0, saw({OK: 1_000.0, TOKENS: 50_000.0}))
    assert situation.exact["a", "ttft"].samples == 100


@pytest.mark.parametrize(
    "after",
    [
        saw({OK: 3.0, TOKENS: 200.0}),
        saw({OK: 1_000.0, TOKENS: 200.0}),
        saw({}, State.STARTING),
        saw({OK: 1_000.0, TOKENS: 50_000.0}, State.STARTING),
    ],
    ids=["all counters fell", "one counter fell", "starting, no page", "starting, the old page"],
)
def test_a_restart_empties_the_ring(after: BackendObservation) -> None:
    memory, situation = step(lived(), 10.0, after)
    assert memory.rings == {}
    assert situation.p99("a", "ttft") is None


def test_requests_that_come_with_the_fallen_counters_are_the_first_of_the_new_baseline() -> None:
    _, situation = step(lived(), 10.0, saw({OK: 30.0, TOKENS: 900.0}), (FAST,) * 30)
    quantile = situation.exact["a", "ttft"]
    assert (quantile.value, quantile.samples) == (FAST, 30)


@pytest.mark.parametrize(
    "after",
    [saw({}, State.UNKNOWN), saw({OK: 1.0}, age_s=100.0), saw({}, State.DOWN), saw({TOKENS: 50_000.0})],
    ids=["blind", "stale", "down", "a counter is missing"],
)
def test_what_is_not_known_is_no_restart(after: BackendObservation) -> None:
    memory, _ = step(lived(), 10.0, after)
    assert len(memory.rings["a", "ttft"][0]) == 100


def test_late_evidence_is_no_restart() -> None:
    """An answer that is older than what is known may well have smaller counters."""
    memory, _ = step(lived(), 6.0, saw({OK: 990.0, TOKENS: 49_000.0}, age_s=2.0))
    assert len(memory.rings["a", "ttft"][0]) == 100


def test_a_restart_leaves_the_rings_of_others_alone() -> None:
    backends = (Backend("a"), Backend("b"))
    records = tuple(RequestRecord(name, "ok", SLOW, None, None) for name in "ab" for _ in range(30))
    seen = {name: saw({OK: 1_000.0}, name=name) for name in "ab"}
    memory, _ = score_fleet(FleetSnapshot(1, 0.0, 0.0, backends, seen), records, Memory(), RULES)
    seen["a"] = saw({OK: 1.0})
    memory, _ = score_fleet(FleetSnapshot(2, 5.0, 5.0, backends, seen), (), memory, RULES)
    assert set(memory.rings) == {("b", "ttft")}
