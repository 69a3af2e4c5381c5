"""Faults injected under all seven policies in enforce: what is found, what is done, that all of it is undone, and nothing else.

Six backends at a gateway in memory (a fake, see `world`). Two watchdogs at once are in the tests of the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.alerting import Context, Links, alerts_for
from tailkeeper_watchdog.model import DRAIN, SERVE, FindingKind, Knob
from tailkeeper_watchdog.policies.memory_breaker import TAINT
from tests.scenario.full_world import GUARDS, NAMES, REQUESTS_PER_TICK, TICK_S, WELL, FullWorld
from tests.scenario.world import Sick

VICTIM = "b"
CONSOLE = "http://127.0.0.1:8088"
SHED = {(name, Knob.DEGRADE_LEVEL) for name in NAMES}
"""The guardian sheds for a whole pool: what one backend does to it is the pool's promise."""
OUT_AND_BACK = {(VICTIM, Knob.ADMISSION), (VICTIM, Knob.WEIGHT)}
"""A drain, and a return by steps of the weight."""


@pytest.fixture
async def world(tmp_path: Path) -> FullWorld:
    """A minute in which all is well, and nothing is done."""
    made = FullWorld(tmp_path / "ledger.db")
    await made.run(60)
    assert (made.touched(), made.found) == (set(), set())
    return made


def hang(sick: Sick) -> None:
    sick.state = State.HUNG


def slow(sick: Sick) -> None:
    sick.itl_s, sick.ttft_s = 0.2, 5.0


def fill(sick: Sick) -> None:
    sick.preemptions_per_tick = 4.0
    sick.extra |= {catalog.VRAM_PRESSURE.name: 0.97, catalog.KV_USAGE.name: 0.97}


def fail(sick: Sick) -> None:
    sick.ok_per_tick, sick.errors_per_tick = 0.0, REQUESTS_PER_TICK


def heal(sick: Sick) -> None:
    sick.state, sick.itl_s, sick.ttft_s, sick.preemptions_per_tick = State.SERVING, 0.02, 0.2, 0.0
    sick.ok_per_tick, sick.errors_per_tick = REQUESTS_PER_TICK, 0.0
    sick.extra |= WELL


@dataclass(frozen=True)
class Case:
    """``lasts_s`` seconds of a fault; what the gateway has of the victim then, what was found, every knob that was touched."""

    fault: Callable[[Sick], None]
    lasts_s: float
    done: dict[Knob, float | str]
    found: set[tuple[FindingKind, str]]
    touched: set[tuple[str, Knob]]
    back_after_s: float = 60.0
    others: dict[tuple[str, Knob], float | str] = field(default_factory=dict)


PRESSED = {(VICTIM, knob) for knob in (Knob.CACHE_MODE, Knob.TAINT, Knob.ANNOTATION)}
SHEDDING: dict[tuple[str, Knob], float | str] = {(n, Knob.DEGRADE_LEVEL): 1.0 for n in NAMES if n != VICTIM}
CASES = {
    "hung": Case(hang, 20, {Knob.ADMISSION: DRAIN}, {(FindingKind.HUNG, VICTIM)}, OUT_AND_BACK),
    "slow": Case(
        slow, 60, {Knob.ADMISSION: SERVE, Knob.DEGRADE_LEVEL: 1.0}, set(), SHED | {(VICTIM, Knob.WEIGHT)}, 400, SHEDDING
    ),
    "memory runs out": Case(
        fill,
        40,
        {Knob.ADMISSION: DRAIN, Knob.CACHE_MODE: "local", Knob.TAINT: TAINT},
        {(FindingKind.MEMORY_PRESSURE, VICTIM)},
        OUT_AND_BACK | PRESSED,
        600,
    ),
    "errors": Case(fail, 20, {Knob.ADMISSION: DRAIN, Knob.DEGRADE_LEVEL: 1.0}, set(), OUT_AND_BACK | SHED, 300, SHEDDING),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_one_sick_backend_is_found_and_acted_on_and_comes_back_and_nobody_else_is_touched(
    world: FullWorld, case: Case
) -> None:
    case.fault(world.sick[VICTIM])
    await world.run(case.lasts_s)
    assert {knob: world.gateway.values[VICTIM][knob] for knob in case.done} == case.done
    assert {key: value for key, value in world.differs().items() if key[0] != VICTIM} == case.others
    assert case.found <= world.found <= case.found | {(FindingKind.SLO_BURN, VICTIM)}
    heal(world.sick[VICTIM])
    await world.run(case.back_after_s)
    assert world.touched() == case.touched
    world.assert_as_before()


async def test_a_slow_backend_keeps_a_part_of_its_traffic_and_only_it_loses_some(world: FullWorld) -> None:
    slow(world.sick[VICTIM])
    await world.run(60)
    assert {name for name in NAMES if float(world.weight(name)) < 1.0} == {VICTIM}
    assert 0.0 < float(world.weight(VICTIM)) <= 0.5


async def test_memory_that_stays_full_after_the_drain_keeps_it_drained_though_nothing_is_preempted_any_more(
    world: FullWorld,
) -> None:
    fill(world.sick[VICTIM])
    await world.run(20)
    world.sick[VICTIM].preemptions_per_tick = 0.0
    await world.run(4 * GUARDS.lease_s)
    assert world.admission(VICTIM) == DRAIN
    assert [value for server, knob, value in world.gateway.writes if (server, knob) == (VICTIM, Knob.ADMISSION)] == [DRAIN]
    heal(world.sick[VICTIM])
    await world.run(600)
    world.assert_as_before()


async def test_a_backend_that_flaps_ends_in_quarantine_and_a_person_is_called(world: FullWorld) -> None:
    for _ in range(3):
        hang(world.sick[VICTIM])
        await world.run(8)
        heal(world.sick[VICTIM])
        await world.run(40)
    assert world.admission(VICTIM) == DRAIN
    assert any("quarantined" in summary for summary in world.pages)
    assert world.touched() == OUT_AND_BACK
    await world.loop.release("looked at", VICTIM)
    await world.run(30)
    world.assert_as_before()


async def test_where_all_are_sick_nobody_is_taken_out_and_a_person_is_called(world: FullWorld) -> None:
    for sick in world.sick.values():
        hang(sick)
    await world.run(20)
    assert (FindingKind.COMMON_CAUSE, "edge:llm") in world.found
    assert any("common cause" in summary for summary in world.pages)
    assert world.touched() == set()
    for sick in world.sick.values():
        heal(sick)
    await world.run(30)
    assert world.touched() == set()
    world.assert_as_before()


async def test_who_sees_half_of_a_pool_takes_nobody_out_of_it(world: FullWorld) -> None:
    blind = ("a", "c", "d")
    for name in blind:
        world.sick[name].silent = True
    await world.run(10)
    assert {(FindingKind.TELEMETRY_LOST, name) for name in blind} <= world.found
    hang(world.sick[VICTIM])
    await world.run(20)
    assert (FindingKind.COMMON_CAUSE, "edge:llm") in world.found
    assert world.touched() == set()
    for name in blind:
        world.sick[name].silent = False
    await world.run(2 * TICK_S)
    assert world.admission(VICTIM) == DRAIN, "now it is known to be alone"
    heal(world.sick[VICTIM])
    await world.run(30)
    world.assert_as_before()


async def test_a_gateway_that_is_away_is_turned_when_it_is_back(world: FullWorld) -> None:
    world.gateway.fails = ErrorKind.UNREACHABLE
    hang(world.sick[VICTIM])
    await world.run(20)
    assert (FindingKind.HUNG, VICTIM) in world.found
    assert world.touched() == set()
    world.gateway.fails = None
    await world.run(2 * TICK_S)
    assert world.admission(VICTIM) == DRAIN
    world.gateway.fails = ErrorKind.UNREACHABLE
    heal(world.sick[VICTIM])
    await world.run(30)
    world.gateway.fails = None
    await world.run(40)
    assert world.touched() == OUT_AND_BACK
    world.assert_as_before()


async def test_a_gateway_that_lies_is_not_believed(world: FullWorld) -> None:
    world.gateway.lies = True
    hang(world.sick[VICTIM])
    await world.run(20)
    decided = {d.verdict.value for d in world.ledger.decisions(VICTIM, limit=1_000) if d.knob is Knob.ADMISSION}
    assert decided == {"failed"}
    assert world.touched() == {(VICTIM, Knob.ADMISSION)}
    world.gateway.lies = False
    await world.run(40)
    assert world.admission(VICTIM) == DRAIN
    heal(world.sick[VICTIM])
    await world.run(40)
    assert world.touched() == OUT_AND_BACK
    world.assert_as_before()


async def test_without_the_metrics_store_nothing_is_done_and_everything_afterwards(world: FullWorld) -> None:
    world.source_down = True
    for name in (VICTIM, "c"):
        hang(world.sick[name])
    await world.run(20)
    assert {(FindingKind.TELEMETRY_LOST, name) for name in NAMES} <= world.found
    assert world.touched() == set()
    heal(world.sick["c"])
    world.source_down = False
    await world.run(2 * TICK_S)
    assert (world.admission(VICTIM), world.admission("c")) == (DRAIN, SERVE)
    heal(world.sick[VICTIM])
    await world.run(40)
    assert world.touched() == OUT_AND_BACK
    world.assert_as_before()


async def test_a_drain_outlasts_a_metrics_store_that_is_away_for_a_while(world: FullWorld) -> None:
    hang(world.sick[VICTIM])
    await world.run(4)
    world.source_down = True
    await world.run(20)
    assert world.admission(VICTIM) == DRAIN
    assert len(world.findings(FindingKind.HUNG)) == 1, "open until fresh evidence closes it"
    world.source_down = False
    heal(world.sick[VICTIM])
    await world.run(40)
    world.assert_as_before()


async def test_a_rolling_deploy_is_no_incident(world: FullWorld) -> None:
    for name in NAMES:
        world.sick[name].state = State.DOWN
        await world.run(6)
        world.restart(name)
        await world.run(10)
        assert world.out() == {name}, "nobody but the one that starts"
        world.sick[name].state = State.SERVING
        await world.run(20)
        assert world.out() == set()
    assert world.pages == set()
    assert {kind for kind, _ in world.found} == {FindingKind.DOWN}
    assert world.touched() == {(name, knob) for name in NAMES for knob in (Knob.ADMISSION, Knob.WEIGHT)}
    world.assert_as_before()


async def test_an_engine_that_stays_down_calls_a_person_after_all(world: FullWorld) -> None:
    world.sick[VICTIM].state = State.DOWN
    await world.run(20)
    assert world.pages == set()
    await world.run(20)
    assert len(world.pages) == 1


async def test_the_last_engine_of_a_pool_that_goes_down_is_a_page_at_once(world: FullWorld) -> None:
    for sick in world.sick.values():
        sick.state = State.DOWN
    await world.run(TICK_S)
    assert len([summary for summary in world.pages if "is down" in summary]) == len(NAMES)


async def test_an_operators_hold_keeps_every_policys_hands_off_and_ends(world: FullWorld) -> None:
    world.switches.hold(VICTIM, "I am on it", 60)
    for fault in (hang, fill):
        fault(world.sick[VICTIM])
    await world.run(50)
    assert (FindingKind.HUNG, VICTIM) in world.found
    assert {server for server, _ in world.touched()} == set()
    await world.run(20)
    assert world.admission(VICTIM) == DRAIN, "the hold is over, the fault is not"
    heal(world.sick[VICTIM])
    await world.run(600)
    assert {server for server, _ in world.touched()} == {VICTIM}
    world.assert_as_before()


async def test_a_silence_at_alertmanager_holds_for_the_whole_incident_and_stops_no_action(world: FullWorld) -> None:
    """A silence mutes there what matches by label. We tell all the same, and under labels that stay, so it goes on to match."""
    silence = {"alertname": "BackendHung", "backend": VICTIM}
    hang(world.sick[VICTIM])
    told = []
    for _ in range(10):
        await world.run(TICK_S)
        record = world.loop.latest
        assert record is not None
        context = Context.of(record, world.backends, world.loop.parts.ledger.leases, Links(CONSOLE), {})
        told.append([a["labels"] for a in alerts_for(record.findings, context)])
    assert all(len(labels) == 1 and silence.items() <= labels[0].items() for labels in told), "nothing escapes the silence"
    assert all(labels == told[-1] for labels in told)
    assert world.admission(VICTIM) == DRAIN, "muted is not unwatched"
    heal(world.sick[VICTIM])
    await world.run(40)
    world.assert_as_before()
