"""Whatever happened to the configuration, the gateway or the process: what we changed is given back, and once only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, Target
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import World


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def drained(db: Path, *, guards: GuardsSettings | None = None) -> World:
    world = World(db, guards=guards)
    await world.run(1)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.admission("b") == DRAIN
    return world


async def test_release_keeps_the_lease_of_a_server_that_cannot_be_read(db: Path) -> None:
    world = await drained(db)
    read = world.gateway.read

    async def unreadable(servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        return {s: ServerState({}, doubt="its document could not be had") for s in await read(servers, deadline_s)}

    world.gateway.read = unreadable  # type: ignore[method-assign]
    await world.loop.release("by hand")
    assert [lease.backend for lease in world.ledger.leases()] == ["b"], "unknown is not someone else's"
    world.gateway.read = read  # type: ignore[method-assign]
    await world.loop.release("by hand")
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


async def test_a_lease_at_a_gateway_that_is_gone_keeps_no_other_lease_from_being_released(db: Path) -> None:
    world = await drained(db)
    now = world.clock.wall()
    world.ledger.intend("old", Target("gone", "x", "llm"), Knob.ADMISSION, "p", SERVE, DRAIN, "hung", now, now + 60)
    done = await world.loop.release("by hand")
    assert [(d.backend, d.verdict.value) for d in done.decisions] == [("b", "released")]
    assert [lease.backend for lease in world.ledger.leases()] == ["old"]


async def test_release_gives_back_more_leases_than_a_tick_may_make_changes(db: Path) -> None:
    names = tuple(f"b{n:03}" for n in range(100))
    world = World(db, names, guards=GuardsSettings(max_fraction=0.8, panic_fraction=1.0))
    for name in names[:70]:
        world.sick[name].state = State.HUNG
    await world.run(2)
    assert len(world.out()) == 70
    await world.loop.release("by hand")
    assert world.out() == set()
    assert world.ledger.leases() == ()


async def test_a_backend_that_left_the_configuration_gets_its_traffic_back_when_its_lease_ends(db: Path) -> None:
    world = await drained(db)
    world.reconfigure(("a", "c", "d"))
    await world.run(70)
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


async def test_a_renamed_pool_keeps_its_lease_as_one_and_gives_it_back(db: Path) -> None:
    world = await drained(db)
    world.pool = "renamed"
    world.start()
    await world.run(80)
    assert world.gateway.writes == [("b", Knob.ADMISSION, DRAIN)], "in force and renewed, not fought over"
    world.sick["b"].state = State.SERVING
    await world.run(40)
    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()
