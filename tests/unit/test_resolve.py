"""Of what several policies want, the most restrictive is done."""

from __future__ import annotations

import itertools

import pytest

from tailkeeper_watchdog.model import DRAIN, SERVE, DesiredState, Knob, KnobValue, Mode
from tailkeeper_watchdog.resolve import resolve, strictest


@pytest.mark.parametrize(
    ("knob", "values", "wins"),
    [
        (Knob.WEIGHT, (1.0, 0.18, 0.5), 0.18),
        (Knob.ADMISSION, (SERVE, DRAIN), DRAIN),
        (Knob.CONCURRENCY_LIMIT, (32.0, 8.0), 8.0),
        (Knob.CONCURRENCY_LIMIT, (0.0, 8.0), 8.0),  # 0 is no limit
        (Knob.CONCURRENCY_LIMIT, (0.0, 0), 0.0),
        (Knob.DEGRADE_LEVEL, (0.0, 2.0, 1.0), 2.0),
    ],
)
def test_the_most_restrictive_wish_wins_in_whatever_order(knob: Knob, values: tuple[KnobValue, ...], wins: KnobValue) -> None:
    wishes = [DesiredState(f"p{n}", "a", knob, value, "why", Mode.ENFORCE) for n, value in enumerate(values)]

    for order in itertools.permutations(wishes):
        assert [wish.value for wish in resolve(tuple(order))] == [wins]


def test_two_notes_on_one_backend_are_both_made() -> None:
    wishes = (
        DesiredState("context_length_routing", "a", Knob.ANNOTATION, "kv_usage_ratio=0.82", "kv", Mode.ENFORCE),
        DesiredState("memory_breaker", "a", Knob.ANNOTATION, "oom-risk=level1", "pressure", Mode.ENFORCE),
    )

    for order in itertools.permutations(wishes):
        (wish,) = resolve(tuple(order))
        assert wish.value == "kv_usage_ratio=0.82,oom-risk=level1"
        assert "kv" in wish.reason
        assert "pressure" in wish.reason


def test_what_one_policy_wants_twice_of_a_knob_counts_once_and_as_the_strictest() -> None:
    twice = [DesiredState("p", "a", Knob.WEIGHT, value, "why", Mode.OBSERVE) for value in (0.5, 0.1)]
    other = DesiredState("q", "a", Knob.WEIGHT, 0.3, "why", Mode.OBSERVE)

    for order in itertools.permutations((*twice, other)):
        assert {wish.value for wish in strictest(order)} == {0.1, 0.3}
