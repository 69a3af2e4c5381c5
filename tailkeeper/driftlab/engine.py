"""A simulated engine with continuous batching and chunked prefill: arrivals and token counts in, latencies out. Pure.

What it keeps of a real one is what makes drift hard to see: requests wait for each other, so their latencies go together.
Nothing is done for a decoding request in a step but counting it, so an hour of traffic takes seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

import numpy as np

from tailkeeper_watchdog.drift.rows import FloatArray, IntArray

_DRAWS = 65_536


@dataclass(frozen=True, slots=True)
class Engine:
    """Seconds of a step = (base + prefill·tokens + decode·requests + kv·tokens held) × lognormal noise, rarely a stall."""

    base_s: float = 0.008
    prefill_s: float = 3.0e-5
    decode_s: float = 1.0e-4
    kv_s: float = 1.0e-7
    most_running: int = 128
    step_tokens: int = 2048
    noise: float = 0.06
    stall_share: float = 0.004
    """Of steps; a stall takes 50 ms × a Pareto number (1.8)."""


FIRST_ENGINE = Engine()
OTHER_ENGINE = Engine(base_s=0.014, prefill_s=4e-5, most_running=48, step_tokens=4096, stall_share=0.01)
"""Smaller batches, larger chunks, more stalls: nothing was tuned on it."""


@dataclass(frozen=True, slots=True)
class Served:
    """For each request in the order of arrival: seconds to its first token, and the load that it met when it came."""

    ttft_s: FloatArray
    backlog_tokens: FloatArray
    running: FloatArray
    waiting: FloatArray


class _Noise:
    """Factors and stalls of steps, drawn many at a time."""

    def __init__(self, engine: Engine, rng: np.random.Generator) -> None:
        self._engine, self._rng = engine, rng
        self._factors: list[float] = []
        self._stalls_s: list[float] = []

    def next(self) -> tuple[float, float]:
        if not self._factors:
            self._draw()
        return self._factors.pop(), self._stalls_s.pop()

    def _draw(self) -> None:
        rng, engine = self._rng, self._engine
        self._factors = np.exp(engine.noise * rng.standard_normal(_DRAWS)).tolist()
        stalls_s = 0.05 * rng.random(_DRAWS) ** (-1 / 1.8)
        self._stalls_s = np.where(rng.random(_DRAWS) < engine.stall_share, stalls_s, 0.0).tolist()


class _Machine:
    """The engine's state between two steps."""

    def __init__(self, engine: Engine, arrivals_s: list[float], prompts: list[int], outputs: list[int]) -> None:
        self.engine = engine
        self.arrivals_s, self.prompts, self.outputs = arrivals_s, prompts, outputs
        n = len(arrivals_s)
        self.ttft_s, self.backlog, self.running, self.waiting = ([0.0] * n for _ in range(4))
        self.now_s = 0.0
        self.come = self.admitted = self.running_now = self.decoding = 0
        self.backlog_tokens = self.kv_tokens = self.step_number = 0
        self.prefilling: deque[list[int]] = deque()
        self.ends: dict[int, list[int]] = {}
        self.done = 0

    def take_in(self) -> None:
        """Let in who has come: into the queue, and from there into the batch."""
        while self.come < len(self.arrivals_s) and self.arrivals_s[self.come] <= self.now_s:
            one = self.come
            self.backlog[one], self.running[one], self.waiting[one] = self.backlog_tokens, self.running_now, one - self.admitted
            self.backlog_tokens += self.prompts[one]
            self.come += 1
        while self.admitted < self.come and self.running_now < self.engine.most_running:
            self.prefilling.append([self.admitted, self.prompts[self.admitted]])
            self.running_now += 1
            self.admitted += 1

    def prefill(self) -> tuple[int, list[int]]:
        """Tokens of prompts that this step takes, and the requests whose prompt is then complete."""
        left = self.engine.step_tokens - self.decoding
        taken, complete = 0, []
        while self.prefilling and left > 0:
            head = self.prefilling[0]
            part = min(head[1], left)
            left -= part
            taken += part
            head[1] -= part
            if head[1] == 0:
                complete.append(self.prefilling.popleft()[0])
        return taken, complete

    def finish(self) -> None:
        """Those decoding get a token each; those whose last it was go."""
        self.kv_tokens += self.decoding
        for one in self.ends.pop(self.step_number, ()):
            self.decoding -= 1
            self.kv_tokens -= self.prompts[one] + self.outputs[one] - 1
            self._leave()

    def _leave(self) -> None:
        self.running_now -= 1
        self.done += 1

    def first_tokens(self, taken: int, complete: list[int]) -> None:
        self.kv_tokens += taken
        self.backlog_tokens -= taken
        for one in complete:
            self.ttft_s[one] = self.now_s - self.arrivals_s[one]
            if self.outputs[one] <= 1:
                self.kv_tokens -= self.prompts[one]
                self._leave()
                continue
            self.decoding += 1
            self.ends.setdefault(self.step_number + self.outputs[one] - 1, []).append(one)


def serve(
    engine: Engine,
    arrivals_s: FloatArray,
    prompts: IntArray,
    outputs: IntArray,
    rng: np.random.Generator,
    slow_from: float = inf,
    slow_ratio: float = 1.0,
) -> Served:
    """Serve all requests. From request ``slow_from`` on every step takes ``slow_ratio`` times as long."""
    machine = _Machine(engine, arrivals_s.tolist(), prompts.tolist(), outputs.tolist())
    noise = _Noise(engine, rng)
    total = len(arrivals_s)
    while machine.done < total:
        if not machine.running_now and machine.come == machine.admitted:
            machine.now_s = max(machine.now_s, machine.arrivals_s[machine.come])
        machine.take_in()
        taken, complete = machine.prefill()
        factor, stall_s = noise.next()
        step_s = engine.base_s + engine.prefill_s * taken + engine.decode_s * machine.decoding + engine.kv_s * machine.kv_tokens
        machine.now_s += (step_s * factor + stall_s) * (slow_ratio if machine.admitted >= slow_from else 1.0)
        machine.step_number += 1
        machine.finish()
        machine.first_tokens(taken, complete)
    return Served(
        *(np.array(column, dtype=np.float64) for column in (machine.ttft_s, machine.backlog, machine.running, machine.waiting))
    )
