"""The batch window follows the arrivals and the tail; a concurrency limit follows only the tail."""

from __future__ import annotations

from math import log
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue, RequestRecord, Situation
from tailkeeper_watchdog.policies import adaptive_batch_window
from tailkeeper_watchdog.policies.adaptive_batch_window import by_entropy, entropy, shrunk
from tailkeeper_watchdog.policy_params import AdaptiveBatchWindowParams
from tailkeeper_watchdog.window import Window
from tests.unit.situations import Run, seen, situation, window

PARAMS = AdaptiveBatchWindowParams()
SMOOTH = (0.07,)
EVERY_BIN = (0.001, 0.010, 0.030, 0.070, 0.5)


@pytest.mark.parametrize(
    ("gaps", "h"),
    [
        ((), None),
        (SMOOTH * 100, 0.0),
        (EVERY_BIN * 20, 1.0),
        ((0.001, 0.010) * 50, log(2) / log(5)),
        ((0.005, 0.020, 0.050, 0.100), log(4) / log(5)),  # a bound belongs to the bin below it
    ],
)
def test_entropy_is_that_of_five_bins_over_log_five(gaps: tuple[float, ...], h: float | None) -> None:
    assert entropy(gaps) == (None if h is None else pytest.approx(h))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_entropy_is_between_nothing_and_one(gaps: list[float]) -> None:
    assert 0.0 <= (entropy(gaps) or 0.0) <= 1.0 + 1e-12


@pytest.mark.parametrize(
    ("h", "window_s", "after_s"),
    [
        (0.89, 0.100, 0.050),
        (0.89, 0.015, 0.010),
        (0.75, 0.100, 0.100),
        (0.40, 0.100, 0.100),
        (0.39, 0.100, 0.120),
        (0.10, 0.190, 0.200),
    ],
)
def test_irregular_arrivals_halve_the_window_and_regular_ones_let_it_grow(h: float, window_s: float, after_s: float) -> None:
    assert by_entropy(window_s, h, PARAMS) == pytest.approx(after_s)


@pytest.mark.parametrize(
    ("elapsed_s", "after_s"), [(0.0, 0.200), (0.1, 0.180), (0.2, 0.162), (0.5, 0.200 * 0.9**5), (10.0, 0.100)]
)
def test_over_the_target_the_window_shrinks_with_time_and_at_most_by_half_a_tick(elapsed_s: float, after_s: float) -> None:
    assert shrunk(0.200, elapsed_s, PARAMS) == pytest.approx(after_s)


@given(st.floats(0.001, 1.0), st.floats(0, 60))
def test_the_limit_never_raises_a_window_and_never_goes_below_its_floor(window_s: float, elapsed_s: float) -> None:
    after = shrunk(window_s, elapsed_s, PARAMS)
    assert after <= window_s
    assert after >= min(window_s, PARAMS.limited_floor_s)


class Batches:
    """One backend whose requests arrive after ``gaps`` in turn."""

    def __init__(self, gaps: tuple[float, ...], **params: float) -> None:
        self.run = Run(adaptive_batch_window.POLICY, AdaptiveBatchWindowParams.model_validate(params))
        self.gaps, self.arrived, self.now = gaps, 0.0, 1_000.0
        self.knob: dict[tuple[str, Knob], KnobValue] = {("a", Knob.BATCH_WINDOW_S): 0.1}

    def tick(self, seconds: float, requests: int = 60, told: bool = True, **recent: Any) -> KnobValue | None:
        """``told``: whether there are request records, as an exporter without a tap has none."""
        self.now += seconds
        records = []
        for number in range(requests if told else 0):
            self.arrived += self.gaps[number % len(self.gaps)]
            records.append(RequestRecord("a", "ok", 0.1, 0.02, 1.0, start_unix_s=self.arrived))
        got = self.run.tick(self._situation(tuple(records), window(10.0, ok=float(requests), **recent)))
        return next(iter(got.values()), None)

    def _situation(self, records: tuple[RequestRecord, ...], recent: Window) -> Situation:
        return situation(
            seen("a", running=8.0 if records else 0.0),
            now=self.now,
            records={"a": records},
            recent={"a": recent},
            windows={"a": recent},
            knobs=self.knob,
        )


def test_irregular_arrivals_bring_the_window_down_step_by_step_to_its_floor() -> None:
    batches = Batches(EVERY_BIN)
    values = [batches.tick(5) for _ in range(6)]
    assert values == [pytest.approx(v) for v in (0.05, 0.025, 0.0125, 0.01, 0.01, 0.01)]


def test_regular_arrivals_let_it_grow_to_its_ceiling() -> None:
    batches = Batches(SMOOTH)
    values = [batches.tick(5) for _ in range(6)]
    assert values == [pytest.approx(v) for v in (0.12, 0.144, 0.1728, 0.2, 0.2, 0.2)]


def test_a_step_is_taken_every_five_seconds_whatever_the_tick() -> None:
    batches = Batches(EVERY_BIN)
    assert [batches.tick(0.5) for _ in range(10)] == [pytest.approx(0.05)] * 10


def test_of_too_few_arrivals_nothing_is_made() -> None:
    assert Batches(EVERY_BIN).tick(5, requests=10) is None


def test_a_tail_over_its_target_beats_the_entropy_and_has_a_higher_floor() -> None:
    batches = Batches(SMOOTH)
    batches.tick(5)
    values = [batches.tick(0.5, ttft={0.5: 100}) for _ in range(4)]
    assert values == [pytest.approx(0.12 * 0.9**5, abs=1e-4), pytest.approx(0.05), pytest.approx(0.05), pytest.approx(0.05)]


def test_without_request_records_a_window_grows_back_once_the_tail_is_well_and_is_given_back() -> None:
    batches = Batches(SMOOTH)
    shrunk = [batches.tick(0.5, told=False, ttft={0.5: 100}) for _ in range(3)]
    assert shrunk[-1] == pytest.approx(0.05)
    assert batches.tick(5, told=False) == pytest.approx(0.05), "of a tail that is not told nobody knows that it is well"
    values = [batches.tick(2.5, told=False, ttft={0.02: 100}) for _ in range(10)]
    assert values[:7] == [pytest.approx(v, abs=1e-4) for v in (0.06, 0.06, 0.072, 0.072, 0.0864, 0.0864, 0.1)]
    assert values[8:] == [None, None]


def test_where_no_first_token_is_told_the_whole_answer_counts() -> None:
    batches = Batches(SMOOTH)
    batches.tick(5)
    assert batches.tick(0.5, latency={0.5: 100}) == pytest.approx(0.12 * 0.9**5, abs=1e-4)


def test_three_slow_batches_in_a_row_open_the_breaker_and_quiet_half_opens_it() -> None:
    batches = Batches(SMOOTH)
    values = [batches.tick(0.5, step_time={0.4: 3}) for _ in range(4)]
    assert values[2:] == [PARAMS.floor_s, PARAMS.floor_s]
    assert batches.tick(0.5, step_time={0.02: 3}) == PARAMS.floor_s  # still open: it was not quiet
    for _ in range(4):
        assert batches.tick(2, requests=0) == PARAMS.floor_s
    after = batches.tick(0.5, step_time={0.02: 3})
    assert after is not None
    assert float(after) > PARAMS.floor_s


def test_a_slow_batch_after_the_quiet_opens_it_again() -> None:
    batches = Batches(SMOOTH)
    for _ in range(3):
        batches.tick(0.5, step_time={0.4: 3})
    for _ in range(4):
        batches.tick(2, requests=0)
    assert batches.tick(0.5, step_time={0.4: 3}) == PARAMS.floor_s


def continuous(**params: float) -> Batches:
    """An engine without a window, at a gateway with a concurrency limit that is off."""
    batches = Batches(EVERY_BIN, **params)
    batches.knob = {("a", Knob.CONCURRENCY_LIMIT): 0.0}
    return batches


def test_irregular_arrivals_turn_nobody_away() -> None:
    batches = continuous()
    assert [batches.tick(5) for _ in range(5)] == [None] * 5


def test_a_slow_tail_between_tokens_lowers_the_limit_by_steps_and_lets_it_out_again() -> None:
    batches = continuous()
    down = [batches.tick(5, itl={0.5: 100}) for _ in range(5)]
    assert down == [6.0, 6.0, 5.0, 5.0, 4.0]
    up = [batches.tick(10, itl={0.02: 100}) for _ in range(9)]
    assert up[:3] == [5.0, 6.0, 7.0]
    assert up[-1] is None


def test_what_was_left_in_a_drained_backend_sets_no_limit() -> None:
    batches = continuous()
    batches.knob = {("a", Knob.CONCURRENCY_LIMIT): 0.0, ("a", Knob.ADMISSION): DRAIN}
    assert batches.tick(5, itl={20.0: 100}) is None
    batches.knob = {("a", Knob.CONCURRENCY_LIMIT): 0.0, ("a", Knob.ADMISSION): SERVE}
    assert batches.tick(5, itl={20.0: 100}) is None, "the last ten seconds have the drain in them"
    assert batches.tick(6, itl={20.0: 100}) is not None


def test_a_gateway_that_is_silent_for_a_tick_does_not_begin_it_anew() -> None:
    batches = Batches(EVERY_BIN)
    batches.tick(5)
    knobs, batches.knob = batches.knob, {}
    assert batches.tick(0.5) is None
    batches.knob = knobs
    assert batches.tick(0.5) == pytest.approx(0.05)


def test_where_no_gateway_has_either_knob_nothing_is_wanted() -> None:
    batches = Batches(EVERY_BIN)
    batches.knob = {}
    assert [batches.tick(5) for _ in range(3)] == [None] * 3


def test_a_backend_that_is_not_heard_of_is_left_alone_and_the_silence_is_not_held_against_it() -> None:
    batches = Batches(SMOOTH)
    batches.tick(5)
    before = batches.tick(0.5, ttft={0.5: 100})
    run = batches.run
    assert run.tick(situation(seen("a", age_s=60.0), now=batches.now + 30, knobs=batches.knob)) == {}
    batches.now += 30
    after = batches.tick(0.5, ttft={0.5: 100})
    assert after == before


@pytest.mark.parametrize("longest_s", [0.0, 1.0, 5.0])
def test_answers_of_different_lengths_do_not_make_regular_arrivals_irregular(longest_s: float) -> None:
    """A request is told of when it ends, and so the long ones after others that came later."""
    run = Run(adaptive_batch_window.POLICY, PARAMS)
    chance = Random(1)
    by_end = sorted((n * 0.03 + longest_s * chance.random(), n * 0.03) for n in range(1_000))
    values = set()
    for tick in range(1, 60):
        ended = [(end, at) for end, at in by_end if tick - 1 <= 2 * end < tick]
        told = [RequestRecord("a", "ok", 0.1, 0.02, end - at, start_unix_s=at) for end, at in ended]
        now, knobs = 1_000.0 + tick / 2, {("a", Knob.BATCH_WINDOW_S): 0.1}
        wants = run.tick(situation(seen("a"), now=now, records={"a": tuple(told)}, knobs=knobs))
        values |= set(wants.values())
    assert sorted(values) == [pytest.approx(v) for v in (0.12, 0.144, 0.1728, 0.2)], "it only ever grows"


def test_arrivals_of_requests_that_do_not_tell_how_long_they_took_are_not_judged() -> None:
    """A length that is not told is not none at all: the long ones among them are missing, and nobody knows since when."""
    run = Run(adaptive_batch_window.POLICY, PARAMS)
    chance = Random(1)
    by_end = sorted((n * 0.03 + 5.0 * chance.random(), n * 0.03) for n in range(1_000))
    for tick in range(1, 60):
        told = [RequestRecord("a", "ok", None, 0.02, None, start_unix_s=at) for end, at in by_end if tick - 1 <= 2 * end < tick]
        now, knobs = 1_000.0 + tick / 2, {("a", Knob.BATCH_WINDOW_S): 0.1}
        assert run.tick(situation(seen("a"), now=now, records={"a": tuple(told)}, knobs=knobs)) == {}
