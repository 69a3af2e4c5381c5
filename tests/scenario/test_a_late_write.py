"""A gateway that did not answer a write in time and does it later: the change is known as ours, and is given back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.model import SERVE, Knob, KnobValue
from tests.scenario.world import FakeGateway, World


class LateGateway(FakeGateway):
    """While ``late`` a write ends without an answer, and is done at ``catch_up``."""

    def __init__(self) -> None:
        super().__init__(("a", "b", "c", "d"))
        self.late = False
        self.waiting: list[tuple[str, dict[Knob, KnobValue]]] = []

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        if self.late:
            self.waiting.append((server, dict(values)))
            raise ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer in time")
        await super().write(server, values, deadline_s)

    def catch_up(self) -> None:
        for server, values in self.waiting:
            self.values[server].update(values)
        self.waiting.clear()


@pytest.mark.parametrize("state", [State.HUNG, State.SERVING])
async def test_a_write_that_arrives_late_is_given_back(tmp_path: Path, state: State) -> None:
    world = World(tmp_path / "ledger.db")
    gateway = LateGateway()
    world.gateway, world.actuators = gateway, {"edge": gateway}
    world.start()
    await world.run(5)
    gateway.late = True
    world.sick["b"].state = state
    world.sick["b"].itl_s = 0.2
    while not gateway.waiting:
        await world.run(0.5)
    gateway.catch_up()
    gateway.late = False
    await world.run(5)
    world.sick["b"].state, world.sick["b"].itl_s = State.SERVING, 0.02
    await world.run(200)

    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()
