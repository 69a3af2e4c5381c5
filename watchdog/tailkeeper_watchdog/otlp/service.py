"""Sends what happened in each tick to a collector: its log records, and a trace of every tick in which something happened.

Beside the loop, never in it: ``note`` only writes into the sender's queue, which is bounded, and a collector that is away costs
that queue. What is dropped is counted on our own page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.otlp.counts import SENDER, Counts, Outcome
from tailkeeper_exporter.otlp.sender import Sender
from tailkeeper_watchdog.happenings.names import Step
from tailkeeper_watchdog.happenings.teller import Happening
from tailkeeper_watchdog.metrics import OTLP_LOGS, OTLP_SPANS
from tailkeeper_watchdog.model import TickRecord
from tailkeeper_watchdog.otlp.logs import logs_of, values_of
from tailkeeper_watchdog.otlp.traces import Event, TickTrace, spans_of
from tailkeeper_watchdog.tick import Laps

CHANGED = "change"
"""Name of a step's events; which change it was is in their attributes."""


class Telemetry:
    """``note`` after each tick, in the event loop; ``run`` sends until cancelled. ``instance`` is this run of the watchdog.

    ``headers`` and ``client`` are for the collector, see the exporter's ``Sender``, which closes the client.
    """

    def __init__(
        self,
        endpoint: str,
        wants_logs: bool,
        instance: str,
        headers: Callable[[], Mapping[str, str]],
        client: httpx.AsyncClient,
        log: Any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wants_logs = wants_logs
        self.instance = instance
        self.counts = Counts()
        self._missed = 0
        self._executor = ThreadPoolExecutor(1, "otlp")
        self._sender = Sender(endpoint, headers, client, self.counts, log, self._executor, clock)

    def note(self, record: TickRecord, laps: Laps, happenings: tuple[Happening, ...], missed: int = 0) -> None:
        """Queue what happened in one tick. ``missed`` is how much was too much to be told, since the start."""
        self._count_missed(missed)
        in_tick = [one for one in happenings if one.in_tick]
        trace = _trace_of(self.instance, record, laps)
        if in_tick or record.error is not None:
            self._offer_trace(trace, record, in_tick)
        if happenings and self._wants_logs:
            self._sender.offer_logs(logs_of(happenings, trace).SerializeToString(), len(happenings))

    def _offer_trace(self, trace: TickTrace, record: TickRecord, in_tick: list[Happening]) -> None:
        values = {
            "backends": len(record.situation.snapshot.backends),
            "findings": len(record.findings),
            "happenings": len(in_tick),
        }
        events = (Event(one.step, CHANGED, one.at_unix_s, values_of(one)) for one in in_tick if one.step is Step.ACT)
        spans = spans_of(trace, {**values}, events)
        self._sender.offer_spans(spans.SerializeToString(), len(spans.resource_spans[0].scope_spans[0].spans))

    def _count_missed(self, missed: int) -> None:
        if self._wants_logs:
            self.counts.logs[Outcome.OFFERED] += missed - self._missed
            self.counts.logs[Outcome.DROPPED] += missed - self._missed
        self._missed = missed

    def series(self) -> Iterator[tuple[Metric, tuple[tuple[tuple[str, ...], float], ...]]]:
        """For our page: what became of spans and records, every outcome from the start."""
        for metric, counter in ((OTLP_SPANS, self.counts.spans), (OTLP_LOGS, self.counts.logs)):
            yield metric, tuple(((outcome.value,), float(counter[outcome])) for outcome in SENDER)

    async def run(self) -> None:
        try:
            await self._sender.run()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _trace_of(instance: str, record: TickRecord, laps: Laps) -> TickTrace:
    """Monotonic times as epoch seconds, by the one moment of which both are known."""
    snapshot, ended = record.situation.snapshot, laps.started + record.duration_s
    offset = record.time_unix_s - (snapshot.now if record.error is None else ended)
    steps = tuple((step, at + offset) for step, at in laps.steps)
    return TickTrace(instance, record.tick, laps.started + offset, ended + offset, steps, record.error)
