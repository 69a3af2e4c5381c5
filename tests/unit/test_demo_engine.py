"""The simulated engine's scheduler: what it conserves, whom it serves first, what a fault may and may not change."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailkeeper_demo.engine import Engine
from tailkeeper_demo.engine_stats import FinishReason, Histogram
from tailkeeper_demo.engine_types import Arrival, EngineParams, QueueFullError, Token, UnservableError

SMALL = EngineParams(max_running=4, token_budget=64, kv_blocks=24, shared_prefix_tokens=16, max_queued=50)
STEADY = replace(EngineParams(), noise_sigma=0.0)


def arrival(name: str, prompt: int = 40, output: int = 5, at_s: float = 0.0) -> Arrival:
    return Arrival(name, prompt, output, FinishReason.STOP, at_s)


def run_dry(engine: Engine, now_s: float = 0.0, limit: int = 10_000) -> tuple[list[Token], float]:
    """Iterate until nothing is left; returns all tokens and the time."""
    tokens: list[Token] = []
    for _ in range(limit):
        duration_s = engine.begin(now_s)
        if duration_s is None:
            return tokens, now_s
        now_s += duration_s
        tokens += engine.complete(now_s)
    raise AssertionError("the engine never runs dry")


class EngineMachine(RuleBasedStateMachine):
    """Any interleaving of arrivals, cancellations, a leak and iterations."""

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.engine = Engine(SMALL, random.Random(seed))
        self.now_s = 0.0
        self.number = 0
        self.iterating = False
        self.wanted: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.next_index: dict[str, int] = {}
        self.before: tuple[float, ...] = ()

    @rule(prompt=st.integers(1, 200), output=st.integers(1, 60))
    def submit(self, prompt: int, output: int) -> None:
        self.number += 1
        name = str(self.number)
        try:
            self.engine.submit(arrival(name, prompt, output, self.now_s))
        except QueueFullError:
            return
        self.wanted[name] = output
        self.next_index[name] = 0

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        self.engine.abort(name)
        self.aborted.add(name)

    @rule(blocks=st.integers(0, 30))
    def leak(self, blocks: int) -> None:
        self.engine.reserve(blocks)

    @rule(factor=st.floats(1, 5), times=st.integers(1, 12))
    def iterate(self, factor: float, times: int) -> None:
        for _ in range(times):
            duration_s = self.engine.begin(self.now_s, factor)
            if duration_s is None:
                return
            assert duration_s > 0
            self.now_s += duration_s
            for token in self.engine.complete(self.now_s):
                self.check(token)

    def check(self, token: Token) -> None:
        """Tokens come in order, none twice, none missing, the last one marked."""
        assert token.index == self.next_index[token.request_id]
        self.next_index[token.request_id] += 1
        last = token.index + 1 == self.wanted[token.request_id]
        assert (token.finish is not None) == last
        if last:
            del self.wanted[token.request_id]

    @invariant()
    def blocks_are_conserved(self) -> None:
        engine = self.engine
        assert engine.free_blocks >= 0
        assert engine.free_blocks + engine.reserved_blocks + engine.held_blocks == SMALL.kv_blocks
        assert 0.0 <= engine.gauges.kv_usage_ratio <= 1.0

    @invariant()
    def tokens_are_conserved(self) -> None:
        assert self.engine.stats.generation_tokens == sum(self.next_index.values())

    @invariant()
    def counters_never_fall(self) -> None:
        stats = self.engine.stats
        now = (
            stats.preemptions,
            stats.prompt_tokens,
            stats.generation_tokens,
            stats.prefix_queries_tokens,
            stats.prefix_hits_tokens,
            sum(stats.finished.values()),
            stats.ttft_s.count,
            stats.itl_s.count,
            stats.e2e_s.count,
            stats.gpu_active_s,
            stats.cpu_s,
        )
        assert all(new >= old for new, old in zip(now, self.before, strict=False))
        self.before = now

    @invariant()
    def the_batch_is_never_larger_than_allowed(self) -> None:
        assert self.engine.gauges.running <= SMALL.max_running

    def teardown(self) -> None:
        """Without a leak everything that was not cancelled is served to its end."""
        if not hasattr(self, "engine"):
            return
        self.engine.reserve(0)
        tokens, _ = run_dry(self.engine, self.now_s)
        for token in tokens:
            self.check(token)
        assert set(self.wanted) <= self.aborted
        assert self.engine.in_flight == 0
        assert self.engine.free_blocks == SMALL.kv_blocks


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 30)), min_size=1, max_size=25))
@settings(max_examples=60, deadline=None)
def test_first_tokens_come_in_order_of_arrival_when_nobody_is_preempted(requests: list[tuple[int, int]]) -> None:
    engine = Engine(replace(SMALL, kv_blocks=10_000), random.Random(1))
    for number, (prompt, output) in enumerate(requests):
        engine.submit(arrival(str(number), prompt, output))
    tokens, _ = run_dry(engine)
    firsts = [int(token.request_id) for token in tokens if token.index == 0]
    assert engine.stats.preemptions == 0
    assert firsts == list(range(len(requests)))


def test_the_youngest_is_preempted_and_recomputed_when_blocks_run_out() -> None:
    engine = Engine(replace(SMALL, kv_blocks=8, shared_prefix_tokens=0), random.Random(1))
    engine.submit(arrival("old", prompt=30, output=40))
    engine.submit(arrival("young", prompt=30, output=40))
    tokens, _ = run_dry(engine)
    assert engine.stats.preemptions > 0
    finished = [token.request_id for token in tokens if token.finish]
    assert finished == ["old", "young"]
    assert engine.stats.generation_tokens == 80
    assert engine.stats.prompt_tokens == 60, "a recomputed prompt is counted once"
    assert engine.stats.queue_s.count == 2


def test_a_preempted_request_goes_before_those_who_wait_and_computes_all_its_tokens_again() -> None:
    params = replace(STEADY, kv_blocks=8, token_budget=64, shared_prefix_tokens=0)
    engine = Engine(params, random.Random(1))
    for name in ("old", "young", "waits"):
        engine.submit(arrival(name, prompt=60, output=20))
    order: list[str] = []
    recomputed_s: float | None = None
    now_s = 0.0
    while (duration_s := engine.begin(now_s)) is not None:
        if engine.stats.preemptions == 1 and engine.gauges.running == 1 and order[-1:] == ["old"] and recomputed_s is None:
            recomputed_s = duration_s
        now_s += duration_s
        order += [token.request_id for token in engine.complete(now_s) if token.finish]
    assert engine.stats.preemptions >= 1
    assert order == ["old", "young", "waits"]
    assert recomputed_s is not None
    assert recomputed_s >= params.step_base_s + 60 * params.prefill_token_s


def test_the_iteration_time_is_base_plus_prefill_plus_decode_plus_cache() -> None:
    params = replace(STEADY, shared_prefix_tokens=0)
    engine = Engine(params, random.Random(1))
    engine.submit(arrival("a", prompt=1000, output=2))
    first_s = engine.begin(0.0)
    assert first_s == pytest.approx(params.step_base_s + 1000 * params.prefill_token_s)
    engine.complete(1.0)
    second_s = engine.begin(1.0)
    assert second_s == pytest.approx(params.step_base_s + params.decode_sequence_s + 1000 * params.kv_token_s)


def test_the_same_prompt_is_computed_once_and_another_prompt_anew() -> None:
    engine = Engine(replace(STEADY, shared_prefix_tokens=0), random.Random(1))
    for name, key in (("a", "p"), ("b", "p"), ("c", "q"), ("d", None)):
        engine.submit(replace(arrival(name, prompt=400, output=1), prompt_key=key))
    run_dry(engine)
    assert engine.stats.prefix_queries_tokens == 1600
    assert engine.stats.prefix_hits_tokens == 384, "whole blocks of the second alone, one token at least is computed"


def test_only_so_many_prompts_stay_in_the_prefix_cache() -> None:
    engine = Engine(replace(STEADY, shared_prefix_tokens=0, cached_prompts=2), random.Random(1))
    for number, key in enumerate(("p", "q", "r", "p", "r")):
        engine.submit(replace(arrival(str(number), prompt=400, output=1), prompt_key=key))
        run_dry(engine)
    assert engine.stats.prefix_hits_tokens == 384, "the first was given up, the last was still there"


def test_slow_multiplies_the_iteration_time_and_nothing_else() -> None:
    fast, slow = (Engine(EngineParams(), random.Random(7)) for _ in range(2))
    for engine in (fast, slow):
        engine.submit(arrival("a", prompt=500, output=3))
    fast_s, slow_s = fast.begin(0.0), slow.begin(0.0, 5.0)
    assert fast_s is not None
    assert slow_s == pytest.approx(5 * fast_s)
    assert fast.complete(1.0) == slow.complete(1.0)


def test_a_prompt_longer_than_the_budget_is_prefilled_in_chunks() -> None:
    engine = Engine(replace(STEADY, token_budget=100, shared_prefix_tokens=0), random.Random(1))
    engine.submit(arrival("a", prompt=250, output=1))
    iterations = 0
    tokens: list[Token] = []
    while engine.begin(float(iterations)) is not None:
        iterations += 1
        tokens += engine.complete(float(iterations))
    assert iterations == 3
    assert len(tokens) == 1


def test_between_begin_and_complete_nothing_moves_whatever_is_submitted_or_cancelled() -> None:
    """This is what a hang looks like from outside: gauges and counters stay, requests are still accepted."""
    engine = Engine(STEADY, random.Random(1))
    engine.submit(arrival("a"))
    engine.begin(0.0)
    frozen = (engine.gauges, engine.stats.generation_tokens, engine.stats.prompt_tokens, engine.free_blocks)
    for number in range(20):
        engine.submit(arrival(f"more-{number}"))
    engine.abort("a")
    assert engine.gauges.running == 1
    assert (engine.gauges, engine.stats.generation_tokens, engine.stats.prompt_tokens, engine.free_blocks) == frozen
    assert engine.in_flight == 21


def test_a_cancelled_request_gives_its_blocks_back_and_is_not_counted_as_finished() -> None:
    engine = Engine(STEADY, random.Random(1))
    engine.submit(arrival("a", prompt=500, output=100))
    engine.begin(0.0)
    engine.complete(0.1)
    engine.abort("a")
    assert engine.begin(0.1) is None
    assert engine.free_blocks == STEADY.kv_blocks
    assert sum(engine.stats.finished.values()) == 0
    assert engine.in_flight == 0


def test_a_leak_takes_free_blocks_at_once_and_used_ones_at_the_next_iteration() -> None:
    engine = Engine(replace(SMALL, shared_prefix_tokens=0), random.Random(1))
    engine.submit(arrival("a", prompt=60, output=50))
    engine.begin(0.0)
    engine.complete(0.1)
    held = engine.held_blocks
    engine.reserve(SMALL.kv_blocks)
    assert engine.reserved_blocks == SMALL.kv_blocks - held
    assert engine.begin(0.1) is None, "nothing fits beside the leak"
    assert engine.reserved_blocks == SMALL.kv_blocks
    assert engine.stats.preemptions == 1
    assert engine.gauges.kv_usage_ratio == 1.0
    assert engine.gauges.waiting == 1


def test_the_shared_prefix_is_hit_from_the_second_request_on() -> None:
    engine = Engine(replace(STEADY, shared_prefix_tokens=128), random.Random(1))
    engine.submit(arrival("a", prompt=300, output=1))
    run_dry(engine)
    assert engine.stats.prefix_hits_tokens == 0
    engine.submit(arrival("b", prompt=300, output=1))
    run_dry(engine)
    assert (engine.stats.prefix_queries_tokens, engine.stats.prefix_hits_tokens) == (600, 128)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (arrival("x", prompt=0), "at least one prompt token"),
        (arrival("x", output=0), "at least one prompt token"),
        (arrival("x", prompt=9000), "max_model_len"),
        (arrival("x", prompt=380, output=100), "KV blocks"),
        (arrival("dup"), "already in flight"),
    ],
)
def test_a_request_that_can_never_run_is_refused(bad: Arrival, reason: str) -> None:
    engine = Engine(SMALL, random.Random(1))
    engine.submit(arrival("dup"))
    with pytest.raises(UnservableError, match=reason):
        engine.submit(bad)


def test_a_full_queue_refuses_and_counts_it() -> None:
    engine = Engine(replace(SMALL, max_queued=3), random.Random(1))
    for number in range(3):
        engine.submit(arrival(str(number)))
    with pytest.raises(QueueFullError):
        engine.submit(arrival("late"))
    assert engine.stats.rejected_queue_full == 1


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> tuple[list[Token], float]:
        engine = Engine(EngineParams(), random.Random(3))
        for number in range(20):
            engine.submit(arrival(str(number), prompt=100 + number, output=10 + number))
        return run_dry(engine)

    assert run() == run()


def test_phase_times_of_a_request_add_up_to_its_latency() -> None:
    engine = Engine(replace(SMALL, max_running=1, kv_blocks=200), random.Random(1))
    for number in range(5):
        engine.submit(arrival(str(number), output=9))
    run_dry(engine)
    stats = engine.stats
    assert stats.queue_s.total > 0
    assert stats.e2e_s.total == pytest.approx(stats.queue_s.total + stats.prefill_s.total + stats.decode_s.total)
    assert stats.inference_s.total == pytest.approx(stats.prefill_s.total + stats.decode_s.total)
    assert stats.ttft_s.total == pytest.approx(stats.queue_s.total + stats.prefill_s.total)


@given(st.lists(st.floats(0, 1e4, allow_nan=False), max_size=50))
def test_a_histogram_counts_every_value_once_and_bounds_are_inclusive(values: list[float]) -> None:
    histogram = Histogram((1.0, 10.0, 100.0))
    for value in values:
        histogram.observe(value)
    assert histogram.cumulative() == [sum(v <= bound for v in values) for bound in (1.0, 10.0, 100.0, float("inf"))]
    assert histogram.count == len(values)
