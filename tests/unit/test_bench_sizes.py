"""Several fleets in one run of the benchmark of ticks: which sizes are meant, and what is said of their growth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tailkeeper import bench_sizes
from tailkeeper.cli import app


@pytest.mark.parametrize(
    ("words", "sizes"),
    [(["100"], [100]), (["1000,100", "10000"], [100, 1_000, 10_000]), (["7", "7"], [7]), (["1,10000"], [1, 10_000])],
)
def test_sizes_stand_side_by_side_or_one_after_the_other(words: list[str], sizes: list[int]) -> None:
    assert bench_sizes.sizes_in(words) == sizes


@pytest.mark.parametrize("word", ["", "0", "-1", "10001", "many", "1,,2", "1e3", "²"])
def test_what_is_no_size_is_wrong_usage(word: str) -> None:
    done = CliRunner().invoke(app, ["bench", "tick", f"--backends={word}"])
    assert done.exit_code == 2
    assert "allowed are 1 to 10,000 backends" in done.output


def run(backends: int, tick_s: float, rss_bytes: int) -> dict[str, Any]:
    return {
        "backends": backends,
        "tick_seconds": {"p50": tick_s},
        "tick_cpu_seconds": {"p50": tick_s / 2},
        "rss_bytes": rss_bytes,
    }


def test_an_exponent_of_one_is_linear_growth() -> None:
    first, second = bench_sizes.growth_exponents([run(100, 0.01, 1_000), run(1_000, 0.1, 1_000), run(10_000, 10.0, 10_000)])
    assert (first["from"], first["to"], second["from"], second["to"]) == (100, 1_000, 1_000, 10_000)
    assert (first["tick_seconds"], first["tick_cpu_seconds"], first["rss_bytes"]) == pytest.approx((1.0, 1.0, 0.0))
    assert (second["tick_seconds"], second["tick_cpu_seconds"], second["rss_bytes"]) == pytest.approx((2.0, 2.0, 1.0))


def test_one_size_has_its_figures_alone_and_several_have_them_as_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Here:
        """Stands in for a pool of one process."""

        def __init__(self, *_: object) -> None:
            self._result: Any = None

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def submit(self, work: Any, size: int, ticks: int, seed: int) -> Here:
            self._result = work(size, ticks, seed)
            return self

        def result(self) -> Any:
            return self._result

    monkeypatch.setattr(bench_sizes, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(bench_sizes, "_quietly", lambda size, ticks, seed: run(size, size / 1e4, size * ticks * seed))
    alone = json.loads(CliRunner().invoke(app, ["bench", "tick", "--backends", "20", "--ticks", "3", "--json"]).stdout)
    assert alone == run(20, 0.002, 60)
    several = json.loads(CliRunner().invoke(app, ["bench", "tick", "--backends", "40,20", "--ticks", "3"]).stdout)
    assert several["runs"] == [run(20, 0.002, 60), run(40, 0.004, 120)]
    assert [one["to"] for one in several["growth_exponents"]] == [40]
