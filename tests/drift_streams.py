"""Small seeded streams for tests of drift detection: no queue, so that ten thousand rows take milliseconds."""

from __future__ import annotations

from functools import cache

import numpy as np

from tailkeeper_watchdog.drift import BLOCK_E, COLUMNS, Baseline, Design, Rows, fit

RATE_PER_S = 8.0
BASELINE_ROWS = 6_000


def loaded(rows: int, seed: int, ratio: float = 1.0, rate_per_s: float = RATE_PER_S, start_s: float = 0.0) -> Rows:
    """Latency that follows the load, times lognormal noise with a Pareto tail, times ``ratio``."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(50, 4000, rows).astype(np.float64)
    backlog = rng.integers(0, 3000, rows).astype(np.float64)
    running, waiting = rng.integers(0, 40, rows).astype(np.float64), rng.integers(0, 5, rows).astype(np.float64)
    expected_s = 0.02 + 4e-5 * (prompt + backlog) + 1e-3 * running + 5e-3 * waiting
    tail = np.where(rng.random(rows) < 0.015, rng.random(rows) ** (-1 / 1.8), 1.0)
    latency_s = ratio * expected_s * tail * np.exp(0.25 * rng.standard_normal(rows))
    at_s = start_s + np.cumsum(rng.exponential(1 / rate_per_s, rows))
    return Rows(np.column_stack([at_s, latency_s, prompt, backlog, running, waiting]))


def joined(*parts: Rows) -> Rows:
    return Rows(np.concatenate([part.table for part in parts]))


def without_load(rows: Rows) -> Rows:
    table = rows.table.copy()
    table[:, COLUMNS.index("prompt_tokens") :] = np.nan
    return Rows(table)


@cache
def small_baseline(raw: bool = False, design: Design = BLOCK_E) -> Baseline:
    """Twelve minutes and a half of traffic, fitted."""
    rows = loaded(BASELINE_ROWS, seed=1)
    return fit(without_load(rows) if raw else rows, model_id="m", created_at_s=0.0, design=design)
