"""The one sentence per backend: what is in force beats what no gateway here could do."""

from __future__ import annotations

from dataclasses import replace

from tailkeeper_watchdog.api.why import Circumstances, why_of
from tailkeeper_watchdog.model import DRAIN, SERVE, DesiredState, Knob, Lease, Mode, Refusal, Target, Verdict

NOTE = DesiredState("memory_breaker", "a", Knob.ANNOTATION, "oom-risk=level1", "memory pressure 97%", Mode.ENFORCE)
DRAINED = Lease(1, "a", Target("edge", "a", "llm"), Knob.ADMISSION, "gpu_health_gate", SERVE, DRAIN, "hung", 0.0, 60.0)


def why(refusal: Refusal, *leases: Lease) -> str:
    return why_of(Circumstances(None, (NOTE,), (Verdict(NOTE, refusal, "no field for it"),), leases, ""))


def test_what_is_in_force_is_told_before_what_no_gateway_can_do() -> None:
    assert why(Refusal.NOT_ENFORCEABLE, DRAINED) == "drained: hung"


def test_what_no_gateway_can_do_is_told_where_nothing_is_in_force() -> None:
    assert why(Refusal.NOT_ENFORCEABLE).startswith("not enforceable")


def test_what_a_guard_forbids_is_told_first() -> None:
    assert why(Refusal.CAP, DRAINED).startswith("cap")


def test_a_weight_in_force_is_told_as_a_share_of_what_was_there_before() -> None:
    halved = replace(DRAINED, knob=Knob.WEIGHT, prior=0.5, written=0.25)
    assert why(Refusal.NOT_ENFORCEABLE, halved) == "weight 50%: hung"


def test_a_limit_is_told_as_the_whole_number_that_it_is() -> None:
    limited = replace(DRAINED, knob=Knob.CONCURRENCY_LIMIT, written=16.0, reason="P99 over target")
    assert why(Refusal.NOT_ENFORCEABLE, limited) == "concurrency_limit 16: P99 over target"
