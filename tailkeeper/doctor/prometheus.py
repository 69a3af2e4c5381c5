"""A Prometheus: reached, scraping what we read there and as often as we believe, with our rules loaded and exemplars kept.

Reads only, through the API that its own pages use.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tailkeeper.asking import AskError, Clock
from tailkeeper.doctor.findings import Finding, Findings, Mistake, Severity
from tailkeeper.doctor.sentences import skewed, unreachable
from tailkeeper.prometheus_api import PrometheusApi, Rules, Target
from tailkeeper_exporter import catalog
from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.file_weights import place
from tailkeeper_watchdog.settings import STALE_INTERVALS, WatchedBackend

OUR_ALERTS = frozenset({"TelemetryLost", "BackendHung"})
"""In tailkeeper.rules.yml; a server that has neither has not loaded it."""
EVERY_ADDRESS = frozenset({"0.0.0.0", "[::]"})


@dataclass(frozen=True, slots=True)
class Server:
    """One Prometheus of the file. ``read`` says that the watchdog takes its evidence from there."""

    url: str
    auth: Auth
    key: str
    read: bool
    stale_limit_s: float
    exporter: str
    """Where our exporter listens, for a sentence."""


async def check_prometheus(server: Server, backends: tuple[WatchedBackend, ...], clients: Clients) -> Findings:
    try:
        async with PrometheusApi(server.url, server.auth, clients) as api:
            sent = time.time()
            rows = await api.query("time()")
            clock = Clock(rows[0][1] - time.time(), rows[0][1] - sent) if rows else None
            targets = await api.targets()
            telling = [labels for labels, _ in await api.query(f"count by (backend, instance) ({catalog.BACKEND_UP.name})")]
            told = {labels.get("backend", ""): labels.get("instance", "") for labels in telling}
            ups = {labels.get("instance", ""): value for labels, value in await api.query("max by (instance) (up)")}
            return [
                *skewed(clock, server.key, "this Prometheus", Severity.WRONG if server.read else Severity.WARNING),
                *_not_scraped(server, backends, told, ups, targets),
                *_intervals(server, backends, told, targets),
                *_of_rules(server, await api.rules()),
                *_of_exemplars(server, await api.keeps_exemplars()),
            ]
    except AskError as error:
        auth = f"{server.key.removesuffix('.url')}.auth"
        found = unreachable(error, Mistake.PROMETHEUS_UNREACHABLE, server.key, server.url, "Prometheus", auth)
        # Of the command line, where a key of `auth` is said as KEY=FILE.
        do = found.do.replace("--prometheus.auth.", "--auth ").replace("--prometheus.auth", "--auth")
        return [replace(found, do=do, where=found.where.replace("--prometheus.auth", "--auth"))]


def _not_scraped(
    server: Server,
    backends: Iterable[WatchedBackend],
    told: Mapping[str, str],
    ups: Mapping[str, float],
    targets: list[Target] | None,
) -> Findings:
    """Backends that nothing in this server tells of, and targets that are down. ``told`` has the exporter by its backends."""
    found: Findings = []
    if not told and not server.read:
        do = f"add a job to prometheus.yml: {_job(server)}"
        return [_finding(server, "it has none of our exporter's series, so boards and rules stay empty", do, Severity.WARNING)]
    for backend in backends if server.read else ():
        if backend.name in told:
            continue
        instances = {place(url) for url in (backend.url, backend.metrics_url) if url is not None}
        values = [ups[instance] for instance in instances if instance in ups]
        waits = not values and any(target.instance in instances and target.well for target in targets or ())
        if waits or (values and max(values) == 1):
            continue  # a target that was not scraped yet is neither up nor down
        found.append(_one(server, backend, sorted(instances), bool(values), targets))
    return found


def _one(server: Server, backend: WatchedBackend, instances: list[str], is_target: bool, targets: list[Target] | None) -> Finding:
    if is_target:
        why = next((t.error for t in targets or () if t.instance in instances and not t.well), "")
        what = f"its target {' or '.join(instances)} is down" + (f": {why}" if why else "")
        return _finding(
            server,
            what,
            "look at Status → Targets of Prometheus: the address as Prometheus reaches it, TLS, a token",
            backend=backend.name,
        )
    what = f"it has no target {' or '.join(instances)}, and no exporter there tells of {backend.name!r}"
    do = f"scrape the engine there, or our exporter: {_job(server)}"
    return _finding(server, what, do, backend=backend.name)


def _job(server: Server) -> str:
    """Where it listens on every address that is none to ask at, and a Prometheus in a container has a loopback of its own."""
    host, _, port = server.exporter.rpartition(":")
    target = f"HOST:{port}" if host in EVERY_ADDRESS else server.exporter
    job = f'{{job_name: tailkeeper-exporter, static_configs: [{{targets: ["{target}"]}}]}}'
    return f"{job}, with the address as Prometheus reaches it"


def _finding(server: Server, what: str, do: str, severity: Severity = Severity.WRONG, backend: str = "") -> Finding:
    return Finding(Mistake.PROMETHEUS_NOT_SCRAPING, server.key, what, do, severity, backend)


def _intervals(
    server: Server, backends: Iterable[WatchedBackend], told: Mapping[str, str], targets: list[Target] | None
) -> Findings:
    """Whether evidence comes more often than it gets stale: else everything is unknown most of the time (field report E1)."""
    if not server.read:
        return []
    instances = {place(url) for b in backends if b.name not in told for url in (b.url, b.metrics_url) if url is not None}
    # The exporters by what Prometheus calls them, which is seldom the address that ours listens at.
    instances.update(told[b.name] for b in backends if b.name in told)
    ours = (target for target in targets or () if target.instance in instances and target.interval_s is not None)
    slowest = max(ours, key=lambda target: target.interval_s or 0.0, default=None)
    if slowest is None or slowest.interval_s is None or STALE_INTERVALS * slowest.interval_s <= server.stale_limit_s:
        return []
    source = server.key.removesuffix(".url")
    what = (
        f"Prometheus scrapes {slowest.instance} every {slowest.interval_s:g} s, and evidence is stale here after "
        f"{server.stale_limit_s:g} s: most of the time everything would be unknown"
    )
    do = f"set {source}.interval_s: {slowest.interval_s:g}, and leave watchdog.stale_after_s out; or scrape more often"
    return [Finding(Mistake.STALE_LIMIT_TOO_SMALL, f"{source}.interval_s", what, do)]


def _of_rules(server: Server, rules: Rules | None) -> Findings:
    if rules is None:
        return []
    found: Findings = []
    if not OUR_ALERTS & rules.alerts:
        do = "name alerts/generated/tailkeeper.rules.yml in rule_files of prometheus.yml, and reload it"
        what = "none of our rules is loaded: nobody is told when the watchdog itself is gone"
        found.append(Finding(Mistake.RULES_NOT_LOADED, server.key, what, do, Severity.WARNING))
    if rules.error:
        do = "look at Status → Rules of Prometheus; a rule that fails alerts nobody"
        found.append(Finding(Mistake.RULES_FAIL, server.key, f"a rule fails: {rules.error}", do, Severity.WARNING))
    return found


def _of_exemplars(server: Server, kept: bool | None) -> Findings:
    if kept is not False:
        return []
    what = "it keeps no exemplars, so no click on a latency leads to the request"
    do = "start Prometheus with --enable-feature=exemplar-storage"
    return [Finding(Mistake.EXEMPLAR_STORAGE_OFF, server.key, what, do, Severity.WARNING)]
