"""Finished requests as a tap reports them, and taps that live in the test's own process."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.tap.exchange import GAP_COUNTS, Exchange
from tailkeeper_exporter.tap.knobs import Knobs
from tailkeeper_exporter.tap.status import TapStatus

TRACE = "0af7651916cd43dd8448eb211c80319c"


def gaps(*times_s: float) -> dict[str, Any]:
    counts = [0] * GAP_COUNTS
    for time_s in times_s:
        counts[bisect_left(catalog.TOKEN_BUCKETS, time_s)] += 1
    return {"gaps": tuple(counts), "gap_sum_s": sum(times_s)}


def exchange(**changes: Any) -> Exchange:
    """A stream of three tokens that ended well, after 50 ms in the tap's queue."""
    usual: dict[str, Any] = {
        "backend": "a",
        "request_id": "r-1",
        "trace_id": TRACE,
        "span_id": "b7ad6b7169203331",
        "start_unix_s": 1_700_000_000.0,
        "end_s": 0.9,
        "outcome": "ok",
        "status": 200,
        "method": "POST",
        "path": "/v1/chat/completions",
        "streaming": True,
        "sent_s": 0.05,
        "first_token_s": 0.3,
        "last_token_s": 0.8,
        "prompt_tokens": 10,
        "generated_tokens": 3,
        **gaps(0.2, 0.3),
    }
    return Exchange(**(usual | changes))


def status(at_s: float, **changes: Any) -> TapStatus:
    usual: dict[str, Any] = {"running": 0, "waiting": 0, "queued": 0, "progress_s": None, "answered_s": None, "knobs": Knobs()}
    return TapStatus(at_s, **(usual | changes))


class LocalTaps:
    """Taps without a process: a test says what they report and finish."""

    def __init__(self, backends: tuple[BackendSettings, ...], on_exchange: Callable[[Exchange], None]) -> None:
        self.names = tuple(backend.name for backend in backends)
        self.finish = on_exchange
        self.statuses: dict[str, TapStatus] = {}
        self.applied: list[tuple[str, Knobs]] = []

    async def apply(self, backend: str, knobs: Knobs, deadline_s: float) -> None:
        self.applied.append((backend, knobs))

    def open(self) -> None:
        """There is no address to bind."""

    async def run(self) -> None:
        await asyncio.Event().wait()
