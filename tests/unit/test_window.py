"""Windows: differences over time, never over a gap, and bounded whatever the tick."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import BackendObservation, Slo
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.scoring.history import SPACING_S, WINDOW_S, History, add, over, take_sample
from tailkeeper_watchdog.scoring.hscore import score
from tailkeeper_watchdog.scoring.uptime import Uptime, observe


def seen(ok: float, errors: float = 0.0, ttft: tuple[float, float, float] | None = None) -> BackendObservation:
    name = catalog.REQUESTS.name
    readings = {f"{name}{{ok}}": present(ok, 0.0), f"{name}{{error}}": present(errors, 0.0)}
    histograms = {} if ttft is None else {catalog.TTFT.name: Histogram((0.1, 1.0, inf), ttft, 0.0)}
    return BackendObservation("a", State.SERVING, 0.0, None, readings, histograms)


def history(*rows: tuple[float, BackendObservation]) -> History:
    result = History()
    for at, observation in rows:
        result = add(result, take_sample(observation, at))
    return result


def test_errors_are_counted_against_finished_requests_of_the_window() -> None:
    window = over(history((0, seen(100, 50)), (60, seen(190, 60))), WINDOW_S)
    assert window.error_ratio == pytest.approx(0.1)
    assert window.requests == 100


def test_without_a_finished_request_the_error_ratio_is_unknown() -> None:
    assert over(history((0, seen(100)), (60, seen(100))), WINDOW_S).error_ratio is None


def test_an_engine_that_does_not_tell_its_failures_has_an_unknown_error_ratio_and_not_0() -> None:
    def untold(ok: float) -> BackendObservation:
        known = seen(ok)
        return replace(known, readings={name: r for name, r in known.readings.items() if "{ok}" in name})

    window = over(history((0, untold(100)), (60, untold(190))), WINDOW_S)
    assert (window.error_ratio, window.finished, window.requests) == (None, None, 90)
    weights = {"latency": 0.35, "error_rate": 0.4, "cpu_usage": 0.15, "uptime": 0.1}
    assert "error_rate" in score(untold(190), window, weights, Slo(), "a").unknown_factors


def test_failures_told_from_now_on_did_not_all_happen_now() -> None:
    first = replace(seen(100), readings={OUTCOME_SLOT["ok"]: present(100.0, 0.0)})
    window = over(history((0, first), (60, seen(190, 5_000))), WINDOW_S)
    assert window.error_ratio is None


def test_one_sample_says_nothing() -> None:
    window = over(history((0, seen(100))), WINDOW_S)
    assert (window.error_ratio, window.requests, window.quantile("ttft", 0.5)) == (None, None, None)


def test_a_counter_that_fell_starts_anew() -> None:
    window = over(history((0, seen(1_000)), (30, seen(5)), (60, seen(15))), WINDOW_S)
    assert window.requests == 10


def test_quantiles_come_from_what_was_added_and_carry_their_count() -> None:
    window = over(history((0, seen(0, 0, (1000, 1000, 1000))), (60, seen(0, 0, (1000, 1100, 1100)))), WINDOW_S)
    quantile = window.quantile("ttft", 0.5)
    assert quantile is not None
    assert quantile.samples == 100
    assert 0.1 < quantile.value <= 1.0


def test_a_quantile_above_the_last_bound_is_marked_as_at_least() -> None:
    window = over(history((0, seen(0, 0, (0, 0, 0))), (60, seen(0, 0, (0, 1, 100)))), WINDOW_S)
    quantile = window.quantile("ttft", 0.99)
    assert quantile is not None
    assert (quantile.value, quantile.saturated) == (1.0, True)


@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=400))
def test_a_history_is_bounded_and_in_order(steps: list[float]) -> None:
    now, result = 0.0, History()
    for step in steps:
        now += step
        result = add(result, take_sample(seen(now), now))
    times = [s.at for s in result.samples]
    assert times == sorted(set(times))
    assert times[-1] == now
    assert len(times) <= WINDOW_S / SPACING_S + 3


def test_unobserved_time_is_not_downtime() -> None:
    uptime = Uptime()
    for now, state in [(0.0, State.SERVING), (10.0, State.SERVING), (20.0, State.UNKNOWN), (500.0, State.SERVING)]:
        uptime = observe(uptime, state, now)
    assert uptime.ratio() == 1.0


def test_time_spent_dead_is_downtime() -> None:
    uptime = Uptime()
    for now, state in [(0.0, State.SERVING), (10.0, State.SERVING), (20.0, State.HUNG)]:
        uptime = observe(uptime, state, now)
    assert uptime.ratio() == 0.5


@given(
    gaps=st.lists(st.floats(0.1, 40.0), min_size=1, max_size=30),
    seconds=st.sampled_from([0.0, 5.0, 10.0, 60.0, 1_000.0]),
)
def test_a_window_begins_at_the_latest_sample_that_is_old_enough_and_else_at_the_oldest(
    gaps: list[float], seconds: float
) -> None:
    at, result = 0.0, History()
    for number, gap in enumerate(gaps):
        at += gap
        result = add(result, take_sample(seen(number), at))
    window, earlier = over(result, seconds), result.samples[:-1]
    old_enough = [s for s in earlier if at - s.at >= seconds]
    assert window.start is (old_enough[-1] if old_enough else next(iter(earlier), None))


@given(st.lists(st.tuples(st.floats(0.1, 40.0), st.sampled_from(list(State))), max_size=60), st.floats(0.0, 1e6))
def test_the_uptime_is_that_of_the_last_hour_counted_minute_by_minute(steps: list[tuple[float, State]], start: float) -> None:
    bins: dict[float, list[float]] = {}
    now, last_at, uptime = start, None, Uptime()
    for gap, state in steps * 4:
        now += gap
        uptime = observe(uptime, state, now)
        if state in (State.UNKNOWN, State.STARTING, State.MISCONFIGURED):
            last_at = None
            continue
        if last_at is not None and now - last_at <= 30.0:
            of_minute = bins.setdefault(now - now % 60.0, [0.0, 0.0])
            of_minute[0] += now - last_at
            of_minute[1] += now - last_at if state.takes_work else 0.0
            bins = {begun: of_one for begun, of_one in bins.items() if begun > now - 3_660.0}
        last_at = now
    observed = sum(of_one[0] for of_one in bins.values())
    expected = sum(of_one[1] for of_one in bins.values()) / observed if observed > 0 else None
    assert uptime.ratio() == (expected if expected is None else pytest.approx(expected))
    assert len(uptime.minutes) <= 61
