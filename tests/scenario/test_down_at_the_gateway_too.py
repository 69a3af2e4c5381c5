"""What the gateway's own checks have out is drained by us only within the cap: we would keep it out when they let it in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import DRAIN, SERVE
from tests.scenario.world import World


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def test_a_network_that_breaks_for_seconds_empties_no_pool(db: Path) -> None:
    world = World(db)
    for name, sick in world.sick.items():
        sick.state, world.gateway.in_service[name] = State.DOWN, False
    await world.run(5)
    for name, sick in world.sick.items():
        sick.state, world.gateway.in_service[name] = State.SERVING, True
    assert world.out() == set(), "who comes back would find every door closed, until each has earned its return"
    assert world.gateway.writes == []


async def test_no_more_than_the_cap_is_drained_whoever_the_gateway_has_found_down_itself(db: Path) -> None:
    world = World(db, tuple("abcdefg"))
    for name in "ab":
        world.sick[name].state = State.HUNG
    await world.run(2)
    assert world.out() == {"a", "b"}
    world.sick["c"].state, world.gateway.in_service["c"] = State.DOWN, False
    await world.run(2)
    assert world.admission("c") == SERVE, "two of seven are drained already"
    assert "refused" in world.verdicts("c")


async def test_one_that_the_gateway_found_down_is_drained_within_the_cap(db: Path) -> None:
    world = World(db, tuple("abcdefg"))
    world.sick["c"].state, world.gateway.in_service["c"] = State.DOWN, False
    await world.run(2)
    assert world.admission("c") == DRAIN, "when its port opens it is not ready yet"
