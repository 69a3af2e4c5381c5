"""``tailkeeper bench loop`` for real, with few trials: the shape of what it prints. No figure decides anything."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailkeeper import bench_peers
from tailkeeper.bench import loop_bench
from tailkeeper.bench_gateways import find
from tailkeeper.bench_peers import FAULTS, Peer

pytestmark = pytest.mark.skipif(find("haproxy") is None, reason="apt-get install haproxy")


def test_it_prints_what_the_contract_says_and_gpu_faults_and_shedding_beside_it() -> None:
    result = loop_bench(trials=2, tick_s=0.2, seed=1)
    assert result["trials"] == 2
    assert result["gateway"] == "haproxy"
    for seconds in (
        result["fault_to_weight_seconds"],
        result["gpu"]["fault_to_weight_seconds"],
        result["shedding"]["broken_page_to_level_seconds"],
    ):
        assert 0.0 < seconds["p50"] <= seconds["p99"] <= seconds["max"]
    assert "peers" not in result


def test_every_fault_has_a_figure_or_never_for_each_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault and short times: the whole table takes minutes."""
    monkeypatch.setattr(bench_peers, "FAULTS", {"dead": FAULTS["dead"]})
    monkeypatch.setattr(bench_peers, "WARM_UP_S", 3.0)
    monkeypatch.setattr(bench_peers, "HORIZON_S", 12.0)
    result = asyncio.run(bench_peers.side_by_side(0.5, 1))
    stopped = result["fault_to_last_request_seconds"]["dead"]
    expected = {"tailkeeper", "haproxy_checks"} | ({"envoy_outlier_detection"} if find("envoy") else set())
    assert set(stopped) == expected
    assert all(seconds is None or seconds >= 0.0 for seconds in stopped.values())


async def test_a_gateway_that_goes_on_sending_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_peers, "HORIZON_S", 0.05)
    monkeypatch.setattr(bench_peers, "LOOK_EVERY_S", 0.001)
    count = 0

    async def sent(server: str) -> int:
        nonlocal count
        count += 1
        return count

    assert await bench_peers._last_request(Peer("", sent), "b", time.monotonic()) is None


async def test_a_gateway_stopped_at_its_last_request_and_not_when_that_was_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_peers, "QUIET_S", 0.05)
    monkeypatch.setattr(bench_peers, "LOOK_EVERY_S", 0.001)

    async def sent(server: str) -> int:
        return 7

    assert await bench_peers._last_request(Peer("", sent), "b", time.monotonic()) == 0.0
