"""What an advising policy would do becomes a finding; what would be a flood does not."""

from __future__ import annotations

from tailkeeper_watchdog.advice import MAX_ADVICE, advised
from tailkeeper_watchdog.model import DRAIN, SERVE, DesiredState, FindingKind, Knob, KnobValue, Mode, Severity
from tailkeeper_watchdog.policies import context_length_routing
from tailkeeper_watchdog.policy_params import ContextLengthRoutingParams
from tests.unit.situations import seen, situation

NOWHERE = situation()


def wish(backend: str, knob: Knob, value: KnobValue, mode: Mode = Mode.ADVISE) -> DesiredState:
    return DesiredState("memory_breaker", backend, knob, value, "pressure 93 %", mode)


def test_advice_is_a_ticket_that_says_what_and_why() -> None:
    (symptom,) = advised((wish("a", Knob.ADMISSION, DRAIN),), NOWHERE)

    assert (symptom.kind, symptom.severity) == (FindingKind.ADVICE, Severity.TICKET)
    assert symptom.summary == "a: memory_breaker advises admission drain: pressure 93 %"
    assert symptom.evidence["knob"] == "admission"


def test_only_advising_policies_advise() -> None:
    for mode in (Mode.OBSERVE, Mode.ENFORCE):
        assert advised((wish("a", Knob.ADMISSION, DRAIN, mode),), NOWHERE) == ()


def test_a_weight_is_told_only_where_most_of_the_traffic_would_go() -> None:
    found = advised((wish("a", Knob.WEIGHT, 0.88), wish("b", Knob.WEIGHT, 0.5), wish("c", Knob.WEIGHT, 0.18)), NOWHERE)

    assert [symptom.summary for symptom in found] == ["c: memory_breaker advises weight 18%: pressure 93 %"]


def test_a_bad_hour_of_a_large_fleet_is_no_flood_and_drains_come_first() -> None:
    many = tuple(wish(f"b{n}", Knob.CONCURRENCY_LIMIT, 8.0) for n in range(500))

    found = advised((*many, wish("last", Knob.ADMISSION, DRAIN)), NOWHERE)

    assert len(found) == MAX_ADVICE
    assert found[0].backend == "last"


def test_what_is_in_force_already_is_no_advice() -> None:
    wishes = (wish("a", Knob.ADMISSION, DRAIN), wish("a", Knob.BATCH_WINDOW_S, 0.1))
    knobs: dict[tuple[str, Knob], KnobValue] = {("a", Knob.ADMISSION): SERVE, ("a", Knob.BATCH_WINDOW_S): 0.1}

    assert [s.evidence["knob"] for s in advised(wishes, situation(seen("a"), knobs=knobs))] == ["admission"]


def test_figures_that_are_published_for_routers_are_no_advice() -> None:
    policy = context_length_routing.POLICY
    given = situation(seen("a", kv_usage=0.3), knobs={("a", Knob.ANNOTATION): ""})
    _, wishes = policy.decide(given, ContextLengthRoutingParams(), Mode.ADVISE, policy.new_memory())

    assert {wish.knob for wish in wishes} == {Knob.WEIGHT, Knob.ANNOTATION}
    assert advised(wishes, given) == ()
