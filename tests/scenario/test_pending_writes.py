"""A gateway that does a write when nobody waits for it any more, while what is wanted moves on: nothing stays without a lease."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_watchdog.actuators.contract import ActuatorError
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.guards import cap_of
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.model import DRAIN, Knob, KnobValue
from tailkeeper_watchdog.pending import MAY_COME_S
from tailkeeper_watchdog.plan import Change, ChangeKind
from tailkeeper_watchdog.reconcile import Reconciler
from tests.scenario.slow_gateway import GUARDS, NAMES, Says, SlowGateway, SlowWorld

LAGS_S = (1.7, 6.0)
"""One that is over before the next try, and one that is not."""
SLOW = ((0.6, Says.YES), (1.1, Says.NOTHING), (2.6, Says.BROKEN), (6.0, Says.NOTHING))
Wishes = tuple[tuple[float, float], ...]
"""Seconds, and the weight that is wished for so long; 1.0 is no wish."""
SEQUENCES: dict[str, Wishes] = {
    "down": ((0.5, 0.5), (10, 0.25)),
    "down after a pause": ((0.5, 0.5), (1.5, 1.0), (6, 0.25)),
    "up": ((0.5, 0.25), (10, 0.7)),
    "gone": ((0.5, 0.5),),
    "gone and back": ((0.5, 0.5), (2, 1.0), (0.5, 0.5), (2, 1.0), (8, 0.5)),
    "to and fro": ((1, 0.5), (1, 0.25)) * 5,
    "pulses": ((0.5, 0.5), (1, 0.8)) * 5,
    "seldom": ((0.5, 0.5), (3, 1.0)) * 4,
}


async def settled(world: SlowWorld, limit_s: float = 60) -> None:
    """No wish is left, and all that could come has come."""
    await world.settle(limit_s)
    assert world.slow.is_idle
    assert all(world.is_as_it_was(name) for name in NAMES)
    assert world.ledger.leases() == ()
    assert "contended" not in world.verdicts("b")


async def wanting(world: SlowWorld, weight: float, seconds: float) -> None:
    world.want("b", weight)
    await world.run(seconds)


@pytest.mark.parametrize(
    ("name", "lag_s", "says"),
    # Each sequence with half of the gateways; the property has them all in any combination.
    [(name, *slow) for number, name in enumerate(SEQUENCES) for slow in SLOW[number % 2 :: 2]],
)
async def test_a_weight_that_moves_on_before_its_write_is_done_is_given_back(
    tmp_path: Path, name: str, lag_s: float, says: Says
) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lag_s, says)
    await world.run(2)
    for seconds, weight in SEQUENCES[name]:
        await wanting(world, weight, seconds)
    await settled(world)


@pytest.mark.parametrize(("lag_s", "says"), SLOW)
async def test_what_is_wanted_comes_to_be_in_force_and_no_more(tmp_path: Path, lag_s: float, says: Says) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lag_s, says)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    await wanting(world, 0.7, 20)
    assert world.weight("b") == 0.7


@pytest.mark.parametrize("weight", [0.25, 0.44, 0.7])
@pytest.mark.parametrize("lag_s", LAGS_S)
async def test_a_weight_that_the_gateway_rounds_is_known_as_ours(tmp_path: Path, weight: float, lag_s: float) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lag_s, units=11)
    await world.run(2)
    await wanting(world, weight, 20)
    assert world.weight("b") == round(weight * 11) / 11
    await settled(world)


@pytest.mark.parametrize("lag_s", LAGS_S)
async def test_a_drain_that_comes_and_goes_before_its_write_is_done_is_given_back(tmp_path: Path, lag_s: float) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lag_s)
    await world.run(2)
    for seconds in (0.5, 1, 3):
        world.want("b", out=True)
        await world.run(seconds)
        await wanting(world, 0.5, 2)
    await settled(world, 120)


@pytest.mark.parametrize("lag_s", LAGS_S)
async def test_a_drain_is_not_made_to_wait_for_the_return_before_it(tmp_path: Path, lag_s: float) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lag_s)
    await world.run(2)
    world.want("b", out=True)
    await world.run(15)
    world.want("b")
    while world.admission("b") == DRAIN:
        await world.run(0.5)
    world.slow.says = Says.DONE
    world.want("b", out=True)
    await world.run(3)
    assert world.admission("b") == DRAIN
    await settled(world, 120)


async def test_a_new_weight_is_not_made_to_wait_for_the_one_before_it(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: None)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    world.slow.says = Says.DONE
    await wanting(world, 0.25, 1)
    assert world.weight("b") == 0.25


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("lag_s", LAGS_S)
@pytest.mark.parametrize("after_s", [0.5, 3])
async def test_a_release_by_hand_holds_also_where_the_write_comes_after_it(
    tmp_path: Path, after_s: float, lag_s: float, answers: bool
) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lag_s)
    await world.run(2)
    await wanting(world, 0.5, after_s)
    world.want("b")
    if answers:
        world.slow.says = Says.DONE
    released = await world.loop.release("by hand", "b")
    if answers:
        assert bool(released.kept) == bool(world.ledger.leases()), "what is not over is said"
        assert world.weight("b") == 1.0, "a release by hand is done at once, whatever is still under way"
    await world.run(lag_s)
    await settled(world)


async def test_what_comes_after_the_kill_switch_is_given_back_at_once(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: 6.0)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    world.slow.says = Says.DONE
    world.switches.pause("by hand")
    await world.loop.release("by hand")
    lows = 0
    for _ in range(30):  # it is still wanted
        await world.run(0.5)
        lows += world.weight("b") != 1.0
    assert lows == 0, "the tick that finds it gives it back"
    assert world.slow.is_idle
    assert len(world.slow.writes) <= 5, "and none of the others writes"
    assert world.ledger.leases() == ()


@pytest.mark.parametrize("lag_s", LAGS_S)
async def test_what_is_under_way_when_its_backend_leaves_the_fleet_is_given_back(tmp_path: Path, lag_s: float) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lag_s)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    world.find("a", "c", "d")
    await settled(world)


@pytest.mark.parametrize("still", [1.0, 0.25])
@pytest.mark.parametrize("lag_s", LAGS_S)
@pytest.mark.parametrize("after_s", [0.5, 3.0])
async def test_a_restart_knows_what_the_process_before_it_had_under_way(
    tmp_path: Path, after_s: float, lag_s: float, still: float
) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lag_s)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    await wanting(world, 0.7, after_s)
    world.start()
    await wanting(world, still, 3)
    await settled(world)


class Killed(BaseException):
    """What ``kill -9`` looks like from inside."""


class LastWish(SlowGateway):
    """Whoever writes there is killed once it is sent."""

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        with contextlib.suppress(ActuatorError):
            await super().write(server, values, deadline_s)
        raise Killed


async def test_a_restart_knows_the_write_in_which_the_process_before_it_died(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: None)
    await world.run(2)
    world.gateway = world.slow = LastWish(world.clock, lambda: 6.0)
    world.actuators = {"edge": world.slow}
    world.start()
    with contextlib.suppress(BaseExceptionGroup):
        await wanting(world, 0.5, 5)
    assert not world.slow.is_idle
    alive = SlowGateway(world.clock, lambda: None, Says.DONE)
    alive.values, alive.to_do = world.slow.values, world.slow.to_do
    world.gateway = world.slow = alive
    world.actuators = {"edge": alive}
    world.start()
    await settled(world)


async def test_what_comes_while_the_disk_is_full_is_ours_when_there_is_room_again(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: 6.0)
    await world.run(2)
    await wanting(world, 0.5, 0.5)  # comes 6 s later
    world.slow.says = Says.DONE
    await wanting(world, 0.7, 1)
    assert world.weight("b") == 0.7
    run = world.ledger._run

    def full(sql: str, values: tuple[Any, ...] = ()) -> Any:
        if not sql.startswith(("SELECT", "PRAGMA", "BEGIN")):
            raise LedgerError("database or disk is full")
        return run(sql, values)

    world.ledger._run = full  # type: ignore[method-assign]
    for _ in range(60):
        world.clock.now += 0.5
        await world.loop.tick()
    assert world.weight("b") == 0.5
    assert world.loop.failed > 0
    world.ledger._run = run  # type: ignore[method-assign]
    await wanting(world, 0.7, 20)
    assert world.weight("b") == 0.7
    assert "contended" not in world.verdicts("b")
    await settled(world)


async def test_an_old_write_of_the_same_value_does_not_hide_the_one_in_which_the_process_died(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: None)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    world.slow.says = Says.DONE
    (lease,) = world.ledger.leases()
    world.clock.now += MAY_COME_S
    change = Change(ChangeKind.APPLY, "b", lease.target, Knob.WEIGHT, 0.5, 1.0, "gate", "slow", lease)
    dying = LastWish(world.clock, lambda: 6.0)
    last = Reconciler({"edge": dying}, world.ledger, world.loop.parts.decisions, 60, world.clock.wall)
    with contextlib.suppress(BaseExceptionGroup):
        await last.execute((change,), 9, 2.0)
    after = Reconciler({"edge": world.slow}, world.ledger, world.loop.parts.decisions, 60, world.clock.wall)
    assert [list(values) for values in after.pending().values()] == [[0.5]]


async def test_a_release_without_a_watchdog_says_what_may_still_come(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: 6.0)
    await world.run(2)
    await wanting(world, 0.5, 0.5)  # comes 6 s later
    await wanting(world, 0.7, 1)  # comes 7 s later
    world.slow.says = Says.DONE
    for seconds, is_over in ((1.0, False), (4.0, False), (MAY_COME_S, True)):
        world.clock.now += seconds
        ledger = Ledger(tmp_path / "ledger.db")
        alone = Reconciler({"edge": world.slow}, ledger, DecisionLog(ledger, world.clock.wall), 60, world.clock.wall)
        done = await alone.release(ledger.leases(), 0, "by hand", 2.0)
        assert (not done.kept, not ledger.leases()) == (is_over, is_over)
        assert world.is_as_it_was("b")
    assert world.slow.is_idle


async def test_releases_without_a_watchdog_wait_only_once_for_the_write_in_which_it_died(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: None)
    wall = world.clock.wall
    (target,) = next(backend.targets for backend in world.loop.fleet.backends if backend.name == "b")
    world.ledger.intend("b", target, Knob.WEIGHT, "gate", 1.0, 0.5, "slow", wall(), wall() + 300)
    world.slow.set_by_hand("b", Knob.WEIGHT, 0.8)
    for left in (1, 0):
        ledger = Ledger(tmp_path / "ledger.db")
        alone = Reconciler({"edge": world.slow}, ledger, DecisionLog(ledger, wall), 60, wall)
        await alone.release(ledger.leases(), 0, "by hand", 2.0)
        assert len(ledger.leases()) == left
        world.clock.now += MAY_COME_S
    assert world.weight("b") == 0.8


async def test_a_foreign_value_is_left_alone_once_nothing_of_ours_can_come(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: None)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    world.slow.set_by_hand("b", Knob.WEIGHT, 0.8)
    await wanting(world, 1.0, 30)
    assert world.weight("b") == 0.8
    assert world.ledger.leases() == ()


@pytest.mark.parametrize("released", [True, False])
async def test_what_comes_after_a_foreign_value_is_given_back(tmp_path: Path, released: bool) -> None:
    """It cannot be called back, and to whom the knob belongs now is not known before."""
    world = SlowWorld(tmp_path / "ledger.db", lambda: 6.0)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    world.slow.says = Says.DONE
    world.slow.set_by_hand("b", Knob.WEIGHT, 0.8)
    if released:
        assert (await world.loop.release("by hand", "b")).kept
        assert world.weight("b") == 0.8
    await wanting(world, 1.0, 2)
    assert world.weight("b") == 0.8
    await settled(world)


async def test_a_copy_that_is_under_way_when_the_first_one_is_read_back_is_given_back(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: 1.2)
    await world.run(2)
    await wanting(world, 0.5, 0.5)

    def takes_its_time() -> float:
        world.clock.now += 0.5
        return 9.0

    world.slow.lag_s = takes_its_time
    await world.run(1)
    assert world.weight("b") == 0.5
    assert not world.slow.is_idle
    world.slow.says = Says.DONE
    await settled(world)


async def test_a_second_write_that_is_answered_does_not_stand_for_the_first(tmp_path: Path) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: 6.0)
    await world.run(2)
    await wanting(world, 0.5, 0.5)
    world.slow.says = Says.DONE
    await world.run(2)
    assert world.weight("b") == 0.5
    await world.loop.release("by hand", "b")
    await settled(world)


async def test_what_comes_late_stays_known_while_nothing_is_done_about_it(tmp_path: Path) -> None:
    """The weight waits behind the door: longer than anything is pending."""
    lags_s = iter((0.0, None, 3.0))
    world = SlowWorld(tmp_path / "ledger.db", lambda: next(lags_s, None))
    await world.run(2)
    await wanting(world, 0.25, 0.5)
    await wanting(world, 0.5, 3)
    world.want("b", out=True)
    await world.run(2 * MAY_COME_S)
    world.slow.says = Says.DONE
    await settled(world)


async def test_what_may_still_come_counts_for_the_cap(tmp_path: Path) -> None:
    one = GUARDS.model_copy(update={"max_fraction": 0.3})
    world = SlowWorld(tmp_path / "ledger.db", lambda: 6.0, guards=one)
    assert cap_of(len(NAMES), one) == 1
    await world.run(2)
    await wanting(world, 0.25, 0.5)
    world.slow.says = Says.DONE
    await wanting(world, 0.7, 2)
    assert world.weight("b") == 0.7
    world.want("c", out=True)
    for _ in range(40):
        await world.run(0.5)
        assert len(world.out()) <= 1
    assert world.admission("c") == DRAIN, "and once it has come and been put right, no more"


@pytest.mark.parametrize("lags_s", [(0.0, 1.7), (1.7, 0.0), (0.6, 6.0)])
@pytest.mark.parametrize("name", ["gone", "to and fro", "pulses"])
async def test_replicas_that_are_not_equally_slow_come_back_both(tmp_path: Path, name: str, lags_s: tuple[float, float]) -> None:
    world = SlowWorld(tmp_path / "ledger.db", lambda: lags_s[0])
    other = SlowGateway(world.clock, lambda: lags_s[1])
    both = {"first": world.slow, "second": other}
    world.actuators = {"edge": replicated("edge", ("first", "second"), lambda _, address: both[address])}
    world.start()
    await world.run(2)
    for seconds, weight in SEQUENCES[name]:
        await wanting(world, weight, seconds)
    await settled(world, 120)
    await world.run(6)
    assert other.is_idle
    assert other.values == world.slow.values
