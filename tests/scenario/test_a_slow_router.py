"""A router that takes its time over a removal: whoever it takes out in the end comes back, however late that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.membership import MembershipActuator, Worker
from tailkeeper_watchdog.actuators.removed_workers import RemovedWorkers
from tailkeeper_watchdog.actuators.replicas import replicated
from tests.scenario.world import World

NAMES = ("a", "b", "c", "d")


def worker(url: str) -> Worker:
    return Worker(url, url, "regular", "m", True, {"url": url})


@dataclass
class SlowRouter:
    """Satisfies ``Router``. A removal gets no answer in time, and is done at ``catch_up``."""

    there: dict[str, Worker] = field(default_factory=lambda: {name: worker(name) for name in NAMES})
    asked: set[str] = field(default_factory=set)

    async def workers(self) -> Mapping[str, Worker]:
        return dict(self.there)

    async def remove(self, worker: Worker) -> None:
        self.asked.add(worker.url)
        raise TimeoutError

    def catch_up(self) -> None:
        for url in self.asked:
            self.there.pop(url, None)
        self.asked.clear()

    async def add(self, document: Mapping[str, Any]) -> str:
        self.there[document["url"]] = worker(document["url"])
        return ""

    async def adding(self, job: str) -> bool:
        return False

    async def close(self) -> None:
        """Nothing is open."""


def world_of(routers: dict[str, SlowRouter], folder: Path) -> World:
    world = World(folder / "ledger.db")
    removed = RemovedWorkers(folder / "removed.json")

    def one(name: str, address: str) -> MembershipActuator:
        return MembershipActuator(name, "some_router", address, routers[address], removed, {}, world.clock.wall)

    world.actuators = {"edge": replicated("edge", tuple(routers), one)}
    world.start()
    return world


@pytest.mark.parametrize(
    ("late_s", "sick_s", "replicas"),
    [
        (1.0, 90.0, 2),
        (9.0, 90.0, 1),
        (11.0, 1.0, 1),
        (60.0, 1.0, 2),
    ],
)
async def test_whoever_is_removed_late_is_added_back(tmp_path: Path, late_s: float, sick_s: float, replicas: int) -> None:
    routers = {f"http://router-{n}": SlowRouter() for n in range(replicas)}
    world = world_of(routers, tmp_path)
    await world.run(5)
    world.sick["b"].state = State.HUNG
    await world.run(sick_s if sick_s < late_s else late_s)
    if sick_s < late_s:  # well again before the router has done anything
        world.sick["b"].state = State.SERVING
        await world.run(late_s - sick_s)
    assert all("b" in router.asked for router in routers.values())
    for router in routers.values():
        router.catch_up()
    await world.run(max(0.0, sick_s - late_s))
    world.sick["b"].state = State.SERVING
    await world.run(120)

    assert [set(router.there) for router in routers.values()] == [set(NAMES)] * replicas
    assert world.ledger.leases() == ()
