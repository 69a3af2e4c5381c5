"""A backend that falls ill again and again stays out until a person has looked, across restarts, and the person is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import DRAIN, SERVE, Backend, FindingKind, Severity, Target
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import FakeGateway, World

GUARDS = GuardsSettings(cooldown_s=1, return_ramp_s=2, lease_s=20, quarantine_after=3)


@pytest.fixture
async def flapping(tmp_path: Path) -> World:
    """A world in which "b" was hung three times."""
    world = World(tmp_path / "ledger.db", guards=GUARDS)
    await world.run(10)
    for _ in range(3):
        world.sick["b"].state = State.HUNG
        await world.run(5)
        world.sick["b"].state = State.SERVING
        await world.run(15)
    return world


def pages(world: World) -> list[str]:
    return [f.summary for f in world.loop.findings() if f.kind is FindingKind.ADVICE and f.severity is Severity.PAGE]


async def test_after_the_third_removal_it_stays_out_though_it_serves_and_a_person_is_called(flapping: World) -> None:
    await flapping.run(120)

    assert flapping.admission("b") == DRAIN
    assert pages(flapping) == ["b is quarantined: taken out 3 times within an hour; look at it, then release it"]


async def test_a_restart_forgets_no_quarantine(flapping: World) -> None:
    flapping.start()
    await flapping.run(60)

    assert flapping.admission("b") == DRAIN
    assert pages(flapping)


async def test_a_dead_watchdogs_quarantine_is_a_lease_like_any_other(flapping: World) -> None:
    (lease,) = [lease for lease in flapping.ledger.leases() if lease.backend == "b" and lease.written == DRAIN]
    assert lease.expires_unix_s <= flapping.clock.wall() + GUARDS.lease_s


async def test_who_releases_it_by_hand_ends_the_quarantine_and_its_attempts_count_from_one(flapping: World) -> None:
    await flapping.loop.release("looked at", "b")
    await flapping.run(40)

    assert flapping.admission("b") == SERVE
    assert pages(flapping) == []
    flapping.sick["b"].state = State.HUNG
    await flapping.run(5)
    flapping.sick["b"].state = State.SERVING
    await flapping.run(15)
    assert flapping.admission("b") == SERVE


async def test_others_are_not_in_it(flapping: World) -> None:
    flapping.sick["c"].state = State.DOWN
    await flapping.run(5)
    flapping.sick["c"].state = State.SERVING
    await flapping.run(15)

    assert flapping.admission("c") == SERVE


async def test_restarts_under_an_operators_hold_are_not_counted_and_others_are(tmp_path: Path) -> None:
    """Nothing tells a deploy from a crash but who says so."""
    world = World(tmp_path / "ledger.db", guards=GUARDS)
    await world.run(10)
    world.switches.hold("b", "deploy 42", 600.0)
    for _ in range(4):
        for name in ("b", "c"):
            for state, seconds in ((State.DOWN, 3), (State.STARTING, 4), (State.SERVING, 15)):
                world.sick[name].state = state
                await world.run(seconds)

    assert world.ledger.attempts(world.clock.wall()) == {"c": 3}
    assert (world.admission("b"), world.admission("c")) == (SERVE, DRAIN)
    assert [page.partition(" ")[0] for page in pages(world)] == ["c"]


class TwoDoors(World):
    """Every backend behind two gateways."""

    def start(self) -> None:
        self.actuators["tap"] = FakeGateway(self._names)
        super().start()

    def backend(self, name: str, server: str = "", url: str = "") -> Backend:
        made = super().backend(name, server, url)
        return replace(made, targets=(*made.targets, Target("tap", name, "all")))


async def test_a_removal_at_two_gateways_is_one_removal(tmp_path: Path) -> None:
    world = TwoDoors(tmp_path / "ledger.db", guards=GUARDS)
    await world.run(10)
    world.sick["b"].state = State.HUNG
    await world.run(5)

    assert len([lease for lease in world.ledger.leases() if lease.written == DRAIN]) == 2
    assert world.ledger.attempts(world.clock.wall()) == {"b": 1}
