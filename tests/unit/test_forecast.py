"""Forecasts: what is learned from, when one may be shown, and what a training that goes wrong costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import ceil, exp, inf, log
from typing import Any

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, bucket_quantile, present
from tailkeeper_exporter.state import State as BackendState
from tailkeeper_watchdog.forecast import book as booking
from tailkeeper_watchdog.forecast.book import STEP_S, ForecastBook, foreseen
from tailkeeper_watchdog.forecast.features import MIN_SAMPLES, Mark, Rows, bucket_p99_s, exact_p99_s, vector
from tailkeeper_watchdog.forecast.linear import Linear, read
from tailkeeper_watchdog.forecast.memory import Point, exhaustion
from tailkeeper_watchdog.forecast.trust import MATURED, MIN_MATURED, Errors, State, Trust
from tailkeeper_watchdog.forecast.worker import TrainingError, train
from tailkeeper_watchdog.insights import Insights
from tailkeeper_watchdog.model import EMPTY, Backend, BackendObservation, FleetSnapshot, RequestRecord, Situation, Slo, TickRecord
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.slo.tiers import tiers_of

BACKENDS = (Backend("a", "m"),)


def situation(step: int, ttft_s: float | None, backends: tuple[Backend, ...] = BACKENDS, **values: float) -> Situation:
    """One step: 30 requests of ``ttft_s`` at each backend, or silence."""
    now = step * STEP_S
    given = {OUTCOME_SLOT["ok"]: 30.0 * step, catalog.RUNNING.name: 4.0, catalog.WAITING.name: 0.0, **values}
    readings = {name: present(value, now) for name, value in given.items()}
    seen = {b.name: BackendObservation(b.name, BackendState.SERVING, 0.0, None, readings) for b in backends}
    records = {b.name: (RequestRecord(b.name, "ok", ttft_s, None, 1.0),) * 30 for b in backends}
    snapshot = FleetSnapshot(step, now, now, backends, {} if ttft_s is None else seen)
    return Situation(snapshot, EMPTY, EMPTY, EMPTY, Slo(), 3.0, records={} if ttft_s is None else records)


def latency(step: int) -> float:
    """Two in a hundred more at each step: the last value is always wrong, and always by the same factor."""
    return 0.1 * 1.02**step


def booked(steps: int) -> ForecastBook:
    book = ForecastBook()
    for step in range(1, steps + 1):
        book.note(situation(step, latency(step)))
    return book


def test_a_forecast_is_learned_from_when_its_half_minute_is_over() -> None:
    (group,) = booked(100).trainable()
    rows = booked(100).trainable()[group]
    assert group[0] == "m"
    assert len(rows.rows) == len(rows.targets) == 96
    assert all(target - row[0] == pytest.approx(2 * log(1.02)) for row, target in zip(rows.rows, rows.targets, strict=True))


def test_a_good_forecast_is_shown_with_its_bound_and_a_useless_one_is_not() -> None:
    for intercept, state in ((2 * log(1.02), State.ON), (-0.5, State.OFF)):
        book = booked(100)
        (group,) = book.trainable()
        coefficients = (1.0, *[0.0] * (sum(group[1]) - 1))
        book.learn(group, Linear(intercept, coefficients, -9.0, 9.0, 100))
        assert book.view(BACKENDS)[0].forecast.p99_s is None  # not before it has proved itself
        for step in range(101, 101 + MIN_MATURED + 5):
            book.note(situation(step, latency(step)))
        found = book.view(BACKENDS)[0].forecast
        assert found.state is state
        assert (found.p99_s is not None) == (state is State.ON)
        if found.p99_s is not None:
            assert found.error_bound_s == pytest.approx(0.0, abs=1e-9)
            assert found.p99_s == pytest.approx(latency(step + 2))


def test_a_backend_that_is_silent_or_idle_has_no_forecast_and_learns_nothing() -> None:
    book = booked(100)
    before = len(next(iter(book.trainable().values())).rows)
    for step in range(101, 110):
        book.note(situation(step, None))
    found = book.view(BACKENDS)[0]
    assert (found.forecast.p99_s, found.forecast.last_value_s, found.points) == (None, None, ())
    assert found.forecast.why == booking.NO_P99
    assert len(next(iter(book.trainable().values())).rows) == before


def test_who_is_gone_is_forgotten_and_so_is_a_model_that_nobody_serves() -> None:
    book = booked(100)
    book.follow(frozenset(("a",)), (Backend("b", "other"),))
    assert book.view(BACKENDS) == ()
    assert book.trainable() == {}


def test_a_large_fleet_keeps_an_hour_of_rows_and_not_a_minute() -> None:
    book, fleet = ForecastBook(), tuple(Backend(f"b{n}", "m") for n in range(50))
    for step in range(1, 40):
        book.note(situation(step, latency(step), fleet))
    (rows,) = book.trainable().values()
    assert len(rows.rows) <= 50 * 36 / 8 + 50  # one in eight, since 50 backends give 12,000 an hour


def test_what_is_not_known_is_left_out_and_never_zero() -> None:
    bare = Mark(15.0, None, None, None, None, None, None, None)
    known, features = vector(bare, bare, 0.5, 0.4)
    assert known == (True, True, False, False, False, False, False)
    assert features == (log(0.5), log(0.4))


def test_the_quantile_of_two_histograms_is_that_of_their_difference() -> None:
    bounds = (0.1, 0.2, 0.4, 0.8, inf)
    before, after = Histogram(bounds, (5, 6, 7, 8, 8), 1.0), Histogram(bounds, (25, 66, 97, 108, 108), 9.0)
    difference = after.minus(before)
    assert difference is not None
    expected = bucket_quantile(difference, 0.99)
    assert expected is not None
    assert bucket_p99_s(before, after) == pytest.approx(expected.value)
    assert bucket_p99_s(before, Histogram(bounds, (25, 66, 97, 98, 108), 9.0)) is None  # 'at least' is no number
    assert bucket_p99_s(before, before) is None


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"coefficients": [1.0, 2.0], "moved": [-1, 1]},
        {"coefficients": [1.0], "moved": [-1, 1], "rows": 9},
        {"coefficients": [1.0, float("nan")], "moved": [-1, 1], "rows": 9},
        {"coefficients": [1.0, "2"], "moved": [-1, 1], "rows": 9},
        {"coefficients": [1.0, 2.0], "moved": [1, -1], "rows": 9},
        {"coefficients": [1.0, 2.0], "moved": [1], "rows": 9},
    ],
)
def test_an_answer_that_is_no_model_is_no_model(document: object) -> None:
    assert read(document, 1) is None


def test_a_forecast_does_not_lead_out_of_what_was_ever_seen() -> None:
    wild = Linear(50.0, (1.0,), -0.5, 0.7, 100)
    assert wild.predict_s([log(0.2)]) == pytest.approx(0.2 * exp(0.7))


def test_trust_comes_and_goes_with_a_gap_between() -> None:
    trust = Trust()
    for _ in range(MIN_MATURED - 1):
        trust.learn(1.0, 1.0, 2.0)
    assert trust.state is State.LEARNING
    trust.learn(1.0, 1.0, 2.0)
    assert trust.state is State.ON  # type: ignore[comparison-overlap]
    for _ in range(MATURED):
        trust.learn(1.0, 2.0, 2.0)  # as good as the last value: it stays what it was
    assert trust.state is State.ON
    for _ in range(MATURED):
        trust.learn(1.0, 2.02, 2.0)
    assert trust.state is State.OFF, "never shown while it is worse, however little"
    for _ in range(MATURED):
        trust.learn(1.0, 2.0, 2.0)
    assert trust.state is State.OFF


def test_errors_are_bounded_and_their_bound_was_really_made() -> None:
    errors = Errors()
    for number in range(3 * MATURED):
        errors.add(float(number))
    assert len(errors) == MATURED
    assert errors.bound == 2 * MATURED + ceil(0.99 * MATURED) - 1
    assert errors.mean == pytest.approx(2 * MATURED + (MATURED - 1) / 2)


def rising(per_step: float, held: Sequence[float | None] = (), start: float = 0.5) -> list[Point]:
    given = [*held, *[None] * (21 - len(held))]
    return [Point(15.0 * n, start + per_step * n, given[n], given[n]) for n in range(21)]


@pytest.mark.parametrize(
    ("points", "seconds", "method"),
    [
        (rising(0.01), 450.0, "trend"),
        (rising(0.01)[:4], None, None),  # too little was seen
        (rising(0.0), None, None),
        (rising(-0.01), None, None),
        (rising(0.0004), None, None),  # too slow to be more than noise
        (rising(0.02, start=0.58), 15.0, "trend"),
        (rising(0.01, [1e9 * (50 + n) for n in range(21)]), 450.0, "model"),
        ([*rising(0.01)[:20], Point(300.0, 0.5)], None, None),  # no more than at first
        ([*rising(0.01)[:20], Point(300.0, 0.5, 1e9, 1e9)], None, None),  # nor where its need was not known at first
    ],
)
def test_when_memory_will_be_full(points: list[Point], seconds: float | None, method: str | None) -> None:
    found = exhaustion(points)
    assert (None if found is None else found.method) == method
    assert found is None or found.seconds == pytest.approx(seconds, rel=0.01)


def test_the_memory_model_sees_waiting_requests_before_they_have_memory() -> None:
    """The batch is full after 12 steps: use stands still and says nothing, but the queue goes on growing."""
    running = [1e9 * (10 + min(n, 12)) for n in range(21)]
    points = [Point(15.0 * n, 0.2 + 0.03 * min(n, 12), running[n], 1e9 * (10 + n)) for n in range(21)]
    found = exhaustion(points)
    assert found is not None
    assert found.method == "model"
    assert found.seconds == pytest.approx(100.0), "0.8 of it is asked for, 0.03 more each step"
    assert exhaustion([Point(p.at, p.used_ratio) for p in points[12:]]) is None


def test_the_bytes_of_requests_in_flight_come_from_the_shape_and_the_measured_lengths() -> None:
    backend = (Backend("a", "m", kv_bytes_per_token=1_000.0),)
    book = ForecastBook()
    for step in range(1, 4):
        values = {
            catalog.PROMPT_TOKENS.name: 3_000.0 * step,
            catalog.GENERATED_TOKENS.name: 600.0 * step,
            catalog.KV_USAGE.name: 0.5,
        }
        book.note(situation(step, 0.2, backend, **values))
    assert book.view(backend)[0].points[-1].held_bytes == pytest.approx(4 * (100 + 20 / 2) * 1_000)
    assert foreseen(book.view(backend)[0]) is None


ROWS = (Rows(tuple((float(n % 7), float(n)) for n in range(100)), tuple(2.0 * (n % 7) + 1 for n in range(100))),)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit('no scikit-learn here')", "no scikit-learn here"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("import time; time.sleep(60)", "did not end within 0.5 s"),
        ("print('{}')", "another shape"),
        ("print('[' * 100000)", "another shape"),
        ("import sys; sys.stdin.close(); print('not json')", "another shape"),
        (
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28)); x = bytearray(2**29)",
            "MemoryError",
        ),
    ],
)
async def test_a_training_that_goes_wrong_says_why_and_costs_nothing_else(program: str, said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        await train(ROWS, (sys.executable, "-c", program), 0.5 if "sleep" in program else 30.0)


def insights(training: Any) -> Insights:
    made = Insights(tiers_of((), Slo()), 0.995, training=training)
    for step in range(1, 101):
        of = situation(step, latency(step))
        made.note(TickRecord(step, of.snapshot.time_unix_s, 0.1, of, (), (), (), ()))
    return made


async def test_what_a_training_found_is_forecast_with_and_its_failure_is_said_once_and_forgiven() -> None:
    answers: list[Any] = [TrainingError("it broke"), OSError("no processes left")]

    async def training(groups: Sequence[Rows]) -> list[Any]:
        if answers:
            raise answers.pop(0)
        return [{"coefficients": [0.0, 1.0, *[0.0] * (len(g.rows[0]) - 1)], "moved": [-1, 1], "rows": 9} for g in groups]

    made = insights(training)
    for error in ("it broke", "no processes left", None):
        await made.train()
        assert made.forecast.training_error == error
    of = situation(101, latency(101))
    made.note(TickRecord(101, of.snapshot.time_unix_s, 0.1, of, (), (), (), ()))
    assert made.forecast.view(BACKENDS)[0].predicted_s == pytest.approx(latency(101))


@pytest.mark.parametrize(
    ("bounds", "after"),
    [
        ((0.1, 0.2, 0.5, 0.8, inf), (25.0, 66.0, 97.0, 108.0, 108.0)),
        ((0.1, 0.2, 0.4, 0.8, inf), (24.0, 25.0, 26.0, 27.0, 27.0)),
    ],
    ids=["other bounds", "too few"],
)
def test_what_two_histograms_do_not_tell_is_no_quantile(bounds: tuple[float, ...], after: tuple[float, ...]) -> None:
    before = Histogram((0.1, 0.2, 0.4, 0.8, inf), (5.0, 6.0, 7.0, 8.0, 8.0), 1.0)
    assert bucket_p99_s(before, Histogram(bounds, after, 9.0)) is None
    assert bucket_p99_s(None, before) is None
    assert bucket_p99_s(before, None) is None


def test_a_first_bucket_that_fell_is_no_quantile_of_what_came_since() -> None:
    before, after = Histogram((0.1, 0.2, inf), (30.0, 30.0, 30.0), 1.0), Histogram((0.1, 0.2, inf), (10.0, 60.0, 60.0), 9.0)
    assert bucket_p99_s(before, after) is None


def test_the_p99_of_few_requests_is_not_known_and_that_of_many_is_one_of_them() -> None:
    assert exact_p99_s([0.1] * (MIN_SAMPLES - 1)) is None
    assert exact_p99_s([n / 100 for n in range(100, 0, -1)]) == 0.99


def test_bytes_by_which_the_use_falls_explain_no_memory() -> None:
    """The trend is asked then: it knows nothing of bytes."""
    points = [Point(15.0 * n, 0.5 + 0.01 * n, 1e9 * (50 - n), 1e9 * (50 - n)) for n in range(21)]
    found = exhaustion(points)
    assert found is not None
    assert found.method == "trend"


def test_an_hour_of_one_backend_knows_as_many_groups_as_may_be_and_no_more() -> None:
    """A group is a model with what its page tells; a page that tells something else each step must not grow for ever."""
    backends = tuple(Backend(f"b{n}", f"m{n}") for n in range(booking.MAX_GROUPS + 3))
    book = ForecastBook()
    for step in range(1, 40):
        book.note(situation(step, latency(step), backends))
    assert len(book._rows) == booking.MAX_GROUPS
    book.learn(("nobody's", (True,)), Linear(0.0, (1.0,), -1.0, 1.0, 9))
    assert book._models == {}


def test_a_forecast_whose_moment_passed_unseen_teaches_nothing() -> None:
    book = ForecastBook()
    for step in [*range(1, 20), *range(30, 33)]:
        book.note(situation(step, latency(step)))
    before = sum(len(rows.rows) for rows in book.trainable().values())
    assert sum(map(len, book._rows.values())) <= 17
    assert before == 0
