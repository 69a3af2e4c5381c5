"""Whatever is observed and whatever was learned: forecasts are finite, bounds were really made, memory is bounded."""

from __future__ import annotations

from math import inf, isfinite

from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter.readings import Histogram, bucket_quantile
from tailkeeper_watchdog.forecast.book import ForecastBook, foreseen
from tailkeeper_watchdog.forecast.features import bucket_p99_s
from tailkeeper_watchdog.forecast.linear import HIGHEST_S, LOWEST_S, Linear
from tailkeeper_watchdog.forecast.memory import HORIZON_S, Point, exhaustion
from tailkeeper_watchdog.forecast.trust import Errors, Trust
from tests.unit.test_forecast import BACKENDS, situation

NUMBER = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8), NUMBER, st.floats(-5, 0), st.floats(0, 5))
def test_no_coefficients_lead_to_an_impossible_latency(
    pairs: list[tuple[float, float]], intercept: float, least: float, most: float
) -> None:
    model = Linear(intercept, tuple(c for c, _ in pairs), least, most, 1)
    assert LOWEST_S * 0.999 <= model.predict_s([f for _, f in pairs]) <= HIGHEST_S * 1.001


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=400))
def test_a_bound_is_an_error_that_was_made(errors: list[float]) -> None:
    held = Errors()
    for error in errors:
        held.add(error)
    newest = errors[-240:]
    assert held.bound in newest
    assert sum(e <= held.bound for e in newest) >= 0.99 * len(newest)


@given(st.lists(st.tuples(*[st.floats(0, 100)] * 3), max_size=120))
def test_a_forecast_that_never_beat_the_last_value_is_never_trusted(rows: list[tuple[float, float, float]]) -> None:
    trust = Trust()
    for actual, one, other in rows:
        worse, better = sorted((one, other), key=lambda v: -abs(v - actual))
        trust.learn(actual, worse, better)
        assert trust.state.value != "on"


@given(st.lists(st.integers(0, 40), min_size=5, max_size=5), st.lists(st.integers(0, 40), min_size=5, max_size=5))
def test_the_quick_quantile_agrees_with_the_plain_one(before: list[int], more: list[int]) -> None:
    def histogram(counts: list[int]) -> Histogram:
        return Histogram((0.1, 0.2, 0.4, 0.8, inf), tuple(float(sum(counts[: i + 1])) for i in range(5)), 0.0)

    early, late = histogram(before), histogram([a + b for a, b in zip(before, more, strict=True)])
    difference = late.minus(early)
    assert difference is not None
    plain = bucket_quantile(difference, 0.99)
    quick = bucket_p99_s(early, late)
    if plain is None or plain.saturated or plain.samples < 20:
        assert quick is None
    else:
        assert quick is not None
        assert abs(quick - plain.value) < 1e-9


@given(st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(0, 1e12), st.none() | st.floats(0, 1e12)), max_size=21))
def test_what_is_foreseen_lies_ahead_and_not_too_far(rows: list[tuple[float, float | None, float | None]]) -> None:
    found = exhaustion([Point(15.0 * n, *row) for n, row in enumerate(rows)])
    assert found is None or (isfinite(found.seconds) and 0 <= found.seconds <= HORIZON_S)


@given(st.lists(st.none() | st.floats(1e-3, 100), min_size=1, max_size=60))
@settings(max_examples=40)
def test_a_book_takes_whatever_comes(latencies: list[float | None]) -> None:
    book = ForecastBook()
    for step, ttft_s in enumerate(latencies, 1):
        book.note(situation(step, ttft_s))
    (page,) = book.view(BACKENDS)
    assert page.forecast.p99_s is None
    assert foreseen(page) is None
    assert page.forecast.last_value_s is None or page.forecast.last_value_s in latencies
