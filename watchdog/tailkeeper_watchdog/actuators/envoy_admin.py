"""What Envoy's admin interface says of one cluster: hosts in `/clusters`, marks and balancing in `/config_dump`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind, ServerState
from tailkeeper_watchdog.actuators.envoy_endpoints import DRAINING, Endpoint, endpoints_of, pool_of
from tailkeeper_watchdog.actuators.file_weights import Pool
from tailkeeper_watchdog.model import DRAIN, EMPTY, SERVE, Knob, KnobValue

DEFAULT_PANIC_PERCENT = 50.0
_KEPT_AWAY = (
    "failed_active_health_check",
    "failed_outlier_check",
    "failed_active_degraded_check",
    "pending_dynamic_removal",
    "excluded_via_immediate_hc_fail",
    "active_hc_timeout",
)
_ALIVE = ("HEALTHY", "UNKNOWN", "DEGRADED")
RANDOM_WHY_NOT = "its cluster has `lb_policy: RANDOM`, which ignores weights; use ROUND_ROBIN or LEAST_REQUEST"


@dataclass(frozen=True, slots=True)
class Host:
    """One host in Envoy's `/clusters`. ``health`` is what EDS gave it, ``able`` what Envoy's own checks say."""

    units: int
    health: str
    able: bool
    active: int

    @property
    def serving(self) -> bool:
        return self.able and self.health in _ALIVE


@dataclass(frozen=True, slots=True)
class Seen:
    """What Envoy has of one cluster now."""

    service: str
    stat_name: str
    hosts: Mapping[str, Host]
    pool: Pool = field(default_factory=lambda: EMPTY)
    random: bool = False
    panic_percent: float = DEFAULT_PANIC_PERCENT

    @property
    def serving(self) -> frozenset[str]:
        return frozenset(server for server, host in self.hosts.items() if host.serving)

    def state(self, server: str) -> ServerState:
        host, entry = self.hosts[server], self.pool[server]
        drained = entry.drained and host.health == DRAINING
        in_service = host.able and (host.health in _ALIVE or drained) and entry.share > 0
        values: dict[Knob, KnobValue] = {Knob.ADMISSION: DRAIN if drained else SERVE}
        if not self.random:
            values[Knob.WEIGHT] = entry.share
        doubt = self._panic() if host.health == DRAINING else ""
        cannot = {Knob.WEIGHT: RANDOM_WHY_NOT} if self.random else EMPTY
        return ServerState(values, in_service, host.active, doubt, 1.0, cannot)

    def _panic(self) -> str:
        counted = [host for host in self.hosts.values() if host.health != DRAINING]
        healthy = sum(host.serving for host in counted)
        if counted and healthy / len(counted) * 100 >= self.panic_percent:
            return ""
        return (
            f"{healthy} of {len(counted)} endpoints that are not drained are healthy, below Envoy's panic threshold of "
            f"{self.panic_percent:g} %: it gives traffic to all of them, drained or not"
        )


def parse_clusters(document: Any, cluster: str) -> Seen:
    """Of `/clusters?format=json`. Raises CallError(PROTOCOL, NOT_FOUND)."""
    try:
        found = next((c for c in document["cluster_statuses"] if c["name"] == cluster), None)
        if found is None:
            raise CallError(ErrorKind.NOT_FOUND, f"Envoy has no cluster {cluster!r}; check `cluster` of this gateway")
        hosts = dict(_host(status) for status in reversed(found.get("host_statuses", [])))
        return Seen(found.get("eds_service_name") or cluster, found.get("observability_name") or cluster, hosts)
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError):
        raise CallError(ErrorKind.PROTOCOL, "Envoy's `/clusters` has a form that cannot be read") from None


def _host(status: Any) -> tuple[str, Host]:
    address, health = status["address"], status.get("health_status", {})
    socket = address.get("socket_address")
    host = str(socket["address"]) if socket else str(address["pipe"]["path"])
    name = f"[{host}]:{socket['port_value']}" if socket and ":" in host else f"{host}:{socket['port_value']}" if socket else host
    active = next((int(stat.get("value", 0)) for stat in status.get("stats", []) if stat["name"] == "rq_active"), 0)
    able = not any(health.get(flag) for flag in _KEPT_AWAY)
    return name, Host(int(status.get("weight", 1)), str(health.get("eds_health_status", "HEALTHY")), able, active)


def with_endpoints(seen: Seen, dump: Any) -> Seen:
    """With the marks that Envoy took with the endpoints, from its dump of them. Raises CallError(PROTOCOL)."""
    for config in configs_of(dump):
        assignment = config.get("endpoint_config")
        if isinstance(assignment, dict) and assignment.get("cluster_name") == seen.service:
            found = [_in_force(e, seen.hosts[e.server]) for e in endpoints_of(assignment) if e.server in seen.hosts]
            pool = pool_of(tuple(found))
            return replace(seen, pool=pool, hosts={server: host for server, host in seen.hosts.items() if server in pool})
    return replace(seen, hosts={})


def _in_force(endpoint: Endpoint, host: Host) -> Endpoint:
    """The dump gives weight and mark; the health that EDS gave is only in `/clusters`."""
    return replace(endpoint, units=host.units, health=host.health)


def with_cluster(seen: Seen, dump: Any, cluster: str) -> Seen:
    """With what the cluster's own configuration says of balancing. Raises CallError(PROTOCOL)."""
    for config in configs_of(dump):
        found = config.get("cluster")
        if isinstance(found, dict) and found.get("name") == cluster:
            return replace(seen, random=found.get("lb_policy") == "RANDOM", panic_percent=_panic_percent(found))
    return seen


def _panic_percent(cluster: Any) -> float:
    try:
        given = (cluster.get("common_lb_config") or {}).get("healthy_panic_threshold")
        return DEFAULT_PANIC_PERCENT if given is None else float(given.get("value", 0.0))
    except (TypeError, ValueError, AttributeError):
        raise CallError(ErrorKind.PROTOCOL, "Envoy's `healthy_panic_threshold` has a form that cannot be read") from None


def configs_of(dump: Any) -> list[dict[str, Any]]:
    configs = dump.get("configs", []) if isinstance(dump, dict) else None
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        raise CallError(ErrorKind.PROTOCOL, "Envoy's `/config_dump` has a form that cannot be read")
    return configs
