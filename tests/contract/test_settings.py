"""The contract of every actuator, kept by those that carry no traffic and turn a setting: what ``test_actuators.py`` asks of a
door is asked here of a batch window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.model import DRAIN, Knob, KnobValue
from tests.contract.setting_worlds import NORMAL_S, SETTING_WORLDS, SettingWorld
from tests.contract.test_actuators import HOSTILE_NAMES

DEADLINE_S = 5.0
WINDOW = Knob.BATCH_WINDOW_S


@pytest_asyncio.fixture(params=list(SETTING_WORLDS))
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SettingWorld]:
    with SETTING_WORLDS[request.param](tmp_path) as world:
        yield world
        await world.actuator.close()


async def window(world: SettingWorld, server: str) -> KnobValue:
    return (await world.actuator.read((server,), DEADLINE_S))[server].values[WINDOW]


async def test_what_is_there_is_read(world: SettingWorld) -> None:
    states = await world.actuator.read((world.a, world.b), DEADLINE_S)

    assert set(states) == {world.a, world.b}
    for state in states.values():
        assert state.values[WINDOW] == NORMAL_S
        assert WINDOW not in state.cannot
        assert state.in_service
        assert state.doubt == ""
    assert world.writes() == 0


@pytest.mark.parametrize("value", [0.0, 0.0123, 0.05, 0.1, 1.0])
async def test_what_is_written_is_in_force_and_is_read_back_exactly(world: SettingWorld, value: float) -> None:
    await world.actuator.write(world.a, {WINDOW: value}, DEADLINE_S)

    assert world.truth(world.a) == value
    assert await window(world, world.a) == value
    assert world.truth(world.b) == NORMAL_S


async def test_writing_twice_is_writing_once(world: SettingWorld) -> None:
    for _ in range(2):
        await world.actuator.write(world.a, {WINDOW: 0.05}, DEADLINE_S)

    assert world.writes() == 1
    assert world.truth(world.a) == 0.05


async def test_a_change_by_another_hand_is_read_because_nothing_is_remembered(world: SettingWorld) -> None:
    await world.actuator.write(world.a, {WINDOW: 0.05}, DEADLINE_S)
    world.set_by_hand(world.a, 0.08)

    assert await window(world, world.a) == 0.08


async def test_a_change_by_another_hand_at_another_server_is_not_lost_by_a_write(world: SettingWorld) -> None:
    await window(world, world.a)
    world.set_by_hand(world.b, 0.08)
    await world.actuator.write(world.a, {WINDOW: 0.05}, DEADLINE_S)

    assert (world.truth(world.a), world.truth(world.b)) == (0.05, 0.08)


async def test_a_gateway_that_says_yes_and_does_nothing_is_found_out_by_reading(world: SettingWorld) -> None:
    world.lie()
    await world.actuator.write(world.a, {WINDOW: 0.05}, DEADLINE_S)

    assert await window(world, world.a) == NORMAL_S


async def test_an_unknown_server_is_left_out_of_a_read_and_refused_in_a_write(world: SettingWorld) -> None:
    assert set(await world.actuator.read((world.a, world.unknown), DEADLINE_S)) == {world.a}
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.unknown, {WINDOW: 0.05}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.NOT_FOUND
    assert (caught.value.gateway, caught.value.server) == ("edge", world.unknown)


async def test_a_credential_without_the_right_to_write_changes_nothing_and_says_so(world: SettingWorld) -> None:
    weak = world.without_rights()
    with pytest.raises(ActuatorError) as caught:
        await weak.write(world.a, {WINDOW: 0.05}, DEADLINE_S)
    await weak.close()

    assert caught.value.kind is ErrorKind.UNAUTHORIZED
    assert not caught.value.retryable
    assert world.truth(world.a) == NORMAL_S


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), 1e300, "half", True])
async def test_what_is_no_window_is_refused_and_nothing_is_sent(world: SettingWorld, value: float | str) -> None:
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.a, {WINDOW: value}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.REFUSED
    assert world.writes() == 0


@pytest.mark.parametrize("knob", [knob for knob in Knob if knob not in (WINDOW, Knob.REPLICAS)])
async def test_a_knob_that_is_not_supported_is_refused_with_the_same_words(world: SettingWorld, knob: Knob) -> None:
    support = world.actuator.supports(knob)
    assert not support.enforceable
    assert support.why_not
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(world.a, {WINDOW: 0.05, knob: DRAIN}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.REFUSED
    assert support.why_not in str(caught.value)
    assert world.writes() == 0


async def test_calls_to_one_gateway_are_made_one_at_a_time(world: SettingWorld) -> None:
    writes = [world.actuator.write(world.a, {WINDOW: value}, DEADLINE_S) for value in (0.05, NORMAL_S) * 3]
    reads = [world.actuator.read((world.a,), DEADLINE_S) for _ in range(3)]

    await asyncio.gather(*writes, *reads)

    assert world.most_at_once() == 1
    assert world.truth(world.a) == NORMAL_S


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_a_hostile_server_name_reaches_no_server_at_all(world: SettingWorld, name: str) -> None:
    assert await world.actuator.read((name,), DEADLINE_S) == {}
    with pytest.raises(ActuatorError) as caught:
        await world.actuator.write(name, {WINDOW: 0.05}, DEADLINE_S)

    assert caught.value.kind is ErrorKind.NOT_FOUND
    assert world.writes() == 0


async def test_an_actuator_works_again_after_it_was_closed(world: SettingWorld) -> None:
    await window(world, world.a)
    await world.actuator.close()

    assert await window(world, world.a) == NORMAL_S
