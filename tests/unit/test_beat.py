"""Ticks keep their beat, and every one that was due and did not take place is counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_watchdog.beat import Beat
from tests.scenario.world import World


def beaten(tick_s: float, took_s: list[float]) -> tuple[list[float], int]:
    """When the ticks began that took so long, and how many were missed."""
    now, began = 0.0, []
    beat = Beat(tick_s, now)
    for seconds in took_s:
        beat.begin(now)
        began.append(now)
        now += seconds
        now += beat.rest_s(now)
    beat.begin(now)
    return began, beat.missed


@pytest.mark.parametrize(
    ("took_s", "began", "missed"),
    [
        ([0.1, 0.3, 0.9], [0.0, 1.0, 2.0], 0),
        ([1.0, 1.0], [0.0, 1.0], 0),
        ([1.3, 0.1, 0.1], [0.0, 1.3, 2.0], 0),  # late, and back on the beat
        ([1.8, 0.1, 0.1], [0.0, 1.8, 2.3], 0),  # never sooner than half a beat after the last one
        ([15.2, 0.1], [0.0, 15.2], 14),  # it was stopped: those of 1 to 14 s did not take place
        ([1.9, 1.9, 1.9, 1.9], [0.0, 1.9, 3.8, 5.7], 3),  # always too slow: fractions are not lost
    ],
)
def test_what_was_due_took_place_or_is_counted(took_s: list[float], began: list[float], missed: int) -> None:
    times, counted = beaten(1.0, took_s)
    assert times == pytest.approx(began)
    assert counted == missed


def test_small_delays_do_not_add_up_to_a_missed_tick() -> None:
    beat, now = Beat(0.5, 100.0), 100.0
    for _ in range(10_000):
        beat.begin(now + 0.004)  # a timer is never early
        now += beat.rest_s(now + 0.004) + 0.004
    assert beat.missed == 0
    assert now == pytest.approx(100.0 + 0.5 * 10_000)


async def test_the_loop_counts_what_it_missed_and_what_failed(tmp_path: Path) -> None:
    world, stop = World(tmp_path / "ledger.db"), asyncio.Event()

    def rest() -> None:
        world.clock.now += 6.0
        if world.loop.latest is not None and world.loop.latest.tick == 3:
            stop.set()
        world.ledger.close()  # every tick from now on fails

    world.loop.parts = replace(world.loop.parts, rest=rest, tick_s=0.5)
    await world.loop.run(stop)
    assert world.loop.beat.missed == 2 * 11
    assert world.loop.failed == 2
