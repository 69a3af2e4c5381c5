"""Leases whose server or gateway cannot be found: named with what to do, kept to their end, and never ended in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind, ServerState
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.scenario.world import FakeGateway, World
from tests.unit.watchdog_http import asked

BY_HAND = (
    "gateway edge is not in the configuration any more: if it still exists, set admission of its server b back to serve by hand"
)
NO_SERVER = "gateway edge knows no server b: nothing is left to give back"


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A world in which "b" is drained, with leases of 60 s."""
    world = World(tmp_path / "ledger.db")
    await world.run(1)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.admission("b") == DRAIN
    return world


def last(world: World) -> tuple[str, str]:
    newest = world.ledger.decisions("b", limit=1)[0]
    return newest.verdict.value, newest.reason


async def test_a_server_that_the_gateway_knows_no_more_ends_its_lease_when_that_runs_out(world: World) -> None:
    world.gateway.remove("b")
    await world.run(55)
    assert len(world.ledger.leases()) == 1, "a listing may flicker"
    await world.run(5)

    assert world.ledger.leases() == ()
    assert last(world) == ("expired", f"the lease ran out, and {NO_SERVER}")


async def test_a_server_that_comes_back_before_that_is_given_back_as_ever(world: World) -> None:
    before = dict(world.gateway.values["b"])
    world.gateway.remove("b")
    await world.run(20)
    world.gateway.values["b"], world.gateway.in_service["b"] = before, True
    world.sick["b"].state = State.SERVING
    await world.run(20)

    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()


async def test_a_gateway_that_does_not_answer_says_nothing_about_its_servers(world: World) -> None:
    world.gateway.fails = ErrorKind.UNREACHABLE
    await world.run(200)
    assert len(world.ledger.leases()) == 1
    world.gateway.fails = None
    world.sick["b"].state = State.SERVING
    await world.run(1)

    assert world.admission("b") == SERVE


async def test_a_knob_that_the_server_turned_out_not_to_have_any_more_ends_its_lease_too(world: World) -> None:
    read = world.gateway.read

    async def without(servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        states = await read(servers, deadline_s)
        weights = {name: {Knob.WEIGHT: state.values[Knob.WEIGHT]} for name, state in states.items()}
        return {n: replace(s, values=weights[n], cannot={Knob.ADMISSION: "rebuilt without"}) for n, s in states.items()}

    world.gateway.read = without  # type: ignore[method-assign]
    await world.run(61)
    assert world.ledger.leases() == ()
    assert "server b has no admission any more (rebuilt without)" in last(world)[1]


async def test_a_gateway_that_left_the_configuration_is_told_with_its_servers_until_the_lease_ends(world: World) -> None:
    world.actuators = {"other": FakeGateway(())}
    world.start()
    await world.run(30)
    assert world.loop.report.errors["edge"] == (
        "gateway 'edge' is not in the configuration any more, and changes of ours are left at its servers a, b, c, d: "
        "put it back, or set them back by hand"
    )
    assert len(world.ledger.leases()) == 1
    await world.run(31)

    assert world.ledger.leases() == ()
    assert last(world) == ("expired", f"the lease ran out, and {BY_HAND}")


async def test_a_gateway_that_is_put_back_before_that_is_given_back(world: World) -> None:
    edge, world.actuators = world.actuators, {}
    world.start()
    await world.run(10)
    world.actuators = edge
    world.start()
    world.sick["b"].state = State.SERVING
    await world.run(30)

    assert (world.admission("b"), world.ledger.leases()) == (SERVE, ())


async def test_a_hold_keeps_such_a_lease_as_it_keeps_any_other(world: World) -> None:
    world.switches.hold("b", "the gateway is being rebuilt", 100)
    world.gateway.remove("b")
    await world.run(95)
    assert len(world.ledger.leases()) == 1
    await world.run(10)
    assert world.ledger.leases() == ()


async def test_a_release_names_what_it_keeps_and_why(world: World) -> None:
    world.gateway.remove("b")
    async with asked(world, ticks_s=0) as ask:
        done = await ask.send("POST", "/api/v1/release")
    (kept,) = done["kept"]

    assert (done["decisions"], done["failed"]) == ([], 1)
    assert (kept["backend"], kept["gateway"], kept["server"], kept["knob"]) == ("b", "edge", "b", "admission")
    assert kept["why"] == f"{NO_SERVER}; should it be back before this lease runs out, it is given back then"


async def test_a_release_of_what_has_run_out_ends_it_with_what_to_do_by_hand(world: World) -> None:
    world.actuators = {}
    world.start()
    world.clock.now += 100
    done = await world.loop.release("released by hand")

    assert [(d.verdict.value, d.reason) for d in done.decisions] == [("expired", f"released by hand; {BY_HAND}")]
    assert (done.kept, world.ledger.leases()) == ((), ())
