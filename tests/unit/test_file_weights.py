"""Whole-number weights in a file: what changes at the pool when one server's share does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.file_weights import MAX_UNITS, Entry, changed, place, scale_of, share_of
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob

BOTH = frozenset({"a", "b"})


@pytest.mark.parametrize(
    ("configured", "share", "scale", "units"),
    [
        (1, 0.18, 100, 18),
        (1, 0.001, 100, 1),
        (50, 0.18, 100, 900),
        (100, 0.18, 1, 18),
        (100, 0.001, 1, 1),
        (1, 1.0, 1, 1),
        (1, 0.0, 1, 0),
        (MAX_UNITS, 0.5, 1, MAX_UNITS // 2),
    ],
)
def test_a_share_becomes_whole_units_and_never_rounds_to_nothing(configured: int, share: float, scale: int, units: int) -> None:
    entry = Entry(configured, share)
    assert scale_of({"a": entry, "b": Entry(configured)}) == scale
    assert entry.units(scale) == units


def test_one_weight_too_large_to_be_multiplied_keeps_the_whole_pool_as_it_is() -> None:
    assert scale_of({"a": Entry(1, 0.5), "b": Entry(MAX_UNITS)}) == 1


@given(st.integers(1, 200), st.integers(1, 100))
def test_a_share_of_whole_percents_is_read_back_exactly(configured: int, percent: int) -> None:
    pool, refusal = changed({"a": Entry(configured), "b": Entry(configured)}, "a", {Knob.WEIGHT: percent / 100}, BOTH)
    scale = scale_of(pool)
    assert refusal is None
    if configured * scale % 100 == 0:
        assert share_of(pool["a"].units(scale), configured, scale) == percent / 100
    assert abs(share_of(pool["a"].units(scale), configured, scale) - percent / 100) <= 0.005
    assert share_of(pool["b"].units(scale), configured, scale) == 1.0


def test_a_drain_happens_even_where_the_weight_beside_it_must_be_refused() -> None:
    pool, refusal = changed({"a": Entry(1), "b": Entry(1)}, "a", {Knob.WEIGHT: -1.0, Knob.ADMISSION: DRAIN}, BOTH)
    assert pool["a"] == Entry(1, 1.0, drained=True)
    assert refusal is not None
    assert refusal.kind is ErrorKind.REFUSED


def test_a_weight_that_must_be_refused_keeps_traffic_out() -> None:
    before = {"a": Entry(1, 1.0, drained=True), "b": Entry(1)}
    pool, refusal = changed(before, "a", {Knob.WEIGHT: float("nan"), Knob.ADMISSION: SERVE}, BOTH)
    assert pool == before
    assert isinstance(refusal, CallError)


@pytest.mark.parametrize(
    ("other", "serving"),
    [
        (Entry(1, 1.0, drained=True), frozenset({"a"})),
        (Entry(1, 0.0), frozenset({"a"})),
        (Entry(0, 0.0), frozenset({"a"})),
        (Entry(1), frozenset({"a"})),
    ],
    ids=["drained", "weight zero", "configured zero", "kept away by the gateway's own checks"],
)
@pytest.mark.parametrize("values", [{Knob.ADMISSION: DRAIN}, {Knob.WEIGHT: 0.0}])
def test_the_last_one_that_takes_traffic_stays(other: Entry, serving: frozenset[str], values: dict[Knob, float | str]) -> None:
    pool, refusal = changed({"a": Entry(1), "b": other}, "a", values, serving)
    assert pool["a"] == Entry(1)
    assert refusal is not None
    assert "last one" in refusal.message


def test_one_that_is_out_already_is_touched_whoever_is_left() -> None:
    pool, refusal = changed({"a": Entry(1, 0.0), "b": Entry(1)}, "a", {Knob.ADMISSION: DRAIN}, frozenset())
    assert (pool["a"], refusal) == (Entry(1, 0.0, drained=True), None)


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000/v1", "10.0.0.1:8000"),
        ("https://llm.example", "llm.example:443"),
        ("http://llm.example", "llm.example:80"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://a:b:c", "http://a:b:c"),
        ("", ""),
    ],
)
def test_a_server_is_named_by_its_address_or_its_url(name: str, server: str) -> None:
    assert place(name) == server
