"""The contract suite's world for Consul: a faithful fake (there was no Consul to be had), with ACLs on."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.consul import ConsulActuator
from tailkeeper_watchdog.model import SERVE, Knob, KnobValue
from tests.contract.fake_consul import FakeConsul, fake_consul
from tests.e2e.real_programs import RealPrograms

TTL_S = 300.0


@dataclass
class ConsulWorld:
    consul: FakeConsul
    folder: Path
    actuator: Actuator
    a: str = "a"
    b: str = "b"
    unknown: str = "no body"
    """Consul knows no servers, so only a name that cannot be one is unknown."""
    normal: Mapping[Knob, KnobValue] = field(
        default_factory=lambda: {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE, Knob.ANNOTATION: ""}
    )

    def truth(self, server: str) -> tuple[float, str]:
        weight = self.consul.text(f"service/{server}/weight", "1")
        return float(weight), self.consul.text(f"service/{server}/admission", SERVE)

    def set_by_hand(self, server: str, weight: float) -> None:
        self.consul.by_hand(f"service/{server}/weight", str(weight))

    def steps(self) -> list[tuple[float, str]]:
        return [
            (float(keys.get("service/a/weight", "1")), keys.get("service/a/admission", SERVE)) for keys in self.consul.history
        ]

    def most_at_once(self) -> int:
        return self.consul.most_at_once

    def without_rights(self) -> Actuator:
        return actuator_with(self.consul, self.folder, "reader")


def actuator_with(consul: FakeConsul, folder: Path, token: str) -> ConsulActuator:
    file = folder / token
    file.write_text(f"X-Consul-Token: {token}\n")
    return ConsulActuator("edge", consul.url, Auth(headers_file=file), TTL_S)


@asynccontextmanager
async def consul_world(_: RealPrograms) -> AsyncIterator[ConsulWorld]:
    with tempfile.TemporaryDirectory() as folder, fake_consul({"writer": "write", "reader": "read"}) as consul:
        yield ConsulWorld(consul, Path(folder), actuator_with(consul, Path(folder), "writer"))
