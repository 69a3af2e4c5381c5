"""In which stage the time passed: the shift of P99 shared among queue, prefill, decode and network. Pure.

The worth of a set of stages is P99 (lower rank) of the sum when the stages of the set are as now and the others as before.
"As now" keeps each baseline record its place: the record that was at the 80th percentile of a stage gets what is at the
80th percentile of that stage now. So a stage whose times did not change adds exactly nothing, and no two records are
paired by chance. Its limit: which ranks meet in one request stays as before, so what comes from that alone (requests slow
in one stage that became slow in another too) belongs to no stage. It is ``residual_s``, and ends as unknown.

The tap cannot see the engine's queue: its ``prefill_s`` holds it. Where a record says how many tokens were ahead of it at
admission, its time in the engine is shared between those and its own, as a queue served in order would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tailkeeper_watchdog.attribution.request_log import ABORTED, OK, Rows
from tailkeeper_watchdog.attribution.shapley import Floats, shapley

QUEUE, PREFILL, DECODE, NETWORK, UNKNOWN = "queue", "prefill", "decode", "network", "unknown"
SIGNAL_FIELD: Mapping[str, str] = {"ttft": "ttft_s", "itl": "itl_s", "e2e": "e2e_s"}
MIN_KNOWN = 0.8
"""A stage that fewer records than this know is not told apart from the rest."""
Q = 0.99


def p99(values: Floats, q: float = Q) -> float:
    """A value really observed: the sample of rank ⌊q · (n - 1)⌋."""
    rank = int(q * (values.size - 1))
    return float(np.partition(values, rank)[rank])


@dataclass(frozen=True, slots=True)
class Staged:
    """Requests whose latency counts, that latency and its parts in seconds. The columns add up to ``total_s``."""

    rows: Rows
    total_s: Floats
    parts_s: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class StageShift:
    """``seconds`` by stage and ``residual_s`` add up to ``shift_s``, the difference of the two P99."""

    shift_s: float
    seconds: Mapping[str, float]
    residual_s: float


def known_stages(rows: Rows, signal: str) -> frozenset[str]:
    """The stages that enough of the records with this latency tell."""
    rows = _with_latency(rows, signal)
    if signal == "itl" or rows.size == 0:
        return frozenset()
    needs = {QUEUE: ("queue_s",), PREFILL: ("prefill_s",), DECODE: ("ttft_s",)}
    wanted = (QUEUE, PREFILL, DECODE) if signal == "e2e" else (QUEUE, PREFILL)
    return frozenset(s for s in wanted if all(np.isfinite(rows[f]).mean() >= MIN_KNOWN for f in needs[s]))


def staged(rows: Rows, signal: str, known: frozenset[str]) -> Staged:
    """The records that have the latency of ``signal`` and all of the ``known`` stages, taken apart."""
    rows = _with_latency(rows, signal)
    for stage, name in ((QUEUE, "queue_s"), (PREFILL, "prefill_s"), (DECODE, "ttft_s")):
        if stage in known and not (told := np.isfinite(rows[name])).all():
            rows = rows[told]
    total = rows[SIGNAL_FIELD[signal]].astype(np.float64)
    if signal == "itl":
        return Staged(rows, total, {DECODE: total})
    parts = _parts(rows, known)
    rest = np.maximum(0.0, total - sum(parts.values(), np.zeros(total.size)))
    # With queue and prefill known, what is left is the way there and back, and the CPU's work before the queue.
    parts[NETWORK if {QUEUE, PREFILL} <= known else UNKNOWN] = rest
    return Staged(rows, sum(parts.values(), np.zeros(total.size)), parts)


def _with_latency(rows: Rows, signal: str) -> Rows:
    """Of those who gave up after their first token, how long that took is known; without them only the quick would be left."""
    latency = rows[SIGNAL_FIELD[signal]]
    counted = (rows["outcome"] == OK) | (rows["outcome"] == ABORTED) if signal == "ttft" else rows["outcome"] == OK
    good = counted & np.isfinite(latency) & (latency >= 0)
    return rows if good.all() else rows[good]


def _parts(rows: Rows, known: frozenset[str]) -> dict[str, Floats]:
    parts: dict[str, Floats] = {}
    if QUEUE in known:
        parts[QUEUE] = rows["queue_s"].astype(np.float64)
    if PREFILL in known:
        spent = rows["prefill_s"].astype(np.float64)
        own = own_share(rows) if QUEUE in known else np.ones(spent.size)
        parts[PREFILL] = spent * own
        if QUEUE in known:
            parts[QUEUE] = parts[QUEUE] + spent * (1.0 - own)
    if DECODE in known:
        parts[DECODE] = np.maximum(0.0, rows["e2e_s"].astype(np.float64) - rows["ttft_s"])
    return parts


def own_share(rows: Rows) -> Floats:
    """Of the time to the first token in the engine, the share of the request's own tokens; 1 where nothing says otherwise."""
    ahead, own = rows["backlog_tokens"].astype(np.float64), fresh_tokens(rows)
    share = own / (own + ahead)
    return np.where(np.isfinite(share), share, 1.0)


def fresh_tokens(rows: Rows) -> Floats:
    """Prompt tokens that had to be computed, at least 1; NaN where not known."""
    cached = rows["cached_tokens"].astype(np.float64)
    return np.maximum(1.0, rows["prompt_tokens"].astype(np.float64) - np.where(np.isfinite(cached), cached, 0.0))


def stage_shift(baseline: Staged, current: Staged, rng: np.random.Generator) -> StageShift:
    """The exact Shapley value of every stage. Both samples have records and the same stages."""
    names = tuple(baseline.parts_s)
    order = rng.permutation(baseline.total_s.size)  # ties (no queue at all) are broken alike in all stages, and by nothing else
    before = np.stack([baseline.parts_s[name][order] for name in names])
    now = np.stack([_moved(before[i], current.parts_s[name]) for i, name in enumerate(names)])
    sums = np.zeros((1, order.size))
    for i in range(len(names)):  # doubles the table: without this stage moved, then with it
        sums = np.concatenate([sums + before[i], sums + now[i]])
    rank = int(Q * (order.size - 1))
    worth = np.partition(sums, rank, axis=1)[:, rank]
    shift = p99(current.total_s) - p99(baseline.total_s)
    seconds = shapley(worth)
    return StageShift(shift, dict(zip(names, seconds.tolist(), strict=True)), shift - float(worth[-1] - worth[0]))


def _moved(before: Floats, now: Floats) -> Floats:
    """Each value of ``before`` replaced by the one at the same rank of ``now``, the lower where there are fewer now."""
    levels = (np.arange(before.size) * (now.size - 1)) // max(1, before.size - 1)
    moved = np.empty_like(before)
    moved[np.argsort(before, kind="stable")] = np.sort(now)[levels]
    return moved
