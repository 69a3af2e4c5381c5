"""Backends that get well and ill in turn, that nobody can see, or whose GPU is throttled: what is and what must not be done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Reading, absent, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.detectors.state import PAGE_PATIENCE_S
from tailkeeper_watchdog.model import DRAIN, SERVE, BackendObservation, FindingKind, GpuObservation
from tests.scenario.world import Sick, World

STALE_S = 3.0
PAGE_AGE = catalog.SCRAPE_AGE.name


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "ledger.db", stale_after_s=STALE_S)


def gpu(*, age_s: float = 0.3, celsius: float = 60.0, clock_hz: float = 1.9e9, reasons: tuple[str, ...] = ()) -> GpuObservation:
    nothing: Reading[float] = absent()
    return GpuObservation(
        uuid="GPU-b",
        sample_age_s=present(age_s, 0.0),
        utilization_ratio=nothing,
        memory_used_bytes=nothing,
        memory_total_bytes=nothing,
        fragmentation_ratio=nothing,
        pcie_ratio=nothing,
        nvlink_ratio=nothing,
        temperature_celsius=present(celsius, 0.0),
        throttle_reasons=reasons,
        sm_clock_hz=present(clock_hz, 0.0),
    )


class WithGpu(World):
    """The same world, in which ``b`` has a GPU."""

    gpu = gpu()

    def _observe(self, name: str, sick: Sick) -> BackendObservation:
        seen = super()._observe(name, sick)
        return replace(seen, gpus=(self.gpu,)) if name == "b" else seen


def lost(world: World) -> list[str]:
    return [f.backend for f in world.loop.findings() if f.kind is FindingKind.TELEMETRY_LOST]


async def test_a_backend_that_flaps_is_let_back_in_ever_more_rarely(world: World) -> None:
    """Two minutes of nine seconds hung and seven serving: without the memory of attempts it would be out and in seven times."""
    changes, before = 0, SERVE
    out_s = []
    for _ in range(8):
        for state, seconds in ((State.HUNG, 4.0), (State.SERVING, 12.0)):
            world.sick["b"].state = state
            for _ in range(round(seconds / 0.5)):
                await world.run(0.5)
                changes += world.admission("b") != before
                before = str(world.admission("b"))
                out_s.append(0.5 * (before == DRAIN))
    assert world.ledger.attempts(world.clock.wall())["b"] <= 3
    assert changes <= 5, "in and out at most twice, then out"
    assert sum(out_s[-96:]) == 48.0, "and for the last three rounds out throughout"


async def test_a_lost_page_is_found_nothing_is_done_and_its_return_closes_the_finding(world: World) -> None:
    world.sick["b"].extra[PAGE_AGE] = 0.4
    await world.run(5)
    assert lost(world) == []
    for step in range(40):
        world.sick["b"].extra[PAGE_AGE] = 0.5 * step
        await world.run(0.5)
        assert lost(world) == (["b"] if 0.5 * step > STALE_S + PAGE_PATIENCE_S else [])
    assert world.gateway.writes == []
    world.sick["b"].extra[PAGE_AGE] = 0.3
    await world.run(8)
    assert lost(world) == []
    assert world.gateway.writes == []


async def test_an_engine_that_never_had_a_page_loses_none(world: World) -> None:
    world.sick["b"].extra[PAGE_AGE] = 60.0
    await world.run(10)
    assert lost(world) == []


@pytest.mark.parametrize("state", [State.DOWN, State.HUNG, State.STARTING])
async def test_a_dead_or_starting_engine_is_told_as_that_and_not_as_blind(world: World, state: State) -> None:
    world.sick["b"].extra[PAGE_AGE] = 0.4
    await world.run(2)
    world.sick["b"].state, world.sick["b"].extra[PAGE_AGE] = state, 60.0
    await world.run(2)
    assert lost(world) == []


@pytest.mark.parametrize(("state", "admission"), [(State.UNKNOWN, SERVE), (State.MISCONFIGURED, SERVE), (State.STARTING, DRAIN)])
async def test_who_lost_sight_of_page_and_gpu_together_has_no_second_signal(tmp_path: Path, state: State, admission: str) -> None:
    world = WithGpu(tmp_path / "ledger.db")
    await world.run(5)
    world.gpu, world.sick["b"].state = gpu(age_s=60.0), state
    await world.run(5)
    assert world.admission("b") == admission


async def test_a_throttled_gpu_is_named_as_the_cause_of_the_lighter_weight_and_gets_it_back(tmp_path: Path) -> None:
    world = WithGpu(tmp_path / "ledger.db")
    await world.run(40)
    world.gpu = gpu(celsius=93.0, clock_hz=4e8, reasons=("hw_thermal_slowdown",))
    await world.run(5)
    assert world.gateway.writes == [], "heat alone changes nothing"
    world.sick["b"].itl_s = 0.110
    await world.run(40)
    assert world.weight("b") == 0.5
    (decision, *_) = world.ledger.decisions("b", limit=1)
    assert "GPU GPU-b at 93 °C; GPU GPU-b throttled: hw_thermal_slowdown" in decision.reason
    world.gpu, world.sick["b"].itl_s = gpu(), 0.02
    await world.run(60)
    assert world.weight("b") == 1.0


async def test_who_was_never_heard_of_has_as_long_to_answer_as_evidence_takes_to_grow_stale(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.db", stale_after_s=3.0)
    world.sick["b"].silent = True

    await world.run(2.5)
    assert world.loop.findings() == ()

    await world.run(2)
    assert [(f.kind, f.backend) for f in world.loop.findings()] == [(FindingKind.TELEMETRY_LOST, "b")]
