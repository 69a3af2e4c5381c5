"""The contract that every actuator keeps, on a working gateway: real HAProxy, a faithful fake of the webhook contract, the
exporter's own routes for its taps, and fakes of Kubernetes and LiteLLM. What is about weights holds for those that have them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tailkeeper_watchdog.actuators import ACTUATORS
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tests.contract.setting_worlds import NOTHING_TO_TURN, SETTING_WORLDS
from tests.contract.worlds import WITHOUT_WEIGHTS, WORLDS, World
from tests.e2e.real_programs import RealPrograms

pytestmark = pytest.mark.real
DEADLINE_S = 5.0
"""Generous: a call on a working gateway takes milliseconds, but the machine may be busy."""


@pytest_asyncio.fixture(params=list(WORLDS))
async def world(request: pytest.FixtureRequest, programs: RealPrograms) -> AsyncIterator[World]:
    async with WORLDS[request.param](programs) as world:
        yield world
        await world.actuator.close()


@pytest_asyncio.fixture(params=sorted(set(WORLDS) - WITHOUT_WEIGHTS))
async def weighed(request: pytest.FixtureRequest, programs: RealPrograms) -> AsyncIterator[World]:
    async with WORLDS[request.param](programs) as world:
        yield world
        await world.actuator.close()


async def read(world: World, server: str) -> dict[Knob, float | str]:
    return dict((await world.actuator.read((server,), DEADLINE_S))[server].values)


def test_every_registered_actuator_is_held_to_this_suite() -> None:
    assert set(WORLDS) | set(SETTING_WORLDS) | NOTHING_TO_TURN == set(ACTUATORS)


async def test_what_is_there_is_read(world: World) -> None:
    states = await world.actuator.read((world.a, world.b), DEADLINE_S)

    assert set(states) == {world.a, world.b}
    for state in states.values():
        assert state.values == world.normal
        assert state.in_service
        assert state.doubt == ""


async def test_a_change_by_another_hand_is_read_because_nothing_is_remembered(weighed: World) -> None:
    await weighed.actuator.write(weighed.a, {Knob.WEIGHT: 0.5}, DEADLINE_S)
    weighed.set_by_hand(weighed.a, 0.25)

    assert (await read(weighed, weighed.a))[Knob.WEIGHT] == 0.25


@pytest.mark.parametrize("weight", [0.18, 0.5, 0.01, 1.0, 0.0])
async def test_what_is_written_is_in_force_and_is_read_back(weighed: World, weight: float) -> None:
    await weighed.actuator.write(weighed.a, {Knob.WEIGHT: weight}, DEADLINE_S)

    assert weighed.truth(weighed.a) == (weight, SERVE)
    assert (await read(weighed, weighed.a))[Knob.WEIGHT] == weight
    assert weighed.truth(weighed.b) == (1.0, SERVE)


async def test_a_server_at_weight_zero_is_out_of_service(weighed: World) -> None:
    weighed.set_by_hand(weighed.a, 0.0)

    states = await weighed.actuator.read((weighed.a, weighed.b), DEADLINE_S)

    assert not states[weighed.a].in_service
    assert states[weighed.b].in_service


async def test_writing_twice_is_writing_once(world: World) -> None:
    wanted: dict[Knob, float | str] = {Knob.ADMISSION: DRAIN}
    if Knob.WEIGHT in world.normal:
        wanted[Knob.WEIGHT] = 0.3

    for _ in range(2):
        await world.actuator.write(world.a, wanted, DEADLINE_S)
        assert world.truth(world.a) == (wanted.get(Knob.WEIGHT, 1.0), DRAIN)
        assert await read(world, world.a) == {**world.normal, **wanted}


async def test_a_drain_keeps_the_weight_and_serving_again_has_it_back(weighed: World) -> None:
    await weighed.actuator.write(weighed.a, {Knob.WEIGHT: 0.4}, DEADLINE_S)
    await weighed.actuator.write(weighed.a, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    assert weighed.truth(weighed.a) == (0.4, DRAIN)

    await weighed.actuator.write(weighed.a, {Knob.ADMISSION: SERVE}, DEADLINE_S)

    assert weighed.truth(weighed.a) == (0.4, SERVE)


async def test_a_returning_server_has_its_new_weight_before_it_takes_traffic(weighed: World) -> None:
    await weighed.actuator.write(weighed.a, {Knob.ADMISSION: DRAIN}, DEADLINE_S)
    await weighed.actuator.write(weighed.a, {Knob.ADMISSION: SERVE, Knob.WEIGHT: 0.1}, DEADLINE_S)

    assert weighed.steps()[-1] == (0.1, SERVE)
    assert (1.0, SERVE) not in weighed.steps()


async def test_a_server_is_drained_before_its_weight_is_touched(weighed: World) -> None:
    await weighed.actuator.write(weighed.a, {Knob.WEIGHT: 0.1, Knob.ADMISSION: DRAIN}, DEADLINE_S)

    assert weighed.steps()[0][1] == DRAIN
    assert weighed.steps()[-1] == (0.1, DRAIN)


async def test_an_unknown_server_is_left_out_of_a_read_and_refused_in_a_write(world: World) -> None:
    assert set(await world.actuator.read((world.a, world.unknown), DEADLINE_S)) == {world.a}
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.unknown, {Knob.ADMISSION: DRAIN}, DEADLINE_S)

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
async def test_a_weight_that_is_no_share_is_refused_and_nothing_is_sent(weighed: World, weight: float | str) -> None:
    with pytest.raises(ActuatorError) as caught:
        await weighed.actuator.write(weighed.a, {Knob.WEIGHT: weight}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.REFUSED
    assert weighed.steps() == []


async def test_an_admission_that_does_not_exist_is_refused(world: World) -> None:
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.a, {Knob.ADMISSION: "perhaps"}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.REFUSED
    assert world.truth(world.a) == (1.0, SERVE)


async def test_a_knob_that_is_not_supported_is_refused_with_the_same_words(world: World) -> None:
    assert world.actuator.supports(Knob.WEIGHT).enforceable == (Knob.WEIGHT in world.normal)
    assert world.actuator.supports(Knob.ADMISSION).enforceable
    knob = next(knob for knob in (Knob.TAINT, Knob.DEGRADE_LEVEL) if not world.actuator.supports(knob).enforceable)
    support = world.actuator.supports(knob)
    assert support.why_not
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.a, {knob: "x"}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.REFUSED
    assert support.why_not in str(caught.value)


async def test_calls_to_one_gateway_are_made_one_at_a_time(world: World) -> None:
    writes = [world.actuator.write(world.a, {Knob.ADMISSION: value}, DEADLINE_S) for value in (DRAIN, SERVE) * 5]
    reads = [world.actuator.read((world.a,), DEADLINE_S) for _ in range(5)]

    await asyncio.gather(*writes, *reads)

    assert world.most_at_once() == 1
    assert world.truth(world.a) == (1.0, SERVE)


@pytest.mark.parametrize("kind", sorted(WITHOUT_WEIGHTS))
async def test_a_gateway_without_weights_shows_none_and_refuses_one_with_words(kind: str, programs: RealPrograms) -> None:
    async with WORLDS[kind](programs) as world:
        assert Knob.WEIGHT not in await read(world, world.a)
        with pytest.raises(ActuatorError) as caught:
            await world.actuator.write(world.a, {Knob.ADMISSION: DRAIN, Knob.WEIGHT: 0.5}, DEADLINE_S)
        await world.actuator.close()

        assert caught.value.kind is ErrorKind.REFUSED
        assert world.actuator.supports(Knob.WEIGHT).why_not in str(caught.value)


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
