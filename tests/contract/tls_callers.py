"""Everybody in the product who calls a server of others, each behind one question: did it work, and if not, what was said?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import httpx

from tailkeeper_exporter.clients import Clients, CredentialError, auth_headers, credentials
from tailkeeper_exporter.discovery.base import DiscoveryError
from tailkeeper_exporter.discovery.prometheus import PrometheusLister
from tailkeeper_exporter.engines import engine_named
from tailkeeper_exporter.fetch import FetchError, fetch
from tailkeeper_exporter.probe import Prober
from tailkeeper_exporter.settings import Auth, BackendSettings, PrometheusDiscovery
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.actuators.contract import ActuatorError
from tailkeeper_watchdog.collect.exporter import ExporterSource
from tailkeeper_watchdog.collect.prometheus import PrometheusSource
from tailkeeper_watchdog.collect.prometheus_client import PrometheusClient
from tailkeeper_watchdog.gateways import WebhookGateway
from tailkeeper_watchdog.notify import Notifier
from tailkeeper_watchdog.replay.history import AskError, History
from tailkeeper_watchdog.settings import PrometheusSource as PrometheusSourceSettings

DEADLINE_S = 10.0


class Caller(Protocol):
    """One client of ours, kept over several calls."""

    async def ask(self) -> str | None:
        """None where the server did what was asked, else our words about it."""
        ...

    async def close(self) -> None: ...


class WatchdogsPrometheus:
    def __init__(self, url: str, auth: Auth) -> None:
        settings = PrometheusSourceSettings(kind="prometheus", url=url, auth=auth)
        self._source = PrometheusSource(PrometheusClient(settings), url, ("a",), 60)

    async def ask(self) -> str | None:
        return (await self._source.collect(time.monotonic(), DEADLINE_S)).error

    async def close(self) -> None:
        await self._source.close()


class WatchdogsExporter:
    def __init__(self, url: str, auth: Auth) -> None:
        self._source = ExporterSource((url,), ("a",), 60, auth)

    async def ask(self) -> str | None:
        return (await self._source.collect(time.monotonic(), DEADLINE_S)).error

    async def close(self) -> None:
        await self._source.close()


class Discovery:
    def __init__(self, url: str, auth: Auth) -> None:
        self._lister = PrometheusLister(PrometheusDiscovery(kind="prometheus", url=url, auth=auth))

    async def ask(self) -> str | None:
        try:
            await self._lister.list(DEADLINE_S)
        except DiscoveryError as error:
            return str(error)
        return None

    async def close(self) -> None:
        pass


class Replay:
    """The reader of history; a replay is one run, so it asks anew each time."""

    def __init__(self, url: str, auth: Auth) -> None:
        self._url, self._auth = url, auth

    async def ask(self) -> str | None:
        try:
            async with Clients().client_for((self._url,), self._auth, self._url) as client:
                await History(client, self._url, auth_headers(self._auth)).rows("up", time.time())
        except (AskError, CredentialError) as error:
            return str(error)
        return None

    async def close(self) -> None:
        pass


class _Engine:
    def __init__(self, url: str, auth: Auth) -> None:
        self._backend = BackendSettings(name="a", engine="vllm", url=url, auth=auth, model="llama-3-8b")
        self._client: httpx.AsyncClient = Clients().make(self._backend)

    async def close(self) -> None:
        await self._client.aclose()


class EnginePage(_Engine):
    async def ask(self) -> str | None:
        url = f"{self._backend.url}/metrics"
        try:
            await fetch(self._client, url, credentials(self._backend), DEADLINE_S)
        except (FetchError, CredentialError) as error:
            return str(error)
        return None


class EngineProbe(_Engine):
    async def ask(self) -> str | None:
        vllm = engine_named("vllm")
        prober = Prober(self._client, self._backend.url, vllm, self._backend.model, DEADLINE_S, time.monotonic)
        try:
            result = await prober.ask((), credentials(self._backend), DEADLINE_S)
        except CredentialError as error:
            return str(error)
        return None if result.outcome.value == "answered" else f"{result.outcome.value}: {result.detail}"


class Gateway:
    def __init__(self, url: str, auth: Auth) -> None:
        self._actuator = build_actuator(WebhookGateway(name="edge", kind="webhook", url=url, auth=auth))

    async def ask(self) -> str | None:
        try:
            await self._actuator.read(("a",), DEADLINE_S)
        except ActuatorError as error:
            return str(error)
        return None

    async def close(self) -> None:
        await self._actuator.close()


class Alertmanager:
    def __init__(self, url: str, auth: Auth) -> None:
        self._notifier = Notifier(url, auth, resend_s=0.01, retry_s=(0.01,), deadline_s=DEADLINE_S)

    async def ask(self) -> str | None:
        self._notifier.offer(
            [{"labels": {"alertname": "Test", "backend": "a", "severity": "info"}, "annotations": {"finding": "1"}}]
        )
        await asyncio.wait_for(self._notifier._send(), DEADLINE_S)
        return self._notifier.last_error

    async def close(self) -> None:
        await self._notifier.close()


Make = Callable[[str, Auth], Caller]
CALLERS: dict[str, tuple[str, Make]] = {
    "the watchdog's source": ("prometheus", WatchdogsPrometheus),
    "the watchdog before an exporter": ("engine", WatchdogsExporter),
    "discovery": ("prometheus", Discovery),
    "a replay": ("prometheus", Replay),
    "an engine's page": ("engine", EnginePage),
    "an engine's probe": ("engine", EngineProbe),
    "a gateway": ("gateway", Gateway),
    "alertmanager": ("alertmanager", Alertmanager),
}
"""Who calls, and which server."""
