"""No backend, gateway or listener may keep the others waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, Target, TickRecord
from tailkeeper_watchdog.plan import Change, ChangeKind
from tailkeeper_watchdog.reconcile import Reconciler
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import FakeGateway, World


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def test_many_that_others_took_out_leave_room_for_our_own_changes(db: Path) -> None:
    names = (*(f"b{n:03}" for n in range(199)), "z")
    world = World(db, names, guards=GuardsSettings(max_fraction=0.5))
    for name in names[:80]:
        world.gateway.values[name][Knob.ADMISSION] = DRAIN
        world.sick[name].state = State.DOWN
    await world.run(1)
    world.sick["z"].state = State.HUNG
    await world.run(1)
    assert world.admission("z") == DRAIN


async def test_a_slow_gateway_leaves_the_rest_of_its_changes_for_the_next_tick(db: Path) -> None:
    ledger = Ledger(db)
    gateway = FakeGateway(("a", "b"))
    reconciler = Reconciler({"edge": gateway}, ledger, DecisionLog(ledger, lambda: 0.0), 60, lambda: 0.0)
    changes = tuple(
        Change(ChangeKind.APPLY, n, Target("edge", n, "llm"), Knob.ADMISSION, DRAIN, SERVE, "p", "hung") for n in ("a", "b")
    )
    await reconciler.execute(changes, 1, 0.0)  # any call lasts longer than no time at all
    assert [server for server, _, _ in gateway.writes] == ["a"]


async def test_release_goes_on_however_slow_the_gateway_is(db: Path) -> None:
    ledger = Ledger(db)
    gateway = FakeGateway(("a", "b"))
    reconciler = Reconciler({"edge": gateway}, ledger, DecisionLog(ledger, lambda: 0.0), 60, lambda: 0.0)
    for name in ("a", "b"):
        gateway.values[name][Knob.ADMISSION] = DRAIN
        ledger.intend(name, Target("edge", name, "llm"), Knob.ADMISSION, "p", SERVE, DRAIN, "hung", 0.0, 60.0)
    await reconciler.release(ledger.leases(), 1, "by hand", 0.0)
    assert ledger.leases() == ()


async def test_a_listener_that_fails_does_not_end_the_watching(db: Path) -> None:
    world = World(db)

    def broken(record: TickRecord) -> None:
        raise OSError("no space left on device")

    world.loop._on_tick = broken
    await world.run(1)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.admission("b") == DRAIN


async def test_a_log_that_cannot_be_written_does_not_end_the_watching(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(db)

    async def broken(now: float, deadline_s: float) -> Collected:
        raise RuntimeError("a source that breaks its promise")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(world, "collect", broken)
    monkeypatch.setattr("tailkeeper_watchdog.loop.log.exception", full)
    world.clock.now += 0.5
    record = await world.loop.tick()
    assert record.error is not None
    assert "breaks its promise" in record.error


async def test_an_actuators_own_mistake_costs_its_gateway_and_not_the_tick(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(db)
    await world.run(2)

    async def broken(*_: object) -> None:
        raise KeyError("srv_uweight")

    world.sick["b"].state = State.HUNG
    with monkeypatch.context() as patched:
        patched.setattr(world.gateway, "write", broken)
        await world.run(1)
        assert world.verdicts("b") == ["failed"]
        patched.setattr(world.gateway, "read", broken)
        await world.run(1)
    await world.run(5)
    assert world.admission("b") == DRAIN, "done once the gateway can be used again"
