"""``release-all`` without a watchdog: everything of ours is given back, also what a write from before may still change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailkeeper.release import Pause, give_back
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.pending import MAY_COME_S
from tailkeeper_watchdog.reconcile import Reconciler, alone
from tests.scenario.slow_gateway import Says, SlowWorld


@dataclass
class Person:
    """Whoever waits in front of the terminal: time passes, and what is said is heard."""

    world: SlowWorld
    heard: list[str] = field(default_factory=list)
    waited_s: float = 0.0

    async def sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        self.world.clock.now += seconds

    async def releases(self, path: Path) -> tuple[list[str], int]:
        ledger, wall = Ledger(path), self.world.clock.wall
        reconciler = Reconciler({"edge": self.world.slow}, ledger, DecisionLog(ledger, wall), 60, wall)
        return await give_back(reconciler, ledger, alone, Pause(self.heard.append, self.sleep), wall)


@pytest.mark.parametrize("comes_after_s", [6.0, 9.0, None])
async def test_right_after_a_write_that_failed_it_waits_and_leaves_nothing(tmp_path: Path, comes_after_s: float | None) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: comes_after_s)
    await world.run(2)
    world.want("b", 0.5)
    await world.run(1)
    world.slow.says = Says.DONE
    person = Person(world)
    lines, left = await person.releases(tmp_path / "ledger.db")
    assert (left, lines[-1]) == (0, "1 of 1 change given back")
    assert 0 < person.waited_s <= MAY_COME_S
    assert "1 change: a write of it from before may still be done; waiting for that" in person.heard[0]
    world.clock.now += 60
    assert world.slow.is_idle
    assert world.is_as_it_was("b")


async def test_where_nothing_can_come_nobody_waits(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: 0.0, Says.DONE)
    await world.run(2)
    world.want("b", 0.5)
    await world.run(1)
    world.clock.now += MAY_COME_S
    person = Person(world)
    lines, left = await person.releases(tmp_path / "ledger.db")
    assert (left, lines[-1]) == (0, "1 of 1 change given back")
    assert (person.waited_s, person.heard) == (0, [])


async def test_a_gateway_that_takes_nothing_back_ends_it_within_the_bound(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: None)
    await world.run(2)
    world.want("b", 0.5)
    await world.run(1)
    world.slow.set_by_hand("b", next(iter(world.slow.values["b"])), 0.5)
    person = Person(world)
    lines, left = await person.releases(tmp_path / "ledger.db")
    assert (left, lines[-1]) == (1, "0 of 1 change given back")
    assert person.waited_s <= MAY_COME_S
