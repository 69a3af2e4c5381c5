"""The contract that every actuator keeps, on a working gateway: real HAProxy, and a faithful fake of the webhook contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tailkeeper_watchdog.actuators import ACTUATORS
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.contract.worlds import WORLDS, World
from tests.e2e.real_programs import RealPrograms

pytestmark = pytest.mark.real
DEADLINE_S = 5.0
"""Generous: a call on a working gateway takes milliseconds, but the machine may be busy."""


@pytest_asyncio.fixture(params=list(WORLDS))
async def world(request: pytest.FixtureRequest, programs: RealPrograms) -> AsyncIterator[World]:
    async with WORLDS[request.param](programs) as world:
        yield world
        await world.actuator.close()


async def read(world: World, server: str) -> dict[Knob, float | str]:
    return dict((await world.actuator.read((server,), DEADLINE_S))[server].values)


def test_every_registered_actuator_is_held_to_this_suite() -> None:
    assert set(WORLDS) == set(ACTUATORS)


async def test_what_is_there_is_read(world: World) -> None:
    states = await world.actuator.read((world.a, world.b), DEADLINE_S)

    assert set(states) == {world.a, world.b}
    for state in states.values():
        assert state.values == {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE}
        assert state.in_service
        assert state.doubt == ""


async def test_a_change_by_another_hand_is_read_because_nothing_is_remembered(world: World) -> None:
    await world.actuator.write(world.a, {Knob.WEIGHT: 0.5}, DEADLINE_S)
    world.set_by_hand(world.a, 0.25)

    assert (await read(world, world.a))[Knob.WEIGHT] == 0.25


@pytest.mark.parametrize("weight", [0.18, 0.5, 0.01, 1.0, 0.0])
async def test_what_is_written_is_in_force_and_is_read_back(world: World, weight: float) -> None:
    await world.actuator.write(world.a, {Knob.WEIGHT: weight}, DEADLINE_S)

    assert world.truth(world.a) == (weight, SERVE)
    assert (await read(world, world.a))[Knob.WEIGHT] == weight
    assert world.truth(world.b) == (1.0, SERVE)


async def test_a_server_at_weight_zero_is_out_of_service(world: World) -> None:
    world.set_by_hand(world.a, 0.0)

    states = await world.actuator.read((world.a, world.b), DEADLINE_S)

    assert not states[world.a].in_service
    assert states[world.b].in_service


async def test_writing_twice_is_writing_once(world: World) -> None:
    wanted: dict[Knob, float | str] = {Knob.WEIGHT: 0.3, Knob.ADMISSION: DRAIN}

    for _ in range(2):
        await world.actuator.write(world.a, wanted, DEADLINE_S)
        assert world.truth(world.a) == (0.3, DRAIN)
        assert await read(world, world.a) == wanted


async def test_a_drain_keeps_the_weight_and_serving_again_has_it_back(world: World) -> None:
    await world.actuator.write(world.a, {Knob.WEIGHT: 0.4}, DEADLINE_S)
    await world.actuator.write(world.a, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    assert world.truth(world.a) == (0.4, DRAIN)

    await world.actuator.write(world.a, {Knob.ADMISSION: SERVE}, DEADLINE_S)

    assert world.truth(world.a) == (0.4, SERVE)


async def test_a_returning_server_has_its_new_weight_before_it_takes_traffic(world: World) -> None:
    await world.actuator.write(world.a, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    await world.actuator.write(world.a, {Knob.ADMISSION: SERVE, Knob.WEIGHT: 0.1}, DEADLINE_S)

    assert world.steps()[-1] == (0.1, SERVE)
    assert (1.0, SERVE) not in world.steps()


async def test_a_server_is_drained_before_its_weight_is_touched(world: World) -> None:
    await world.actuator.write(world.a, {Knob.WEIGHT: 0.1, Knob.ADMISSION: DRAIN}, DEADLINE_S)

    assert world.steps()[0][1] == DRAIN
    assert world.steps()[-1] == (0.1, DRAIN)


async def test_an_unknown_server_is_left_out_of_a_read_and_refused_in_a_write(world: World) -> None:
    assert set(await world.actuator.read((world.a, world.unknown), DEADLINE_S)) == {world.a}
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.unknown, {Knob.WEIGHT: 0.5}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.NOT_FOUND
    assert (caught.value.gateway, caught.value.server) == ("edge", world.unknown)


async def test_a_credential_without_the_right_to_write_changes_nothing_and_says_so(world: World) -> None:
    weak = world.without_rights()
    with pytest.raises(ActuatorError) as caught:
        await weak.write(world.a, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    await weak.close()

    assert caught.value.kind is ErrorKind.UNAUTHORIZED
    assert not caught.value.retryable
    assert world.truth(world.a) == (1.0, SERVE)


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), 1e300, "half", True])
async def test_a_weight_that_is_no_share_is_refused_and_nothing_is_sent(world: World, weight: float | str) -> None:
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.a, {Knob.WEIGHT: weight}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.REFUSED
    assert world.steps() == []


async def test_an_admission_that_does_not_exist_is_refused(world: World) -> None:
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.a, {Knob.ADMISSION: "perhaps"}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.REFUSED
    assert world.truth(world.a) == (1.0, SERVE)


async def test_a_knob_that_is_not_supported_is_refused_with_the_same_words(world: World) -> None:
    assert world.actuator.supports(Knob.WEIGHT).enforceable
    assert world.actuator.supports(Knob.ADMISSION).enforceable
    support = world.actuator.supports(Knob.TAINT)
    assert not support.enforceable
    assert support.why_not
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.a, {Knob.TAINT: "x"}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.REFUSED
    assert support.why_not in str(caught.value)


async def test_calls_to_one_gateway_are_made_one_at_a_time(world: World) -> None:
    writes = [world.actuator.write(world.a, {Knob.WEIGHT: n / 10}, DEADLINE_S) for n in range(1, 11)]
    reads = [world.actuator.read((world.a,), DEADLINE_S) for _ in range(5)]

    await asyncio.gather(*writes, *reads)

    assert world.most_at_once() == 1
    assert world.truth(world.a) == (1.0, SERVE)


HOSTILE_NAMES = [
    "",
    "/",
    "..",
    "../b",
    "%2e%2e/b",
    "a b",
    "llm/",
    "llm/a/b",
    "llm/a\nset server llm/b state maint",
    "llm/a; set server llm/b state maint",
    "llm/a weight 1; disable server llm/b",
    "llm/a\x00",
    "llm/é",
    "a?x=1",
    "a#b",
    "a\r\nX-Evil: 1",
    "\ud800",
    "a" * 5_000,
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_a_hostile_server_name_reaches_no_server_at_all(world: World, name: str) -> None:
    assert await world.actuator.read((name,), DEADLINE_S) == {}
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(name, {Knob.ADMISSION: DRAIN}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.NOT_FOUND
    assert world.truth(world.a) == world.truth(world.b) == (1.0, SERVE)


async def test_an_actuator_works_again_after_it_was_closed(world: World) -> None:
    await read(world, world.a)
    await world.actuator.close()

    assert await read(world, world.a)
