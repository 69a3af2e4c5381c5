"""``tailkeeper doctor``: every connection of a configuration checked end to end, and for each mistake what to do.

Changes nothing anywhere: GETs, HAProxy's `show`, and one marked token from each backend that is probed anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from tailkeeper.config import Config
from tailkeeper.doctor import exporters, gateways, helpers, ledger, machine, people, prometheus
from tailkeeper.doctor.backends import Place, check_backend
from tailkeeper.doctor.findings import Check, Checked, Finding, Mistake, Report, Severity
from tailkeeper.doctor.running import Progress, run_checks
from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.discovery import DiscoveryError, Listing, ask_all, sources_of
from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.model import Mode

DISCOVERY_S = 10.0
MAX_FOUND = 1_000
"""Found backends that are checked; listed ones are checked all."""

OPTION = "--prometheus"

__all__ = ["Also", "Report", "examine", "examined"]


@dataclass(frozen=True, slots=True)
class Also:
    """A Prometheus that the command line names."""

    url: str
    auth: Auth = field(default_factory=Auth)


def examine(config: Config, progress: Progress, also: Also | None = None) -> Report:
    """All checks of ``config``; ``also`` is a Prometheus beside those that it names."""
    return asyncio.run(examined(config, progress, also))


async def examined(config: Config, progress: Progress, also: Also | None = None) -> Report:
    """As ``examine``, in a loop that runs already."""
    clients = Clients()
    answers = await ask_all(sources_of(config.discovery), DISCOVERY_S)
    found = list(_found(config, answers))
    report = await run_checks(_checks(config, clients, found, also), progress)
    listed = [
        Checked("discovery", f"discovery.{n}", tuple(helpers.of_discovery(config, f"discovery.{n}", answer)))
        for n, answer in enumerate(answers.values())
    ]
    of_file = Checked("file", "backends", tuple(_of_file(config, found)))
    return Report((of_file, *listed, *report.checks), report.seconds)


def _found(config: Config, answers: Mapping[str, Listing | DiscoveryError]) -> Iterator[Place]:
    """Found backends that are not listed, as discovery itself would take them."""
    taken = {backend.url for backend in config.backends}
    for number, answer in enumerate(answers.values()):
        for one in answer.found[:MAX_FOUND] if isinstance(answer, Listing) else ():
            try:
                backend = config.compose(one)
            except ValueError:
                continue  # told with the discovery
            if backend.url not in taken:
                taken.add(backend.url)
                yield Place(backend, f"discovery.{number}")


def _of_file(config: Config, found: list[Place]) -> Iterator[Finding]:
    if not config.backends and not config.discovery:
        do = "list your engines under `backends`, or let `discovery` find them; `tailkeeper init` writes both"
        yield Finding(Mistake.NO_BACKENDS, "backends", "no backend is listed, and nothing is to find any", do)
    acting = [n for n in type(config.policies).model_fields if getattr(config.policies, n).mode is Mode.ENFORCE]
    for place in [*_listed(config), *found] if acting else ():
        if not place.backend.gateway:
            what = f"it has no gateway, and {', '.join(acting)} should act: nothing can be done for it"
            do = f"set {place.path}.gateway to where its traffic is switched; docs/gateways.md"
            yield Finding(Mistake.NO_GATEWAY, f"{place.path}.gateway", what, do, Severity.WARNING, place.backend.name)


def _listed(config: Config) -> list[Place]:
    return [Place(backend, f"backends.{n}") for n, backend in enumerate(config.backends)]


def _checks(config: Config, clients: Clients, found: list[Place], also: Also | None) -> Iterator[Check]:
    places = [*_listed(config), *found]
    for place in places:
        yield Check("backends", place.path, partial(check_backend, place, clients), place.backend.name)
    yield from _gateways(config, places)
    yield from _sources(config, clients, also)
    yield Check("alertmanager", people.KEY, partial(people.check_alertmanager, config.watchdog.alertmanager, clients))
    yield from _machine(config, clients)
    yield from _helpers(config, clients, places)


def _gateways(config: Config, places: list[Place]) -> Iterator[Check]:
    for number, gateway in enumerate(config.for_watchdog().gateways):
        path = f"gateways.{number}"
        named = tuple(
            gateways.Named(ref.server or place.backend.name, place.backend.name, f"{place.path}.gateway.server")
            for place in places
            for ref in place.backend.gateway
            if ref.name == gateway.name
        )
        yield Check("gateways", path, partial(gateways.check_gateway, gateway, path, named))
        if not named and config.defaults.get("gateway") is None:
            yield Check("gateways", path, partial(_unused, path, gateway.name))


async def _unused(path: str, name: str) -> list[Finding]:
    do = f"write gateway: {{name: {name}, server: …}} at each backend that is a server of it"
    return [
        Finding(Mistake.GATEWAY_UNUSED, path, f"no backend names {name!r}, so nothing is switched there", do, Severity.WARNING)
    ]


def _sources(config: Config, clients: Clients, also: Also | None) -> Iterator[Check]:
    read = exporters.sources_in(config)
    for source in read:
        yield Check("exporters", source.key, partial(exporters.check_exporter, source, config, clients))
    if read and config.backends:
        yield Check("exporters", "watchdog.source.urls", partial(exporters.check_all_told, read, config, clients))
    for server in _servers(config, also):
        yield Check("prometheus", server.key, partial(prometheus.check_prometheus, server, config.backends, clients))


def _servers(config: Config, also: Also | None) -> Iterator[prometheus.Server]:
    """Each Prometheus that the file or the command line names, once; the one that is read before all."""
    limit_s, listen = config.watchdog.stale_limit_s(config.exporter.scrape_interval_s), config.exporter.listen
    source = config.watchdog.source
    named: dict[str, prometheus.Server] = {}
    if source.kind == "prometheus":
        named[source.url] = prometheus.Server(source.url, source.auth, "watchdog.source.url", True, limit_s, listen)
    for number, entry in enumerate(config.discovery):
        if entry.kind == "prometheus":
            server = prometheus.Server(entry.url, entry.auth, f"discovery.{number}.url", False, limit_s, listen)
            named.setdefault(entry.url, server)
    if also is not None:
        place = also.url if also.auth == Auth() else OPTION  # with credentials of its own it is checked by these
        named.setdefault(place, prometheus.Server(also.url, also.auth, OPTION, False, limit_s, listen))
    yield from named.values()


def _machine(config: Config, clients: Clients) -> Iterator[Check]:
    yield Check("this machine", "watchdog.state", partial(machine.check_state, config))
    if config.watchdog.ledger is not None:
        yield Check("ledger", ledger.KEY, partial(ledger.check_ledger, config.watchdog.ledger))
    yield Check("this machine", "watchdog.listen", partial(machine.check_watchdog, config, clients))
    if config.guards.pause_file is not None:
        yield Check("this machine", "guards.pause_file", partial(machine.check_pause_file, config.guards.pause_file))
    # The GPUs of an exporter that runs elsewhere are not to be seen from here.
    if any(source.is_own for source in exporters.sources_in(config)):
        yield Check("this machine", "exporter.gpu", partial(machine.check_gpus, config))


def _helpers(config: Config, clients: Clients, places: list[Place]) -> Iterator[Check]:
    asked: set[str] = set()
    for place in places:
        url = place.backend.kv_service
        if url is not None and url not in asked:
            asked.add(url)
            run = partial(helpers.check_kv_service, url, f"{place.path}.kv_service", place.backend.name)
            yield Check("kv services", f"{place.path}.kv_service", run)
    for key, otlp in (("exporter.otlp", config.exporter.otlp), ("watchdog.otlp", config.watchdog.otlp)):
        if otlp.endpoint is not None:
            yield Check("collectors", key, partial(helpers.check_collector, otlp.endpoint, otlp.headers_file, key, clients))
    leader = config.watchdog.leader
    if leader is not None:
        yield Check("kubernetes", "watchdog.leader", partial(helpers.check_lease, leader.kubeconfig, leader.in_cluster))
