"""Every detector of the benchmark in one shape: a run over rows that gives the rows at which it alarmed. Pure.

``block_e`` is the product's own code. The rules growth, distortion and zscore are read here over whole files at once, by the
definitions of `docs/drift.md`; KS and river's tests are peers. After an alarm all of them rest for ``REST_ROWS``, so that
alarms can be counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf
from typing import Any

import numpy as np

from tailkeeper_watchdog.drift import BLOCK_E, DESIGNS, Baseline, BlockE, Design, Rows, fit
from tailkeeper_watchdog.drift.load import score
from tailkeeper_watchdog.drift.rows import AT, LATENCY, FloatArray, IntArray

REST_ROWS = 1_000
BATCH_ROWS = 1_000
TICK_S = 5.0
RING_ROWS = 1_000
ZSCORE_WINDOW_S = 60.0
ZSCORE_LIMIT = 3.5
MIN_WINDOW_ROWS = 20
DISTORTION_LIMIT = 0.8
GROWTH_RATIO = 1.15
KS_REFERENCE_ROWS, KS_EVERY_ROWS, KS_P = 2_000, 500, 1e-3
RIVER_WARM_UP_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of which the first ``baseline_rows`` are the baseline, and ``baselines`` fitted on them, by design."""

    rows: Rows
    baseline_rows: int
    baselines: Mapping[str, Baseline]

    @property
    def latency_s(self) -> FloatArray:
        return self.rows.table[:, LATENCY]

    @property
    def at_s(self) -> FloatArray:
        return self.rows.table[:, AT]


Run = Callable[[Case], list[int]]


def prepare(rows: Rows, baseline_rows: int, designs: Iterable[Design] = (BLOCK_E,)) -> Case:
    """Fit what the detectors need. Raises ValueError where the baseline is too short."""
    fitted = {d.name: fit(rows[:baseline_rows], model_id="bench", created_at_s=0.0, design=d) for d in designs}
    return Case(rows, baseline_rows, fitted)


def rested(alarms: Iterable[int], first: int) -> list[int]:
    """Alarms from row ``first`` on, without those that come while the detector rests."""
    kept: list[int] = []
    for row in alarms:
        if row >= first and (not kept or row - kept[-1] > REST_ROWS):
            kept.append(row)
    return kept


def block_e(design: str) -> Run:
    def run(case: Case) -> list[int]:
        test = BlockE(case.baselines[design])
        starts = range(case.baseline_rows, len(case.rows), BATCH_ROWS)
        found = (start + alarm.row for start in starts for alarm in test.update_many(case.rows[start : start + BATCH_ROWS]))
        return rested(found, case.baseline_rows)

    return run


def _ticks(case: Case) -> IntArray:
    """Rows seen at each tick, once the ring is full."""
    newest_s = np.maximum.accumulate(case.at_s)
    seen = np.unique(np.searchsorted(newest_s, np.arange(newest_s[0] + TICK_S, newest_s[-1], TICK_S)))
    return seen[seen >= RING_ROWS]


def growth(case: Case) -> list[int]:
    """Three P99 readings in a row over the last 1,000 requests, five seconds apart, each 15 % above the last."""
    ticks = _ticks(case)
    rank = int(0.99 * (RING_ROWS - 1))
    p99 = np.array([np.partition(case.latency_s[end - RING_ROWS : end], rank)[rank] for end in ticks.tolist()])
    rises = p99[1:] >= GROWTH_RATIO * p99[:-1]
    found = np.flatnonzero(rises[2:] & rises[1:-1] & rises[:-2]) + 3
    return rested(ticks[found].tolist(), case.baseline_rows)


def distortion(case: Case) -> list[int]:
    """Standard deviation above 0.8 × mean over the last 1,000 requests, read every five seconds."""
    ticks = _ticks(case)
    sums = np.concatenate([[0.0], np.cumsum(case.latency_s)])
    squares = np.concatenate([[0.0], np.cumsum(case.latency_s**2)])
    mean = (sums[ticks] - sums[ticks - RING_ROWS]) / RING_ROWS
    variance = (squares[ticks] - squares[ticks - RING_ROWS]) / RING_ROWS - mean**2
    found = np.sqrt(np.maximum(variance, 0.0)) > DISTORTION_LIMIT * mean
    return rested(ticks[found].tolist(), case.baseline_rows)


def zscore(case: Case) -> list[int]:
    """P99 of the last 60 s, read every five seconds, more than 3.5 standard deviations above the baseline's readings."""
    newest_s = np.maximum.accumulate(case.at_s)
    ends, p99 = [], []
    for now_s in np.arange(newest_s[0] + ZSCORE_WINDOW_S, newest_s[-1], TICK_S).tolist():
        start, end = np.searchsorted(newest_s, [now_s - ZSCORE_WINDOW_S, now_s]).tolist()
        if end - start >= MIN_WINDOW_ROWS:
            ends.append(end)
            p99.append(_p99(case.latency_s[start:end]))
    rows, readings = np.array(ends), np.array(p99)
    usual = readings[rows < case.baseline_rows]
    if len(usual) < 2:
        return []
    found = readings > usual.mean() + ZSCORE_LIMIT * max(float(usual.std()), 1e-12)
    return rested(rows[found].tolist(), case.baseline_rows)


def _p99(latency_s: FloatArray) -> float:
    rank = int(0.99 * (len(latency_s) - 1))
    return float(np.partition(latency_s, rank)[rank])


def ks(case: Case) -> list[int]:
    """Kolmogorov–Smirnov, one-sided, on ``block_e``'s own score: 1,000 requests against 2,000 of the baseline."""
    baseline = case.baselines[BLOCK_E.name]
    usual, _ = score(baseline.model, case.rows.table[: case.baseline_rows], 0.0)
    judged, _ = score(baseline.model, case.rows.table[case.baseline_rows :], BLOCK_E.dead_band)
    scores = np.concatenate([usual, judged])
    rows = np.flatnonzero(~np.isnan(scores))  # a request that does not say its load has no score
    scores, known = scores[rows], int(np.searchsorted(rows, case.baseline_rows))
    rng = np.random.default_rng(0)
    picked = rng.choice(known, min(KS_REFERENCE_ROWS, known), replace=False)
    reference = np.sort(scores[picked])
    size = len(reference) * RING_ROWS / (len(reference) + RING_ROWS)
    shares = np.arange(RING_ROWS) / RING_ROWS
    found = []
    for end in range(known + RING_ROWS, len(scores) + 1, KS_EVERY_ROWS):
        window = np.sort(scores[end - RING_ROWS : end])
        distance = float(np.max(np.searchsorted(reference, window, "right") / len(reference) - shares))
        if exp(-2 * max(distance, 0.0) ** 2 * size) < KS_P:
            found.append(int(rows[end - 1]))
    return rested(found, case.baseline_rows)


def _river(make: Callable[[Any], Any]) -> Run:
    """A river detector on the raw latency, with its defaults; only rises count, where it can say which way it went."""

    def run(case: Case) -> list[int]:
        from river import drift

        detector = make(drift)
        usual_s = float(case.latency_s[: case.baseline_rows].mean())
        first = max(0, case.baseline_rows - RIVER_WARM_UP_ROWS)
        found = []
        for row, value in enumerate(case.latency_s[first:].tolist(), first):
            detector.update(value)
            if detector.drift_detected and getattr(detector, "estimation", inf) > usual_s:
                found.append(row)
        return rested(found, case.baseline_rows)

    return run


OURS: Mapping[str, Run] = {
    "block_e": block_e(BLOCK_E.name),
    **{f"block_e_{name}": block_e(name) for name in DESIGNS if name != BLOCK_E.name},
    "growth": growth,
    "distortion": distortion,
    "zscore": zscore,
}
KS_PEER: Mapping[str, Run] = {"ks": ks}
RIVER_PEERS: Mapping[str, Run] = {
    "adwin": _river(lambda drift: drift.ADWIN()),
    "page_hinkley": _river(lambda drift: drift.PageHinkley(threshold=50, mode="up")),
}
SLOW_PEERS: Mapping[str, Run] = {"kswin": _river(lambda drift: drift.KSWIN(seed=1))}
"""A quarter of a millisecond for each request: over a few thousand requests only."""


def has_river() -> bool:
    """Whether river can be had; imports it, so that no run pays for that."""
    try:
        import river.drift  # noqa: F401
    except ImportError:
        return False
    return True


def timed(run: Run, case: Case) -> tuple[list[int], float]:
    """The alarms, and CPU nanoseconds for each row (of the whole run, whatever part of it was warming up)."""
    start_ns = time.process_time_ns()
    alarms = run(case)
    return alarms, (time.process_time_ns() - start_ns) / max(len(case.rows) - case.baseline_rows, 1)
