"""Sends what happened in each tick to a collector: its log records, and a trace of every tick in which something happened.

Beside the loop, never in it: ``note`` keeps a reference, a thread writes the messages, and the sender's queue holds them. All of
it is bounded, a collector that is away costs that much, and what is dropped is counted on our own page.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
MAX_TICKS_WAITING = 50
"""To be written as messages. A usual one takes 0.3 ms, one of a thousand changes 0.2 s, so these are behind within seconds."""
LAST_WORDS_S = 0.5
"""At the end, for writing what still waits; the sender has its own time after that."""


@dataclass(frozen=True, slots=True)
class Noted:
    """One tick to be told. All of it is immutable, so that a thread may read it."""

    trace: TickTrace
    happenings: tuple[Happening, ...]
    backends: int
    findings: int


@dataclass(frozen=True, slots=True)
class Written:
    """The messages of one tick; empty where there is none."""

    spans: bytes
    span_count: int
    logs: bytes
    log_count: int


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
        self._clock, self._log = clock, log
        self._waiting: deque[Noted] = deque()
        self._arrived = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, "otlp")
        self._sender = Sender(endpoint, headers, client, self.counts, log, self._executor, clock)

    def note(self, record: TickRecord, laps: Laps, happenings: tuple[Happening, ...], missed: int = 0) -> None:
        """Queue what happened in one tick. ``missed`` is how much was too much to be told, since the start."""
        self._drop_logs(missed - self._missed)
        self._missed = missed
        if not happenings and record.error is None:
            return
        trace = _trace_of(self.instance, record, laps)
        self._waiting.append(Noted(trace, happenings, len(record.situation.snapshot.backends), len(record.findings)))
        self._arrived.set()
        while len(self._waiting) > MAX_TICKS_WAITING:
            self._drop(self._waiting.popleft())

    def _drop(self, noted: Noted) -> None:
        self._drop_logs(len(noted.happenings))
        spans = _span_count(noted)
        self.counts.spans.update({Outcome.OFFERED: spans, Outcome.DROPPED: spans})

    def _drop_logs(self, count: int) -> None:
        if self._wants_logs:
            self.counts.logs.update({Outcome.OFFERED: count, Outcome.DROPPED: count})

    async def run(self) -> None:
        """Write and send until cancelled; then what is left, for a short while."""
        sending = asyncio.create_task(self._sender.run())
        try:
            while True:
                await self._arrived.wait()
                await self._write_all()
        finally:
            self._last_words()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            noted = self._waiting[0]
            try:
                written = await loop.run_in_executor(self._executor, written_of, noted, self._wants_logs)
            except Exception as error:  # what nobody foresaw costs this tick's words; ending here would end all of them
                self._log.warning("a tick cannot be told", tick=noted.trace.tick, error=type(error).__name__)
                written = None
            if self._waiting and self._waiting[0] is noted:  # else it was dropped meanwhile, and is counted
                self._waiting.popleft()
                self._offer(written) if written is not None else self._drop(noted)
        self._arrived.clear()

    def _last_words(self) -> None:
        ends_at = self._clock() + LAST_WORDS_S
        while self._waiting:
            noted = self._waiting.popleft()
            if self._clock() < ends_at:
                self._offer(written_of(noted, self._wants_logs))
            else:
                self._drop(noted)

    def _offer(self, written: Written) -> None:
        if written.span_count:
            self._sender.offer_spans(written.spans, written.span_count)
        if written.log_count:
            self._sender.offer_logs(written.logs, written.log_count)


def series_of(counts: Counts) -> Iterator[tuple[Metric, tuple[tuple[tuple[str, ...], float], ...]]]:
    """For our page: what became of spans and records, every outcome at 0 from the start."""
    for metric, counter in ((OTLP_SPANS, counts.spans), (OTLP_LOGS, counts.logs)):
        yield metric, tuple(((outcome.value,), float(counter[outcome])) for outcome in SENDER)


def written_of(noted: Noted, wants_logs: bool) -> Written:
    """The messages of one tick. A release between two ticks is in the log and in no trace. Pure."""
    spans = spans_of(noted.trace, _values(noted), _events(noted)).SerializeToString() if _span_count(noted) else b""
    logs = logs_of(noted.happenings, noted.trace).SerializeToString() if noted.happenings and wants_logs else b""
    return Written(spans, _span_count(noted), logs, len(noted.happenings) if wants_logs else 0)


def _span_count(noted: Noted) -> int:
    """The tick and its steps, where something happened in it or it failed."""
    is_told = noted.trace.error is not None or any(one.in_tick for one in noted.happenings)
    return 1 + len(noted.trace.steps) if is_told else 0


def _values(noted: Noted) -> dict[str, str | int | float | bool | tuple[str, ...] | None]:
    happened = sum(one.in_tick for one in noted.happenings)
    return {"backends": noted.backends, "findings": noted.findings, "happenings": happened}


def _events(noted: Noted) -> Iterator[Event]:
    for one in noted.happenings:
        if one.in_tick and one.step is Step.ACT:
            yield Event(one.step, CHANGED, one.at_unix_s, values_of(one))


def _trace_of(instance: str, record: TickRecord, laps: Laps) -> TickTrace:
    """Monotonic times as epoch seconds, by the one moment of which both are known."""
    snapshot, ended = record.situation.snapshot, laps.started + record.duration_s
    offset = record.time_unix_s - (snapshot.now if record.error is None else ended)
    steps = tuple((step, at + offset) for step, at in laps.steps)
    return TickTrace(instance, record.tick, laps.started + offset, ended + offset, steps, record.error)
