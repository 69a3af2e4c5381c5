"""The benchmark of ticks times whole ticks: nothing that a watchdog does is left out of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tailkeeper import bench
from tailkeeper.bench_fleet import SyntheticSource
from tailkeeper_watchdog.detectors import DETECTORS
from tailkeeper_watchdog.loop import Loop
from tailkeeper_watchdog.model import Knob, Outcome
from tailkeeper_watchdog.policies import POLICIES

BACKENDS, TICKS = 20, 3


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Loop]]:
    """The loop that was timed. What the benchmark does to the process is undone."""
    loops: list[Loop] = []
    build, thresholds = bench.build_loop, gc.get_threshold()

    def kept(*args: object, **kwargs: object) -> Loop:
        loops.append(build(*args, **kwargs))  # type: ignore[arg-type]
        return loops[-1]

    monkeypatch.setattr(bench, "build_loop", kept)
    yield loops
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_it_prints_what_the_contract_says_and_times_every_part_of_a_tick(looked_at: list[Loop]) -> None:
    result = bench.tick_bench(BACKENDS, TICKS, seed=1)
    assert result["backends"] == BACKENDS
    assert result["rss_bytes"] > 0
    for part in ("tick_seconds", "tick_cpu_seconds", "tidying_seconds", "recording_seconds"):
        assert 0.0 < result[part]["p50"] <= result[part]["p99"] <= result[part]["max"]
    loop = looked_at[0]
    record = loop.latest
    assert record is not None
    situation, memory = record.situation, loop.memory
    assert set(memory.detectors) == {d.name for d in DETECTORS}
    assert set(memory.policies) == {p.name for p in POLICIES}
    assert all(score.hscore is not None and not score.unknown_factors for score in situation.scores.values())
    # Something to do for each: tests of drift at work, requests and GPUs told of, usual minutes, changes at the gateway.
    tested = [name for name, _, watch in loop.drift.watches() if watch.test is not None and watch.test.evidence.blocks]
    assert len(set(tested)) == BACKENDS
    assert situation.records
    assert all(seen.gpus for seen in situation.snapshot.observations.values())
    assert all(len(usual.minutes) >= 5 for usual in memory.detectors["improved_but_broken"].usual.values())
    assert len({target for target, knob in situation.prior if knob is Knob.WEIGHT}) == BACKENDS
    assert {d.verdict for d in record.decisions} == {Outcome.APPLIED, Outcome.RELEASED}


def test_ticks_are_as_far_apart_as_it_says_however_long_their_pages_take_to_make(
    looked_at: list[Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []
    prepare = SyntheticSource.prepare

    def slowly(source: SyntheticSource, monotonic: Callable[[], float], wall: float, elapsed_s: float) -> None:
        time.sleep(0.002)
        begun.append(monotonic())
        prepare(source, monotonic, wall, elapsed_s)

    monkeypatch.setattr(SyntheticSource, "prepare", slowly)
    bench.tick_bench(BACKENDS, TICKS, seed=1)
    apart = [later - earlier for earlier, later in pairwise(begun)]
    assert apart == pytest.approx([*bench.WARM_UP_S, *[bench.TICK_S] * TICKS][1:], abs=1e-6)
