"""A pool that falls to another shard: what was changed there is given back by the one that did it, then the new one acts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.api.security import Gate
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tailkeeper_watchdog.shard import Left, Shard
from tailkeeper_watchdog.switches import SETTLE_S
from tests.scenario.world import TICK_S, World
from tests.unit.watchdog_http import application, client_of, world_at

MOVED = ("e", "f", "g", "h")
STAY = ("a", "b", "c", "d")


class Fleet:
    """Two watchdogs, one time, one gateway. The first one has all, then ``MOVED`` falls to the other one."""

    def __init__(self, folder: Path) -> None:
        self.old = World(folder / "0.db", (*STAY, *MOVED))
        self.new = World(folder / "2.db", MOVED)
        self.new.clock, self.new.gateway, self.new.sick = self.old.clock, self.old.gateway, self.old.sick
        self.new.actuators = self.old.actuators

    def reshard(self) -> None:
        """Both begin anew, each with its part."""
        self.old.elsewhere = frozenset(("edge", name) for name in MOVED)
        self.new.elsewhere = frozenset(("edge", name) for name in STAY)
        self.old.reconfigure(STAY)
        self.new.start()
        for world in (self.old, self.new):
            world.switches.settle(3)

    async def run(self, seconds: float, *, first: str = "new") -> None:
        for _ in range(round(seconds / TICK_S)):
            self.old.clock.now += TICK_S
            for world in (self.new, self.old) if first == "new" else (self.old, self.new):
                record = await world.loop.tick()
                assert record.error is None


@pytest.fixture
async def fleet(tmp_path: Path) -> Fleet:
    """``a`` and ``e`` are drained, ``f`` gets less, all by the first one."""
    fleet = Fleet(tmp_path)
    fleet.old.sick["f"].itl_s = 0.2
    await fleet.old.run(20)
    fleet.old.sick["a"].state = fleet.old.sick["e"].state = State.HUNG
    await fleet.old.run(2)
    assert (fleet.old.admission("a"), fleet.old.admission("e")) == (DRAIN, DRAIN)
    assert float(fleet.old.weight("f")) < 1.0
    return fleet


@pytest.mark.parametrize("first", ["new", "old"])
async def test_what_moved_is_given_back_at_once_and_what_stayed_is_kept(fleet: Fleet, first: str) -> None:
    fleet.reshard()
    await fleet.run(5, first=first)
    assert (fleet.old.admission("a"), fleet.old.admission("e"), fleet.old.weight("f")) == (DRAIN, SERVE, 1.0)
    assert {lease.backend for lease in fleet.old.ledger.leases()} == {"a"}
    said = [d.reason for d in fleet.old.ledger.decisions("e", limit=5) if d.verdict.value == "released"]
    assert said == ["its pool is another shard's now; prior value read back"]
    assert fleet.new.ledger.leases() == ()
    assert str(fleet.new.switches.paused()).startswith("the number of shards has changed: for ")


async def test_the_new_one_acts_then_and_gives_back_what_the_gateway_had_before_either(fleet: Fleet) -> None:
    """Also where the one that had the pool begins ten seconds later."""
    fleet.reshard()
    for _ in range(round(10 / TICK_S)):
        fleet.old.clock.now += TICK_S
        await fleet.new.loop.tick()
    await fleet.run(SETTLE_S + 15)
    assert fleet.new.admission("e") == DRAIN
    priors = {(lease.backend, lease.knob): lease.prior for lease in fleet.new.ledger.leases()}
    assert priors["e", Knob.ADMISSION] == SERVE
    assert priors["f", Knob.WEIGHT] == 1.0, "not what the other one had lowered it to"
    assert not {"e", "f"} & {lease.backend for lease in fleet.old.ledger.leases()}

    fleet.old.sick["e"].state, fleet.old.sick["f"].itl_s = State.SERVING, 0.02
    await fleet.run(120)
    assert [fleet.new.weight(name) for name in MOVED] == [1.0] * 4
    assert [fleet.new.admission(name) for name in MOVED] == [SERVE] * 4
    assert fleet.new.ledger.leases() == ()


async def test_a_restart_of_one_shard_waits_for_nobody(fleet: Fleet) -> None:
    fleet.reshard()
    await fleet.run(SETTLE_S + 2)
    fleet.new.start()
    fleet.new.switches.settle(3)
    assert fleet.new.switches.paused() is None


async def test_nobody_waits_for_ever_where_the_wall_clock_was_set_back(fleet: Fleet) -> None:
    fleet.reshard()
    fleet.old.clock.step_s = -3_600.0
    await fleet.run(1)
    assert fleet.new.switches.paused() is None


async def test_the_interface_says_which_shard_it_is_and_what_it_leaves_to_the_others(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    await world.run(2)
    left = Left(24, frozenset(), ("edge:llm",))
    async with client_of(Gate(application(world, part=lambda: (Shard(1, 3), left)), None)) as ask:
        fleet = (await ask.get("/api/v1/fleet")).json()
        ready = (await ask.get("/readyz")).json()
        page = (await ask.get("/metrics")).text
    assert fleet["shard"] == {"index": 1, "of": 3, "elsewhere": 24, "split_pools": ["edge:llm"]}
    assert ready["shard"] == "1/3"
    assert 'tailkeeper_shard_backends{shard="1/3",whose="own"} 4.0' in page
    assert 'tailkeeper_shard_backends{shard="1/3",whose="elsewhere"} 24.0' in page
    assert 'tailkeeper_shard_split_pools{shard="1/3"} 1.0' in page
    async with client_of(Gate(application(world), None)) as ask:
        assert (await ask.get("/api/v1/fleet")).json()["shard"] is None
        assert "shard" not in (await ask.get("/readyz")).json()
        assert "tailkeeper_shard" not in (await ask.get("/metrics")).text
