"""The contract suite's Kubernetes: two pods that declare our readiness gate, behind a FAKE API server (``fake_kube_api``)."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.kubernetes import KubernetesActuator
from tailkeeper_watchdog.gateways import KubernetesGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tests.contract.fake_kube_api import READER, FakeKubeApi, fake_kube_api, node, pod
from tests.e2e.real_programs import RealPrograms


@dataclass
class KubernetesWorld:
    api: FakeKubeApi
    folder: Path
    actuator: Actuator
    a: str = "llm/a"
    b: str = "llm/b"
    unknown: str = "llm/nobody"
    normal: Mapping[Knob, KnobValue] = field(default_factory=lambda: {Knob.ADMISSION: SERVE, Knob.ANNOTATION: "", Knob.TAINT: ""})

    def truth(self, server: str) -> tuple[float, str]:
        return 1.0, SERVE if self.api.in_endpoints(server.partition("/")[2]) else DRAIN

    def set_by_hand(self, server: str, weight: float) -> None:
        raise AssertionError("Kubernetes has no weights")

    def steps(self) -> list[tuple[float, str]]:
        return []

    def most_at_once(self) -> int:
        return self.api.most_at_once

    def without_rights(self) -> Actuator:
        return KubernetesActuator(
            KubernetesGateway(name="edge", kind="kubernetes", kubeconfig=self.api.kubeconfig(self.folder, READER))
        )


@asynccontextmanager
async def kubernetes_world(_: RealPrograms) -> AsyncIterator[KubernetesWorld]:
    with tempfile.TemporaryDirectory() as name:
        async with fake_kube_api(pods=[pod("a"), pod("b")], nodes=node("node-1")) as api:
            folder = Path(name)
            settings = KubernetesGateway(name="edge", kind="kubernetes", kubeconfig=api.kubeconfig(folder))
            yield KubernetesWorld(api, folder, KubernetesActuator(settings))
