"""Python's cycle collector works between the ticks: nobody waits for it to be taken out."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_watchdog.tidying import ALL_EVERY_TICKS, MIDDLE_EVERY_TICKS, WORTH_A_WALK, YOUNG_OBJECTS, Tidying, few_collections
from tests.scenario.world import World


@pytest.fixture
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("_thresholds")
def test_by_itself_it_comes_only_after_more_objects_than_many_ticks_make() -> None:
    few_collections()
    assert gc.isenabled()
    assert gc.get_threshold()[0] == YOUNG_OBJECTS


def test_after_each_tick_it_takes_what_is_young_at_times_what_is_older_and_seldom_all(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: taken.append(generation))
    monkeypatch.setattr(gc, "get_count", lambda: (WORTH_A_WALK, 0, 0))
    tidy = Tidying()
    for _ in range(ALL_EVERY_TICKS):
        tidy()
    assert (taken[0], taken[MIDDLE_EVERY_TICKS - 1], taken[-1]) == (0, 1, 2)
    assert (taken.count(2), taken.count(1)) == (1, ALL_EVERY_TICKS // MIDDLE_EVERY_TICKS - 1)


def test_a_small_fleet_is_walked_when_it_has_made_enough_and_not_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: taken.append(generation))
    monkeypatch.setattr(gc, "get_count", lambda: (WORTH_A_WALK - 1, 0, 0))
    Tidying()()
    assert taken == []


async def test_it_comes_after_a_tick_and_before_the_next(tmp_path: Path) -> None:
    world, order = World(tmp_path / "ledger.db"), []
    stop = asyncio.Event()

    def rest() -> None:
        order.append(world.loop.latest.tick if world.loop.latest else 0)
        if len(order) == 2:
            stop.set()

    world.loop.parts = replace(world.loop.parts, rest=rest, tick_s=0.001)
    await world.loop.run(stop)
    assert order == [1, 2]
