"""Whatever happened to the configuration, the gateway or the process: what we changed is given back, and once only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind, ServerState
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue, Mode, Target
from tailkeeper_watchdog.policy_params import ContextLengthRoutingParams
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import FakeGateway, World


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def drained(db: Path, *, guards: GuardsSettings | None = None) -> World:
    world = World(db, guards=guards)
    await world.run(1)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.admission("b") == DRAIN
    return world


async def test_release_keeps_the_lease_of_a_server_that_cannot_be_read(db: Path) -> None:
    world = await drained(db)
    read = world.gateway.read

    async def unreadable(servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        return {s: ServerState({}, doubt="its document could not be had") for s in await read(servers, deadline_s)}

    world.gateway.read = unreadable  # type: ignore[method-assign]
    await world.loop.release("by hand")
    assert [lease.backend for lease in world.ledger.leases()] == ["b"], "unknown is not someone else's"
    world.gateway.read = read  # type: ignore[method-assign]
    await world.loop.release("by hand")
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


async def test_a_lease_at_a_gateway_that_is_gone_keeps_no_other_lease_from_being_released(db: Path) -> None:
    world = await drained(db)
    now = world.clock.wall()
    world.ledger.intend("old", Target("gone", "x", "llm"), Knob.ADMISSION, "p", SERVE, DRAIN, "hung", now, now + 60)
    done = await world.loop.release("by hand")
    assert [(d.backend, d.verdict.value) for d in done.decisions] == [("b", "released")]
    assert [lease.backend for lease in world.ledger.leases()] == ["old"]


async def test_release_gives_back_more_leases_than_a_tick_may_make_changes(db: Path) -> None:
    names = tuple(f"b{n:03}" for n in range(100))
    world = World(db, names, guards=GuardsSettings(max_fraction=0.8, panic_fraction=1.0))
    for name in names[:70]:
        world.sick[name].state = State.HUNG
    await world.run(2)
    assert len(world.out()) == 70
    await world.loop.release("by hand")
    assert world.out() == set()
    assert world.ledger.leases() == ()


async def test_a_backend_that_left_the_configuration_gets_its_traffic_back_when_its_lease_ends(db: Path) -> None:
    world = await drained(db)
    world.reconfigure(("a", "c", "d"))
    await world.run(70)
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


async def test_a_renamed_pool_keeps_its_lease_as_one_and_gives_it_back(db: Path) -> None:
    world = await drained(db)
    world.pool = "renamed"
    world.start()
    await world.run(80)
    assert world.gateway.writes == [("b", Knob.ADMISSION, DRAIN)], "in force and renewed, not fought over"
    world.sick["b"].state = State.SERVING
    await world.run(40)
    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()


class Killed(BaseException):
    """What ``kill -9`` looks like from inside: nothing catches it, and nothing after it runs."""


def kill_at(world: World, step: int) -> None:
    """Die just before step ``step`` of all writes to the gateway and to the ledger, counted from now."""
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    write, run = world.gateway.write, world.ledger._run

    async def counted_write(server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        count()
        await write(server, values, deadline_s)

    def counted_run(sql: str, values: tuple[Any, ...] = ()) -> Any:
        if not sql.startswith("SELECT"):
            count()
        return run(sql, values)

    world.gateway.write = counted_write  # type: ignore[method-assign]
    world.ledger._run = counted_run  # type: ignore[method-assign]


async def run_until_killed(world: World, seconds: float) -> bool:
    """Whether it was killed; the restarted watchdog has a gateway that works again."""
    killed = False
    try:
        await world.run(seconds)
    except* Killed:
        killed = True
    world.gateway.write = FakeGateway.write.__get__(world.gateway)  # type: ignore[method-assign]
    world.start()
    return killed


@pytest.mark.parametrize("step", range(40))
async def test_a_kill_at_any_step_of_a_drain_and_its_return_leaves_nothing_behind(db: Path, step: int) -> None:
    world = World(db)
    await world.run(1)
    kill_at(world, step)
    world.sick["b"].state = State.HUNG
    killed = await run_until_killed(world, 2)
    if not killed:
        world.sick["b"].state = State.SERVING
        kill_at(world, step)
        await run_until_killed(world, 30)
    world.sick["b"].state = State.SERVING
    await world.run(60)
    assert (world.admission("b"), world.weight("b")) == (SERVE, 1.0)
    assert world.ledger.leases() == ()
    assert "contended" not in world.verdicts("b"), "our own value is no foreign hand's"


@pytest.mark.parametrize("step", range(1, 6, 2))
async def test_a_kill_between_two_steps_of_a_weight_keeps_the_lease(db: Path, step: int) -> None:
    world = World(db)
    await world.run(70)
    world.sick["b"].itl_s = 0.2
    await world.run(20)
    assert world.weight("b") == 0.5
    world.sick["b"].extra = {catalog.VRAM_PRESSURE.name: 0.97}
    world.slow_weight(0.2)
    kill_at(world, step)
    await run_until_killed(world, 10)
    world.sick["b"].itl_s = 0.02
    world.sick["b"].extra = {}
    await world.run(120)
    assert "contended" not in world.verdicts("b")
    assert world.weight("b") == 1.0
    assert world.ledger.leases() == ()


async def test_a_gateway_that_dies_under_a_step_of_the_return_does_not_make_our_value_someone_elses(db: Path) -> None:
    world = await drained(db)
    world.sick["b"].state = State.SERVING
    while world.admission("b") != SERVE:
        await world.run(0.5)
    assert world.weight("b") == 0.25
    write = world.gateway.write

    async def dies(server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        world.gateway.fails = ErrorKind.UNREACHABLE
        await write(server, values, deadline_s)

    world.gateway.write = dies  # type: ignore[method-assign]
    while world.gateway.fails is None:
        await world.run(0.5)
    world.gateway.write, world.gateway.fails = write, None  # type: ignore[method-assign]
    await world.run(20)
    assert world.weight("b") == 1.0
    assert "contended" not in world.verdicts("b")


async def watch_return(world: World, seconds: float) -> list[float]:
    """The weights with which "b" was let in, in order, each once."""
    weights: list[float] = []
    for _ in range(round(2 * seconds)):
        await world.run(0.5)
        share = float(world.weight("b")) if world.admission("b") == SERVE else 0.0
        if not weights or weights[-1] != share:
            weights.append(share)
    return weights


async def test_the_longer_wait_of_a_repeater_is_not_cut_short_by_its_lease(db: Path) -> None:
    world = World(db, guards=GuardsSettings(cooldown_s=5, return_ramp_s=6, lease_s=20, quarantine_after=6))
    for _ in range(4):
        world.ledger.count_attempt("b", world.clock.wall())  # 5 s · 2⁴ = 80 s
    world.sick["b"].state = State.HUNG
    await world.run(1)
    world.sick["b"].state = State.SERVING
    assert await watch_return(world, 79) == [0.0]
    assert await watch_return(world, 20) == [0.0, 0.25, 0.5, 1.0]
    assert world.ledger.leases() == ()


async def test_a_ramp_longer_than_a_lease_is_walked_to_its_end(db: Path) -> None:
    world = await drained(db, guards=GuardsSettings(cooldown_s=5, return_ramp_s=100, lease_s=20))
    world.sick["b"].state = State.SERVING
    await watch_return(world, 50)
    assert world.weight("b") == 0.25
    await watch_return(world, 50)
    assert world.weight("b") == 0.5
    await watch_return(world, 20)
    assert world.weight("b") == 1.0
    assert world.ledger.leases() == ()


async def test_a_backend_that_takes_longer_to_start_than_its_lease_gets_no_traffic_before_it_serves(db: Path) -> None:
    world = await drained(db)
    world.sick["b"].state = State.STARTING
    assert await watch_return(world, 300) == [0.0]
    world.sick["b"].state = State.SERVING
    assert await watch_return(world, 30) == [0.0, 0.25, 0.5, 1.0]


async def test_an_operators_zero_weight_does_not_keep_the_drain_in_force(db: Path) -> None:
    world = await drained(db)
    world.gateway.values["b"][Knob.WEIGHT] = 0.0
    world.sick["b"].state = State.SERVING
    await world.run(120)
    assert (world.admission("b"), world.weight("b")) == (SERVE, 0.0)
    assert world.ledger.leases() == ()


async def test_a_lease_that_ran_out_while_the_watchdog_was_dead_is_given_back_at_the_first_tick(db: Path) -> None:
    world = await drained(db)
    world.clock.now += 3_600
    world.sick["b"].state = State.SERVING
    world.start()
    await world.run(0.5)
    assert world.admission("b") == SERVE


async def test_the_cooldown_is_waited_once_and_the_ramp_takes_its_own_time(db: Path) -> None:
    world = await drained(db)  # 5 s of cooldown, 6 s of ramp
    world.sick["b"].state = State.SERVING
    assert await watch_return(world, 13) == [0.0, 0.25, 0.5, 1.0]


async def test_a_wall_clock_that_jumps_back_a_day_does_not_keep_a_lease_for_a_day(db: Path) -> None:
    world = await drained(db)
    world.clock.step_s -= 86_400
    for sick in world.sick.values():
        sick.silent = True
    await world.run(130)
    assert world.admission("b") == SERVE
    assert world.ledger.leases() == ()


@pytest.mark.parametrize("held", [False, True], ids=["wanted", "held by an operator"])
async def test_a_wall_clock_that_jumps_back_a_day_brings_the_end_of_a_lease_near_again(db: Path, held: bool) -> None:
    world = await drained(db)
    if held:
        world.switches.hold("b", "a deploy", 600.0)
    world.clock.step_s -= 86_400
    await world.run(1)
    (lease,) = world.ledger.leases()
    assert lease.expires_unix_s <= world.clock.wall() + 60, "whoever finds it after us gives it back in time"


async def test_a_wall_clock_that_jumps_back_a_day_does_not_keep_a_knob_contended_for_a_day(db: Path) -> None:
    world = await drained(db)
    for _ in range(2):
        world.gateway.values["b"][Knob.ADMISSION] = SERVE
        await world.run(0.5)
    assert world.verdicts("b")[-1] == "contended"
    world.clock.step_s -= 86_400
    await world.run(70)
    assert world.admission("b") == DRAIN


async def test_a_wall_clock_that_jumps_ahead_a_day_gives_nothing_back_that_is_still_needed(db: Path) -> None:
    world = await drained(db)
    world.clock.step_s += 86_400
    assert await watch_return(world, 100) == [0.0]


async def test_a_dead_replica_does_not_keep_a_lease_from_being_renewed(db: Path) -> None:
    world = await drained(db)
    read = world.gateway.read

    async def half(servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        return {n: replace(s, doubt="edge#2 was not read") for n, s in (await read(servers, deadline_s)).items()}

    world.gateway.read = half  # type: ignore[method-assign]
    await world.run(200)
    (lease,) = world.ledger.leases()
    assert lease.expires_unix_s > world.clock.wall()
    world.sick["b"].state = State.SERVING
    assert await watch_return(world, 4) == [0.0], "the cooldown is waited for"


async def test_a_hold_keeps_a_drained_backend_as_it_is_until_it_ends(db: Path) -> None:
    world = await drained(db)
    writes = len(world.gateway.writes)
    world.switches.hold("b", "being debugged", 200)
    await world.run(100)
    world.sick["b"].state = State.SERVING
    await world.run(99)
    assert world.admission("b") == DRAIN, "no action on it until the hold ends, not even giving back"
    assert len(world.gateway.writes) == writes
    assert await watch_return(world, 30) == [0.0, 0.25, 0.5, 1.0]
    assert world.ledger.leases() == ()


async def test_release_by_hand_gives_back_a_held_backend_too(db: Path) -> None:
    world = await drained(db)
    world.switches.hold("b", "being debugged", 200)
    await world.loop.release("by hand", "b")
    await world.run(60)
    assert world.admission("b") == SERVE


async def test_a_lighter_backend_that_was_drained_returns_by_the_ramp_too(db: Path) -> None:
    world = World(db)
    await world.run(70)
    world.sick["b"].itl_s = 0.2
    await world.run(20)
    assert world.weight("b") == 0.5
    world.sick["b"].state = State.HUNG
    await world.run(30)
    world.sick["b"].state = State.SERVING
    world.sick["b"].itl_s = 0.02
    assert await watch_return(world, 60) == [0.0, 0.25, 0.5, 1.0]


async def test_a_value_is_given_back_exactly_or_not_at_all(db: Path) -> None:
    world = World(db)
    now = world.clock.wall()
    lease = world.ledger.intend("b", Target("edge", "b", "llm"), Knob.WEIGHT, "p", 1.0, 0.92, "slow", now, now + 60)
    world.ledger.confirm(lease.id, 0.92)
    world.gateway.values["b"][Knob.WEIGHT] = 0.92
    world.gateway.lies = True
    await world.loop.release("by hand")
    assert len(world.ledger.leases()) == 1, "nearly its prior value is not its prior value"


@pytest.mark.parametrize(("usage", "steps"), [(0.1, [0.25, 0.5, 0.9]), (0.4, [0.25, 0.5, 0.6]), (0.85, [0.15])])
async def test_a_weight_that_a_policy_wants_is_come_to_by_the_ramp_and_never_jumped_to(
    db: Path, usage: float, steps: list[float]
) -> None:
    policies = {"context_length_routing": PolicySetting(Mode.ENFORCE, ContextLengthRoutingParams())}
    world = World(db, policies=policies)  # 5 s of cooldown, 6 s of ramp
    for name, sick in world.sick.items():
        sick.extra[catalog.KV_USAGE.name] = usage if name == "b" else 0.0
    await world.run(5)
    world.sick["b"].state = State.HUNG
    await world.run(5)
    world.sick["b"].state = State.SERVING
    seen: dict[float, float] = {}
    for _ in range(60):
        await world.run(0.5)
        if world.admission("b") == SERVE:
            seen.setdefault(round(float(world.weight("b")), 4), world.clock.now)

    assert list(seen) == [pytest.approx(step) for step in steps]
    assert seen[steps[-1]] - seen[steps[0]] == (6.0 if len(steps) > 1 else 0.0)
    (lease,) = [lease for lease in world.ledger.leases() if lease.backend == "b"]
    assert (lease.policy, lease.prior) == ("context_length_routing", 1.0)


@pytest.mark.parametrize("usage", [0.4, 0.85])
async def test_a_weight_that_a_guard_refuses_holds_up_nobodys_return(db: Path, usage: float) -> None:
    policies = {"context_length_routing": PolicySetting(Mode.ENFORCE, ContextLengthRoutingParams())}
    world = World(db, policies=policies)
    await world.run(5)
    world.sick["b"].state = State.HUNG
    await world.run(5)
    world.switches.pause("by hand")
    world.sick["b"].state = State.SERVING
    for name, sick in world.sick.items():
        sick.extra[catalog.KV_USAGE.name] = usage if name == "b" else 0.0
    assert await watch_return(world, 30) == [0.0, 0.25, 0.5, 1.0]
    assert world.ledger.leases() == ()
