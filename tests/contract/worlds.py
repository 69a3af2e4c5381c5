"""What the contract suite needs of each kind of gateway: an actuator on a working gateway, and the truth beside it.

The truth is asked by a way of its own, never through the actuator. A new actuator adds one class and its line in WORLDS.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.haproxy import HaproxyActuator
from tailkeeper_watchdog.actuators.tap import TapActuator
from tailkeeper_watchdog.actuators.webhook import WebhookActuator
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tests.contract.consul_world import consul_world
from tests.contract.envoy_world import envoy_world
from tests.contract.kubernetes_world import kubernetes_world
from tests.contract.litellm_world import litellm_world
from tests.contract.router_worlds import sglang_router_world, vllm_router_world
from tests.contract.traefik_world import traefik_world
from tests.contract.webhook_gateway import NORMAL, WebhookGateway, webhook_gateway
from tests.e2e.real_programs import Haproxy, HaproxyServer, RealPrograms
from tests.taps_in_memory import Counting, TapsInMemory, exporter_with

WEIGHED: Mapping[Knob, KnobValue] = {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE}


class World(Protocol):
    """One working gateway with the servers ``a`` and ``b`` serving, and at weight 1 where it has weights."""

    actuator: Actuator
    normal: Mapping[Knob, KnobValue]
    """What is read of a server with which nobody has done anything; with a weight where the gateway has weights."""
    a: str
    b: str
    unknown: str

    def truth(self, server: str) -> tuple[float, str]:
        """Weight as a share (1 where there are none), and admission, as the gateway itself has them now."""
        ...

    def set_by_hand(self, server: str, weight: float) -> None:
        """Somebody else changes the weight at the gateway. Not to be called where there are none."""
        ...

    def steps(self) -> list[tuple[float, str]]:
        """The states of ``a`` in the order in which our writes made them, one a step."""
        ...

    def most_at_once(self) -> int:
        """The largest number of our calls that the gateway had at the same time."""
        ...

    def without_rights(self) -> Actuator:
        """An actuator for the same gateway whose credential is not good enough to write."""
        ...


@dataclass
class Recorder:
    """Stands between actuator and HAProxy, passes everything on, notes commands and connections open at once."""

    target: str
    commands: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        command = await reader.readline()
        self.commands.append(command.decode().strip())
        theirs, to_them = await asyncio.open_unix_connection(self.target)
        to_them.write(command)
        answer = await theirs.read(-1)
        to_them.close()
        self._at_once -= 1
        writer.write(answer)
        await writer.drain()
        writer.close()


@dataclass
class HaproxyWorld:
    haproxy: Haproxy
    recorder: Recorder
    actuator: Actuator
    a: str = "llm/a"
    b: str = "llm/b"
    unknown: str = "llm/nobody"
    normal: Mapping[Knob, KnobValue] = field(default_factory=lambda: WEIGHED)

    def truth(self, server: str) -> tuple[float, str]:
        weight, initial = self.haproxy.ask(f"get weight {server}").replace("(initial ", "").replace(")", "").split()
        name = server.partition("/")[2]
        row = next(line for line in self.haproxy.ask("show stat llm 4 -1").splitlines() if line.startswith(f"llm,{name},"))
        return int(weight) / int(initial), "drain" if row.split(",")[17].startswith("DRAIN") else "serve"

    def set_by_hand(self, server: str, weight: float) -> None:
        assert self.haproxy.ask(f"set server {server} weight {round(weight * 100)}") == "\n"

    def steps(self) -> list[tuple[float, str]]:
        weight, admission, steps = 1.0, "serve", []
        for words in (command.split() for command in self.recorder.commands if command.startswith("set server llm/a ")):
            weight = int(words[4]) / 100 if words[3] == "weight" else weight
            admission = {"drain": "drain", "ready": "serve"}[words[4]] if words[3] == "state" else admission
            steps.append((weight, admission))
        return steps

    def most_at_once(self) -> int:
        return self.recorder.most_at_once

    def without_rights(self) -> Actuator:
        return HaproxyActuator("edge", self.haproxy.operator_socket)


@asynccontextmanager
async def haproxy_world(programs: RealPrograms) -> AsyncIterator[World]:
    servers = [HaproxyServer(name, programs.backend(name).port) for name in ("a", "b")]
    haproxy = programs.haproxy(servers)
    recorder = Recorder(haproxy.socket)
    server = await asyncio.start_unix_server(recorder.serve, f"{haproxy.folder}/r")
    async with server:
        yield HaproxyWorld(haproxy, recorder, HaproxyActuator("edge", f"{haproxy.folder}/r"))


@dataclass
class WebhookWorld:
    gateway: WebhookGateway
    actuator: Actuator
    a: str = "a"
    b: str = "b"
    unknown: str = "nobody"
    normal: Mapping[Knob, KnobValue] = field(default_factory=lambda: WEIGHED)

    def truth(self, server: str) -> tuple[float, str]:
        document = self.gateway.documents[server]
        return document["weight"], document["admission"]

    def set_by_hand(self, server: str, weight: float) -> None:
        self.gateway.documents[server]["weight"] = weight

    def steps(self) -> list[tuple[float, str]]:
        return [(document["weight"], document["admission"]) for server, document in self.gateway.history if server == "a"]

    def most_at_once(self) -> int:
        return self.gateway.most_at_once

    def without_rights(self) -> Actuator:
        self.gateway.token = "of somebody else"
        return WebhookActuator("edge", self.gateway.url, Auth())


@asynccontextmanager
async def webhook_world(_: RealPrograms) -> AsyncIterator[World]:
    with webhook_gateway({"a": dict(NORMAL), "b": dict(NORMAL)}) as gateway:
        yield WebhookWorld(gateway, WebhookActuator("edge", gateway.url, Auth()))


@dataclass
class TapWorld:
    """The exporter's real routes and the real admission; the data path behind them is not needed here."""

    taps: TapsInMemory
    counting: Counting
    url: str
    actuator: Actuator
    a: str = "a"
    b: str = "b"
    unknown: str = "nobody"
    normal: Mapping[Knob, KnobValue] = field(
        default_factory=lambda: {
            Knob.ADMISSION: SERVE, Knob.CONCURRENCY_LIMIT: 0.0, Knob.CACHE_MODE: "off", Knob.DEGRADE_LEVEL: 0.0,
        }
    )  # fmt: skip

    def truth(self, server: str) -> tuple[float, str]:
        refused = self.taps.ask(server)
        assert (refused is not True) == (self.taps.knobs[server].admission == DRAIN)
        return 1.0, self.taps.knobs[server].admission

    def set_by_hand(self, server: str, weight: float) -> None:
        raise AssertionError("a tap has no weight")

    def steps(self) -> list[tuple[float, str]]:
        return [(1.0, knobs.admission) for backend, knobs in self.taps.history if backend == "a"]

    def most_at_once(self) -> int:
        return self.counting.most_at_once

    def without_rights(self) -> Actuator:
        return TapActuator("edge", (self.url,), Auth())


@asynccontextmanager
async def tap_world(_: RealPrograms) -> AsyncIterator[World]:
    taps = TapsInMemory("a", "b")
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text("of-the-exporter\n")
        async with exporter_with(taps, "of-the-exporter") as (url, counting):
            yield TapWorld(taps, counting, url, TapActuator("edge", (url,), Auth(bearer_file=token)))


WORLDS: dict[str, Callable[[RealPrograms], AbstractAsyncContextManager[World]]] = {
    "haproxy": haproxy_world,
    "webhook": webhook_world,
    "tap": tap_world,
    "sglang_router": sglang_router_world,
    "vllm_router": vllm_router_world,
    "consul": consul_world,
    "envoy": envoy_world,
    "traefik": traefik_world,
    "kubernetes": kubernetes_world,
    "litellm": litellm_world,
}
WITHOUT_WEIGHTS = frozenset({"tap", "sglang_router", "vllm_router", "kubernetes"})
