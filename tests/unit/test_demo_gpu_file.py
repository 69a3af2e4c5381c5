"""The simulated GPUs: what an exporter will read of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_demo.engine_server import EngineReading, Phase
from tailkeeper_demo.gpu_file import MEMORY_TOTAL_BYTES, PREALLOCATED_RATIO, GpuState, advance, document, gpu_uuid
from tailkeeper_demo.json_file import write_json

CONTRACT_KEYS = {
    "index", "uuid", "name", "utilization_ratio", "memory_total_bytes", "memory_used_bytes", "memory_copy_utilization_ratio",
    "temperature_celsius", "power_watts", "sm_clock_hz", "throttle_reasons", "ecc_single_bit_total", "ecc_double_bit_total",
    "retired_pages", "xid_events", "hang_s",
}  # fmt: skip


def settle(reading_per_s: float, *, phase: Phase = Phase.SERVING, leaked: float = 0.0, seconds: int = 120) -> dict[str, float]:
    """The device after a long time of the same work."""
    state = GpuState(0, gpu_uuid(0))
    for tick in range(1, 2 * seconds + 1):
        state = advance(state, EngineReading(phase, reading_per_s * tick / 2, leaked), 0.5)
    gpus = document([state])["gpus"]
    assert isinstance(gpus, list)
    return dict(gpus[0])


def device(state: GpuState) -> dict[str, Any]:
    gpus = document([state])["gpus"]
    assert isinstance(gpus, list)
    return dict(gpus[0])


def test_the_file_has_exactly_the_contracts_keys() -> None:
    whole = document([GpuState(0, gpu_uuid(0))])
    assert set(whole) == {"driver", "gpus"}
    assert set(settle(0.5)) == CONTRACT_KEYS


def test_uuids_name_the_engine_and_are_all_different() -> None:
    assert gpu_uuid(0) == "GPU-51a00000-0000-0000-0000-00000000000a"
    assert gpu_uuid(3).endswith("d")
    assert len({gpu_uuid(index) for index in range(26)}) == 26


@pytest.mark.parametrize("work", [0.0, 0.4, 0.9])
def test_utilisation_temperature_and_power_follow_the_work(work: float) -> None:
    gpu = settle(work)
    assert gpu["utilization_ratio"] == pytest.approx(work, abs=0.01)
    assert 30 <= gpu["temperature_celsius"] <= 75
    assert gpu["temperature_celsius"] == pytest.approx(36 + 35 * work, abs=1)
    assert 90 <= gpu["power_watts"] <= 620


def test_temperature_lags_behind_utilisation() -> None:
    state = GpuState(0, gpu_uuid(0))
    for tick in range(1, 5):
        state = advance(state, EngineReading(Phase.SERVING, 0.5 * tick, 0.0), 0.5)
    assert state.utilization_ratio > 0.8
    assert state.temperature_celsius < 45


@pytest.mark.parametrize(
    ("phase", "leaked", "low", "high"),
    [
        (Phase.SERVING, 0.0, PREALLOCATED_RATIO, PREALLOCATED_RATIO),
        (Phase.SERVING, 0.95, 0.98, 1.0),
        (Phase.LOADING, 0.0, 0.15, 0.3),
        (Phase.DOWN, 0.0, 0.0, 0.01),
    ],
)
def test_memory_is_preallocated_rises_with_a_leak_and_is_free_when_the_engine_is_gone(
    phase: Phase, leaked: float, low: float, high: float
) -> None:
    gpu = settle(0.3, phase=phase, leaked=leaked, seconds=2)
    assert low <= round(gpu["memory_used_bytes"] / MEMORY_TOTAL_BYTES, 6) <= high


def test_a_gpu_without_cooling_gets_hot_first_then_throttles_and_says_why() -> None:
    state = GpuState(0, gpu_uuid(0), temperature_celsius=50.0)
    usual = document([state])["gpus"]
    state = advance(state, EngineReading(Phase.SERVING, 0.5, 0.0, overheats=True), 4.0)
    assert state.temperature_celsius > 75, "hot before the clock falls"
    assert device(state)["throttle_reasons"] == []
    state = advance(state, EngineReading(Phase.SERVING, 1.0, 0.0, clock_ratio=0.2, overheats=True), 4.0)
    throttled = device(state)
    assert throttled["throttle_reasons"] == ["hw_thermal_slowdown"]
    assert throttled["sm_clock_hz"] == pytest.approx(0.2 * 1.98e9, rel=0.05)
    assert throttled["temperature_celsius"] > 85
    healed = device(advance(state, EngineReading(Phase.SERVING, 1.2, 0.0), 60.0))
    assert isinstance(usual, list)
    assert (healed["throttle_reasons"], healed["sm_clock_hz"]) == ([], pytest.approx(usual[0]["sm_clock_hz"], rel=0.07))
    assert healed["temperature_celsius"] < 75


def test_a_gpu_nobody_can_read_blocks_the_call_and_only_while_it_is_so() -> None:
    state = advance(GpuState(0, gpu_uuid(0)), EngineReading(Phase.SERVING, 0.1, 0.0, unreadable=True), 0.5)
    assert device(state)["hang_s"] >= 10
    assert device(advance(state, EngineReading(Phase.SERVING, 0.2, 0.0), 0.5))["hang_s"] == 0


def test_a_restarted_engine_counts_from_zero_and_utilisation_stays_in_range() -> None:
    state = advance(GpuState(0, gpu_uuid(0), active_s=500.0), EngineReading(Phase.SERVING, 0.2, 0.0), 0.5)
    assert 0.0 <= state.utilization_ratio <= 1.0
    assert state.active_s == 0.2


def test_the_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    for value in range(3):
        write_json(path, {"value": value})
    assert json.loads(path.read_text(encoding="utf-8")) == {"value": 2}
    assert list(tmp_path.iterdir()) == [path]
