"""A weight that the pool cannot spare is had in part; a drain is had whole or not at all. The cooldown is each knob's own."""

from __future__ import annotations

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.guards import ACTED_ON_SHARE, CUT_BACK_WEIGHT, GuardContext, judge
from tailkeeper_watchdog.model import (
    DRAIN,
    SERVE,
    Backend,
    BackendObservation,
    DesiredState,
    FleetSnapshot,
    Knob,
    KnobValue,
    Mode,
    Refusal,
    Target,
    Verdict,
)
from tailkeeper_watchdog.settings import GuardsSettings

NOW = 100.0


def judged(wishes: dict[str, tuple[Knob, KnobValue]], size: int = 4, *, dead: int = 0, **more: object) -> dict[str, Verdict]:
    names = "abcdefghij"[:size]
    backends = tuple(Backend(n, "m", (Target("edge", n, "llm"),)) for n in names)
    states = [State.HUNG] * dead + [State.SERVING] * (size - dead)
    seen = {n: BackendObservation(n, state, 0.0) for n, state in zip(reversed(names), states, strict=True)}
    context = GuardContext(
        FleetSnapshot(1, NOW, 1_000.0, backends, seen),
        GuardsSettings(),
        3.0,
        servers={b.targets[0]: ServerState({Knob.ADMISSION: SERVE, Knob.WEIGHT: 1.0}, normal_weight=1.0) for b in backends},
        support={(n, knob): Support(True) for n in names for knob in Knob},
        **more,  # type: ignore[arg-type]
    )
    desired = tuple(
        DesiredState("p", n, knob, value, "why", Mode.ENFORCE, ("x", "y"), 0.0) for n, (knob, value) in wishes.items()
    )
    return {verdict.desired.backend: verdict for verdict in judge(desired, context)}


def test_of_four_low_weights_one_is_had_and_the_others_are_cut_back_to_where_nobody_is_out() -> None:
    verdicts = judged(dict.fromkeys("abcd", (Knob.WEIGHT, 0.18)))

    assert [v.desired.value for v in verdicts.values()] == [0.18, CUT_BACK_WEIGHT, CUT_BACK_WEIGHT, CUT_BACK_WEIGHT]
    assert all(v.allowed for v in verdicts.values())
    assert "cut back from 18% to 60%: cap" in verdicts["b"].desired.reason


@pytest.mark.parametrize("configured", range(1, 257))
def test_what_is_cut_back_is_not_acted_on_in_the_whole_numbers_of_a_gateway(configured: int) -> None:
    assert round(configured * CUT_BACK_WEIGHT) >= ACTED_ON_SHARE * configured


def test_a_drain_beyond_the_cap_is_refused() -> None:
    verdicts = judged(dict.fromkeys("ab", (Knob.ADMISSION, DRAIN)))

    assert [v.refusal for v in verdicts.values()] == [None, Refusal.CAP]


def test_where_the_cause_is_common_no_weight_goes_down_at_all() -> None:
    assert judged({"a": (Knob.WEIGHT, 0.18)}, dead=3)["a"].refusal is Refusal.PANIC


def test_a_pool_of_one_keeps_its_weight() -> None:
    assert judged({"a": (Knob.WEIGHT, 0.18)}, size=1)["a"].refusal is Refusal.POOL_OF_ONE


@pytest.mark.parametrize(
    ("knob", "value", "refusal"),
    [
        (Knob.WEIGHT, 0.7, Refusal.COOLDOWN),
        (Knob.ADMISSION, DRAIN, None),
        (Knob.CONCURRENCY_LIMIT, 8.0, None),
        (Knob.BATCH_WINDOW_S, 0.05, None),
        (Knob.DEGRADE_LEVEL, 1.0, None),
        (Knob.REPLICAS, 5.0, Refusal.COOLDOWN),
    ],
)
def test_a_cooldown_is_for_knobs_that_take_whole_steps(knob: Knob, value: KnobValue, refusal: Refusal | None) -> None:
    assert judged({"a": (knob, value)}, changed_at={("a", knob): NOW - 1.0})["a"].refusal is refusal


def test_a_change_of_one_knob_does_not_hold_up_another() -> None:
    assert judged({"a": (Knob.WEIGHT, 0.7)}, changed_at={("a", Knob.CONCURRENCY_LIMIT): NOW - 1.0})["a"].allowed
