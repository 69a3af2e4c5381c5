"""Recorded ticks, computed again, come out the same bit for bit; and another configuration decides over the same evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.model import DRAIN, SERVE, Backend, Knob, Mode, Target
from tailkeeper_watchdog.records.file import read
from tailkeeper_watchdog.records.in_force import InForce, written_down
from tailkeeper_watchdog.records.lines import RecordedTick, RunStart
from tailkeeper_watchdog.replay.own import again, decided_by
from tailkeeper_watchdog.replay.simulated import Decider
from tests.scenario.recorded_world import RecordedWorld
from tests.scenario.slow_gateway import SlowGateway
from tests.scenario.world import FakeGateway


async def eventful(world: RecordedWorld) -> None:
    """Hangs, errors, slowness, blindness, a failing gateway, a foreign hand, an operator, a clock step, churn, a restart."""
    await world.run(10)
    world.sick["b"].state = world.sick["d"].state = State.HUNG
    await world.run(8)
    world.sick["a"].silent = True
    world.gateway.fails = ErrorKind.TIMEOUT
    await world.run(4)
    world.gateway.fails, world.sick["a"].silent = None, False
    world.sick["b"].state = world.sick["d"].state = State.SERVING
    await world.run(15)
    world.gateway.lies = True
    world.sick["c"].errors_per_tick, world.sick["c"].ttft_s = 3.0, 4.0
    world.switches.hold("d", "an upgrade", 20)
    await world.run(15)
    world.gateway.lies = False
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
    run, outcomes = await world.replayed()
    assert run.compared.differences == []
    assert run.compared.ticks == run.compared.same == len(world.outcomes)
    assert outcomes == world.outcomes
    verdicts = {d["verdict"] for o in outcomes for d in o.decisions}
    assert {"applied", "failed", "refused", "released"} <= verdicts, "an uneventful world proves nothing"


async def test_ticks_that_wait_for_a_late_write_come_out_the_same(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path)
    world.gateway = SlowGateway(world.clock, lambda: 1.7)
    world.actuators = {"edge": world.gateway}
    world.start()
    for state in (State.SERVING, State.HUNG, State.SERVING, State.HUNG, State.SERVING):
        world.sick["b"].state = state
        await world.run(1)
    await world.run(40)
    run, outcomes = await world.replayed()
    assert run.compared.differences == []
    assert outcomes == world.outcomes
    given = [step.inputs for step in read(world.file) if isinstance(step, RecordedTick)]
    assert {DRAIN, SERVE} == {value for x in given if x is not None for value in x.pending.get(("edge", "b", Knob.ADMISSION), ())}


async def test_a_tick_that_failed_is_replayed_as_one(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path)
    world.sick["a"].errors_per_tick = 3.0
    await world.run(3)
    collect = world.collect

    async def broken(now: float, deadline_s: float) -> Any:
        raise RuntimeError("a mistake")

    world.collect = broken  # type: ignore[method-assign]
    world.clock.now += 0.5
    world.keep(await world.loop.tick())
    world.collect = collect  # type: ignore[method-assign]
    world.sick["a"].state = State.HUNG
    await world.run(3)
    run, outcomes = await world.replayed()
    assert run.compared.differences == []
    assert [o.error is None for o in outcomes] == [o.error is None for o in world.outcomes]
    assert [replace(o, error=None) for o in outcomes] == [replace(o, error=None) for o in world.outcomes]
    assert run.compared.same == run.compared.ticks


async def test_a_changed_record_does_not_come_out_the_same(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path)
    await world.run(3)
    world.sick["b"].state = State.HUNG
    await world.run(3)
    world.recorder.close() if world.recorder else None
    steps = list(read(world.file))
    for place, step in enumerate(steps):
        if isinstance(step, RecordedTick) and step.outcome.desired:
            steps[place] = replace(step, outcome=replace(step.outcome, desired=()))
    run, _ = await world.replayed(steps)
    assert run.compared.same < run.compared.ticks
    assert "desired: []" in run.compared.differences[0]


async def test_a_run_whose_begin_is_lost_is_not_said_to_differ(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path)
    await eventful(world)
    world.recorder.close() if world.recorder else None
    steps = list(read(world.file))
    assert isinstance(steps[0], RunStart)
    run, _ = await world.replayed([replace(steps[0], continued=True), *steps[60:]])
    assert run.compared.differences == []
    assert run.compared.warming_up > 0


def decider(world: RecordedWorld, mode: Mode) -> Decider:
    parts = world.loop.parts
    rules = replace(parts.rules, policies={name: PolicySetting(mode, s.params) for name, s in parts.rules.policies.items()})
    return Decider("other.yaml", InForce(rules, parts.guards, parts.tick_s), {}, {})


async def test_what_was_observed_would_have_been_done_under_enforce(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path, mode=Mode.OBSERVE)
    await world.run(10)
    world.sick["b"].state = world.sick["c"].state = State.HUNG
    await world.run(10)
    world.sick["b"].state = world.sick["c"].state = State.SERVING
    await world.run(20)
    world.recorder.close() if world.recorder else None
    was = await again(world.file)
    other = decider(world, Mode.ENFORCE)
    would = await decided_by(world.file, replace(other, in_force=replace(other.in_force, tick_s=0.1)))
    assert {d["verdict"] for d in was["decisions"]} == {"observed"}
    assert world.gateway.writes == []
    drains = [(d["backend"], d["verdict"]) for d in would["decisions"] if d["knob"] == "admission"]
    # The cap lets one of four out; when it is back, its lease is released.
    assert ("b", "applied") in drains
    assert ("c", "refused") in drains
    assert drains[-1] == ("b", "released")
    seconds = {b["backend"]: b["seen_s"] for b in would["backends"]}
    assert seconds == {b["backend"]: b["seen_s"] for b in was["backends"]}
    assert seconds["a"] == 39.5
    assert would["policies"][0]["refusals"] == {"cap: as many backends of the pool as allowed are acted on already": 1}


async def test_our_own_changes_of_then_are_not_in_force_when_somebody_else_decides(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path)
    await world.run(5)
    world.sick["b"].state = State.HUNG
    await world.run(5)
    assert world.admission("b") == DRAIN
    world.recorder.close() if world.recorder else None
    would = await decided_by(world.file, decider(world, Mode.ENFORCE))
    drains = [d["verdict"] for d in would["decisions"] if d["backend"] == "b"]
    assert drains == ["applied"], "a drain that was taken for somebody else's would be `already`"


async def test_the_recorded_configuration_is_read_back_as_it_was(tmp_path: Path) -> None:
    parts = RecordedWorld(tmp_path).loop.parts
    document = written_down(parts.rules, parts.guards, parts.tick_s)
    assert InForce.of({**document, "added_later": 1}) == InForce(parts.rules, parts.guards, parts.tick_s)


class EnginesWorld(RecordedWorld):
    """Where "b" alone can also be turned at its engine, which is no gateway for traffic."""

    def start(self) -> None:
        engines = FakeGateway(("b",))
        engines.normal = {Knob.BATCH_WINDOW_S: 0.1}
        engines.values["b"] = dict(engines.normal)
        self.actuators["engines"] = engines
        super().start()

    def backend(self, name: str, server: str = "", url: str = "") -> Backend:
        made = super().backend(name, server, url)
        return replace(made, targets=(*made.targets, Target("engines", "b", "all"))) if name == "b" else made


async def test_a_gateway_without_traffic_is_no_pool_in_a_replay_either(tmp_path: Path) -> None:
    world = EnginesWorld(tmp_path)
    await world.run(3)
    world.sick["b"].state = State.HUNG
    await world.run(3)
    assert world.admission("b") == DRAIN
    run, outcomes = await world.replayed()
    assert run.compared.differences == []
    assert outcomes == world.outcomes
