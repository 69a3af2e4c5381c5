"""A fleet that changes while it is watched: who is gone leaves nothing behind, and who comes is unknown until it is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isnan
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.fleet import GONE
from tailkeeper_watchdog.model import DRAIN, SERVE, Finding, FindingKind, Knob, Mode, RequestRecord
from tailkeeper_watchdog.plan import return_wait_s
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import TICK_S, World


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def drained(db: Path, names: tuple[str, ...] = ("a", "b", "c", "d"), **more: object) -> World:
    """A world in which "b" is hung and drained."""
    world = World(db, names, **more)  # type: ignore[arg-type]
    await world.run(1)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.admission("b") == DRAIN
    return world


def of(world: World, backend: str) -> list[Finding]:
    return [f for f in (*world.loop.memory.book.open_findings, *world.loop.memory.book.closed) if f.backend == backend]


def last_decision(world: World, backend: str) -> tuple[str, str]:
    newest = world.ledger.decisions(backend, limit=1)[0]
    return newest.verdict.value, newest.reason


# What was changed at a gateway


async def test_a_backend_that_vanishes_while_drained_gets_its_traffic_back_after_the_cooldown(db: Path) -> None:
    world = await drained(db)
    world.find("a", "c", "d")
    await world.run(4.5)
    assert world.admission("b") == DRAIN, "a listing that flickers sends no traffic to what was hung"
    await world.run(1)
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()
    assert last_decision(world, "b") == ("released", f"{GONE}; prior value read back")


async def test_a_lower_weight_is_given_back_as_well_and_before_the_door_is_opened(db: Path) -> None:
    world = World(db)
    await world.run(70)
    world.sick["b"].itl_s = 0.2
    await world.run(20)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert (world.weight("b"), world.admission("b")) == (0.5, DRAIN)
    world.gateway.writes.clear()
    world.find("a", "c", "d")
    await world.run(6)
    assert world.gateway.writes == [("b", Knob.WEIGHT, 1.0), ("b", Knob.ADMISSION, SERVE)]
    assert world.ledger.leases() == ()


async def test_the_weight_goes_before_the_door_also_where_the_door_was_shut_first(db: Path) -> None:
    world = await drained(db)
    world.sick["b"].state = State.SERVING
    while world.weight("b") == 1.0:
        await world.run(TICK_S)
    assert (world.weight("b"), world.admission("b")) == (0.25, DRAIN), "on its way back"
    world.gateway.writes.clear()
    world.find("a", "c", "d")
    await world.run(6)
    assert world.gateway.writes == [("b", Knob.WEIGHT, 1.0), ("b", Knob.ADMISSION, SERVE)]


async def test_a_wall_clock_that_was_set_back_does_not_keep_a_change_at_nobodys_server_for_a_day(db: Path) -> None:
    world = await drained(db)
    world.reconfigure(("a", "c", "d"))
    world.clock.step_s -= 86_400
    await world.run(70)
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


async def test_a_lease_ends_where_neither_the_fleet_nor_the_gateway_knows_the_server(db: Path) -> None:
    world = await drained(db)
    world.find("a", "c", "d")
    world.gateway.remove("b")
    await world.run(6)
    assert world.ledger.leases() == ()
    verdict, reason = last_decision(world, "b")
    assert verdict == "expired"
    assert reason == f"{GONE}, and gateway edge knows no server b: nothing is left to give back"


async def test_a_server_that_was_nobodys_at_the_start_keeps_its_lease_until_it_ends(db: Path) -> None:
    """What finds the backends may not have found this one yet; where nobody ever does, the lease ends all the same."""
    world = await drained(db)
    world.gateway.remove("b")
    world.reconfigure(("a", "c", "d"))
    await world.run(50)
    assert [lease.backend for lease in world.ledger.leases()] == ["b"]
    await world.run(15)
    assert world.ledger.leases() == ()
    assert last_decision(world, "b")[0] == "expired"


async def test_a_backend_that_is_found_after_a_restart_is_not_given_its_traffic_in_between(db: Path) -> None:
    world = await drained(db)
    world.reconfigure(())
    await world.run(20)
    world.find("a", "b", "c", "d")
    await world.run(20)
    assert world.admission("b") == DRAIN
    assert len(world.ledger.leases()) == 1
    assert world.verdicts("b") == ["applied"]


async def test_a_gateway_that_does_not_answer_ends_no_lease_and_is_asked_again(db: Path) -> None:
    world = await drained(db)
    world.find("a", "c", "d")
    world.gateway.fails = ErrorKind.UNREACHABLE
    await world.run(100)
    assert len(world.ledger.leases()) == 1
    world.gateway.fails = None
    await world.run(1)
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


async def test_what_somebody_else_has_set_at_a_server_that_is_nobodys_stays_and_troubles_nobody(db: Path) -> None:
    world = await drained(db)
    world.gateway.values["b"][Knob.ADMISSION] = "maintenance"
    world.find("a", "c", "d")
    await world.run(10)
    assert world.admission("b") == "maintenance"
    assert world.ledger.leases() == ()
    assert not [f for f in of(world, "b") if f.until_unix_s is None]


async def test_giving_back_is_not_held_up_by_the_kill_switch(db: Path) -> None:
    world = await drained(db)
    world.switches.pause("by hand")
    world.find("a", "c", "d")
    await world.run(6)
    assert world.admission("b") == SERVE


async def test_hundreds_that_vanish_at_once_are_all_given_back(db: Path) -> None:
    names = tuple(f"b{n:03}" for n in range(300))
    world = World(db, names, guards=GuardsSettings(max_fraction=0.8, panic_fraction=1.0, cooldown_s=1, lease_s=60))
    for name in names[:200]:
        world.sick[name].state = State.HUNG
    await world.run(3)
    assert len(world.out()) == 200
    world.find(*names[200:])
    await world.run(4)
    assert world.out() == set()
    assert world.ledger.leases() == ()


# What was open about it


async def test_what_was_open_about_a_vanished_backend_closes_at_once_and_says_why(db: Path) -> None:
    world = await drained(db)
    world.find("a", "c", "d")
    await world.run(TICK_S)
    (found,) = [f for f in of(world, "b") if f.kind is FindingKind.HUNG]
    assert found.until_unix_s == world.clock.wall()
    assert found.evidence["closed_because"] == GONE
    assert found.summary.endswith(f"; over: {GONE}")
    await world.run(100)
    assert not [f for f in of(world, "b") if f.until_unix_s is None], "and nothing is opened about it again"


async def test_an_operators_hold_ends_with_its_backend(db: Path) -> None:
    world = await drained(db)
    world.switches.hold("b", "being debugged", 600)
    world.switches.hold("c", "stays", 600)
    world.find("a", "c", "d")
    await world.run(6)
    assert set(world.switches.holds()) == {"c"}
    assert world.admission("b") == SERVE


async def test_a_ledger_that_cannot_be_written_when_a_backend_vanishes_loses_nothing(db: Path) -> None:
    world = await drained(db)
    world.switches.hold("b", "being debugged", 600)
    end_holds = world.switches.end_holds

    def full(backends: frozenset[str]) -> None:
        raise OSError("no space left")

    world.switches.end_holds = full  # type: ignore[method-assign]
    world.find("a", "c", "d")
    world.clock.now += TICK_S
    assert (await world.loop.tick()).error == "OSError: no space left"
    world.switches.end_holds = end_holds  # type: ignore[method-assign]
    await world.run(TICK_S)
    assert world.switches.holds() == {}
    assert [f.until_unix_s for f in of(world, "b")] == [world.clock.wall()]


# Pools


async def test_a_vanished_backend_counts_in_no_pool(db: Path) -> None:
    world = await drained(db)
    world.sick["c"].state = State.HUNG
    await world.run(3)
    assert world.out() == {"b"}, "one of four may be out"
    world.find("a", "c", "d")
    await world.run(TICK_S)
    assert world.admission("c") == DRAIN, "one of three may be out, and none of them is"


async def test_a_pool_that_shrinks_to_one_keeps_its_last_backend(db: Path) -> None:
    world = World(db)
    await world.run(1)
    world.find("a")
    world.sick["a"].state = State.HUNG
    await world.run(10)
    assert world.admission("a") == SERVE


async def test_vanished_backends_are_no_panic(db: Path) -> None:
    world = World(db, tuple("abcdefgh"))
    await world.run(1)
    for name in "abcde":
        world.sick[name].silent = True
    await world.run(4)
    world.sick["f"].state = State.HUNG
    await world.run(10)
    assert world.admission("f") == SERVE, "five of eight cannot be seen"
    world.find("f", "g", "h")
    await world.run(1)
    assert world.admission("f") == DRAIN


# Who comes


async def test_a_new_backend_is_unknown_and_left_alone_until_it_is_seen(db: Path) -> None:
    world = World(db)
    await world.run(1)
    world.find("a", "b", "c", "d", "e")
    world.sick["e"].silent = True
    await world.run(1)
    seen = world.loop.latest
    assert seen is not None
    assert seen.situation.snapshot.observations["e"].state is State.UNKNOWN
    assert (world.admission("e"), world.weight("e")) == (SERVE, 1.0)
    world.sick["e"].silent, world.sick["e"].state = False, State.HUNG
    await world.run(1)
    assert world.admission("e") == DRAIN, "a member of its pool from the first"


async def test_a_backend_that_comes_back_is_new(db: Path) -> None:
    world = await drained(db)
    await world.run(20)
    world.find("a", "c", "d")
    await world.run(6)
    world.sick["b"].silent = True
    world.find("a", "b", "c", "d")
    await world.run(2)
    assert world.admission("b") == SERVE
    memory = world.loop.memory
    assert len(memory.histories["b"].samples) == 0
    assert memory.uptimes["b"].ratio() is None
    assert world.ledger.attempts(world.clock.wall()) == {"b": 1}, "how often it was taken out is remembered by its name"
    assert return_wait_s(world.guards_with(), 2) > return_wait_s(world.guards_with(), 1)


async def test_what_was_said_of_the_one_before_is_said_again_of_the_one_that_came_back(db: Path) -> None:
    world = World(db, mode=Mode.OBSERVE)
    world.sick["b"].state = State.HUNG
    await world.run(2)
    world.find("a", "c", "d")
    await world.run(2)
    world.find("a", "b", "c", "d")
    await world.run(2)
    assert world.verdicts("b") == ["observed", "observed"]


async def test_a_backend_that_is_back_before_the_cooldown_keeps_its_drain_and_returns_by_the_ramp(db: Path) -> None:
    world = await drained(db)
    world.find("a", "c", "d")
    await world.run(2)
    world.find("a", "b", "c", "d")
    world.sick["b"].state = State.SERVING
    await world.run(4)
    assert world.admission("b") == DRAIN
    await world.run(2)
    assert (world.admission("b"), world.weight("b")) == (SERVE, 0.25)
    await world.run(10)
    assert (world.weight("b"), world.ledger.leases()) == (1.0, ())


async def test_evidence_from_before_it_came_back_is_not_evidence(db: Path) -> None:
    world = await drained(db)
    world.find("a", "c", "d")
    await world.run(TICK_S)
    collect, heard = world.collect, world.clock.now

    async def stale(now: float, deadline_s: float) -> Collected:
        """A server of series that still tells what it last knew of the old one."""
        collected = await collect(now, deadline_s)
        world._last.hear({"b": world._observe("b", world.sick["b"])}, {"b": heard})
        observations = world._last.tell(world.clock.now, {}, "no series")
        return Collected(observations, collected.records, collected.error)

    world.collect = stale  # type: ignore[method-assign]
    world.sick["b"].silent = True
    world.find("a", "b", "c", "d")
    await world.run(1)
    assert world.loop.latest is not None
    assert world.loop.latest.situation.snapshot.observations["b"].state is State.UNKNOWN


@pytest.mark.parametrize("change", [{"url": "http://10.0.0.9:8000"}, {"server": "b-2"}])
async def test_another_backend_under_the_same_name_is_gone_and_new(db: Path, change: Mapping[str, str]) -> None:
    world = await drained(db)
    world.switches.hold("b", "a person's word stays with the name", 600)
    for server in change.values():
        world.gateway.add(server)
    world.sick["b"].silent = True
    world.backends = tuple(world.backend("b", **change) if b.name == "b" else b for b in world.backends)
    await world.run(TICK_S)
    assert [f.evidence.get("closed_because") for f in of(world, "b") if f.kind is FindingKind.HUNG] == [GONE]
    assert world.loop.memory.histories["b"].samples == ()
    assert set(world.switches.holds()) == {"b"}
    world.switches.unhold("b")
    world.sick["b"].silent, world.sick["b"].state = False, State.SERVING
    await world.run(40)
    assert (world.admission("b"), world.ledger.leases()) == (SERVE, ())


async def test_a_change_at_a_server_that_a_backend_has_left_neither_counts_for_it_nor_is_shown_as_its(db: Path) -> None:
    world = await drained(db)
    world.gateway.add("b-2")
    world.backends = tuple(world.backend("b", server="b-2") if b.name == "b" else b for b in world.backends)
    world.sick["b"].state = State.SERVING
    world.sick["c"].state = State.HUNG
    await world.run(TICK_S)
    assert world.admission("c") == DRAIN, "nobody else of the pool is out"
    await world.run(6)
    assert world.gateway.writes == [("b", Knob.ADMISSION, DRAIN), ("c", Knob.ADMISSION, DRAIN), ("b", Knob.ADMISSION, SERVE)]
    assert last_decision(world, "b")[1].startswith("b is not at server b any more")


async def test_a_hold_does_not_keep_a_change_at_a_server_that_its_backend_has_left(db: Path) -> None:
    world = await drained(db)
    world.switches.hold("b", "being debugged", 600)
    world.gateway.add("b-2")
    world.backends = tuple(world.backend("b", server="b-2") if b.name == "b" else b for b in world.backends)
    await world.run(6)
    assert world.admission("b") == SERVE


async def test_nothing_that_was_known_of_the_one_before_is_known_of_another_under_its_name(db: Path) -> None:
    world = World(db)
    await world.run(70)
    world.sick["b"].itl_s = 0.2
    await world.run(30)
    loop = world.loop
    assert max(loop.memory.detectors["growth"].readings.line("b")[:4]) > 0
    assert loop.memory.uptimes["b"].ratio() == 1.0
    assert ("b", Knob.WEIGHT) in loop._changed_at
    world.backends = tuple(world.backend("b", url="http://10.0.0.9:8000") if b.name == "b" else b for b in world.backends)
    await world.run(TICK_S)
    assert all(map(isnan, loop.memory.detectors["growth"].readings.line("b")[:4]))
    assert loop.memory.uptimes["b"].ratio() is None
    assert len(loop.memory.histories["b"].samples) == 1
    assert loop.memory.policies["gpu_health_gate"].kv.line("b") == (0.0, 0.0, 0.0, -inf)
    assert ("b", Knob.WEIGHT) not in loop._changed_at


async def test_other_labels_or_another_model_do_not_make_another_backend(db: Path) -> None:
    world = await drained(db)
    world.backends = tuple(replace(b, model="m2", labels={"canary_revision": "v2"}) for b in world.backends)
    await world.run(1)
    assert [f.until_unix_s for f in of(world, "b")] == [None]
    assert world.admission("b") == DRAIN


# Bounds


async def test_a_fleet_whose_names_never_stay_leaves_no_memory_behind(db: Path) -> None:
    """Ten thousand such ticks are in tests/loopback, for the time that they take."""
    await churn(db, 200)


async def churn(db: Path, ticks: int) -> None:
    """A new name at every tick, each gone after three: what is kept is of the fleet's size."""
    world = World(db, guards=GuardsSettings(cooldown_s=1, return_ramp_s=1, lease_s=60, max_fraction=1.0, min_healthy=0))
    collect = world.collect

    async def with_records(now: float, deadline_s: float) -> Collected:
        given = await collect(now, deadline_s)
        return replace(given, records=tuple(RequestRecord(n, "ok", 0.1, 0.01, 1.0) for n in given.observations))

    world.collect = with_records  # type: ignore[method-assign]
    for number in range(ticks):
        gone, name = f"n{number - 3}", f"n{number}"
        world.sick.pop(gone, None)
        if gone in world.gateway.values:
            world.gateway.remove(gone)
        world.find("a", "b", *(f"n{n}" for n in range(max(0, number - 2), number + 1)))
        world.sick[name].state = State.HUNG if number % 50 == 0 else State.SERVING
        world.gateway.lies = number % 100 < 3
        world.clock.now += TICK_S
        record = await world.loop.tick()
        assert record.error is None, record.error
    loop, memory = world.loop, world.loop.memory
    policy = memory.policies["gpu_health_gate"]
    sizes = {
        "histories": len(memory.histories),
        "uptimes": len(memory.uptimes),
        "rings": len(memory.rings) / 3,
        "growth": len(memory.detectors["growth"].readings),
        "breakers": len(policy.breakers),
        "counted": len(policy.counted),
        "kv": len(policy.kv),
        "dead_at": len(policy.dead_at),
        "open": len(memory.book.open),
        "last_seen": len(memory.book.last_seen),
        "good_since": len(memory.returning.good_since),
        "no_ramp": len(memory.returning.no_ramp),
        "left_at": len(loop.fleet.left_at),
        "changed_at": len(loop._changed_at),
        "released_at": len(loop._released_at),
        "contended": len(loop._contended_until),
        "backoff": len(loop._backoff._waits),
        "said": len(loop.parts.decisions._said),
        "support": len(loop.support) / len(Knob),
        "seen": len(world._last._seen),
        "since": len(world._last._since),
        "leases": len(world.ledger.leases()),
    }
    assert {name: size for name, size in sizes.items() if size > 6} == {}
    assert world.ledger.decisions(limit=1), "something was done in the meantime"
    assert len(world.ledger._run("SELECT * FROM attempts")) <= 200, "those of the last hour"
