"""Of what several policies want, the most restrictive is done."""

from __future__ import annotations

import itertools
from dataclasses import replace

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
        (Knob.BATCH_WINDOW_S, (0.2, 0.01, 0.05), 0.01),
        (Knob.REPLICAS, (2.0, 4.0, 3.0), 4.0),
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


def wish(
    policy: str, knob: Knob, value: KnobValue, *signals: str, mode: Mode = Mode.ENFORCE, reason: str = "why"
) -> DesiredState:
    return DesiredState(policy, "a", knob, value, reason, mode, signals)


@pytest.mark.parametrize("knob", [Knob.CACHE_MODE, Knob.TAINT])
def test_where_no_value_is_stricter_the_first_wish_stays(knob: Knob) -> None:
    first, second = wish("p", knob, "one", "x"), wish("q", knob, "two", "y")
    assert resolve((first, second)) == (first,)
    assert list(strictest((first, replace(second, policy="p")))) == [first]


def test_between_equal_wishes_the_one_with_more_signals_stays_and_between_equal_ones_the_first() -> None:
    one, two, other = (
        wish("p", Knob.WEIGHT, 0.5, "x"),
        wish("q", Knob.WEIGHT, 0.5, "x", "y"),
        wish("r", Knob.WEIGHT, 0.5, "z", "y"),
    )
    assert resolve((one, two, other)) == resolve((two, other, one)) == (two,)
    assert resolve((other, one, two)) == (other,)
    assert list(strictest((one, replace(two, policy="p"), replace(other, policy="p")))) == [replace(two, policy="p")]


def test_knobs_and_backends_do_not_compete_with_each_other() -> None:
    wishes = (wish("p", Knob.WEIGHT, 0.5), wish("p", Knob.ADMISSION, DRAIN), replace(wish("q", Knob.WEIGHT, 0.2), backend="b"))
    assert resolve(wishes) == wishes
    assert tuple(strictest(wishes)) == wishes


def test_of_two_notes_with_one_key_the_first_has_the_word_and_odd_ones_are_left_out() -> None:
    first, second = wish("p", Knob.ANNOTATION, "b=1,a=x=y,"), wish("q", Knob.ANNOTATION, "b=2,c", reason="because")
    (both,) = resolve((first, second))
    assert both == replace(first, value="a=x=y,b=1,c=", reason="why; because")
