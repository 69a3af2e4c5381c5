"""The benchmarks that need real programs, with little to do: the shape of what they print. No figure decides anything."""

from __future__ import annotations

import asyncio

import pytest

from tailkeeper.bench_prometheus import prometheus_bench
from tailkeeper.bench_replay import Recorded, replay_bench
from tests.e2e.real_programs import binary


@pytest.mark.real
def test_a_small_fleet_is_read_through_a_real_prometheus_in_two_queries() -> None:
    binary("prometheus")
    result = asyncio.run(prometheus_bench((3,), rounds=2))
    (size,) = result["sizes"]
    assert size.get("left_out") is None
    assert size["queries"] == [2, 2]
    assert size["series"] > 3 * 200
    for figure in ("seconds", "reader_cpu_s", "server_rss_peak_bytes", "reader_rss_peak_bytes"):
        assert size[figure] > 0


def test_the_replay_command_computes_a_recorded_fleet_again() -> None:
    (size,) = replay_bench(1, (Recorded(3, 5),))["sizes"]
    assert size["ticks"] == 5
    assert size["cpu_s"] > 0
