"""Streams of requests by kind, and the drifts that are put into them. Seeded: the same seed gives the same stream.

Token counts come from the demo's packaged trace; latencies from the simulated engine (`engine.py`), because no public trace
has both. Rows are in the order of first tokens, as a gateway sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf, pi

import numpy as np

from tailkeeper.driftlab.engine import FIRST_ENGINE, OTHER_ENGINE, Engine, serve
from tailkeeper_demo.trace import load_trace
from tailkeeper_watchdog.drift.rows import AT, LATENCY, FloatArray, IntArray, Rows

DAY_S = 14_400.0
"""A day is pressed into four hours, so that a stream of seven hours has seen one."""
_GRID_S = 0.5
SPIKE_REQUESTS = 100
SPIKE_RATIO = 5.0
STALL_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Kind:
    """How a stream comes about. ``engine`` None: no queue, independent latencies."""

    name: str
    rate_per_s: float
    engine: Engine | None
    diurnal: float = 0.0
    """Amplitude of the daily load, and with it bursts (× 1.8 for some 20 s, every 10 min)."""


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("iid", 8.0, None),
        Kind("queue", 8.0, FIRST_ENGINE),
        Kind("diurnal", 6.5, FIRST_ENGINE, 0.2),
        Kind("other_engine", 3.6, OTHER_ENGINE, 0.2),
    )
}


@dataclass(frozen=True, slots=True)
class Change:
    """What happens from request ``at`` on, inside the simulation: a slower engine, or more load."""

    at: int
    slow_ratio: float = 1.0
    load_ratio: float = 1.0


@cache
def _trace_tokens() -> tuple[IntArray, IntArray]:
    rows = load_trace()
    return np.array([r.prompt_tokens for r in rows]), np.array([r.output_tokens for r in rows])


def stream(kind: Kind, requests: int, seed: int, change: Change | None = None) -> Rows:
    """``requests`` rows without drift, or with ``change``."""
    rng = np.random.default_rng(seed)
    prompts, outputs = _trace_tokens()
    picked = rng.integers(0, len(prompts), requests)
    if kind.engine is None:
        return _independent(kind, prompts[picked], rng, change)
    arrivals_s = _arrivals(kind, requests, rng, change)
    slow = (change.at, change.slow_ratio) if change else (inf, 1.0)
    served = serve(kind.engine, arrivals_s, prompts[picked], outputs[picked], rng, *slow)
    columns = (arrivals_s + served.ttft_s, served.ttft_s, prompts[picked], served.backlog_tokens, served.running, served.waiting)
    table = np.column_stack(columns).astype(np.float64)
    return Rows(table[np.argsort(table[:, AT], kind="stable")])


def _independent(kind: Kind, prompts: IntArray, rng: np.random.Generator, change: Change | None) -> Rows:
    """Prefill time with lognormal noise, and 1.5 % of Pareto (1.8) tail."""
    n = len(prompts)
    latency_s = (0.03 + 4e-5 * prompts) * np.exp(0.25 * rng.standard_normal(n))
    tail = rng.random(n) < 0.015
    latency_s[tail] *= rng.random(int(tail.sum())) ** (-1 / 1.8)
    if change is not None:
        latency_s[change.at :] *= change.slow_ratio
    arrivals_s = np.cumsum(rng.exponential(1 / kind.rate_per_s, n))
    zero = np.zeros(n)
    return Rows(np.column_stack([arrivals_s, latency_s, prompts, zero, zero, zero]))


def _arrivals(kind: Kind, requests: int, rng: np.random.Generator, change: Change | None) -> FloatArray:
    """Poisson arrivals of a rate that follows the day and its bursts; after ``change.at`` times its load ratio."""
    end_s = requests / kind.rate_per_s * 1.6 + 600
    grid_s = np.arange(0, end_s, _GRID_S)
    rate = np.full(grid_s.size, kind.rate_per_s)
    if kind.diurnal:
        rate *= 1 + kind.diurnal * np.sin(2 * pi * grid_s / DAY_S + rng.uniform(0, 2 * pi))
        rate *= _bursts(grid_s, rng)
    expected = np.concatenate([[0.0], np.cumsum(rate * _GRID_S)])
    numbers = np.cumsum(rng.exponential(size=requests))
    if change is not None:
        numbers[change.at :] = numbers[change.at] + (numbers[change.at :] - numbers[change.at]) / change.load_ratio
    return np.asarray(np.interp(numbers, expected, np.append(grid_s, end_s)), dtype=np.float64)


def _bursts(grid_s: FloatArray, rng: np.random.Generator) -> FloatArray:
    ratio = np.ones(grid_s.size)
    start_s = rng.exponential(600)
    while start_s < grid_s[-1]:
        length_s = rng.exponential(20)
        ratio[(grid_s >= start_s) & (grid_s < start_s + length_s)] = 1.8
        start_s += length_s + rng.exponential(600)
    return ratio


def _all(ratio: float) -> Callable[[FloatArray, FloatArray], FloatArray]:
    return lambda before, after: after * ratio


def _stalls(before: FloatArray, after: FloatArray) -> FloatArray:
    stalled = np.random.default_rng(1).random(after.size) < STALL_SHARE
    return after + np.where(stalled, np.quantile(before, 0.99), 0.0)


def _spike(before: FloatArray, after: FloatArray) -> FloatArray:
    return after * np.where(np.arange(after.size) < SPIKE_REQUESTS, SPIKE_RATIO, 1.0)


INJECTED: Mapping[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "all_x1.2": _all(1.2),
    "all_x1.5": _all(1.5),
    "stalls_2pct": _stalls,
    "spike": _spike,
}
"""Drifts of the latencies themselves, from those before the change and those after it."""
SIMULATED: Mapping[str, tuple[float, float]] = {"engine_x1.2": (1.2, 1.0), "load_step": (1.0, 1.25)}
"""Changes inside the simulation: slow ratio and load ratio."""
DRIFTS = (*INJECTED, *SIMULATED)
HARMLESS = ("load_step", "spike")
"""What load explains, and what is over before anybody could act: here no alarm is wanted."""


def with_drift(kind: Kind, requests: int, seed: int, drift: str, at: int) -> Rows:
    """A stream whose drift ``drift`` (one of ``DRIFTS``) begins at row ``at``."""
    if drift in SIMULATED:
        slow_ratio, load_ratio = SIMULATED[drift]
        return stream(kind, requests, seed, Change(at, slow_ratio, load_ratio))
    return inject(stream(kind, requests, seed), drift, at)


def inject(rows: Rows, drift: str, at: int) -> Rows:
    """The rows with one of ``INJECTED`` from row ``at`` on; times of first tokens stay, as a slower network would leave them."""
    table = rows.table.copy()
    table[at:, LATENCY] = INJECTED[drift](table[:at, LATENCY], table[at:, LATENCY])
    return Rows(table)
