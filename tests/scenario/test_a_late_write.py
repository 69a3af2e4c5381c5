"""A gateway that did not answer a write in time and does it later: the change is known as ours, and is given back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue, Outcome
from tests.scenario.world import FakeGateway, World


class LateGateway(FakeGateway):
    """While ``late`` a write ends without an answer, and is done at ``catch_up``."""

    def __init__(self) -> None:
        super().__init__(("a", "b", "c", "d"))
        self.late = self.refuses = False
        self.refused = 0
        self.waiting: list[tuple[str, dict[Knob, KnobValue]]] = []

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        if self.late:
            self.waiting.append((server, dict(values)))
            raise ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer in time")
        if self.refuses:
            self.refused += 1
            raise ActuatorError(ErrorKind.REFUSED, self.name, server, "not now")
        await super().write(server, values, deadline_s)

    def catch_up(self) -> None:
        for server, values in self.waiting:
            self.values[server].update(values)
        self.waiting.clear()


async def _one_write_is_late(path: Path, state: State, itl_s: float = 0.02) -> tuple[World, LateGateway]:
    """Backend b is ill, and the gateway has not answered what we wanted of it."""
    world = World(path / "ledger.db")
    gateway = LateGateway()
    world.gateway, world.actuators = gateway, {"edge": gateway}
    world.start()
    await world.run(5)
    gateway.late = True
    world.sick["b"].state, world.sick["b"].itl_s = state, itl_s
    while not gateway.waiting:
        await world.run(0.5)
    return world, gateway


@pytest.mark.parametrize("state", [State.HUNG, State.SERVING])
async def test_a_write_that_arrives_late_is_given_back(tmp_path: Path, state: State) -> None:
    world, gateway = await _one_write_is_late(tmp_path, state, itl_s=0.2)
    gateway.catch_up()
    gateway.late = False
    await world.run(5)
    world.sick["b"].state, world.sick["b"].itl_s = State.SERVING, 0.02
    await world.run(200)

    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_drain_that_no_answer_came_to_is_said_and_counted_once_it_is_in_force(tmp_path: Path, arrives: bool) -> None:
    world, gateway = await _one_write_is_late(tmp_path, State.HUNG)
    if arrives:
        gateway.catch_up()
    gateway.waiting.clear()
    gateway.late = False
    await world.run(10)

    assert world.admission("b") == DRAIN
    applied = [d for d in world.ledger.decisions("b") if d.verdict is Outcome.APPLIED]
    assert [(d.from_value, d.to_value, "no answer had come" in d.reason) for d in applied] == [(SERVE, DRAIN, arrives)]
    assert world.ledger.attempts(world.clock.wall()) == {"b": 1}


@pytest.mark.parametrize("seconds", [0, 20])
async def test_a_refusal_does_not_call_back_the_write_before_it(tmp_path: Path, seconds: float) -> None:
    world, gateway = await _one_write_is_late(tmp_path, State.HUNG)
    await world.run(seconds)
    gateway.late, gateway.refuses = False, True
    while not gateway.refused:
        await world.run(0.5)
    gateway.refuses = False
    gateway.catch_up()
    await world.run(5)
    assert world.admission("b") == DRAIN
    world.sick["b"].state = State.SERVING
    await world.run(200)

    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()
