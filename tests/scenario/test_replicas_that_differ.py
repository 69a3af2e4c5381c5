"""What somebody did at one replica of a gateway is not spread to the others."""

from __future__ import annotations

from pathlib import Path

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.model import DRAIN, Knob
from tests.scenario.world import FakeGateway, World


async def world_of_two_replicas(tmp_path: Path) -> tuple[World, FakeGateway, FakeGateway]:
    world = World(tmp_path / "ledger.db")
    one, two = world.gateway, FakeGateway(("a", "b", "c", "d"))
    one.name, two.name = "one", "two"
    world.actuators = {"edge": replicated("edge", ("one", "two"), lambda name, address: one if address == "one" else two)}
    world.start()
    await world.run(10)
    return world, one, two


async def test_a_weight_of_nothing_at_one_replica_stays_there(tmp_path: Path) -> None:
    world, one, two = await world_of_two_replicas(tmp_path)
    one.values["b"][Knob.WEIGHT] = 0.0
    world.sick["b"].itl_s = 0.2  # slow: the gate wants half of its weight
    await world.run(30)

    assert (one.values["b"][Knob.WEIGHT], two.values["b"][Knob.WEIGHT]) == (0.0, 1.0)
    assert [lease for lease in world.ledger.leases() if lease.backend == "b"] == []


async def test_a_hung_backend_is_drained_at_both_whatever_their_weights(tmp_path: Path) -> None:
    world, one, two = await world_of_two_replicas(tmp_path)
    one.values["b"][Knob.WEIGHT] = 0.5
    world.sick["b"].state = State.HUNG
    await world.run(5)

    assert (one.values["b"][Knob.ADMISSION], two.values["b"][Knob.ADMISSION]) == (DRAIN, DRAIN)


async def test_what_only_one_replica_took_stays_noted_and_is_given_back(tmp_path: Path) -> None:
    world, one, two = await world_of_two_replicas(tmp_path)
    one.lies = True
    world.sick["b"].itl_s = 0.2
    await world.run(10)
    assert two.values["b"][Knob.WEIGHT] == 0.5
    assert [lease.prior for lease in world.ledger.leases() if lease.knob is Knob.WEIGHT] == [1.0]

    one.lies, world.sick["b"].itl_s = False, 0.02
    await world.run(200)
    assert (one.values["b"][Knob.WEIGHT], two.values["b"][Knob.WEIGHT]) == (1.0, 1.0)
    assert world.ledger.leases() == ()
