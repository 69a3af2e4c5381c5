"""The engine in time: iterations, and the faults hang, flap, slow, throttle and oom, on a clock that the test turns."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tailkeeper_demo.engine import Engine
from tailkeeper_demo.engine_driver import EngineDriver
from tailkeeper_demo.engine_stats import FinishReason
from tailkeeper_demo.engine_types import Arrival, EngineParams, Token
from tailkeeper_demo.faults import (
    FLAP_BAD_S,
    FLAP_GOOD_S,
    OOM_CLIMB_S,
    OOM_FLOOR_RATIO,
    OOM_KILL_AFTER_S,
    THROTTLE_FALL_S,
    THROTTLE_HEAT_S,
    Fault,
    FaultKind,
)

STEADY = replace(EngineParams(), noise_sigma=0.0)


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class TurnedClock:
    """Timers in order of time; nothing happens until `turn`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Timer]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], None], /) -> Timer:
        return self.call_at(self.now_s, callback)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        return self.call_at(self.now_s + delay, callback)

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def turn(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            when, _, timer = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, when)
            if not timer.cancelled:
                timer.callback()
        self.now_s = end_s


class Bench:
    """A driver, its clock, and what came out."""

    def __init__(self, params: EngineParams = STEADY) -> None:
        self.clock = TurnedClock()
        self.tokens: list[Token] = []
        self.kills = 0
        self.engine = Engine(params, random.Random(1))
        self.driver = EngineDriver(self.engine, self.clock, self.tokens.extend, self.kill)
        self.number = 0

    def kill(self) -> None:
        self.kills += 1
        self.driver.stop()

    def submit(self, prompt: int = 100, output: int = 50) -> str:
        self.number += 1
        name = str(self.number)
        self.driver.submit(Arrival(name, prompt, output, FinishReason.STOP, self.clock.time()))
        return name

    def load(self, seconds: int, per_s: int = 3, prompt: int = 1000, output: int = 120) -> None:
        for _ in range(seconds * per_s):
            self.submit(prompt, output)
            self.clock.turn(1 / per_s)
            if self.kills:
                return

    def fault(self, kind: FaultKind, factor: float = 5.0) -> None:
        self.driver.set_fault(Fault(kind, 60.0, factor=factor))


def test_tokens_come_one_an_iteration_until_the_request_ends_and_then_the_engine_sleeps() -> None:
    bench = Bench()
    bench.submit(output=50)
    bench.clock.turn(10)
    assert [token.index for token in bench.tokens] == list(range(50))
    assert bench.tokens[-1].finish is FinishReason.STOP
    assert bench.engine.stats.itl_s.total / 49 == pytest.approx(STEADY.step_base_s + STEADY.decode_sequence_s, rel=0.05)
    bench.clock.turn(100)
    assert bench.engine.gauges.running == 0


def test_an_idle_engine_wakes_up_for_a_new_request() -> None:
    bench = Bench()
    bench.clock.turn(60)
    bench.submit(output=3)
    bench.clock.turn(1)
    assert len(bench.tokens) == 3
    assert bench.engine.stats.ttft_s.total < 0.1


def test_a_hang_freezes_gauges_counters_and_gpu_while_requests_are_accepted() -> None:
    bench = Bench()
    bench.load(3)
    bench.fault(FaultKind.HANG)
    bench.clock.turn(1)
    stats, engine = bench.engine.stats, bench.engine

    def seen() -> tuple[object, ...]:
        return (engine.gauges, stats.generation_tokens, stats.prompt_tokens, stats.e2e_s.count, bench.driver.gpu_active_s())

    frozen = seen()
    assert engine.gauges.running > 0
    bench.load(20)
    assert seen() == frozen
    assert engine.in_flight > 50


def test_a_hang_that_finds_an_idle_engine_takes_the_first_request_and_shows_it_running() -> None:
    bench = Bench()
    bench.fault(FaultKind.HANG)
    bench.submit()
    bench.clock.turn(30)
    assert bench.engine.gauges.running == 1
    assert bench.tokens == []


def test_after_a_hang_everything_accepted_is_served() -> None:
    bench = Bench()
    bench.submit(output=20)
    bench.clock.turn(0.1)
    bench.fault(FaultKind.HANG)
    bench.submit(output=20)
    cancelled = bench.submit(output=20)
    bench.clock.turn(15)
    bench.driver.abort(cancelled)
    bench.driver.set_fault(None)
    bench.clock.turn(15)
    assert len([token for token in bench.tokens if token.finish]) == 2
    assert bench.engine.in_flight == 0
    assert bench.engine.stats.itl_s.counts[-4] == 1, "one token was 15 s late: the bucket from 10 to 20 s"


def test_slow_stretches_the_time_between_tokens_by_its_factor() -> None:
    means: list[float] = []
    for factor in (1.0, 5.0):
        bench = Bench()
        bench.fault(FaultKind.SLOW, factor)
        bench.submit(output=100)
        bench.clock.turn(60)
        means.append(bench.engine.stats.itl_s.total / bench.engine.stats.itl_s.count)
    assert means[1] / means[0] == pytest.approx(5.0, rel=0.01)


def test_a_flapping_engine_stands_still_and_answers_in_turn_and_loses_no_request() -> None:
    bench = Bench()
    bench.fault(FaultKind.FLAP)
    moved: list[bool] = []
    for second in range(40):
        before = len(bench.tokens)
        bench.submit(output=20)
        bench.clock.turn(1)
        moved.append(len(bench.tokens) > before)
        assert moved[-1] is (second % (FLAP_BAD_S + FLAP_GOOD_S) >= FLAP_BAD_S), second
    bench.driver.set_fault(None)
    bench.clock.turn(30)
    assert len([token for token in bench.tokens if token.finish]) == bench.number
    assert bench.engine.in_flight == 0


def test_a_flap_that_ended_or_was_replaced_hangs_nobody_later() -> None:
    bench = Bench()
    bench.fault(FaultKind.FLAP)
    bench.clock.turn(FLAP_BAD_S + 1)
    bench.fault(FaultKind.SLOW, 1.0)
    bench.submit(output=100)
    bench.clock.turn(30)
    assert len(bench.tokens) == 100


def test_a_throttled_gpu_slows_the_engine_as_much_as_its_clock_falls() -> None:
    bench = Bench()
    bench.fault(FaultKind.THROTTLE, 4.0)
    bench.submit(output=2000)
    bench.clock.turn(THROTTLE_HEAT_S)
    assert bench.driver.clock_ratio() == 1.0
    usual = len(bench.tokens) / THROTTLE_HEAT_S
    bench.clock.turn(THROTTLE_FALL_S + 1)
    assert bench.driver.clock_ratio() == 0.25
    before = len(bench.tokens)
    bench.clock.turn(10)
    assert usual / ((len(bench.tokens) - before) / 10) == pytest.approx(4.0, rel=0.05)
    bench.driver.set_fault(None)
    assert bench.driver.clock_ratio() == 1.0


def test_an_engine_out_of_memory_fills_up_preempts_crawls_and_is_killed_after_twenty_seconds_of_work() -> None:
    bench = Bench()
    bench.load(5)
    bench.fault(FaultKind.OOM)
    started_s = bench.clock.time()
    bench.load(8)
    assert bench.engine.gauges.kv_usage_ratio > 0.94
    above: list[bool] = []
    while not bench.kills and bench.clock.time() < started_s + 60:
        produced = len(bench.tokens)
        bench.load(4)
        above.append(bench.engine.gauges.kv_usage_ratio > 0.97)
        assert bench.kills or len(bench.tokens) > produced, "it crawls, it does not hang"
    assert bench.kills == 1
    assert bench.clock.time() - started_s == pytest.approx(OOM_KILL_AFTER_S, abs=2)
    assert any(above)
    assert bench.engine.stats.preemptions > 0
    assert bench.engine.gauges.waiting > 10


def test_an_engine_out_of_memory_without_load_is_not_killed() -> None:
    bench = Bench()
    bench.fault(FaultKind.OOM)
    bench.clock.turn(OOM_CLIMB_S + 60)
    assert bench.kills == 0
    assert bench.engine.gauges.kv_usage_ratio >= OOM_FLOOR_RATIO - 0.001


def test_clearing_the_leak_gives_the_blocks_back_and_the_engine_recovers() -> None:
    bench = Bench()
    bench.fault(FaultKind.OOM)
    bench.load(10)
    bench.driver.set_fault(None)
    bench.clock.turn(60)
    assert bench.kills == 0
    assert bench.engine.in_flight == 0
    assert bench.engine.free_blocks == STEADY.kv_blocks


def test_gpu_activity_grows_evenly_through_iterations_longer_than_a_sample() -> None:
    bench = Bench()
    bench.fault(FaultKind.SLOW, 100.0)
    bench.submit(prompt=2000, output=50)
    bench.clock.turn(0.5)
    samples: list[float] = []
    for _ in range(20):
        before = bench.driver.gpu_active_s()
        bench.clock.turn(0.5)
        samples.append((bench.driver.gpu_active_s() - before) / 0.5)
    assert all(0.3 < sample <= 1.0 for sample in samples)
    assert math.isclose(sum(samples) * 0.5, bench.driver.gpu_active_s(), rel_tol=0.2)


def test_a_stopped_driver_does_nothing_more() -> None:
    bench = Bench()
    bench.submit()
    bench.clock.turn(0.2)
    produced = len(bench.tokens)
    bench.driver.stop()
    bench.submit()
    bench.clock.turn(10)
    assert len(bench.tokens) == produced
