"""The P99 benchmark: every structure is measured, and none may disagree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailkeeper import bench_p99
from tailkeeper.bench_p99 import PartitionRing, Sliding, p99_bench


class Wrong(PartitionRing):
    def p99_s(self) -> float:
        return 2 * super().p99_s()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_p99, "WINDOWS", (50, 400))
    monkeypatch.setattr(bench_p99, "FLEET_SAMPLES", 400)


def test_each_structure_has_its_figures_at_each_window() -> None:
    figures = p99_bench(seed=1, rounds=3)
    assert [w["window"] for w in figures["windows"]] == [50, 400]
    for window in figures["windows"]:
        assert {"tail_ring", "ring_partition", "numpy_percentile"} <= set(window["structures"])
        for measured in window["structures"].values():
            assert set(measured) == {"ns_per_update", "us_per_query", "us_per_tick_of_5", "us_per_tick_of_50"}
            assert all(value > 0 for value in measured.values())


def test_a_structure_that_gives_another_value_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[str, Callable[[int], Sliding]] = {"partition": PartitionRing, "wrong": Wrong}
    monkeypatch.setattr(bench_p99, "structures", lambda: wrong)
    with pytest.raises(RuntimeError, match="disagree"):
        p99_bench(seed=1, rounds=1)
