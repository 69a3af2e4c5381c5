"""Five minutes of the simulated day (`make soak-day` runs all of it), and that its eye sees what it is there to see."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, Target
from tests.scenario.full_world import GUARDS, TICK_S
from tests.soak.day import settle
from tests.soak.day_faults import KINDS, Befalls
from tests.soak.day_world import NAMES, DayWorld, Load


@pytest.fixture
async def day(tmp_path: Path) -> DayWorld:
    """Some ticks in which nothing befalls it."""
    made = DayWorld(tmp_path / "ledger.db", seed=1)
    for _ in range(10):
        await made.tick()
    assert made.wrong == []
    return made


async def test_five_minutes_full_of_faults_breaks_no_promise_and_leaves_nothing_behind(tmp_path: Path) -> None:
    day = DayWorld(tmp_path / "ledger.db", seed=4)
    befalls = Befalls(day, 4.0, random.Random(4))
    while day.day_s < 300:
        befalls.carry_on()
        await day.tick()
    befalls.end_all()
    _, left = await settle(day)
    assert day.wrong == []
    assert left == []
    assert len(befalls.begun) > len(KINDS) // 2
    assert day.counts["changes"] > 50


async def test_a_change_without_a_lease_is_seen(day: DayWorld) -> None:
    day.gateway.values["b03"][Knob.WEIGHT] = 0.5
    await day.tick()
    assert "b03 has weight 0.5 and no lease says so" in day.wrong[0]


async def test_a_write_before_its_lease_is_seen(day: DayWorld) -> None:
    await day.gateway.write("b03", {Knob.ADMISSION: DRAIN}, 1.0)
    assert "b03 admission is set to 'drain', and no lease says so" in day.wrong[0]


async def test_more_out_than_the_cap_are_seen(day: DayWorld) -> None:
    for name in NAMES[:4]:
        target = Target("edge", name, "llm")
        day.ledger.intend(name, target, Knob.ADMISSION, "p", SERVE, DRAIN, "r", day.clock.wall(), day.clock.wall() + 60)
        day.gateway.values[name][Knob.ADMISSION] = DRAIN
        day.sick[name].state = State.HUNG
    await day.tick()
    assert "4 of 12 are out: b00, b01, b02, b03" in day.wrong[0]


async def test_a_lease_that_does_not_end_is_seen(day: DayWorld) -> None:
    target = Target("elsewhere", "b03", "llm")  # at a gateway that nobody asks
    lease = day.ledger.intend("b03", target, Knob.WEIGHT, "p", 1.0, 0.5, "r", day.clock.wall(), day.clock.wall() + 1e6)
    for _ in range(round((GUARDS.lease_s + 60) / TICK_S)):
        day._look_at_ends((lease,))
    assert "neither renewed nor ended in 102 s" in day.wrong[0]


async def test_a_tick_that_is_lost_or_fails_is_seen(day: DayWorld) -> None:
    await day.loop.tick()
    await day.tick()
    assert "tick 12 follows 10" in day.wrong[0]
    day.ledger.close()
    await day.loop.tick()
    record = day.loop.latest
    assert record is not None
    day._look_at_tick(record)
    assert "a tick failed although the ledger could be written" in day.wrong[-1]


def test_the_load_follows_a_real_trace_and_the_sun() -> None:
    load = Load.of_the_trace()
    found = [load.at(float(s)) for s in range(0, 86_400, 300)]
    night, noon = sum(found[:36]) / 36, sum(found[126:162]) / 36
    assert noon > 3 * night > 0
    assert len(set(found)) > 200
