"""What a number knows about itself, and what a histogram says of a quantile."""

from __future__ import annotations

from array import array
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.readings import (
    Histogram,
    Quantile,
    Reading,
    Status,
    absent,
    bucket_quantile,
    invalid,
    present,
)
from tailkeeper_exporter.state import State

BOUNDS = (1.0, 2.0, 4.0, inf)


def test_only_a_present_reading_has_a_value_and_zero_is_one() -> None:
    assert (present(0.0, 5.0).value, present(0.0, 5.0).is_present) == (0.0, True)
    for reading in (absent(), invalid("negative", 5.0), present(3.0, 5.0).at(100.0, 10.0)):
        assert (reading.value, reading.is_present) == (None, False)


def test_a_reading_says_when_it_was_taken_and_why_it_has_no_value() -> None:
    assert present(1.0, 5.0) == Reading(Status.PRESENT, 1.0, 5.0, None)
    assert absent() == Reading(Status.ABSENT, None, None, "not offered")
    assert absent("no such series") == Reading(Status.ABSENT, None, None, "no such series")
    assert invalid("negative", 5.0) == Reading(Status.INVALID, None, 5.0, "negative")
    assert invalid("negative").taken_s is None
    assert [status.value for status in Status] == ["present", "absent", "stale", "invalid"]


@pytest.mark.parametrize(
    ("reading", "age_s"), [(present(1.0, 5.0), 3.0), (present(1.0, 9.0), 0.0), (absent(), None), (invalid("x", 5.0), 3.0)]
)
def test_an_age_is_counted_from_when_it_was_taken_and_is_never_negative(reading: Reading[float], age_s: float | None) -> None:
    assert reading.age_s(8.0) == age_s


@pytest.mark.parametrize(("now", "status"), [(5.0, "present"), (7.0, "present"), (7.1, "stale"), (4.0, "present")])
def test_a_reading_is_stale_past_its_limit_and_says_so(now: float, status: str) -> None:
    seen = present(1.0, 5.0).at(now, 2.0)
    assert seen.status.value == status
    assert seen.reason == (None if status == "present" else "2.1 s old, limit 2 s")
    assert seen.taken_s == 5.0


@pytest.mark.parametrize("reading", [absent(), invalid("negative", 5.0), Reading(Status.PRESENT, 1.0)])
def test_what_has_no_value_or_no_time_does_not_become_stale(reading: Reading[float]) -> None:
    assert reading.at(1_000.0, 2.0) is reading


def test_a_function_is_applied_to_a_value_and_to_nothing_else() -> None:
    assert present(2.0, 5.0).map(lambda value: value * 3) == present(6.0, 5.0)
    assert invalid("negative", 5.0).map(lambda value: value * 3) == invalid("negative", 5.0)
    stale = present(2.0, 5.0).at(100.0, 1.0)
    assert stale.map(lambda value: value * 3) == Reading(Status.STALE, None, 5.0, "95.0 s old, limit 1 s")
    nothing: Reading[float] = Reading(Status.PRESENT, None, 5.0)
    assert nothing.map(lambda value: value * 3).value is None


@pytest.mark.parametrize("state", State)
def test_dead_is_who_is_hung_or_down_and_work_is_taken_by_who_serves_busy_or_not(state: State) -> None:
    assert state.is_dead == (state.value in {"hung", "down"})
    assert state.takes_work == (state.value in {"serving", "busy"})


def test_states_have_the_names_of_the_public_contract() -> None:
    assert {state.value for state in State} == {"starting", "serving", "busy", "hung", "misconfigured", "down", "unknown"}


# Histograms


def test_a_histogram_has_counted_what_its_last_bucket_has() -> None:
    assert Histogram(BOUNDS, (1.0, 2.0, 3.0, 7.0), 9.0).count == 7.0
    assert Histogram((), (), 0.0).count == 0.0


def test_what_came_since_is_the_difference_of_all_counts_and_of_the_sum() -> None:
    before, after = Histogram(BOUNDS, (1.0, 2.0, 3.0, 7.0), 9.0), Histogram(BOUNDS, (1.0, 4.0, 6.0, 12.0), 21.0)
    assert after.minus(before) == Histogram(BOUNDS, (0.0, 2.0, 3.0, 5.0), 12.0)
    assert after.minus(after) == Histogram(BOUNDS, (0.0,) * 4, 0.0)


@pytest.mark.parametrize(
    ("bounds", "counts"),
    [
        ((1.0, 2.0, 5.0, inf), (9.0,) * 4),
        (BOUNDS, (1.0, 4.0, 6.0, 6.0)),
        (BOUNDS, (0.0, 4.0, 6.0, 12.0)),
        ((1.0, inf), (9.0, 9.0)),
    ],
    ids=["other bounds", "the last fell", "the first fell", "fewer bounds"],
)
def test_histograms_that_cannot_be_compared_have_no_difference(bounds: tuple[float, ...], counts: tuple[float, ...]) -> None:
    assert Histogram(bounds, counts, 21.0).minus(Histogram(BOUNDS, (1.0, 2.0, 3.0, 7.0), 9.0)) is None


def test_equal_bounds_need_not_be_the_same_object_and_counts_may_be_an_array() -> None:
    before = Histogram((*BOUNDS[:2], *BOUNDS[2:]), array("d", (1.0, 2.0, 3.0, 7.0)), 9.0)
    after = Histogram(BOUNDS, array("d", (2.0, 3.0, 4.0, 8.0)), 10.0)
    assert after.minus(before) == Histogram(BOUNDS, (1.0, 1.0, 1.0, 1.0), 1.0)
    assert Histogram((), (), 1.0).minus(Histogram((), (), 0.0)) == Histogram((), (), 1.0)


@pytest.mark.parametrize(
    ("counts", "q", "quantile"),
    [
        ((10.0, 10.0, 10.0, 10.0), 0.5, Quantile(0.5, 10)),
        ((10.0, 20.0, 20.0, 20.0), 0.75, Quantile(1.5, 20)),
        ((0.0, 0.0, 8.0, 8.0), 0.5, Quantile(3.0, 8)),
        ((10.0, 20.0, 20.0, 20.0), 0.5, Quantile(1.0, 20)),
        ((5.0, 5.0, 10.0, 10.0), 1.0, Quantile(4.0, 10)),
        ((5.0, 5.0, 9.0, 10.0), 0.95, Quantile(4.0, 10, saturated=True)),
        ((5.0, 5.0, 9.0, 10.0), 0.9, Quantile(4.0, 10)),
        ((0.0, 0.0, 0.0, 10.0), 0.5, Quantile(4.0, 10, saturated=True)),
        ((0.0, 5.0, 5.0, 5.0), 0.0, Quantile(1.0, 5)),
        ((1.0, 1.0, 1.0, 1.0), 0.5, Quantile(0.5, 1)),
        ((0.0, 0.0, 0.0, 0.0), 0.5, None),
        ((0.0, 0.5, 0.5, 0.5), 0.5, Quantile(1.5, 0)),
        ((1.0, 2.0, 3.0, inf), 0.5, None),
    ],
)
def test_a_quantile_is_read_inside_its_bucket_as_prometheus_reads_it(
    counts: tuple[float, ...], q: float, quantile: Quantile | None
) -> None:
    assert bucket_quantile(Histogram(BOUNDS, counts, 0.0), q) == quantile


def test_one_bucket_says_no_quantile_and_two_do() -> None:
    assert bucket_quantile(Histogram((inf,), (9.0,), 1.0), 0.5) is None
    assert bucket_quantile(Histogram((), (), 1.0), 0.5) is None
    assert bucket_quantile(Histogram((2.0, inf), (4.0, 4.0), 1.0), 0.5) == Quantile(1.0, 4)
    assert bucket_quantile(Histogram((2.0, inf), (1.0, 4.0), 1.0), 0.5) == Quantile(2.0, 4, saturated=True)


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_its_rank(each: list[int], q: float) -> None:
    counts = tuple(float(sum(each[: n + 1])) for n in range(4))
    found = bucket_quantile(Histogram(BOUNDS, counts, 0.0), q)
    if not counts[-1]:
        assert found is None
        return
    assert found is not None
    rank = q * counts[-1]
    place = next(n for n, count in enumerate(counts) if count >= rank)
    assert found.samples == counts[-1]
    assert found.saturated == (place == 3)
    assert found.value == 4.0 if place == 3 else (0.0, *BOUNDS)[place] <= found.value <= BOUNDS[place]
