"""A watchdog that does not lead, or leads no more, does nothing at any gateway, and says why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.leadership import NotLeadingError
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, Pending
from tests.scenario.slow_gateway import SlowWorld
from tests.scenario.world import World
from tests.unit.watchdog_http import asked

OTHER = "another watchdog leads: process 7 on elsewhere"


class Told:
    """A leadership that is what we say."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.hangs = False
        self.asked = 0
        self.lost_after: int | None = None

    async def try_lead(self) -> str | None:
        self.asked += 1
        if self.hangs:
            raise RuntimeError("the API server is gone")
        if self.lost_after is not None and self.asked > self.lost_after:
            return OTHER
        return self.leader

    async def step_down(self) -> None:
        return None


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def world(tmp_path: Path, told: Told) -> World:
    world = World(tmp_path / "ledger.db")
    world.leadership = told
    world.start()
    await world.run(1)
    return world


async def test_who_leads_no_more_writes_down_nothing_of_what_comes_late(tmp_path: Path, told: Told) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: 6.0)
    world.leadership = told
    world.start()
    await world.run(2)
    for weight in (0.5, 0.7):
        world.want("b", weight)
        await world.run(1)
    told.leader = OTHER
    leases = world.ledger.leases()
    noted: Pending = {("edge", "c", Knob.WEIGHT): {0.5: world.clock.wall()}}
    world.ledger.note_pending(noted)
    await world.run(20)
    assert world.weight("b") == 0.7
    assert (world.ledger.leases(), world.ledger.pending()) == (leases, noted)


async def test_who_leads_no_more_drains_nobody_and_gives_nothing_back(world: World, told: Told) -> None:
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.admission("b") == DRAIN
    told.leader = OTHER
    world.sick["b"].state, world.sick["c"].state = State.SERVING, State.HUNG
    await world.run(30)

    assert (world.admission("b"), world.admission("c")) == (DRAIN, SERVE)
    assert len(world.gateway.writes) == 1
    assert [lease.backend for lease in world.ledger.leases()] == ["b"], "the next leader finds it in the ledger"


async def test_a_release_that_takes_long_ends_where_another_one_leads_and_says_what_it_left(
    world: World, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailkeeper_watchdog.loop.ACT_DEADLINE_S", 0.0)  # any call lasts longer than no time at all
    world.sick["b"].itl_s = 0.2
    await world.run(20)
    world.sick["c"].state = State.HUNG
    await world.run(1)
    leases = {(lease.backend, lease.knob.value) for lease in world.ledger.leases()}
    assert len(leases) == 2
    told.lost_after = told.asked + 1
    done = await world.loop.release("by hand")

    assert [decision.verdict.value for decision in done.decisions] == ["released"]
    assert [why for _, why in done.kept] == [OTHER]
    assert len(world.ledger.leases()) == 1


async def test_it_goes_on_when_it_leads_again(world: World, told: Told) -> None:
    told.leader = OTHER
    world.sick["b"].state = State.HUNG
    await world.run(5)
    told.leader = None
    await world.run(0.5)

    assert world.admission("b") == DRAIN


async def test_not_to_know_who_leads_is_not_to_lead(world: World, told: Told) -> None:
    told.hangs = True
    world.sick["b"].state = State.HUNG
    await world.run(5)

    assert world.admission("b") == SERVE
    assert world.switches.paused() == "it cannot be said who leads: RuntimeError: the API server is gone"


async def test_a_leadership_lost_within_a_tick_is_noticed_before_its_changes_are_made(world: World, told: Told) -> None:
    told.lost_after = told.asked + 1  # the consent at the beginning of the tick is the last one
    world.sick["b"].state = State.HUNG
    await world.run(0.5)

    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


async def test_a_leadership_that_does_not_answer_holds_up_a_tick_for_so_long_and_not_longer(
    world: World, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> str | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr("tailkeeper_watchdog.loop.LEAD_DEADLINE_S", 0.01)
    monkeypatch.setattr(told, "try_lead", never)
    await world.run(0.5)

    assert "it cannot be said who leads: TimeoutError" in (world.switches.paused() or "")


async def test_the_interface_says_who_leads_and_refuses_to_release(world: World, told: Told) -> None:
    world.sick["b"].state = State.HUNG
    await world.run(1)
    told.leader = OTHER
    await world.run(0.5)
    async with asked(world, ticks_s=0) as ask:
        assert (await ask.get("/readyz", 503))["reason"] == OTHER
        fleet = await ask.get("/api/v1/fleet")
        refused = await ask.send("POST", "/api/v1/release", status=503)

    assert (fleet["paused"], fleet["paused_because"]) == (True, OTHER)
    assert refused["detail"] == f"nothing is done here: {OTHER}"
    with pytest.raises(NotLeadingError):
        await world.loop.release("by hand")
    assert world.admission("b") == DRAIN
