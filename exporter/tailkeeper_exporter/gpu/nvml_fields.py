"""The table of NVML calls that make a sample: for each its fields, and how its answer becomes base units.

Pure apart from the calls themselves: no state, no clock. Errors are the library's and are left to ``nvml``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from tailkeeper_exporter.gpu.base import THROTTLE_REASONS
from tailkeeper_exporter.readings import Reading, absent, present


class Handle(Protocol):
    """NVML's opaque handle; only passed back to the library."""


Raw = tuple[float, ...]

_IDLE_BIT = 1
_THERMAL_SENSOR, _SM_CLOCK = 0, 1
_CORRECTED, _UNCORRECTED, _AGGREGATE = 0, 1, 1
_PCIE_TX, _PCIE_RX = 0, 1
_RETIREMENT_CAUSES = (0, 1)
_NVLINK_SPEED_COMMON_MBPS, _NVLINK_COUNT, _NVLINK_SENT_KIB, _NVLINK_RECEIVED_KIB = 90, 91, 138, 139
_ALL_LINKS = 0xFFFFFFFF
_UNSUPPORTED, _FUNCTION_NOT_FOUND = 3, 13
# Bytes per second and lane after encoding, by PCIe generation (PCI-SIG; generations 1 and 2 use 8b/10b, 3 to 5 128b/130b).
PCIE_LANE_BYTES_PER_S = {1: 250e6, 2: 500e6, 3: 984.6e6, 4: 1_969.2e6, 5: 3_938.5e6, 6: 7_563e6}


@dataclass(frozen=True, slots=True)
class Call:
    """One isolated call: ``read`` gives the ``fields`` in their order."""

    name: str
    fields: tuple[str, ...]
    read: Callable[[ModuleType, Handle], Raw]


def _utilization(nvml: ModuleType, handle: Handle) -> Raw:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _memory(nvml: ModuleType, handle: Handle) -> Raw:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return float(memory.total), float(memory.used)


def _temperature(nvml: ModuleType, handle: Handle) -> Raw:
    return (float(nvml.nvmlDeviceGetTemperature(handle, _THERMAL_SENSOR)),)


def _power(nvml: ModuleType, handle: Handle) -> Raw:
    return (nvml.nvmlDeviceGetPowerUsage(handle) / 1_000,)


def _sm_clock(nvml: ModuleType, handle: Handle) -> Raw:
    return (nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK) * 1e6,)


def _throttle(nvml: ModuleType, handle: Handle) -> Raw:
    return (float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),)


def _ecc_corrected(nvml: ModuleType, handle: Handle) -> Raw:
    return (float(nvml.nvmlDeviceGetTotalEccErrors(handle, _CORRECTED, _AGGREGATE)),)


def _ecc_uncorrected(nvml: ModuleType, handle: Handle) -> Raw:
    return (float(nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _AGGREGATE)),)


def _retired(nvml: ModuleType, handle: Handle) -> Raw:
    """Remapped rows (Ampere and later), or retired pages (before)."""
    try:
        corrected, uncorrected, _, _ = nvml.nvmlDeviceGetRemappedRows(handle)
        return (float(corrected + uncorrected),)
    except nvml.NVMLError as error:
        if error.value not in (_UNSUPPORTED, _FUNCTION_NOT_FOUND):
            raise
    return (float(sum(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in _RETIREMENT_CAUSES)),)


def _pcie(nvml: ModuleType, handle: Handle) -> Raw:
    """The busier direction's share of the link as it is trained now. NVML measures over 20 ms, in KB/s."""
    generation, width = nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle), nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)
    capacity = PCIE_LANE_BYTES_PER_S.get(generation, 0.0) * width
    if not capacity:
        raise nvml.NVMLError(_UNSUPPORTED)
    busier = max(nvml.nvmlDeviceGetPcieThroughput(handle, direction) for direction in (_PCIE_TX, _PCIE_RX))
    return (min(1.0, busier * 1_000 / capacity),)


def _nvlink(nvml: ModuleType, handle: Handle) -> Raw:
    """Bytes moved in the busier direction, and bytes per second that the links can move in one."""
    wanted = (_NVLINK_COUNT, _NVLINK_SPEED_COMMON_MBPS, (_NVLINK_SENT_KIB, _ALL_LINKS), (_NVLINK_RECEIVED_KIB, _ALL_LINKS))
    values = nvml.nvmlDeviceGetFieldValues(handle, list(wanted))
    for value in values:
        if value.nvmlReturn:
            raise nvml.NVMLError(value.nvmlReturn)
    links, speed_mbps = values[0].value.uiVal, values[1].value.uiVal
    if not links or not speed_mbps:
        raise nvml.NVMLError(_UNSUPPORTED)
    moved_kib = max(values[2].value.ullVal, values[3].value.ullVal)
    return float(moved_kib) * 1024, links * speed_mbps * 1e6


CALLS: tuple[Call, ...] = (
    Call("utilization", ("utilization_ratio", "memory_copy_utilization_ratio"), _utilization),
    Call("memory", ("memory_total_bytes", "memory_used_bytes"), _memory),
    Call("temperature", ("temperature_celsius",), _temperature),
    Call("power", ("power_watts",), _power),
    Call("sm_clock", ("sm_clock_hz",), _sm_clock),
    Call("throttle", ("_throttle_bits",), _throttle),
    Call("ecc_corrected", ("ecc_single_bit_total",), _ecc_corrected),
    Call("ecc_uncorrected", ("ecc_double_bit_total",), _ecc_uncorrected),
    Call("retired", ("retired_pages",), _retired),
    Call("pcie", ("pcie_utilization_ratio",), _pcie),
    Call("nvlink", ("_nvlink_bytes", "_nvlink_bytes_per_s"), _nvlink),
)


def throttle_names(bits: float) -> frozenset[str]:
    """Names of NVML's throttle bits; bits that have no name here are ``other``."""
    remaining = int(bits) & ~_IDLE_BIT
    names = set()
    for position, name in enumerate(THROTTLE_REASONS[:-1], start=1):
        if remaining & 1 << position:
            names.add(name)
            remaining &= ~(1 << position)
    return frozenset(names | {THROTTLE_REASONS[-1]} if remaining else names)


def link_rate_ratio(
    earlier: tuple[float, float] | None, later: tuple[float, float], capacity_bytes_per_s: float
) -> Reading[float]:
    """Share of a link's capacity used between two (bytes, monotonic seconds); ABSENT where the two say nothing."""
    if earlier is None or later[1] <= earlier[1] or later[0] < earlier[0]:
        return absent("needs two samples")
    rate = (later[0] - earlier[0]) / (later[1] - earlier[1])
    return present(min(1.0, rate / capacity_bytes_per_s), later[1])
