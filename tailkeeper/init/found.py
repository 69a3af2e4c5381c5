"""What `init` finds, as values: engines, gateways, and what else the configuration may name. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailkeeper_exporter.discovery.base import Found


@dataclass(frozen=True, slots=True)
class EngineHere:
    """One engine, or what answers like one. ``also`` are other addresses (host:port) under which the same engine answers."""

    found: Found
    also: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    remark: str = ""
    """What somebody should know who reads the file, in a clause; empty where nothing is odd."""


@dataclass(frozen=True, slots=True)
class GatewayHere:
    """One gateway. ``entry`` is its entry in the file, ``missing`` the keys of it that nobody can find out from outside.

    ``servers`` are what it calls its servers, by their address (host:port), ``where`` is how it was found, in words.
    """

    kind: str
    where: str
    entry: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    servers: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True, slots=True)
class GpusHere:
    """GPUs that this machine, or a DCGM exporter (``dcgm_url``), tells of: sentences for people, one each."""

    devices: tuple[str, ...]
    dcgm_url: str | None = None


@dataclass(frozen=True, slots=True)
class Discovered:
    """All of it. ``not_found`` are sentences about what was looked for in vain, and why."""

    engines: tuple[EngineHere, ...] = ()
    gateways: tuple[GatewayHere, ...] = ()
    gpus: GpusHere | None = None
    dcgm_pages: tuple[str, ...] = ()
    """All pages of DCGM exporters, one for each node; ``gpus`` reads the only one."""
    prometheus_url: str | None = None
    scrape_interval_s: float | None = None
    alertmanager_url: str | None = None
    kubernetes_namespace: str | None = None
    exporters: tuple[str, ...] = ()
    """Addresses of Tailkeeper exporters that run already."""
    taken_ports: frozenset[int] = frozenset()
    not_found: tuple[str, ...] = ()
    prometheus_auth: Mapping[str, str] = field(default_factory=dict)
    """Files with that Prometheus' credentials by their keys, as `auth` has them."""


def joined(one: Discovered, other: Discovered) -> Discovered:
    """Both together; of one engine at the same address, and of what there can be one of, that of ``one`` counts."""
    urls = {engine.found.url for engine in one.engines}
    return Discovered(
        engines=(*one.engines, *(engine for engine in other.engines if engine.found.url not in urls)),
        gateways=(*one.gateways, *other.gateways),
        gpus=one.gpus or other.gpus,
        dcgm_pages=tuple(dict.fromkeys((*one.dcgm_pages, *other.dcgm_pages))),
        prometheus_url=one.prometheus_url or other.prometheus_url,
        prometheus_auth=one.prometheus_auth if one.prometheus_url else other.prometheus_auth,
        scrape_interval_s=one.scrape_interval_s or other.scrape_interval_s,
        alertmanager_url=one.alertmanager_url or other.alertmanager_url,
        kubernetes_namespace=one.kubernetes_namespace or other.kubernetes_namespace,
        exporters=tuple(dict.fromkeys((*one.exporters, *other.exporters))),
        taken_ports=one.taken_ports | other.taken_ports,
        not_found=(*one.not_found, *other.not_found),
    )
