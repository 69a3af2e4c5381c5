"""The benchmark of replay: what is recorded is a whole history of the fleet, and can be computed again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tailkeeper import bench_replay
from tailkeeper.bench import TICK_S
from tailkeeper.bench_replay import Recorded, replay_bench
from tailkeeper_watchdog.replay.own import again


def _here(file: Path) -> tuple[float, float, dict[str, Any]]:
    """The replay itself without a process around it; a second of it is Python's start."""
    report: dict[str, Any] = json.loads(json.dumps(asyncio.run(again(file))))
    return 2.0, 0.5, report


def test_recorded_ticks_are_computed_again_and_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_replay, "_replayed", _here)
    (size,) = replay_bench(1, (Recorded(5, 4),))["sizes"]
    assert size["simulated_s"] == 4 * TICK_S
    assert size["times_real_time"] == 4 * TICK_S / 0.5
    assert size["backend_ticks_per_second"] == 5 * 4 / 0.5
    assert size["records_bytes"] > 0


def test_a_replay_that_says_something_else_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"compared": {"same": 3, "differences": ["tick 2: findings"]}}
    monkeypatch.setattr(bench_replay, "_replayed", lambda file: (1.0, 1.0, report))
    with pytest.raises(RuntimeError, match="3 of 4 ticks"):
        replay_bench(1, (Recorded(2, 4),))
