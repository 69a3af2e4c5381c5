"""``GET /api/v1/capacity`` and its series: what the hardware is used for. Pure: a view of the book in, plain values
out; slow enough for a large fleet to be done in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.api.page import Series
from tailkeeper_watchdog.capacity.book import CONSOLIDATE_BELOW, Capacity, FreeMemory, View, capacities, free_memory

WINDOW_S = 3_600
SPREAD_GOALS_BYTES = ((4, 12e6), (8, 20e6))
"""Goals for the spread of free memory over at most so many nodes; above there is none."""
HOURS_PER_1000 = 1_000 / 3_600


def document(view: View, time_unix_s: float) -> dict[str, Any]:
    """``GET /api/v1/capacity``."""
    rows = capacities(view)
    return {
        "time": time_unix_s,
        "window_s": WINDOW_S,
        "consolidate_below_ratio": CONSOLIDATE_BELOW,
        "candidates": [row.backend for row in rows if row.consolidate],
        "free_memory": _free(free_memory(view)),
        "backends": [_row(row) for row in rows],
    }


def _free(found: FreeMemory) -> dict[str, Any]:
    nodes = len(found.by_node)
    goal = next((goal for most, goal in SPREAD_GOALS_BYTES if nodes <= most), None)
    return {
        "nodes": dict(sorted(found.by_node.items())),
        "spread_bytes": found.spread_bytes,
        "goal_bytes": goal if nodes > 1 else None,
    }


def _row(row: Capacity) -> dict[str, Any]:
    cost = row.gpu_seconds_per_request
    return {
        "backend": row.backend,
        "observed_s": row.observed_s,
        "token_efficiency": row.token_efficiency,
        "tpot_per_rps": None
        if row.coupling is None
        else {"slope_s": row.coupling.slope_s_per_rps, "r2": row.coupling.r2, "samples": row.coupling.samples},
        "kv_hit_ratio": row.kv_hit_ratio,
        "idle_ratio": row.idle_ratio,
        "gpu_utilization_ratio": row.gpu_use_ratio,
        "gpus": row.gpus,
        "requests": row.requests,
        "gpu_hours_per_1000_requests": None if cost is None else cost * HOURS_PER_1000,
        "consolidate": row.consolidate,
    }


def series(view: View) -> Iterator[Series]:
    rows = capacities(view)
    yield metrics.CAPACITY_IDLE, [((row.backend,), row.idle_ratio) for row in rows]
    yield metrics.CAPACITY_GPU_SECONDS, [((row.backend,), row.gpu_seconds_per_request) for row in rows]
    yield (
        metrics.CAPACITY_TPOT_SLOPE,
        [((row.backend,), None if row.coupling is None else row.coupling.slope_s_per_rps) for row in rows],
    )
    yield (
        metrics.CAPACITY_CONSOLIDATE,
        [((row.backend,), None if row.consolidate is None else float(row.consolidate)) for row in rows],
    )
    yield metrics.CAPACITY_FREE_SPREAD, [((), free_memory(view).spread_bytes)]
