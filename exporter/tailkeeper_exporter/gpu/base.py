"""What a GPU source is: devices, and one sample of one device at a time. Pure types and rules; no driver, no file.

Every field of a sample is a ``Reading``: ABSENT where the device or driver does not support it, INVALID where it gave
something impossible. A field that cannot be read never costs the others, and nothing here is 0 for want of a value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.readings import Reading, Status, absent, invalid, present

MAX_DEVICES = catalog.GPU.bound
MAX_REASON_CHARS = 40
THROTTLE_REASONS = (
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "other",
)
"""NVML's names, in the order of its bits. Its ``gpu_idle`` is left out: an idle GPU's clocks are not held back."""


class GpuReason(StrEnum):
    """Why a device, or a whole source, gave nothing."""

    LIBRARY_MISSING = "library_missing"
    DRIVER = "driver"
    FILE_MISSING = "file_missing"
    FILE_INVALID = "file_invalid"
    UNREACHABLE = "unreachable"
    PAGE_INVALID = "page_invalid"
    LOST = "lost"
    TIMEOUT = "timeout"
    FAILED = "failed"
    UNKNOWN_DEVICE = "unknown_device"
    AMBIGUOUS = "ambiguous"


class GpuError(Exception):
    """A call that gave no sample. ``reason`` is bounded, ``detail`` says where and what to do."""

    def __init__(self, reason: GpuReason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class DeviceId:
    """A GPU or MIG instance. ``index`` is the driver's; MIG instances have none. ``parent_uuid`` is theirs only."""

    index: int | None
    uuid: str
    name: str
    parent_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One XID as the driver reported it; ``at_unix_s`` is wall-clock time."""

    xid: int
    at_unix_s: float


NOT_OFFERED: Reading[float] = absent()
NO_REASONS: Reading[frozenset[str]] = Reading(Status.ABSENT, reason="not offered")
NO_EVENTS: Reading[tuple[XidEvent, ...]] = Reading(Status.ABSENT, reason="not offered")


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One device at one moment. ``xid_events`` are all that the source still knows, not only new ones.

    ``memory_kind`` is ``unified`` where the GPU shares the host's memory and the figures are the host's.
    """

    utilization_ratio: Reading[float] = NOT_OFFERED
    memory_total_bytes: Reading[float] = NOT_OFFERED
    memory_used_bytes: Reading[float] = NOT_OFFERED
    memory_free_bytes: Reading[float] = NOT_OFFERED
    memory_copy_utilization_ratio: Reading[float] = NOT_OFFERED
    memory_fragmentation_ratio: Reading[float] = NOT_OFFERED
    temperature_celsius: Reading[float] = NOT_OFFERED
    power_watts: Reading[float] = NOT_OFFERED
    sm_clock_hz: Reading[float] = NOT_OFFERED
    retired_pages: Reading[float] = NOT_OFFERED
    pcie_utilization_ratio: Reading[float] = NOT_OFFERED
    nvlink_utilization_ratio: Reading[float] = NOT_OFFERED
    ecc_single_bit_total: Reading[float] = NOT_OFFERED
    ecc_double_bit_total: Reading[float] = NOT_OFFERED
    throttle_reasons: Reading[frozenset[str]] = NO_REASONS
    xid_events: Reading[tuple[XidEvent, ...]] = NO_EVENTS
    memory_kind: str = "dedicated"

    def number(self, name: str) -> Reading[float]:
        """The numeric field of that name (``FIELDS``)."""
        reading: Reading[float] = getattr(self, FIELD_NAMED[name].name)
        return reading

    def invalid_fields(self) -> int:
        """How many fields the source gave and no device can have."""
        readings: tuple[Reading[Any], ...] = (
            *(self.number(field.name) for field in FIELDS),
            self.throttle_reasons,
            self.xid_events,
        )
        return sum(reading.status is Status.INVALID for reading in readings)


@dataclass(frozen=True, slots=True)
class Field:
    """A numeric field of a sample, its catalogue metric, and the values that it can have in base units."""

    name: str
    metric: Metric
    low: float
    high: float
    labels: Mapping[str, str] | None = None


# Upper limits are far above any device there is: they are for units gone wrong, a percentage or milliwatts.
FIELDS: tuple[Field, ...] = (
    Field("utilization_ratio", catalog.GPU_UTILIZATION, 0, 1),
    Field("memory_total_bytes", catalog.GPU_MEMORY_TOTAL, 1, 1e15),
    Field("memory_used_bytes", catalog.GPU_MEMORY_USED, 0, 1e15),
    Field("memory_free_bytes", catalog.GPU_MEMORY_FREE, 0, 1e15),
    Field("memory_copy_utilization_ratio", catalog.GPU_MEMORY_COPY, 0, 1),
    Field("memory_fragmentation_ratio", catalog.GPU_FRAGMENTATION, 0, 1),
    Field("temperature_celsius", catalog.GPU_TEMPERATURE, -60, 200),
    Field("power_watts", catalog.GPU_POWER, 0, 20_000),
    Field("sm_clock_hz", catalog.GPU_SM_CLOCK, 0, 1e11),
    Field("retired_pages", catalog.GPU_RETIRED_PAGES, 0, 1e9),
    Field("pcie_utilization_ratio", catalog.GPU_PCIE, 0, 1),
    Field("nvlink_utilization_ratio", catalog.GPU_NVLINK, 0, 1),
    Field("ecc_single_bit_total", catalog.GPU_ECC_ERRORS, 0, 1e18, {"kind": "single_bit"}),
    Field("ecc_double_bit_total", catalog.GPU_ECC_ERRORS, 0, 1e18, {"kind": "double_bit"}),
)
FIELD_NAMED: Mapping[str, Field] = {field.name: field for field in FIELDS}


class GpuSource(Protocol):
    """Where samples come from. Calls block, possibly for ever; a source is called for several devices at once."""

    @property
    def name(self) -> str:
        """What the source is, for logs and health."""
        ...

    def devices(self) -> tuple[DeviceId, ...]:
        """The devices there are now, at most ``MAX_DEVICES``. Raises GpuError where that cannot be said."""
        ...

    def sample(self, device: DeviceId) -> GpuSample:
        """One sample of one device. Raises GpuError where the device as a whole gave nothing."""
        ...


def reading_of(name: str, value: object, taken_s: float) -> Reading[float]:
    """The reading of one numeric field: INVALID for what is not a number, or not one that the field can have."""
    field = FIELD_NAMED[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return invalid(f"{name} is {type(value).__name__}, not a number", taken_s)
    # An integer too long for a float is as impossible as an infinite one.
    number = math.inf if isinstance(value, int) and abs(value) > 1e300 else float(value)
    if not field.low <= number <= field.high:
        return invalid(f"{name} is {number:g}, outside {field.low:g} to {field.high:g}", taken_s)
    return present(number, taken_s)


def sample_of(
    numbers: Mapping[str, Reading[float]],
    throttle_reasons: Reading[frozenset[str]] = NO_REASONS,
    xid_events: Reading[tuple[XidEvent, ...]] = NO_EVENTS,
    memory_kind: str = "dedicated",
) -> GpuSample:
    """A sample from readings by field name; fields not named are ABSENT."""

    def of(name: str) -> Reading[float]:
        return numbers.get(name, NOT_OFFERED)

    return GpuSample(
        utilization_ratio=of("utilization_ratio"),
        memory_total_bytes=of("memory_total_bytes"),
        memory_used_bytes=of("memory_used_bytes"),
        memory_free_bytes=of("memory_free_bytes"),
        memory_copy_utilization_ratio=of("memory_copy_utilization_ratio"),
        memory_fragmentation_ratio=of("memory_fragmentation_ratio"),
        temperature_celsius=of("temperature_celsius"),
        power_watts=of("power_watts"),
        sm_clock_hz=of("sm_clock_hz"),
        retired_pages=of("retired_pages"),
        pcie_utilization_ratio=of("pcie_utilization_ratio"),
        nvlink_utilization_ratio=of("nvlink_utilization_ratio"),
        ecc_single_bit_total=of("ecc_single_bit_total"),
        ecc_double_bit_total=of("ecc_double_bit_total"),
        throttle_reasons=throttle_reasons,
        xid_events=xid_events,
        memory_kind=memory_kind,
    )


def memory_readings(total: Reading[float], used: Reading[float], taken_s: float) -> dict[str, Reading[float]]:
    """Total, used and free memory as they can be together: free is known where both others are, and never negative."""
    if total.value is not None and used.value is not None and used.value > total.value:
        used = invalid("more memory used than installed", taken_s)
    if total.value is None or used.value is None:
        free = absent("needs total and used memory")
    else:
        free = present(total.value - used.value, taken_s)
    return {"memory_total_bytes": total, "memory_used_bytes": used, "memory_free_bytes": free}


@dataclass(frozen=True, slots=True)
class Matched:
    """A backend's configured GPUs as devices, in the order given, and what could not be matched and why."""

    devices: tuple[DeviceId, ...]
    problems: tuple[tuple[str, GpuReason], ...] = ()


def match_devices(known: tuple[DeviceId, ...], configured: tuple[str, ...]) -> Matched:
    """Find configured GPUs by index, UUID or unique UUID prefix. Never falls back to another device."""
    found: dict[str, DeviceId] = {}
    problems: list[tuple[str, GpuReason]] = []
    for text in configured:
        candidates = _candidates(known, text.strip())
        if len(candidates) == 1:
            found.setdefault(candidates[0].uuid, candidates[0])
        else:
            problems.append((text, GpuReason.AMBIGUOUS if candidates else GpuReason.UNKNOWN_DEVICE))
    return Matched(tuple(found.values()), tuple(problems))


def _candidates(known: tuple[DeviceId, ...], text: str) -> list[DeviceId]:
    if text.isascii() and text.isdigit():
        return [device for device in known if device.index == int(text)]
    wanted = text.casefold()
    exact = [device for device in known if device.uuid.casefold() == wanted]
    return exact or [device for device in known if wanted and device.uuid.casefold().startswith(wanted)]
