"""A watchdog that kills itself with SIGKILL at the N-th step of a story: at a write of the ledger or of a gateway, or before that
is read back.

``python -m tests.loopback.killed_watchdog`` reads one JSON document a line (`Told`) and answers with one line each: how the
process ended that it forked for it. A fork, because a start of Python for every step would take minutes. Time is turned, not
waited for; the process, its death, the ledger's file and the gateway's socket are real.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import Actuator, ServerState, Support
from tailkeeper_watchdog.actuators.haproxy import HaproxyActuator
from tailkeeper_watchdog.actuators.webhook import WebhookActuator
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.model import Knob, KnobValue, Mode
from tailkeeper_watchdog.policy_params import ContextLengthRoutingParams
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import World

NAMES = ("a", "b", "c", "d")
GUARDS = GuardsSettings(cooldown_s=1, return_ramp_s=1, lease_s=30, quarantine_after=2, max_fraction=0.5)


@dataclass(frozen=True, slots=True)
class Told:
    """``gateway`` is the URL of a webhook or the socket of a HAProxy, ``servers`` the name of each backend there.

    ``step`` None: nobody is killed. ``story`` has lines of [seconds, {backend: state}, {backend: KV usage}, released backend].
    """

    ledger: str
    gateway: str
    servers: Mapping[str, str]
    now: float
    story: list[tuple[float, dict[str, str], dict[str, float], str]]
    step: int | None = None
    tick_s: float = 0.5


class Death:
    """Counts steps, and is the last one of them."""

    def __init__(self, step: int | None) -> None:
        self.left = step
        self.counted = 0

    def step(self) -> None:
        self.counted += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.die()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal:
    """An actuator whose process may die before a call, and after a write: what the gateway took, nobody has noted then."""

    def __init__(self, real: Actuator, death: Death) -> None:
        self._real, self._death = real, death
        self.name, self.kind = real.name, real.kind

    def supports(self, knob: Knob) -> Support:
        return self._real.supports(knob)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        if len(servers) == 1:  # the reading back; at a tick's own reading nothing has changed since the last step
            self._death.step()
        return await self._real.read(servers, deadline_s)

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        self._death.step()
        await self._real.write(server, values, deadline_s)
        self._death.step()

    async def close(self) -> None:
        await self._real.close()


def real_gateway(told: Told) -> Actuator:
    if told.gateway.startswith("http"):
        return WebhookActuator("edge", told.gateway, Auth())
    return HaproxyActuator("edge", told.gateway)


def world_of(told: Told, death: Death, real: Actuator | None = None) -> World:
    """A world whose watchdog dies by ``death``; ``real`` is its gateway, that of the world itself unless given."""
    routing = PolicySetting(Mode.ENFORCE, ContextLengthRoutingParams())
    world = World(told.ledger, NAMES, guards=GUARDS, policies={"context_length_routing": routing}, servers=told.servers)
    world.actuators = {"edge": Mortal(real or world.gateway, death)}
    world.clock.now = told.now
    world.start()
    run = world.ledger._run

    def counted(sql: str, values: tuple[Any, ...] = ()) -> Any:
        if not sql.startswith(("SELECT", "PRAGMA", "BEGIN")):
            death.step()
        return run(sql, values)

    run("PRAGMA synchronous=OFF")  # what the kernel has taken outlives a process; only a power cut needs the disk
    world.ledger._run = counted  # type: ignore[method-assign]
    return world


async def live(told: Told, world: World) -> None:
    for seconds, states, usage, released in told.story:
        for name, state in states.items():
            world.sick[name].state = State(state)
        for name, used in usage.items():
            world.sick[name].extra = {catalog.KV_USAGE.name: used}
        if released:
            await world.loop.release("by hand", released)
        for _ in range(round(seconds / told.tick_s)):
            world.clock.now += told.tick_s
            record = await world.loop.tick()
            assert record.error is None, record.error
    await world.actuators["edge"].close()


def _answer(to: int, **words: object) -> None:
    os.write(to, f"{json.dumps(words)}\n".encode())


def _child(told: Told, to: int) -> None:
    death = Death(told.step)
    world = world_of(told, death, real_gateway(told))
    asyncio.run(live(told, world))
    _answer(to, left=len(world.ledger.leases()), steps=death.counted)


def main() -> None:
    to = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the log goes there
    for line in sys.stdin:
        told = Told(**json.loads(line))
        child = os.fork()
        if child == 0:
            ended = 1
            try:
                _child(told, to)
                ended = 0
            finally:
                sys.stderr.flush()
                os._exit(ended)
        _, status = os.waitpid(child, 0)
        if status != 0:
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            _answer(to, killed=killed, failed=not killed)


if __name__ == "__main__":
    main()
