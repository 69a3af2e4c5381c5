"""What else the file may name: KV-cache services, collectors, discoveries, Kubernetes. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tailkeeper.asking import Asker, AskError, Trouble
from tailkeeper.config import Config
from tailkeeper.doctor.findings import Finding, Findings, Mistake, Severity
from tailkeeper_exporter import kubernetes_access
from tailkeeper_exporter.clients import Clients, CredentialError, headers_in
from tailkeeper_exporter.discovery import DiscoveryError, Listing
from tailkeeper_exporter.health import MAX_KV_PING_S
from tailkeeper_exporter.kv_service import ping
from tailkeeper_exporter.settings import Auth

ASK_S = 3.0
_PINGS: Mapping[str, tuple[Mistake, str]] = {
    "unauthorized": (Mistake.TOKEN_MISSING, "write its password into the URL: redis://:PASSWORD@HOST:PORT"),
    "not_redis": (Mistake.KV_SERVICE_FAILING, "correct the address: something else than Redis answers there"),
    "loading": (Mistake.KV_SERVICE_FAILING, "wait until it has loaded its data"),
}


async def check_kv_service(url: str, key: str, backend: str) -> Findings:
    result = await ping(url, ASK_S, time.monotonic)
    if result.reason is None and result.took_s <= MAX_KV_PING_S:
        return []
    if result.reason is None:
        what = f"the KV-cache service took {result.took_s * 1e3:.0f} ms for a PING, and {MAX_KV_PING_S * 1e3:.0f} ms is the limit"
        do = "is it far away, or busy? Its check in /healthz will fail now and then"
        return [Finding(Mistake.KV_SERVICE_FAILING, key, what, do, Severity.WARNING, backend)]
    mistake, do = _PINGS.get(result.reason, (Mistake.KV_SERVICE_FAILING, f"start it, or correct {key}"))
    # Its URL may hold a password, so it is not repeated.
    return [Finding(mistake, key, f"the KV-cache service does not answer a PING ({result.reason})", do, backend=backend)]


async def check_collector(endpoint: str, headers_file: Path | None, key: str, clients: Clients) -> Findings:
    """Whether something that speaks HTTP is there. Nothing is sent to it: a trial span would be stored."""
    try:
        headers = {} if headers_file is None else headers_in(headers_file, f"{key}.headers_file")
        async with Asker(endpoint, Auth(), clients, headers) as asker:
            await asker.get("", ASK_S)
    except CredentialError as error:
        do = "write `Name: value` lines into that file"
        return [Finding(Mistake.TOKEN_MISSING, f"{key}.headers_file", str(error), do)]
    except AskError as error:
        if error.trouble in (Trouble.STATUS, Trouble.DENIED, Trouble.OTHER):
            return []  # a collector has no page there, and answers 404 or 405
        do = f"start the collector, or correct {key}.endpoint: OTLP over HTTP has port 4318 unless changed, 4317 is gRPC"
        return [Finding(Mistake.COLLECTOR_UNREACHABLE, f"{key}.endpoint", f"{endpoint} {error}", do)]
    return []


def of_discovery(config: Config, key: str, answer: Listing | DiscoveryError) -> Findings:
    """What one discovery finds now, judged by what can be watched of it."""
    if isinstance(answer, DiscoveryError):
        do = f"correct {key}; `tailkeeper check-config` asks it, too"
        return [Finding(Mistake.DISCOVERY_FAILING, key, f"cannot be asked: {answer}", do)]
    if not answer.found:
        what = "it finds no backend now" + (f": {answer.notes[0]}" if answer.notes else "")
        return [Finding(Mistake.DISCOVERY_EMPTY, key, what, f"correct {key}, or wait until there are some", Severity.WARNING)]
    problems = []
    for found in answer.found:
        try:
            config.compose(found)
        except ValueError as error:
            problems.append(f"{found.name}: {error}")
    if not problems:
        return []
    what = f"{len(problems)} of the {len(answer.found)} backends that it finds cannot be watched, for example {problems[0]}"
    return [Finding(Mistake.DISCOVERY_FAILING, key, what, "give what is missing in `defaults`, or in its labels", Severity.WRONG)]


async def check_lease(kubeconfig: Path | None, in_cluster: bool) -> Findings:
    """Whether there is a way into the cluster that holds the leader's Lease. The Lease itself is left alone."""
    try:
        await kubernetes_access.configuration(kubeconfig, in_cluster)
    except kubernetes_access.AccessError as error:
        do = "run it in a pod with a service account (in_cluster), or name a kubeconfig; docs/gateways.md#kubernetes"
        return [Finding(Mistake.KUBERNETES_NO_ACCESS, "watchdog.leader", f"no way into Kubernetes: {error}", do)]
    return []
