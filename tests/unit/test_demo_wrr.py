"""Smooth weighted round robin: exact shares, evenly spread."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_demo.wrr import WeightedRoundRobin


def turns(weights: dict[str, float]) -> WeightedRoundRobin:
    robin = WeightedRoundRobin()
    for name, weight in weights.items():
        robin.set(name, weight)
    return robin


@given(st.lists(st.integers(0, 100), min_size=1, max_size=6).filter(any))
def test_over_a_whole_period_every_server_gets_exactly_its_share(percents: list[int]) -> None:
    weights = {str(index): percent / 100 for index, percent in enumerate(percents)}
    robin = turns(weights)
    picked = Counter(robin.pick() for _ in range(sum(percents)))
    assert picked == Counter({str(index): percent for index, percent in enumerate(percents) if percent})


def test_a_light_server_is_spread_out_and_not_served_in_a_row() -> None:
    robin = turns({"a": 0.5, "b": 0.1, "c": 0.1})
    assert "".join(str(robin.pick()) for _ in range(7)) == "aabacaa"


def test_without_any_weight_nobody_is_picked() -> None:
    assert turns({"a": 0.0, "b": 0.0}).pick() is None
    assert turns({"a": 1.0}).pick(frozenset({"a"})) is None


@pytest.mark.parametrize("change_every", [1, 3, 5])
def test_frequent_weight_changes_do_not_favour_the_first_name(change_every: int) -> None:
    robin = turns(dict.fromkeys("abcd", 1.0))
    picked: Counter[str | None] = Counter()
    for number in range(800):
        if number % change_every == 0:
            robin.set("d", 0.5 if number % 2 else 0.4)
        picked[robin.pick()] += 1
    assert max(picked[name] for name in "abc") - min(picked[name] for name in "abc") <= 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), max_size=20))
def test_only_servers_with_weight_are_ever_picked(changes: list[tuple[str, float]]) -> None:
    robin = turns(dict.fromkeys("abc", 1.0))
    current: dict[str, float] = dict.fromkeys("abc", 1.0)
    for name, weight in changes:
        robin.set(name, weight)
        current[name] = weight
        choice = robin.pick()
        assert (choice is None) == (not any(current.values()))
        assert choice is None or current[choice] > 0


def test_a_tiny_weight_is_small_and_not_zero() -> None:
    robin = turns({"a": 1.0, "b": 1e-9})
    picked = Counter(robin.pick() for _ in range(10_001))
    assert Fraction(picked["b"], 10_001) == Fraction(1, 10_001)
