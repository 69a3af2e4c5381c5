"""What runs on this machine: engines, gateways, GPUs, Kubernetes. Asks loopback only, by GET and HAProxy's `show`, and says what.

Bounds: `listening.MAX_PORTS` ports, ``AT_ONCE`` at a time, ``ASK_S`` for each question, ``ALL_S`` for all of them. What was not
asked within that is said. Nothing is written anywhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tailkeeper.asking import Asker, AskError
from tailkeeper.init import pages
from tailkeeper.init.found import Discovered, EngineHere, GatewayHere, GpusHere
from tailkeeper.init.listening import haproxy_sockets, listening_ports, passing_on
from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.counted import plural
from tailkeeper_exporter.discovery.base import DiscoveryError, SingleFlight
from tailkeeper_exporter.discovery.prometheus import EngineSeen, listing_of
from tailkeeper_exporter.gpu import DeviceId, GpuError, NvmlSource
from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.haproxy import ask

ASK_S = 1.0
AT_ONCE = 16
ASKED_AGAIN = 3
"""Times that an engine's page is read again: a balancer over two engines shows itself in seven of eight cases."""
ALL_S = 20.0
GPU_S = 5.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PortHere:
    """What one port turned out to be. ``started`` and ``created`` are as on the engine's page."""

    address: str
    engine: EngineHere | None = None
    started: float | None = None
    created: float | None = None
    gateways: tuple[GatewayHere, ...] = ()
    passes_on: bool = False
    """Whether it answers with the pages of others: a proxy, a balancer, a tap."""
    kind: str = ""
    """exporter, prometheus, alertmanager or dcgm; empty for all else."""


async def look(say: Say) -> Discovered:
    """Never raises for what others do."""
    places, sockets = listening_ports(), haproxy_sockets()
    say(f"asking {plural(len(places), 'local port')} for /metrics, or else /v1/models, /server_info, /api/version, /workers")
    ports, late = await ask_ports(places)
    say(f"asking {plural(len(sockets), 'socket')} that may be HAProxy's for `show servers state`")
    haproxies = [found for path in sockets if (found := await haproxy_at(path)) is not None]
    say("asking NVML for GPUs, looking for a Kubernetes service account")
    gpus, why_none = await gpus_here()
    return assembled(
        ports, haproxies, gpus, kubernetes_namespace(os.environ), (*late, *why_none), frozenset(p for _, p in places)
    )


async def ask_ports(places: tuple[tuple[str, int], ...]) -> tuple[list[PortHere], tuple[str, ...]]:
    gate, clients = asyncio.Semaphore(AT_ONCE), Clients()

    async def one(host: str, port: int) -> PortHere:
        async with gate, Asker(f"http://{host}:{port}", Auth(), clients) as asker:
            return await port_here(asker, f"{host}:{port}")

    tasks = [asyncio.create_task(one(host, port)) for host, port in places]
    if not tasks:
        return [], ()
    done, pending = await asyncio.wait(tasks, timeout=ALL_S)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    late = (f"{len(pending)} local ports were not asked: the others took {ALL_S:g} s",) if pending else ()
    passing = passing_on()
    ports = [(place[1], task.result()) for place, task in zip(places, tasks, strict=True) if task in done]
    return [replace(here, passes_on=True) if port in passing else here for port, here in ports], late


async def port_here(asker: Asker, address: str) -> PortHere:
    """One port, asked until it is known what it is."""
    answer = await _body(asker, "/metrics")
    metrics = None if answer is None else pages.metrics_of(answer)
    if metrics is not None:
        if metrics.kind:
            return PortHere(address, kind=metrics.kind)
        if metrics.engine is not None:
            changes = await _changes(asker, metrics.started)
            return PortHere(
                address, await _engine(asker, address, metrics.engine), metrics.started, metrics.created, passes_on=changes
            )
    gateways = await _gateways(asker)
    if gateways:
        return PortHere(address, gateways=gateways)
    return PortHere(address, await _without_page(asker, address))


async def _changes(asker: Asker, started: float | None) -> bool:
    """Whether another process answers when asked again: then it is a balancer before several engines."""
    for _ in range(ASKED_AGAIN if started is not None else 0):
        metrics = pages.metrics_of(await _body(asker, "/metrics") or b"")
        if metrics is not None and metrics.started not in (None, started):
            return True
    return False


async def _engine(asker: Asker, address: str, seen: EngineSeen) -> EngineHere:
    found = listing_of({(address, ""): seen}).found[0]
    models = seen.models
    if not models:
        listed = pages.models_in(await _body(asker, "/v1/models") or b"")
        models = listed[0] if listed else ()
    keys = tuple(key for key in found.keys if key[0] != "model")
    model = (("model", models[0]),) if len(models) == 1 else ()
    return EngineHere(replace(found, keys=tuple(sorted((*keys, *model))), labels=()), models=models)


async def _gateways(asker: Asker) -> tuple[GatewayHere, ...]:
    info = await _document(asker, "/server_info")
    if isinstance(info, Mapping) and "command_line_options" in info:
        dump, clusters = await _document(asker, "/config_dump"), await _document(asker, "/clusters?format=json")
        return tuple(pages.envoy_gateways(asker.url, dump, clusters))
    version = await _document(asker, "/api/version")
    if isinstance(version, Mapping) and "Codename" in version:
        return tuple(pages.traefik_gateways(asker.url, await _document(asker, "/api/http/services?per_page=1000")))
    for kind, path in (("sglang_router", "/workers"), ("vllm_router", "/list_workers")):
        router = pages.router_gateway(kind, asker.url, await _document(asker, path))
        if router is not None:
            return (router,)
    return ()


async def _without_page(asker: Asker, address: str) -> EngineHere | None:
    """An OpenAI-compatible server whose metrics page is elsewhere, or off."""
    listed = pages.models_in(await _body(asker, "/v1/models") or b"")
    if listed is None:
        return None
    models, owner = listed
    for engine, path in (("trtllm", "/prometheus/metrics"), ("nim", "/v1/metrics")):
        metrics = pages.metrics_of(await _body(asker, path) or b"")
        if metrics is not None and metrics.engine is not None:
            return await _engine(asker, address, replace(metrics.engine, engine=engine, models=models))
    remark = "it lists models and has no metrics page: turn metrics on, or name metrics_url"
    here = await _engine(asker, address, EngineSeen(owner or "generic", models))
    return replace(here, remark=remark)


async def _body(asker: Asker, path: str) -> bytes | None:
    try:
        return (await asker.get(path, ASK_S, MAX_ANSWER_BYTES)).body
    except AskError:
        return None


async def _document(asker: Asker, path: str) -> object:
    try:
        document: object = (await asker.get(path, ASK_S, MAX_ANSWER_BYTES)).json()
    except AskError:
        return None
    return document


async def haproxy_at(path: str) -> GatewayHere | None:
    """HAProxy at a socket, or the socket alone where it may not be opened; None where it is somebody else's."""
    try:
        async with asyncio.timeout(ASK_S):
            servers = pages.haproxy_servers(await ask(path, "show servers state"))
    except TimeoutError:
        return GatewayHere("haproxy", f"{path} is there and does not answer", {"socket": path}, remark="it did not answer")
    except CallError as error:
        denied = isinstance(error.__cause__, PermissionError)
        remark = "we may not open it: `tailkeeper doctor` says what to do"
        return (
            GatewayHere("haproxy", f"{path} is there and may not be opened", {"socket": path}, remark=remark) if denied else None
        )
    return GatewayHere("haproxy", f"it answers at {path}", {"socket": path}, (), servers)


async def gpus_here(source: NvmlSource | None = None) -> tuple[GpusHere | None, tuple[str, ...]]:
    """The devices of this machine, and a sentence where there are none. A driver that hangs costs ``GPU_S`` seconds."""
    nvml = source or NvmlSource()
    try:
        devices: tuple[DeviceId, ...] = await SingleFlight[tuple[DeviceId, ...]]("NVML").call(nvml.devices, GPU_S)
    except (GpuError, DiscoveryError) as error:
        return None, (f"GPUs on this machine: {excerpt(str(error))}",)
    words = tuple(f"{device.index}: {device.name} ({device.uuid})" for device in devices)
    return (GpusHere(words), ()) if words else (None, ("GPUs on this machine: NVML has none",))


def kubernetes_namespace(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> str | None:
    """The namespace of the pod that this runs in; None outside of a cluster, or without a service account."""
    if not environ.get("KUBERNETES_SERVICE_HOST") or not (folder / "token").exists():
        return None
    try:
        return (folder / "namespace").read_text(encoding="utf-8").strip()[:63] or None
    except (OSError, UnicodeDecodeError):
        return None


def assembled(
    ports: list[PortHere],
    haproxies: list[GatewayHere],
    gpus: GpusHere | None,
    namespace: str | None,
    not_found: tuple[str, ...],
    taken: frozenset[int],
) -> Discovered:
    """One picture of what was found, each engine once. Pure."""

    def at(kind: str) -> tuple[str, ...]:
        return tuple(f"http://{port.address}" for port in ports if port.kind == kind)

    engines = each_once(ports)
    gateways = (*haproxies, *(gateway for port in ports for gateway in port.gateways))
    dcgm, prometheus, managers = at("dcgm"), at("prometheus"), at("alertmanager")
    missing = [] if engines else ["engines on this machine: no local port answers like one"]
    missing += [] if gateways else ["gateways on this machine: no HAProxy socket, Envoy admin interface, Traefik API or router"]
    missing += [] if namespace else ["Kubernetes: this runs in no pod with a service account"]
    return Discovered(
        engines,
        gateways,
        gpus or (GpusHere((f"those that DCGM's exporter at {dcgm[0]} tells of",), f"{dcgm[0]}/metrics") if dcgm else None),
        tuple(f"{url}" for url in dcgm),
        prometheus[0] if prometheus else None,
        None,
        managers[0] if managers else None,
        namespace,
        at("exporter"),
        taken,
        (*not_found, *missing),
    )


def each_once(ports: list[PortHere]) -> tuple[EngineHere, ...]:
    """Engines, each once, with the proxies and taps before it.

    A port that passes on is never an engine: it may stand before engines on other machines. Two others are one engine only where
    that is sure; one that is listed twice is seen by whoever reads the file, one that is left out is not.
    """
    engines: list[PortHere] = []
    also: dict[str, tuple[str, ...]] = {}
    for port in sorted(ports, key=lambda port: port.passes_on):
        if port.engine is None:
            continue
        known = next((engine for engine in engines if _is_same(engine, port)), None)
        if known is not None:
            also[known.address] = (*also.get(known.address, ()), port.address)
        elif not port.passes_on:
            engines.append(port)
    return tuple(replace(e.engine, also=also.get(e.address, ())) for e in engines if e.engine is not None)


def _is_same(engine: PortHere, other: PortHere) -> bool:
    """Whether the same process answers at both. Two may well have started in the same hundredth of a second."""
    if engine.started is None or (engine.started, engine.created) != (other.started, other.created):
        return False
    return other.passes_on or engine.created is not None
