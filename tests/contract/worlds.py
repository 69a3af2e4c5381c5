"""What the contract suite needs of each kind of gateway: an actuator on a working gateway, and the truth beside it.

The truth is asked by a way of its own, never through the actuator. A new actuator adds one class and its line in WORLDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator
from tailkeeper_watchdog.actuators.haproxy import HaproxyActuator
from tailkeeper_watchdog.actuators.webhook import WebhookActuator
from tests.contract.webhook_gateway import NORMAL, WebhookGateway, webhook_gateway
from tests.e2e.real_programs import Haproxy, HaproxyServer, RealPrograms


class World(Protocol):
    """One working gateway with the servers ``a`` and ``b`` at weight 1 and serving."""

    actuator: Actuator
    a: str
    b: str
    unknown: str

    def truth(self, server: str) -> tuple[float, str]:
        """Weight as a share, and admission, as the gateway itself has them now."""
        ...

    def set_by_hand(self, server: str, weight: float) -> None:
        """Somebody else changes the weight at the gateway."""
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


WORLDS: dict[str, Callable[[RealPrograms], AbstractAsyncContextManager[World]]] = {
    "haproxy": haproxy_world,
    "webhook": webhook_world,
}
