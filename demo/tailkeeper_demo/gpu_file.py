"""The GPUs under a simulated fleet, as the document an exporter reads with `exporter.gpu.source: file`.

Pure: last state, what the engine did since, seconds passed → next state → document; the fleet writes it. Utilisation follows
the batch; memory is pre-allocated as vLLM does it and rises above that only when something leaks; temperature and power follow
utilisation with a lag. A GPU whose cooling fails heats up beyond that and loses its clock; one that is `unreadable` blocks every
call.
Data flows `EngineReading` → `GpuState` → document.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tailkeeper_demo.engine_server import EngineReading, Phase

MEMORY_TOTAL_BYTES = 80 * 1024**3
PREALLOCATED_RATIO = 0.90
"""vLLM's own default at the time its memory behaviour was written down."""
_WEIGHTS_RATIO = 0.20
"""An 8B model in 16 bit on 80 GiB: what is there while an engine loads, before the KV pool is allocated."""
_CONTEXT_RATIO = 0.005
"""What an idle driver keeps for itself."""
_LEAK_RATIO = 0.095
"""Above the pre-allocated share, the leak takes memory use to between 99.0 and 99.4 %."""
_IDLE_CELSIUS, _FULL_CELSIUS, _HEAT_LAG_S = 36.0, 71.0, 15.0
_IDLE_WATTS, _FULL_WATTS = 95.0, 620.0
_UTILIZATION_LAG_S = 1.0
"""NVML averages over its sample period; this also smooths iterations longer than a sample."""
_MAX_CLOCK_HZ, _CLOCK_DROP = 1.98e9, 0.06
"""Clocks fall a little as power rises."""
_HOT_CELSIUS, _HOT_LAG_S = 93.0, 3.0
"""Without cooling: as hot as a data-centre GPU gets before it shuts down, and there within seconds."""
_THROTTLE_REASON = "hw_thermal_slowdown"
_BLOCKED_S = 30.0
"""How long a call to an unreadable device blocks: longer than anybody waits."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One simulated device."""

    index: int
    uuid: str
    utilization_ratio: float = 0.0
    memory_used_ratio: float = _CONTEXT_RATIO
    temperature_celsius: float = _IDLE_CELSIUS
    active_s: float = 0.0
    """The reading this state was made from; the next one's difference to it is the work done in between."""
    clock_ratio: float = 1.0
    unreadable: bool = False


def gpu_uuid(index: int) -> str:
    """UUID of the GPU of engine number `index`; for the first six engines its last digit is the engine's letter."""
    return f"GPU-51a00000-0000-0000-0000-{index + 10:012x}"


def advance(state: GpuState, reading: EngineReading, elapsed_s: float) -> GpuState:
    """The device `elapsed_s` seconds later."""
    work_s = reading.gpu_active_s - state.active_s
    if work_s < 0:
        work_s = reading.gpu_active_s  # The engine restarted and counts from zero.
    utilization = _lag(state.utilization_ratio, min(1.0, work_s / elapsed_s), elapsed_s, _UTILIZATION_LAG_S)
    target, lag_s = _IDLE_CELSIUS + (_FULL_CELSIUS - _IDLE_CELSIUS) * utilization, _HEAT_LAG_S
    if reading.overheats:
        target, lag_s = _HOT_CELSIUS, _HOT_LAG_S
    return replace(
        state,
        utilization_ratio=utilization,
        memory_used_ratio=_memory_used_ratio(reading),
        temperature_celsius=_lag(state.temperature_celsius, target, elapsed_s, lag_s),
        active_s=reading.gpu_active_s,
        clock_ratio=reading.clock_ratio,
        unreadable=reading.unreadable,
    )


def _lag(value: float, target: float, elapsed_s: float, lag_s: float) -> float:
    return target + (value - target) * math.exp(-elapsed_s / lag_s)


def _memory_used_ratio(reading: EngineReading) -> float:
    if reading.phase is Phase.DOWN:
        return _CONTEXT_RATIO
    if reading.phase is Phase.LOADING:
        return _WEIGHTS_RATIO
    return PREALLOCATED_RATIO + _LEAK_RATIO * min(1.0, reading.leaked_ratio)


def document(states: list[GpuState]) -> dict[str, object]:
    """The whole file, in the shape of the public contract."""
    return {"driver": "550.54", "gpus": [_device(state) for state in states]}


def _device(state: GpuState) -> dict[str, object]:
    load = state.utilization_ratio
    return {
        "index": state.index,
        "uuid": state.uuid,
        "name": "Simulated 80GB",
        "utilization_ratio": round(load, 4),
        "memory_total_bytes": MEMORY_TOTAL_BYTES,
        "memory_used_bytes": int(MEMORY_TOTAL_BYTES * state.memory_used_ratio),
        "memory_copy_utilization_ratio": round(0.6 * load, 4),
        "temperature_celsius": round(state.temperature_celsius),
        "power_watts": round(_IDLE_WATTS + (_FULL_WATTS - _IDLE_WATTS) * load * state.clock_ratio, 1),
        "sm_clock_hz": round(_MAX_CLOCK_HZ * (1 - _CLOCK_DROP * load) * state.clock_ratio),
        "throttle_reasons": [_THROTTLE_REASON] if state.clock_ratio < 1 else [],
        "ecc_single_bit_total": 0,
        "ecc_double_bit_total": 0,
        "retired_pages": 0,
        "xid_events": [],
        "hang_s": _BLOCKED_S if state.unreadable else 0,
    }
