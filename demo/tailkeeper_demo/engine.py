"""A continuous-batching engine as a value machine: what vLLM's scheduler does, without a model.

One iteration is `begin(now)` (schedule a batch, say how long it takes) followed by `complete(now)` (hand out its tokens).
Iteration time is a + b·prefill tokens + c·decoding sequences + d·cached tokens, times lognormal noise: the model the drift
benchmark uses. KV memory is a finite pool of blocks; when it runs out the youngest running request is preempted, goes back to
the front of the queue and recomputes. New requests and cancellations wait in an inbox until the next `begin`, as they do at a
real engine core, which is why a hung engine's gauges stay frozen while it still accepts work.

It does no I/O and reads no clock: times are passed in, randomness is injected. Data flows server → here → `engine_stats`.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from dataclasses import dataclass

from tailkeeper_demo.engine_stats import EngineStats
from tailkeeper_demo.engine_types import Arrival, EngineParams, Gauges, QueueFullError, Token, UnservableError

_IDLE_BATCH_ACTIVITY = 0.35
"""GPU utilisation while a nearly empty batch runs; a full batch is 1. A round figure, only its direction matters."""
_STEP_CPU_S = 0.003
_SEQUENCE_CPU_S = 0.0002
"""CPU time the engine process spends per iteration and per sequence in it: about a fifth of a core at the default load."""


@dataclass(slots=True, eq=False)
class _Job:
    """A request inside the engine. `computed` counts tokens whose keys and values are in the cache."""

    arrival: Arrival
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    preemptions: int = 0

    @property
    def uncomputed(self) -> int:
        return self.arrival.prompt_tokens + self.generated - self.computed


class Engine:
    """One engine process. Not thread-safe; one driver calls it."""

    def __init__(self, params: EngineParams, rng: random.Random) -> None:
        self.params = params
        self.stats = EngineStats()
        self._rng = rng
        self._inbox: deque[Arrival | str] = deque()
        self._known: set[str] = set()
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._batch: list[tuple[_Job, int]] | None = None
        self._free_blocks = params.kv_blocks
        self._reserved_blocks = 0
        self._reserve_target = 0
        self._prefix_warm = False
        self._prompts: OrderedDict[str, int] = OrderedDict()
        self.gauges = Gauges(0, 0, 0.0)
        self._batch_s = 0.0
        self._activity = 0.0

    # -- what the server calls between iterations ---------------------------------------------------------------------

    def submit(self, arrival: Arrival) -> None:
        """Accept a request. Raises `UnservableError` or `QueueFullError`; the latter is counted."""
        limits = self.params
        if arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
            raise UnservableError("a request needs at least one prompt token and one output token")
        if arrival.prompt_tokens + arrival.output_tokens > limits.max_model_len:
            raise UnservableError(f"prompt and output are longer than max_model_len={limits.max_model_len} tokens")
        if self._blocks_for(arrival.prompt_tokens + arrival.output_tokens) > limits.kv_blocks:
            raise UnservableError(f"the request needs more than the {limits.kv_blocks} KV blocks there are")
        if arrival.request_id in self._known:
            raise UnservableError(f"request id {arrival.request_id!r} is already in flight")
        if self.in_flight - len(self._running) >= limits.max_queued:
            self.stats.rejected_queue_full += 1
            raise QueueFullError
        self._known.add(arrival.request_id)
        self._inbox.append(arrival)

    def abort(self, request_id: str) -> None:
        """Forget a request whose client is gone; takes effect at the next `begin`. Unknown ids are ignored."""
        if request_id in self._known:
            self._inbox.append(request_id)

    def reserve(self, blocks: int) -> None:
        """Let something else hold `blocks` of the pool (the `oom` fault). Free ones go at once, used ones at the next `begin`."""
        self._reserve_target = max(0, min(blocks, self.params.kv_blocks))
        self._settle_reserve()
        self._refresh_gauges()

    @property
    def in_flight(self) -> int:
        """Requests accepted and not yet ended, the inbox included."""
        return len(self._known)

    @property
    def free_blocks(self) -> int:
        return self._free_blocks

    @property
    def reserved_blocks(self) -> int:
        return self._reserved_blocks

    @property
    def held_blocks(self) -> int:
        """Blocks held by requests; with free and reserved ones they add up to `kv_blocks`."""
        return sum(job.blocks for job in self._running)

    # -- one iteration ------------------------------------------------------------------------------------------------

    def begin(self, now_s: float, slow_factor: float = 1.0) -> float | None:
        """Schedule a batch; its duration in seconds, or None when there is nothing that can run."""
        if self._batch is not None:
            raise RuntimeError("begin() called twice: complete() the running iteration first")
        self._drain_inbox()
        preempted = self._settle_reserve(evict=True)
        batch, starved = self._schedule_running()
        if not preempted and not starved:
            self._admit_waiting(batch, now_s)
        self._refresh_gauges()
        if not batch:
            return None
        self._batch = batch
        self._batch_s = self._duration_s(batch) * slow_factor
        self._activity = self._activity_ratio(batch)
        return self._batch_s

    def complete(self, now_s: float) -> list[Token]:
        """End the iteration begun last and return the tokens it made, in batch order."""
        if self._batch is None:
            raise RuntimeError("complete() called without begin()")
        batch, self._batch = self._batch, None
        self.stats.gpu_active_s += self._batch_s * self._activity
        self.stats.cpu_s += _STEP_CPU_S + _SEQUENCE_CPU_S * len(batch)
        prompt_before = self.stats.prompt_tokens
        tokens: list[Token] = []
        for job, scheduled in batch:
            job.computed += scheduled
            if job.uncomputed == 0:
                tokens.append(self._emit(job, now_s))
        if tokens:
            self.stats.step_tokens.observe(self.stats.prompt_tokens - prompt_before + len(tokens))
        self._refresh_gauges()
        return tokens

    # -- scheduling -----------------------------------------------------------------------------------------------------

    def _drain_inbox(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, str):
                self._drop(item)
            else:
                self._waiting.append(_Job(item))

    def _drop(self, request_id: str) -> None:
        self._known.discard(request_id)
        for job in self._running:
            if job.arrival.request_id == request_id:
                self._running.remove(job)
                self._release(job)
                return
        for job in self._waiting:
            if job.arrival.request_id == request_id:
                self._waiting.remove(job)
                return

    def _schedule_running(self) -> tuple[list[tuple[_Job, int]], bool]:
        """Oldest first; the youngest pays when blocks run out. Second value: whether anyone was preempted."""
        batch: list[tuple[_Job, int]] = []
        budget = self.params.token_budget
        starved = False
        index = 0
        while index < len(self._running) and budget > 0:
            job = self._running[index]
            wanted = min(job.uncomputed, budget)
            while not self._grow(job, wanted):
                starved = True
                if self._preempt_youngest() is job:
                    return batch, starved
            batch.append((job, wanted))
            budget -= wanted
            index += 1
        return batch, starved

    def _admit_waiting(self, batch: list[tuple[_Job, int]], now_s: float) -> None:
        """First come, first served: a head that does not fit blocks those behind it."""
        budget = self.params.token_budget - sum(scheduled for _, scheduled in batch)
        while self._waiting and budget > 0 and len(self._running) < self.params.max_running:
            job = self._waiting[0]
            hit = self._prefix_hit(job)
            wanted = min(job.uncomputed - hit, budget)
            if not self._grow(job, hit + wanted):
                return
            self._waiting.popleft()
            self._running.append(job)
            self._note_admission(job, hit, now_s)
            self._remember(job.arrival, hit + wanted)
            batch.append((job, wanted))
            budget -= wanted

    def _note_admission(self, job: _Job, hit: int, now_s: float) -> None:
        job.computed = hit
        if job.scheduled_s is not None:
            return  # A recomputed request is not queried, nor queued, a second time.
        job.scheduled_s = now_s
        self.stats.prefix_queries_tokens += job.arrival.prompt_tokens
        self.stats.prefix_hits_tokens += hit

    def _prefix_hit(self, job: _Job) -> int:
        """Whole cached blocks of the shared prefix, or of the same prompt; at least one prompt token is always computed."""
        cached = self.params.shared_prefix_tokens if self._prefix_warm else 0
        if job.arrival.prompt_key is not None:
            cached = max(cached, self._prompts.get(job.arrival.prompt_key, 0))
        block = self.params.block_tokens
        return min(cached, job.arrival.prompt_tokens - 1) // block * block

    def _remember(self, arrival: Arrival, tokens: int) -> None:
        """So much of this prompt can be taken from the cache by the next one like it, as in vLLM from the moment it is scheduled.

        Memory is counted as if no block were shared: cautious.
        """
        if arrival.prompt_key is None:
            return
        self._prompts[arrival.prompt_key] = max(tokens, self._prompts.get(arrival.prompt_key, 0))
        self._prompts.move_to_end(arrival.prompt_key)
        if len(self._prompts) > self.params.cached_prompts:
            self._prompts.popitem(last=False)

    def _duration_s(self, batch: list[tuple[_Job, int]]) -> float:
        params = self.params
        prefill = decoding = cached = 0
        for job, scheduled in batch:
            cached += job.computed
            if job.generated and scheduled == 1:
                decoding += 1
            else:
                prefill += scheduled
        seconds = (
            params.step_base_s
            + params.prefill_token_s * prefill
            + params.decode_sequence_s * decoding
            + params.kv_token_s * cached
        )
        return seconds * math.exp(params.noise_sigma * self._rng.gauss(0.0, 1.0))

    def _activity_ratio(self, batch: list[tuple[_Job, int]]) -> float:
        fullness = len(batch) / self.params.max_running + sum(n for _, n in batch) / self.params.token_budget
        return min(1.0, _IDLE_BATCH_ACTIVITY + (1 - _IDLE_BATCH_ACTIVITY) * fullness)

    def gpu_active_s(self, batch_elapsed_s: float) -> float:
        """Integral of GPU utilisation, `batch_elapsed_s` into the running iteration; a stuck one adds no more than its due."""
        running_s = min(batch_elapsed_s, self._batch_s) if self._batch is not None else 0.0
        return self.stats.gpu_active_s + max(0.0, running_s) * self._activity

    # -- KV blocks --------------------------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.params.block_tokens)

    def _grow(self, job: _Job, more_tokens: int) -> bool:
        """Give `job` the blocks for `more_tokens` beyond what is computed; False, and no change, when they are not free."""
        needed = self._blocks_for(job.computed + more_tokens) - job.blocks
        if needed > self._free_blocks:
            return False
        if needed > 0:
            job.blocks += needed
            self._free_blocks -= needed
        return True

    def _release(self, job: _Job) -> None:
        self._free_blocks += job.blocks
        job.blocks = 0

    def _preempt_youngest(self) -> _Job:
        job = self._running.pop()
        self._release(job)
        job.computed = 0
        job.preemptions += 1
        self.stats.preemptions += 1
        self._waiting.appendleft(job)
        return job

    def _settle_reserve(self, evict: bool = False) -> bool:
        """Move the reserve towards its target; with `evict`, at the running requests' cost. True when someone was preempted."""
        preempted = False
        while True:
            moved = min(self._reserve_target - self._reserved_blocks, self._free_blocks)
            self._reserved_blocks += moved
            self._free_blocks -= moved
            if self._reserved_blocks >= self._reserve_target or not evict or not self._running:
                return preempted
            self._preempt_youngest()
            preempted = True

    # -- results ----------------------------------------------------------------------------------------------------------

    def _emit(self, job: _Job, now_s: float) -> Token:
        index = job.generated
        job.generated += 1
        self.stats.generation_tokens += 1
        if index == 0:
            self._note_first_token(job, now_s)
        elif job.last_token_s is not None:
            self.stats.itl_s.observe(now_s - job.last_token_s)
        job.last_token_s = now_s
        if job.generated < job.arrival.output_tokens:
            return Token(job.arrival.request_id, index, None)
        self._finish(job, now_s)
        return Token(job.arrival.request_id, index, job.arrival.finish)

    def _note_first_token(self, job: _Job, now_s: float) -> None:
        job.first_token_s = now_s
        self.stats.prompt_tokens += job.arrival.prompt_tokens
        self.stats.ttft_s.observe(now_s - job.arrival.arrived_s)
        self._prefix_warm = self._prefix_warm or job.arrival.prompt_tokens >= self.params.shared_prefix_tokens
        self._remember(job.arrival, job.arrival.prompt_tokens)

    def _finish(self, job: _Job, now_s: float) -> None:
        self._running.remove(job)
        self._known.discard(job.arrival.request_id)
        self._release(job)
        stats, arrived_s = self.stats, job.arrival.arrived_s
        scheduled_s = job.scheduled_s if job.scheduled_s is not None else now_s
        first_s = job.first_token_s if job.first_token_s is not None else now_s
        stats.finished[job.arrival.finish] += 1
        stats.e2e_s.observe(now_s - arrived_s)
        stats.queue_s.observe(scheduled_s - arrived_s)
        stats.prefill_s.observe(first_s - scheduled_s)
        stats.decode_s.observe(now_s - first_s)
        stats.inference_s.observe(now_s - scheduled_s)
        stats.tpot_s.observe((now_s - first_s) / max(job.generated - 1, 1))

    def _refresh_gauges(self) -> None:
        used = self.params.kv_blocks - self._free_blocks
        self.gauges = Gauges(len(self._running), len(self._waiting), used / self.params.kv_blocks)
