"""A drain that the guards refuse for want of a second sign, or because most of the pool has the same, holds up no return."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.model import Knob, KnobValue, Mode
from tailkeeper_watchdog.policy_params import MemoryBreakerParams
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import World

RAMP_S = 40.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    """``a`` and ``b`` were hung, and are on their way back at a quarter of their weight."""
    guards = GuardsSettings(cooldown_s=5, return_ramp_s=RAMP_S, lease_s=60, max_fraction=0.6)
    breaker = PolicySetting(Mode.ENFORCE, MemoryBreakerParams())
    return World(tmp_path / "ledger.db", guards=guards, policies={"memory_breaker": breaker})


async def returning(world: World) -> None:
    for name in ("a", "b"):
        world.sick[name].state = State.HUNG
    await world.run(2)
    for name in ("a", "b"):
        world.sick[name].state = State.SERVING
    await world.run(6)
    assert (world.weight("a"), world.weight("b")) == (0.25, 0.25)


def full(world: World, preempting: bool) -> None:
    """The memory of ``a`` is nearly full: a drain is wanted, by two signs where requests are preempted, too."""
    world.sick["a"].extra = {catalog.VRAM_PRESSURE.name: 0.91}
    world.sick["a"].preemptions_per_tick = 5.0 if preempting else 0.0


async def seen(world: World, name: str, seconds: float) -> list[KnobValue]:
    """The weights that it has, in turn."""
    weights: list[KnobValue] = []
    for _ in range(round(seconds)):
        await world.run(1)
        if weights[-1:] != [world.weight(name)]:
            weights.append(world.weight(name))
    return weights


async def test_a_drain_by_one_sign_does_not_keep_a_returning_backend_at_a_quarter(world: World) -> None:
    await returning(world)
    full(world, preempting=False)
    assert await seen(world, "a", RAMP_S + 5) == [0.25, 0.5, 1.0]
    assert [d.reason for d in world.ledger.decisions("a") if "two independent signals" in d.reason], "it was wanted, and refused"
    assert world.ledger.leases() == ()


async def test_a_drain_in_a_panic_keeps_nobody_from_returning(world: World) -> None:
    await returning(world)
    for name in ("c", "d"):
        world.sick[name].silent = True
    full(world, preempting=True)
    assert await seen(world, "a", RAMP_S + 5) == [0.25, 0.5, 1.0]
    assert [d.reason for d in world.ledger.decisions("a") if "bad or unobservable" in d.reason]
    assert world.weight("b") == 1.0
    assert world.ledger.leases() == ()


async def test_a_drain_that_the_pool_cannot_spare_is_evidence_all_the_same(world: World) -> None:
    """Two signs, and no panic: it waits for its turn, and gets no more traffic meanwhile."""
    await returning(world)
    for name in ("c", "d"):
        world.gateway.values[name][Knob.WEIGHT] = 0.0
    full(world, preempting=True)
    assert await seen(world, "a", RAMP_S + 5) == [0.25]
