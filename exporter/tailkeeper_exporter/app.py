"""The exporter put together: collectors, taps, GPU sampler, request ring and HTTP interface, in one event loop.

``serve`` runs it until it is told to stop; ``build`` makes the parts for somebody else's loop. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
import structlog
from starlette.routing import Route
from starlette.types import ASGIApp

from tailkeeper_exporter import open_files
from tailkeeper_exporter.change_rights import read_token
from tailkeeper_exporter.clients import Clients, CredentialError, headers_in
from tailkeeper_exporter.collector import BackendCollector
from tailkeeper_exporter.discovery import Discoverer
from tailkeeper_exporter.found_collectors import FoundCollectors
from tailkeeper_exporter.gpu import DeviceId, GpuSampler, GpuSnapshot, XidEvent, open_source
from tailkeeper_exporter.gpu.xid import XidSeverity, xid_named
from tailkeeper_exporter.node import NodeCpu
from tailkeeper_exporter.otlp.service import Otlp
from tailkeeper_exporter.requests_ring import RequestRing
from tailkeeper_exporter.server import make_app
from tailkeeper_exporter.serving import Server, bind, end_on_signals, server_config
from tailkeeper_exporter.settings import BackendSettings, ExporterSettings, OtlpSettings
from tailkeeper_exporter.tap.access_log import AccessLog
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.host import TapHost
from tailkeeper_exporter.tap.meter import asks_for_work
from tailkeeper_exporter.tap.routes import tap_routes
from tailkeeper_exporter.tap.status import MakeTaps, RunningTaps
from tailkeeper_exporter.views import BackendView

SPREAD_S = 1.0
"""First rounds of a large fleet are spread over this long, so that they do not all fall together for ever."""


class Exporter:
    """All parts. ``app`` answers at any time; what it knows grows while ``running`` is entered."""

    def __init__(
        self,
        collectors: tuple[BackendCollector, ...],
        sampler: GpuSampler,
        ring: RequestRing,
        otlp: Otlp,
        clock: Callable[[], float],
        close: Callable[[], Any],
        access_log: AccessLog,
        taps: RunningTaps | None = None,
        found: FoundCollectors | None = None,
        more_routes: Sequence[Route] = (),
        *,
        has_token: bool = False,
    ) -> None:
        self._collectors = {collector.view.name: collector for collector in collectors}
        self._sampler = sampler
        self._clock = clock
        self._close = close
        self._access_log = access_log
        self._found = found
        self.taps = taps
        self.ring = ring
        self.otlp = otlp
        self.app: ASGIApp = make_app(self, (otlp.route, *more_routes), otlp.counts.series, has_token=has_token)

    @property
    def views(self) -> Mapping[str, BackendView]:
        """The last that is known of each backend, in the order of the configuration, then of those that were found."""
        configured = {name: collector.latest() for name, collector in self._collectors.items()}
        return configured if self._found is None else {**configured, **self._found.views}

    def gpu_snapshot(self) -> GpuSnapshot:
        return self._sampler.snapshot()

    def waiting_for(self) -> tuple[str, ...]:
        configured = tuple(name for name, collector in self._collectors.items() if not collector.first_round.is_set())
        return configured if self._found is None else (*configured, *self._found.waiting_for())

    async def ready(self) -> None:
        """Wait until every configured backend's first page read has ended, whatever came of it."""
        for collector in self._collectors.values():
            await collector.first_round.wait()

    def now(self) -> float:
        return self._clock()

    def take_exchange(self, exchange: Exchange) -> None:
        """A request that a tap has finished: to its backend's counts, the ring, the trace collector and the access log."""
        collector = self._collectors.get(exchange.backend)
        if collector is None:
            return
        gpu, backend = collector.first_gpu(), collector.view.settings
        try:
            if asks_for_work(exchange):
                collector.take_exchange(exchange)
            exchange = exchange.completed(backend.model, backend.labels)
            # Whoever reads the ring learns the backend's latencies, and an answer from the tap's own cache has none of it.
            if asks_for_work(exchange) and not exchange.cache_hit:
                self.ring.append(exchange.record(gpu))
            self.otlp.on_exchange(exchange, gpu)
            self._access_log.write(exchange)
        except Exception as error:
            # A boundary: a bug of ours costs this request's record, and not the connection to the tap.
            collector.count_bug("take_exchange", error)

    async def run(self) -> None:
        """Watch all backends and GPUs, and hold the taps, until cancelled."""
        step_s = SPREAD_S / max(len(self._collectors), 1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sampler.run())
                tasks.create_task(self.otlp.run())
                if self.taps is not None:
                    tasks.create_task(self.taps.run())
                for number, collector in enumerate(self._collectors.values()):
                    tasks.create_task(collector.run(number * step_s))
                if self._found is not None:
                    tasks.create_task(self._found.run())
        finally:
            await self._close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Exporter]:
        """Run in the background while the block lasts."""
        task = asyncio.create_task(self.run())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def build(
    backends: tuple[BackendSettings, ...],
    settings: ExporterSettings,
    clock: Callable[[], float] = time.monotonic,
    log: Any = None,
    clients: Clients | None = None,
    discoverer: Discoverer[Any] | None = None,
    make_taps: MakeTaps | None = None,
) -> Exporter:
    """The parts, not yet running. Raises ``CredentialError`` or ``ValueError`` for a configuration that cannot work.

    What ``discoverer`` finds is watched as well; to run it is the caller's. ``make_taps`` is called where a backend has a tap.
    """
    names = [backend.name for backend in backends]
    if len(set(names)) != len(names):
        raise ValueError(f"backends: names must differ, and {sorted(n for n in names if names.count(n) > 1)[0]!r} is there twice")
    clients = clients or Clients()
    make = clients.make
    logger = structlog.get_logger("tailkeeper.exporter") if log is None else log
    sampler = GpuSampler(open_source(settings.gpu), settings.gpu.interval_s, clock, on_xid=partial(_log_xid, logger))
    cpu, large_pages = NodeCpu(), asyncio.Semaphore(1)
    tapped = tuple(backend for backend in backends if backend.tap is not None)
    taps = make_taps(tapped, lambda exchange: exporter.take_exchange(exchange)) if make_taps is not None and tapped else None

    def open_one(backend: BackendSettings) -> tuple[BackendCollector, httpx.AsyncClient]:
        client = make(backend)
        return BackendCollector(backend, settings, client, sampler, cpu, clock, logger, large_pages, taps), client

    opened = [open_one(backend) for backend in backends]

    async def close() -> None:
        for _, client in opened:
            await client.aclose()

    ring = RequestRing()
    found = None if discoverer is None else FoundCollectors(discoverer, open_one, ring, SPREAD_S, logger)
    otlp = _otlp(_whole_fleet(backends, found), settings.otlp, ring, sampler, clients, logger, clock)
    access = AccessLog(structlog.get_logger("tailkeeper.access") if log is None else log, clock)
    token = _token(settings)
    routes = [] if taps is None else tap_routes(taps, token, settings.listen, clock)
    collectors = tuple(collector for collector, _ in opened)
    guarded = token is not None
    exporter = Exporter(collectors, sampler, ring, otlp, clock, close, access, taps, found, routes, has_token=guarded)
    return exporter


def _whole_fleet(
    backends: tuple[BackendSettings, ...], found: FoundCollectors | None
) -> Callable[[], tuple[BackendSettings, ...]]:
    """All that are watched at the moment; the same tuple while nobody comes or goes."""
    known: tuple[BackendSettings, ...] = ()
    whole = backends

    def fleet() -> tuple[BackendSettings, ...]:
        nonlocal known, whole
        if found is not None and found.watched is not known:
            known, whole = found.watched, (*backends, *found.watched)
        return whole

    return fleet


def _otlp(
    backends: Callable[[], tuple[BackendSettings, ...]],
    settings: OtlpSettings,
    ring: RequestRing,
    sampler: GpuSampler,
    clients: Clients,
    log: Any,
    clock: Callable[[], float],
) -> Otlp:
    def headers() -> dict[str, str]:
        return {} if settings.headers_file is None else headers_in(settings.headers_file, "exporter.otlp.headers_file")

    headers()  # A file that cannot be used ends the start, not the first post.
    client = None if settings.endpoint is None else clients.make_for(settings.endpoint)

    def gpus() -> dict[str, str | None]:
        """The first GPU of each backend: a trace points to one, and those of one engine work in step."""
        snapshot = sampler.snapshot()
        matched = {backend.name: snapshot.match(backend.gpus).devices for backend in backends()}
        return {name: devices[0].uuid if devices else None for name, devices in matched.items()}

    return Otlp(backends, settings, headers, ring, gpus, log, client, clock)


def _token(settings: ExporterSettings) -> str | None:
    """What changing calls need. Raises CredentialError."""
    try:
        return read_token(settings.token_file, "exporter.token_file")
    except (ValueError, OSError) as error:
        raise CredentialError(str(error)) from error


def _log_xid(log: Any, device: DeviceId, event: XidEvent) -> None:
    """A program's own mistake is told, and is no warning: the GPU is well."""
    row = xid_named(event.xid)
    tell = log.info if row.severity is XidSeverity.APPLICATION else log.warning
    tell("xid", gpu=device.uuid, xid=event.xid, severity=row.severity.value, meaning=row.meaning)


async def serve(
    backends: tuple[BackendSettings, ...], settings: ExporterSettings, discoverer: Discoverer[Any] | None = None
) -> None:
    """Run the exporter until SIGINT or SIGTERM, then return. To run the discoverer is the caller's.

    Raises OSError where it cannot listen. A part that ends by an error ends all: an exporter that no longer watches must not
    go on answering.
    """
    open_files.raise_limit()
    exporter = build(backends, settings, discoverer=discoverer, make_taps=TapHost)
    with bind(settings.listen, "exporter.listen") as listening:
        if exporter.taps is not None:
            exporter.taps.open()
        server = Server(server_config(exporter.app))
        end_on_signals(server)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(exporter.run())
            await server.serve(sockets=[listening])
            watching.cancel()
