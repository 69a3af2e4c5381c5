"""An operator's hold: with its reason and until its end nothing is done to that backend, on whatever path it would come."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.model import DRAIN, SERVE, Mode
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.settings import GuardsSettings, PoliciesSettings
from tests.scenario.world import World

HOLD_S = 100


@pytest.fixture
def world(tmp_path: Path) -> World:
    defaults = PoliciesSettings()
    policies = {p.name: PolicySetting(Mode.ENFORCE, getattr(defaults, p.name).params) for p in POLICIES}
    guards = GuardsSettings(cooldown_s=2, return_ramp_s=4, lease_s=20, quarantine_after=2)
    return World(tmp_path / "ledger.db", guards=guards, policies=policies)


def written(world: World) -> int:
    return sum(server == "b" for server, _, _ in world.gateway.writes)


async def hung(world: World) -> None:
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.admission("b") == DRAIN


async def returning(world: World) -> None:
    await hung(world)
    world.sick["b"].state = State.SERVING
    while world.weight("b") != 0.5:
        await world.run(0.5)


async def quarantined(world: World) -> None:
    for _ in range(2):
        await hung(world)
        world.sick["b"].state = State.SERVING
        await world.run(10)
    assert world.admission("b") == DRAIN


async def weighed(world: World) -> None:
    world.sick["b"].extra = {catalog.KV_USAGE.name: 0.5}
    await world.run(1)
    assert world.weight("b") == 0.5


async def nothing(world: World) -> None:
    await world.run(1)


@pytest.mark.parametrize("before", [nothing, hung, returning, quarantined, weighed])
@pytest.mark.parametrize("then", ["hung", "well", "memory", "silent", "leaves the fleet"])
async def test_while_a_hold_lasts_nothing_is_written_for_that_backend_and_afterwards_all_is_settled(
    world: World, before: object, then: str
) -> None:
    assert callable(before)
    await before(world)
    hold = world.switches.hold("b", "disk swap", HOLD_S)
    writes, as_it_was = written(world), dict(world.gateway.values["b"])
    sick = world.sick["b"]
    sick.state = State.HUNG if then == "hung" else State.SERVING
    sick.extra = {catalog.KV_USAGE.name: 0.97, catalog.VRAM_PRESSURE.name: 0.97} if then == "memory" else {}
    sick.silent = then == "silent"
    if then == "leaves the fleet":
        world.reconfigure(("a", "c", "d"))  # a restart: whether it left or was not found yet cannot be told
    await world.run(HOLD_S - 2)
    assert (written(world), world.gateway.values["b"]) == (writes, as_it_was), hold

    sick.state, sick.extra, sick.silent = State.SERVING, {}, False
    await world.run(30)
    if before is quarantined and then != "leaves the fleet":
        assert world.admission("b") == DRAIN, "a hold ends no quarantine"
        await world.loop.release("looked at", "b")
        await world.run(10)
    await world.run(150)
    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()


async def test_what_a_hold_kept_from_being_done_is_written_down_with_its_reason(world: World) -> None:
    world.switches.hold("b", "disk swap", HOLD_S)
    world.sick["b"].state = State.HUNG
    await world.run(1)

    (refused, *_) = world.ledger.decisions("b")
    assert refused.verdict.value == "refused"
    assert refused.reason.startswith("held: an operator's hold is on this backend (disk swap); wanted because hung")
