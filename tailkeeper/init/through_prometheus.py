"""What an existing Prometheus tells: engines by their own metrics, gateways by their exporters', GPUs, Alertmanager.

Asks that one server and nobody whom it names. What a gateway's metrics cannot say (a socket's path, a file's) is left for a
person, in an entry that is written as a comment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailkeeper.auth_options import files_of
from tailkeeper.init.found import Discovered, EngineHere, GatewayHere, GpusHere
from tailkeeper.prometheus_api import PrometheusApi, Row
from tailkeeper_exporter.catalog import SCRAPE_SUCCESS
from tailkeeper_exporter.discovery.base import DiscoveryError, Found
from tailkeeper_exporter.discovery.prometheus import PrometheusLister
from tailkeeper_exporter.gpu.dcgm_page import GPU_UTIL
from tailkeeper_exporter.settings import Auth, PrometheusDiscovery, check_url

DEADLINE_S = 10.0
MAX_NAMED = 20
"""Servers of a gateway that are named in the file; a person reads them."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sign:
    """How a gateway shows in Prometheus: a metric, the label that names its servers, and what an entry for it needs."""

    kind: str
    metric: str
    server_label: str
    group_label: str = ""
    """The label before the slash of a server's name."""
    entry: Mapping[str, Any] = field(default_factory=dict)
    url_key: str = ""
    """The entry's key that may be the address that is scraped."""


SIGNS = (
    Sign("haproxy", "haproxy_server_weight", "server", "proxy", {"socket": "/run/haproxy/admin.sock"}),
    Sign(
        "envoy",
        "envoy_cluster_membership_healthy",
        "envoy_cluster_name",
        entry={"eds_file": "/etc/envoy/eds/llm.json", "cluster": "llm"},
        url_key="admin_url",
    ),
    Sign(
        "traefik",
        "traefik_config_last_reload_success",
        "service",
        entry={"file": "/etc/traefik/dynamic/llm.yml", "service": "llm"},
        url_key="api_url",
    ),
    Sign("sglang_router", "smg_worker_health", "worker", entry={"url": "http://127.0.0.1:30000"}),
    Sign("vllm_router", "vllm_router_worker_health", "worker", entry={"url": "http://127.0.0.1:8001"}),
    Sign("litellm", "litellm_deployment_state", "api_base", url_key="url"),
)


async def look(url: str, auth: Auth, say: Say) -> Discovered:
    """Raises AskError where the server cannot be asked."""
    async with PrometheusApi(url, auth) as api:
        say(
            f"asking {url}: which targets have an engine's metrics (vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp, NIM, Ray, Triton)"
        )
        await api.query("time()")
        listing = await _engines(url, auth)
        say(f"asking {url}: gateways, GPUs, exporters of ours, Alertmanager, scrape intervals")
        gateways = [found for sign in SIGNS for found in gateways_in(sign, await api.query(query_of(sign)))]
        dcgm = _pages(await api.query(f"count by (instance) ({GPU_UTIL})"))
        ours = _pages(await api.query(f"count by (instance) ({SCRAPE_SUCCESS.name})"))
        managers = await api.alertmanagers()
        interval_s = await _interval(api, {engine.found.name for engine in listing[0]})
    return Discovered(
        engines=listing[0],
        gateways=tuple(gateways),
        gpus=GpusHere((f"those that DCGM's exporter at {dcgm[0]} tells of",), f"{dcgm[0]}/metrics") if len(dcgm) == 1 else None,
        dcgm_pages=dcgm,
        prometheus_url=url,
        prometheus_auth=files_of(auth),
        scrape_interval_s=interval_s,
        alertmanager_url=managers[0] if managers and _is_url(managers[0]) else None,
        exporters=ours,
        not_found=(*listing[1], *_missing(listing[0], gateways, dcgm, managers)),
    )


async def _engines(url: str, auth: Auth) -> tuple[tuple[EngineHere, ...], tuple[str, ...]]:
    try:
        listing = await PrometheusLister(PrometheusDiscovery(kind="prometheus", url=url, auth=auth)).list(DEADLINE_S)
    except DiscoveryError as error:
        return (), (f"engines in Prometheus: {error}",)
    return tuple(EngineHere(found, models=_models(found)) for found in listing.found), listing.notes


def _models(found: Found) -> tuple[str, ...]:
    model = found.key("model")
    return () if model is None else (model,)


def query_of(sign: Sign) -> str:
    labels = [label for label in ("instance", sign.group_label, sign.server_label) if label]
    return f"count by ({', '.join(labels)}) ({sign.metric})"


def gateways_in(sign: Sign, rows: Iterable[Row]) -> list[GatewayHere]:
    """A gateway for each instance that has the metric, with the names of its servers in a remark."""
    names: dict[str, list[str]] = {}
    for labels, _ in rows:
        server = "/".join(part for label in (sign.group_label, sign.server_label) if label and (part := labels.get(label, "")))
        names.setdefault(labels.get("instance", ""), []).append(server)
    return [_gateway(sign, instance, sorted(set(servers))) for instance, servers in sorted(names.items())]


def _gateway(sign: Sign, instance: str, servers: list[str]) -> GatewayHere:
    at = f"http://{instance}"
    # The page may have a port of its own, so the address is a guess that a person must look at.
    guessed = {sign.url_key: at if _is_url(at) else "http://127.0.0.1:1"} if sign.url_key else {}
    named = [server for server in servers if server]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    remark = f"its metrics name: {', '.join(named[:MAX_NAMED])}{more}" if named else ""
    entry = {**sign.entry, **guessed}
    return GatewayHere(sign.kind, f"Prometheus scrapes it at {instance}", entry, tuple(entry), remark=remark)


def _pages(rows: Iterable[Row]) -> tuple[str, ...]:
    addresses = sorted({f"http://{labels['instance']}" for labels, _ in rows if labels.get("instance")})
    return tuple(address for address in addresses if _is_url(address))


def _is_url(text: str) -> bool:
    try:
        return check_url(text) is not None
    except ValueError:
        return False


async def _interval(api: PrometheusApi, instances: set[str]) -> float | None:
    """The longest interval at which engines are scraped; None where it is not told. Seconds."""
    targets = await api.targets() or []
    return max((t.interval_s for t in targets if t.instance in instances and t.interval_s is not None), default=None)


def _missing(engines: Iterable[EngineHere], gateways: object, dcgm: object, managers: tuple[str, ...] | None) -> list[str]:
    looked = (
        (engines, "engines: no target of that Prometheus has an engine's metrics"),
        (gateways, "gateways: no metrics of HAProxy, Envoy, Traefik, an LLM router or LiteLLM there"),
        (dcgm, f"GPUs in Prometheus: no {GPU_UTIL}, so no DCGM exporter is scraped"),
        (managers, "Alertmanager: that Prometheus names none"),
    )
    return [sentence for found, sentence in looked if not found]
