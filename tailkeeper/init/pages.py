"""What an answer on some local port is: an engine's page, a gateway's admin interface, or nothing that matters here. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tailkeeper.init.found import GatewayHere
from tailkeeper_exporter.catalog import SCRAPE_SUCCESS
from tailkeeper_exporter.discovery.prometheus import EngineSeen, engines_in
from tailkeeper_exporter.exposition import PageParser
from tailkeeper_exporter.gpu.dcgm_page import GPU_UTIL
from tailkeeper_exporter.page import PageError
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.envoy_admin import configs_of, parse_clusters
from tailkeeper_watchdog.actuators.file_weights import place
from tailkeeper_watchdog.actuators.haproxy import parse_servers_state
from tailkeeper_watchdog.actuators.traefik import parse_services

START_TIME = "process_start_time_seconds"
MAX_MODELS = 20
KINDS = {
    SCRAPE_SUCCESS.name: "exporter",
    "prometheus_build_info": "prometheus",
    "alertmanager_build_info": "alertmanager",
    GPU_UTIL: "dcgm",
}
"""Series that tell pages apart which are no engine's."""
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
"""What engines call themselves in `owned_by` of their list of models."""


@dataclass(frozen=True, slots=True)
class MetricsHere:
    """What a metrics page says of who serves it, by the process behind it.

    ``started`` is that process's start time, in hundredths of a second; ``created`` the time of its first metric, in millionths,
    which no other process has. None where they are not told.
    """

    names: frozenset[str]
    engine: EngineSeen | None
    started: float | None
    created: float | None = None

    @property
    def kind(self) -> str:
        """exporter, prometheus, alertmanager or dcgm; empty for all else."""
        return next((kind for name, kind in KINDS.items() if name in self.names), "")


def metrics_of(body: bytes) -> MetricsHere | None:
    """None where it is no metrics page."""
    try:
        samples = PageParser().parse(body).samples
    except PageError:
        return None
    seen = engines_in({**dict(key.labels), "__name__": key.name, "instance": "here", "job": ""} for key, _ in samples)
    started = next((value for key, value in samples if key.name == START_TIME), None)
    created = min((value for key, value in samples if key.name.endswith("_created")), default=None)
    return MetricsHere(frozenset(key.name for key, _ in samples), next(iter(seen.values()), None), started, created)


def models_in(body: bytes) -> tuple[tuple[str, ...], str | None] | None:
    """The models of `/v1/models` and the engine that owns them, where that is known; None for another document."""
    try:
        rows = json.loads(body)["data"]
        models = tuple(str(row["id"]) for row in rows if isinstance(row["id"], str))
        owners = {str(row.get("owned_by", "")).lower() for row in rows}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return models[:MAX_MODELS], next((OWNERS[owner] for owner in sorted(owners) if owner in OWNERS), None)


def haproxy_servers(text: str) -> dict[str, str]:
    """`backend/server` by address, of `show servers state`. Raises CallError where it is another answer."""
    known = parse_servers_state(text)
    header, *lines = text.split("\n")[1:]
    columns = header[2:].split(" ")
    servers: dict[str, str] = {}
    for row in (dict(zip(columns, line.split(" "), strict=False)) for line in lines if line):
        name = f"{row['be_name']}/{row['srv_name']}"
        if name in known:
            servers.setdefault(place(f"{row.get('srv_addr', '')}:{row.get('srv_port', '')}"), name)
    return servers


def envoy_gateways(url: str, dump: Any, clusters: Any) -> list[GatewayHere]:
    """Of `/config_dump` and `/clusters`: each cluster whose endpoints come from a file can be switched."""
    try:
        found = [c for config in configs_of(dump) for c in _clusters(config)]
    except CallError:
        return []
    gateways = []
    for cluster in found:
        file, name = eds_file(cluster), str(cluster.get("name", ""))
        if file is not None and name:
            entry = {"eds_file": file, "cluster": name, "admin_url": url}
            gateways.append(GatewayHere("envoy", f"its admin interface answers at {url}", entry, (), _hosts(clusters, name)))
    return gateways


def _clusters(config: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for key in ("static_clusters", "dynamic_active_clusters"):
        rows = config.get(key)
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and isinstance(row.get("cluster"), dict):
                yield row["cluster"]


def eds_file(cluster: Mapping[str, Any]) -> str | None:
    """The file that a cluster's endpoints come from; None where they come from elsewhere."""
    source: Any = cluster.get("eds_cluster_config")
    for key in ("eds_config", "path_config_source", "path"):
        source = source.get(key) if isinstance(source, dict) else None
    return source if isinstance(source, str) and source else None


def _hosts(clusters: Any, name: str) -> dict[str, str]:
    try:
        return {place(host): host for host in parse_clusters(clusters, name).hosts}
    except CallError:
        return {}


def traefik_gateways(url: str, services: Any) -> list[GatewayHere]:
    """Of `/api/http/services`: the services of the file provider with several servers. Their file is not told."""
    gateways = []
    for name in _file_services(services):
        try:
            servers = parse_services(services, name).servers.values()
        except CallError:
            continue
        if len(set(servers)) > 1:
            entry = {"file": "/etc/traefik/dynamic/llm.yml", "service": name, "api_url": url}
            gateways.append(GatewayHere("traefik", f"its API answers at {url}", entry, ("file",), {s: s for s in servers}))
    return gateways


def _file_services(services: Any) -> list[str]:
    rows = services if isinstance(services, list) else []
    names = [str(row.get("name", "")) for row in rows if isinstance(row, dict)]
    return [name.removesuffix("@file") for name in names if name.endswith("@file")]


def router_gateway(kind: str, url: str, document: Any) -> GatewayHere | None:
    """Of sglang-router's `/workers` or vllm-router's `/list_workers`; None where it is another document."""
    rows = document.get("workers" if kind == "sglang_router" else "urls") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return None
    workers = [str(row.get("url", "")) if isinstance(row, dict) else str(row) for row in rows]
    return GatewayHere(kind, f"it answers at {url}", {"url": url}, (), {place(worker): worker for worker in workers if worker})
