"""The watchdog put together from its settings. Everything is built here and passed in; nothing is global."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import structlog

from tailkeeper_exporter.change_rights import read_token
from tailkeeper_exporter.clients import Clients, headers_in
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.actuators.kube_api import installed
from tailkeeper_watchdog.alerting import Context, Links, alerts_for, lately_closed
from tailkeeper_watchdog.api.app import build_api
from tailkeeper_watchdog.api.live import Live
from tailkeeper_watchdog.api.page import TickDurations
from tailkeeper_watchdog.api.security import Gate
from tailkeeper_watchdog.baseline_set import BaselineSet
from tailkeeper_watchdog.baseline_store import BaselineStore, Keeper, read_file
from tailkeeper_watchdog.collect.base import Source
from tailkeeper_watchdog.collect.exporter import ExporterSource
from tailkeeper_watchdog.collect.native_pages import NativePages
from tailkeeper_watchdog.collect.prometheus import PrometheusSource
from tailkeeper_watchdog.collect.prometheus_client import PrometheusClient
from tailkeeper_watchdog.core import Memory, PolicySetting, Rules
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.detectors import block_e
from tailkeeper_watchdog.gateways import KubernetesGateway
from tailkeeper_watchdog.happenings.teller import Teller
from tailkeeper_watchdog.insights import Insights
from tailkeeper_watchdog.kube_announcer import KubeAnnouncer
from tailkeeper_watchdog.leadership import Leadership
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.loop import Loop, Parts
from tailkeeper_watchdog.model import Lease, Mode, Slo, TickRecord
from tailkeeper_watchdog.notify import Notifier
from tailkeeper_watchdog.otlp.service import Telemetry
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.reconcile import Reconciler
from tailkeeper_watchdog.records.file import Recorder
from tailkeeper_watchdog.records.in_force import InForce, written_down
from tailkeeper_watchdog.settings import Configuration, PoliciesSettings, WatchdogSettings, WatchedBackend
from tailkeeper_watchdog.settings import PrometheusSource as PrometheusSourceSettings
from tailkeeper_watchdog.shard import Left, Neighbours, Shard
from tailkeeper_watchdog.slo.store import SloStore
from tailkeeper_watchdog.slo.tiers import tiers_of
from tailkeeper_watchdog.switches import Switches
from tailkeeper_watchdog.tidying import Tidying, few_collections
from tailkeeper_watchdog.weighing import Weighing
from tailkeeper_watchdog.weights_file import WeightsFile
from tailkeeper_watchdog.whole_fleet import Found, Listed, WholeFleet


def policy_modes(policies: PoliciesSettings) -> dict[str, Mode]:
    return {policy.name: getattr(policies, policy.name).mode for policy in POLICIES}


def build_source(
    config: Configuration, names: tuple[str, ...], fleet: Callable[[], tuple[WatchedBackend, ...]], *, one_of_many: bool = False
) -> Source:
    """What is read; ``fleet`` gives the backends' settings, by which their engines' own series are known.

    ``one_of_many``: a Prometheus has those of other shards too, and is asked for ours by name.
    """
    source = config.watchdog.source
    if isinstance(source, PrometheusSourceSettings):
        pages = NativePages(fleet, source.interval_s)
        return PrometheusSource(PrometheusClient(source), source.url, names, config.stale_after_s, pages, by_name=one_of_many)
    return ExporterSource(source.urls, names, config.stale_after_s, source.auth)


class Watchdog:
    """A built watchdog, to be kept ``running``. ``found`` is asked once a tick for the backends that are watched beside the
    configured ones; whatever finds them runs elsewhere. ``weights_file`` is followed meanwhile.

    Build it only while leading: it takes up what the last leader has left behind, and goes on writing it.
    """

    def __init__(
        self,
        config: Configuration,
        found: Found | None = None,
        weights_file: WeightsFile | None = None,
        leadership: Leadership | None = None,
        neighbours: Neighbours | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """``ledger`` is one that was taken up already; by default the file of the configuration is opened."""
        provider = Listed(config.backends, found)
        fleet = WholeFleet(config.backends, found, {g.name: g.kind for g in config.gateways})
        self._config = config
        self.ledger = ledger or Ledger(config.watchdog.state)
        self._teller = Teller()
        decisions = DecisionLog(self.ledger, time.time, self._teller.hear)
        instance = instance_of(time.time())
        self.telemetry = build_telemetry(config, instance)
        self.announcers = build_announcers(config, instance)
        actuators = {g.name: build_actuator(g) for g in config.gateways}
        self.switches = Switches(self.ledger, config.guards.pause_file, time.time)
        part = None if neighbours is None else partial(_part, neighbours, Listed(config.backends, found))
        if neighbours is not None:
            self.switches.settle(neighbours.shard.of)
        self.weighing = Weighing(self.ledger, config.hscore.weights.model_dump(), time.time)
        self._weights_file, self._named = weights_file, "weights" in config.hscore.model_fields_set
        self._durations = TickDurations()
        given = read_file(config.watchdog.baselines) if config.watchdog.baselines else BaselineSet()
        store = BaselineStore.beside(config.watchdog.state)
        learned = block_e.Memory(given=given, restored=store.load(time.time()))
        self.insights = build_insights(config)
        modes = policy_modes(config.policies)
        self.loop = Loop(
            Parts(
                fleet=fleet,
                source=build_source(config, tuple(b.name for b in fleet()), provider, one_of_many=neighbours is not None),
                reconciler=Reconciler(actuators, self.ledger, decisions, config.guards.lease_s, time.time, time.monotonic),
                ledger=self.ledger,
                decisions=decisions,
                switches=self.switches,
                rules=rules_of(config),
                weighing=self.weighing,
                guards=config.guards,
                tick_s=config.watchdog.tick_s,
                leadership=leadership,
                memory=Memory(detectors={block_e.DETECTOR.name: learned}),
                elsewhere=frozenset if part is None else lambda: part()[1].servers,
                rest=Tidying(),
            ),
            self._after_tick,
        )
        self._recorder = build_recorder(config, self.loop.parts)
        self._keeper = Keeper(store, lambda: self.loop.drift.baselines, time.time)
        alertmanager = config.watchdog.alertmanager
        self._notifier = Notifier(alertmanager.url, alertmanager.auth) if alertmanager.url else None
        self._links = links_of(config.watchdog)
        token = read_token(config.watchdog.token_file, "watchdog.token_file")
        tick_s = config.watchdog.tick_s
        sent = None if self.telemetry is None else self.telemetry.counts
        self._live = Live()
        own = (self.ledger, decisions, self.switches, self._durations, modes, tick_s, self.insights)
        recorder = self._recorder
        api = build_api(
            self.loop,
            *own,
            sent,
            self.announcers,
            self._live,
            part,
            has_token=token is not None,
            unrecorded=None if recorder is None else lambda: recorder.lost,
        )
        self._api = api
        self.asgi = Gate(api, token)

    def _after_tick(self, record: TickRecord) -> None:
        self._durations.observe(record.duration_s)
        try:
            self._tell(record)
        finally:  # last, because its thread would take turns with this one; and whatever fails, the tick is recorded
            if self._recorder is not None:
                self._recorder.offer(record, self.loop.inputs)

    def _tell(self, record: TickRecord) -> None:
        if self._notifier is not None:
            book = self.loop.memory.book
            findings = (*book.open_findings, *self._notifier.owed(lately_closed(book, record.time_unix_s)))
            fleet = self.loop.fleet
            context = Context.of(record, fleet.backends, self._leases, self._links, self._config.watchdog.alertmanager.labels)
            alerts = alerts_for(findings, context)
            self._notifier.offer(alerts, fleet.names)
        self._tell_happenings(record)
        self.insights.note(record)

    def _tell_happenings(self, record: TickRecord) -> None:
        """What happened, to whoever is told: a collector, a cluster. What they do with it is done beside the loop."""
        happenings = self._teller.tell(record, self.loop.memory.book.closed)
        if self.telemetry is not None:
            self.telemetry.note(record, self.loop.laps, happenings, self._teller.missed)
        for announcer in self.announcers:
            announcer.offer(happenings)

    def _leases(self) -> tuple[Lease, ...]:
        """What is in force. A ledger that cannot be read keeps no alert back: that then says what is wanted, not what is done."""
        try:
            return self.ledger.leases()
        except LedgerError:
            return ()

    def end_streams(self) -> None:
        """What the console hears ends: called when the server ends, which would wait for it otherwise."""
        self._live.end()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ticks, and does what is done beside the ticks; all of it has ended and is closed when this is left."""
        few_collections()
        async with self._api.router.lifespan_context(self._api), self._background(asyncio.Event()):
            yield

    @contextlib.asynccontextmanager
    async def _background(self, stop: asyncio.Event) -> AsyncIterator[None]:
        ticking = asyncio.create_task(self.loop.run(stop))
        beside: list[Coroutine[Any, Any, None]] = [self._keeper.run(), self.insights.run()]
        beside += [part.run() for part in (self._notifier, self.telemetry, *self.announcers) if part is not None]
        if self._weights_file is not None:
            beside.append(self._weights_file.follow(self.weighing.take_file, named=self._named))
        tasks = [asyncio.create_task(work) for work in beside]
        try:
            yield
        finally:
            stop.set()
            await ticking
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._keeper.keep()
            await self.close()

    async def close(self) -> None:
        await self.insights.save()
        await self.loop.parts.source.close()
        await self.loop.parts.reconciler.close()
        if self._notifier is not None:
            await self._notifier.close()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)
        with contextlib.suppress(LedgerError):
            await self.ledger.settled()
        self.ledger.close()


def _part(neighbours: Neighbours, own: Listed) -> tuple[Shard, Left]:
    return neighbours.shard, neighbours.left(own())


def instance_of(started_unix_s: float) -> str:
    """Names this run of the watchdog, in its traces: ticks are counted from its start."""
    return f"{socket.gethostname()}/{os.getpid()}/{started_unix_s:.3f}"


def build_telemetry(config: Configuration, instance: str) -> Telemetry | None:
    """None where no collector is configured. Raises CredentialError where the file with its headers cannot be used."""
    otlp = config.watchdog.otlp
    if otlp.endpoint is None:
        return None

    def headers() -> Mapping[str, str]:
        return {} if otlp.headers_file is None else headers_in(otlp.headers_file, "watchdog.otlp.headers_file")

    headers()  # A file that cannot be used ends the start, not the first post.
    client = Clients().make_for(otlp.endpoint)
    return Telemetry(otlp.endpoint, otlp.logs, instance, headers, client, structlog.get_logger("tailkeeper.watchdog"))


def build_announcers(config: Configuration, instance: str) -> tuple[KubeAnnouncer, ...]:
    """One for each gateway that is a cluster; none where the client of clusters is not installed."""
    clusters = [gateway for gateway in config.gateways if isinstance(gateway, KubernetesGateway)]
    return tuple(KubeAnnouncer(cluster, instance) for cluster in clusters) if installed() else ()


def build_recorder(config: Configuration, parts: Parts) -> Recorder | None:
    """What keeps each tick for a replay; None where that is switched off."""
    path = config.watchdog.records_path
    if path is None:
        return None
    configuration = written_down(parts.rules, parts.guards, parts.tick_s)
    return Recorder(path, config.watchdog.records.max_bytes, configuration, f"{parts.wall():.3f}")


def links_of(settings: WatchdogSettings) -> Links:
    """Addresses for people, in every alert."""
    given = settings.alertmanager
    host, _, port = settings.listen.rpartition(":")
    here = f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]', '') else host}:{port}"
    return Links(f"{given.console_url or here}/", given.grafana_url, given.runbook_url)


def slo_of(config: Configuration) -> Slo:
    latency = config.slo.latency
    return Slo(latency.ttft_p99_s, latency.itl_p99_s, latency.e2e_p99_s, config.slo.objective)


def build_insights(config: Configuration) -> Insights:
    slo = slo_of(config)
    tiers = tiers_of(tuple((t.name, t.match, t.p99_s) for t in config.slo.tiers), slo)
    return Insights(tiers, slo.objective, SloStore(config.watchdog.state))


def rules_of(config: Configuration) -> Rules:
    policies = config.policies
    return Rules(
        slo=slo_of(config),
        weights=config.hscore.weights.model_dump(),
        policies={
            policy.name: PolicySetting(getattr(policies, policy.name).mode, getattr(policies, policy.name).params)
            for policy in POLICIES
        },
        stale_after_s=config.stale_after_s,
    )


def in_force(config: Configuration) -> InForce:
    """What of a configuration decides."""
    return InForce(rules_of(config), config.guards, config.watchdog.tick_s)
