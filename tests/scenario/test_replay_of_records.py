"""Recorded ticks, computed again, come out the same bit for bit: whatever happened in the world meanwhile."""

from __future__ import annotations

from pathlib import Path

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.model import Knob
from tests.scenario.recorded_world import RecordedWorld


async def eventful(world: RecordedWorld) -> None:
    """Hangs, errors, slowness, blindness, a failing gateway, a foreign hand, an operator, a clock step, churn, a restart."""
    await world.run(10)
    world.sick["b"].state = State.HUNG
    await world.run(8)
    world.sick["a"].silent = True
    world.gateway.fails = ErrorKind.TIMEOUT
    await world.run(4)
    world.gateway.fails, world.sick["a"].silent = None, False
    world.sick["b"].state = State.SERVING
    await world.run(15)
    world.sick["c"].errors_per_tick, world.sick["c"].ttft_s = 3.0, 4.0
    world.switches.hold("d", "an upgrade", 20)
    await world.run(15)
    world.gateway.values["c"][Knob.WEIGHT] = 0.77
    world.clock.step_s = -3_600.0
    await world.run(10)
    world.start()
    world.switches.pause("a person")
    await world.run(5)
    world.switches.resume()
    await world.loop.release("by hand")
    world.find("a", "b", "d", "e")
    world.sick["e"].state = State.DOWN
    await world.run(10)


async def test_every_finding_wish_verdict_and_decision_comes_out_the_same(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path)
    await eventful(world)
    again, outcomes = await world.replayed()
    assert again.compared.differences == []
    assert again.compared.ticks == again.compared.same == len(world.outcomes)
    assert outcomes == world.outcomes
    verdicts = {d["verdict"] for o in outcomes for d in o.decisions}
    assert {"applied", "failed", "refused", "released"} <= verdicts, "an uneventful world proves nothing"
