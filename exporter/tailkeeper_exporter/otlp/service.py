"""OTLP put together: what is received becomes records and goes on, what the tap saw is sent, all of it is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
from starlette.routing import Route

from tailkeeper_exporter.otlp.counts import Counts, Outcome
from tailkeeper_exporter.otlp.ids import SPAN_BYTES, TRACE_BYTES, hex_id
from tailkeeper_exporter.otlp.known import Kin, KnownRequests
from tailkeeper_exporter.otlp.match import Backends
from tailkeeper_exporter.otlp.receiver import Read, Received, Receiver, traces_route
from tailkeeper_exporter.otlp.records import read_spans
from tailkeeper_exporter.otlp.sender import Sender
from tailkeeper_exporter.otlp.spans import log_of, spans_of
from tailkeeper_exporter.requests_ring import RequestRing
from tailkeeper_exporter.settings import BackendSettings, OtlpSettings
from tailkeeper_exporter.tap.exchange import Exchange


class Otlp:
    """All of it. ``backends`` tells who is watched now, the same tuple while nobody comes or goes, and ``gpus`` the GPU of each;
    ``headers`` and ``client`` are for the collector, see ``Sender``."""

    def __init__(
        self,
        backends: Callable[[], tuple[BackendSettings, ...]],
        settings: OtlpSettings,
        headers: Callable[[], Mapping[str, str]],
        ring: RequestRing,
        gpus: Callable[[], Mapping[str, str | None]],
        log: Any,
        client: httpx.AsyncClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._watched = backends
        self._indexed: tuple[BackendSettings, ...] = ()
        self._backends = Backends(())
        self._wants_logs = settings.logs
        self._ring = ring
        self._gpus = gpus
        self._unix_clock = unix_clock
        self._known = KnownRequests()
        # One thread: posts are understood one after the other, and never beside the reads of engine pages.
        self._executor = ThreadPoolExecutor(1, "otlp")
        self.counts = Counts()
        self.sender: Sender | None = None
        if settings.endpoint is not None:
            assert client is not None, "an endpoint needs a client"
            self.sender = Sender(settings.endpoint, headers, client, self.counts, log, self._executor, clock)
        self.route: Route = traces_route(Receiver(self._reader, self._take, self._executor))

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            if self.sender is not None:
                await self.sender.run()
            else:
                await asyncio.Event().wait()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def on_exchange(self, exchange: Exchange, gpu_uuid: str | None) -> None:
        """A request that the tap saw to its end. Its record is the caller's; here its spans and its log are queued."""
        self._known.remember(exchange.backend, _kin_of(exchange))
        if self.sender is None:
            return
        spans = spans_of(exchange, gpu_uuid, self._index().engine_of(exchange.backend))
        if spans is not None:
            self.sender.offer_spans(spans.SerializeToString(), len(spans.resource_spans[0].scope_spans[0].spans))
        if self._wants_logs:
            self.sender.offer_logs(log_of(exchange, gpu_uuid).SerializeToString(), 1)

    def _index(self) -> Backends:
        """Those who are watched now, by everything that a span may call them."""
        watched = self._watched()
        if watched is not self._indexed:
            self._indexed, self._backends = watched, Backends(watched)
        return self._backends

    def _reader(self) -> Read:
        """Reads a post as things stand now."""
        return partial(read_spans, backends=self._index(), gpus=self._gpus(), now_unix_s=self._unix_clock())

    def _take(self, received: Received) -> None:
        """Write what a post told into the ring, and send the post on."""
        reading = received.reading
        self.counts.spans.update(reading.counts)
        for told in reading.told:
            if self._known.is_new(told.record.backend, told.kin):
                self._ring.append(told.record)
                self.counts.spans[Outcome.RECORDED] += 1
            else:
                self.counts.spans[Outcome.DUPLICATE] += 1
        if self.sender is not None and reading.spans:
            self.sender.offer_spans(received.payload, reading.spans)


def _kin_of(exchange: Exchange) -> Kin:
    start_s = exchange.start_unix_s
    return Kin(
        hex_id(exchange.trace_id, TRACE_BYTES) or b"",
        hex_id(exchange.span_id, SPAN_BYTES) or b"",
        hex_id(exchange.parent_span_id or "", SPAN_BYTES) or b"",
        exchange.request_id,
        start_s,
        start_s + exchange.end_s,
    )
