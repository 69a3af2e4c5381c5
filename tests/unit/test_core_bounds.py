"""What the core remembers is bounded by the configuration, and what is unknown moves nothing."""

from __future__ import annotations

from tailkeeper_exporter.readings import Reading, absent, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.core import Memory, PolicySetting, Rules, score_fleet
from tailkeeper_watchdog.model import Backend, BackendObservation, FleetSnapshot, GpuObservation, Mode, RequestRecord, Slo
from tailkeeper_watchdog.policies.gpu_health_gate import POLICY, Breaker, BreakerState, step_breaker
from tailkeeper_watchdog.policy_params import GpuHealthGateParams
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tests.unit.situations import Run, situation, window

RULES = Rules(Slo(), {"latency": 1.0}, {"gpu_health_gate": PolicySetting(Mode.OBSERVE, GpuHealthGateParams())}, 3.0)


def test_records_of_backends_that_are_not_configured_are_not_remembered() -> None:
    snapshot = FleetSnapshot(1, 10.0, 1_000.0, (Backend("a"),), {})
    records = tuple(RequestRecord(f"pod-{n}", "ok", 0.1, 0.01, 1.0) for n in range(1_000))
    memory, _ = score_fleet(snapshot, (*records, RequestRecord("a", "ok", 0.1, 0.01, 1.0)), Memory(), RULES)
    assert {backend for backend, _ in memory.rings} == {"a"}


def test_a_latency_of_thirty_years_is_a_broken_clock_and_no_p99() -> None:
    snapshot = FleetSnapshot(1, 10.0, 1_000.0, (Backend("a"),), {})
    records = tuple(RequestRecord("a", "ok", ttft_s, 0.01, 1.0) for ttft_s in (0.1, 1e9))
    memory, _ = score_fleet(snapshot, records, Memory(), RULES)
    assert len(memory.rings["a", "ttft"][0]) == 1


def test_failures_are_in_a_row_only_where_successes_would_be_seen() -> None:
    breaker = Breaker()
    for errors in range(20):
        seen = BackendObservation("a", State.SERVING, 0.0, None, {OUTCOME_SLOT["error"]: present(float(errors), 0.0)})
        breaker = step_breaker(breaker, seen, None, 0.0, GpuHealthGateParams(), 100.0 + errors)
    assert breaker.state is BreakerState.CLOSED


def test_who_refuses_most_requests_is_not_judged_by_the_few_that_it_took() -> None:
    breaker = Breaker(ok_seen=0.0, errors_seen=0.0)
    few, enough = window(10.0, ok=2, errors=1, rejected=50), window(10.0, ok=7, errors=3, rejected=50)
    seen = BackendObservation("a", State.SERVING, 0.0, readings={})

    assert step_breaker(breaker, seen, few, 0.0, GpuHealthGateParams(), 100.0).state is BreakerState.CLOSED
    assert step_breaker(breaker, seen, enough, 0.0, GpuHealthGateParams(), 100.0).state is BreakerState.OPEN


def test_who_refuses_requests_while_its_gpu_is_not_sampled_shows_no_second_sign_of_illness() -> None:
    no: Reading[float] = absent()
    gpu = GpuObservation("GPU-0", present(9.0, 0.0), no, no, no, no, no, no, no)
    run = Run(POLICY, GpuHealthGateParams())
    for recent, signals in ((window(10.0, ok=50, rejected=50), 1), (window(10.0, ok=50, errors=50), 2)):
        seen = BackendObservation("a", State.SERVING, 0.0, gpus=(gpu,))
        run.tick(situation(seen, recent={"a": recent}))
        (wish,) = run.desired
        assert len(wish.signals) == signals
