"""What dcgm-exporter's page says of each GPU and MIG instance: names, units and blank values. Pure; no fetch, no clock.

Field names and units are those of dcgm-exporter's ``etc/default-counters.csv`` and ``etc/dcp-metrics-included.csv`` and of
DCGM's ``dcgm_fields.h``; labels are those of its ``internal/pkg/rendermetrics/render_metrics.go`` (``UUID``, in the old
namespace ``uuid``; ``gpu``, ``modelName``, and for MIG ``GPU_I_ID`` and ``GPU_I_PROFILE``). Which fields are on a page is
the choice of whoever runs dcgm-exporter, so every field may be missing.

MIG: DCGM does not know an instance's own UUID (dcgm-exporter issue 171), its page then has no series of the GPU itself (561),
and what belongs to the whole GPU stands there once per instance (power: 257; clocks: 50). So an instance is called
``MIG-<UUID of the GPU>/<GPU_I_ID>`` here, and what belongs to the whole GPU is told of the GPU. ``GPU_UTIL`` is 0 or missing
under MIG (216, 105, 430); its maintainers point to ``GR_ENGINE_ACTIVE`` instead, and without that utilisation is ABSENT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.gpu.base import (
    MAX_DEVICES,
    DeviceId,
    GpuSample,
    XidEvent,
    memory_readings,
    reading_of,
    sample_of,
)
from tailkeeper_exporter.gpu.nvml_fields import PCIE_LANE_BYTES_PER_S, throttle_names
from tailkeeper_exporter.page import Page
from tailkeeper_exporter.readings import Reading, Status, absent, invalid, present

MAX_UUID_CHARS = 96
MAX_NAME_CHARS = 96
_MIB = 1024.0 * 1024.0

GPU_UTIL, MEM_COPY_UTIL = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"
GR_ENGINE_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
FB_TOTAL, FB_FREE = "DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FB_FREE"
FB_USED, FB_RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED"
GPU_TEMP, SM_CLOCK, POWER = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"
THROTTLE = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
"""New name and old; a bit mask, one to one that of NVML (``dcgm_fields.h``)."""
XID = "DCGM_FI_DEV_XID_ERRORS"
# Lifetime counts first, as the NVML source gives them; counts since the driver was loaded where only they are there.
ECC_SINGLE = ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")
ECC_DOUBLE = ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")
REMAPPED = ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS")
RETIRED = ("DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE")
PCIE = ("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES")
PCIE_GENERATION, PCIE_WIDTH = "DCGM_FI_DEV_PCIE_LINK_GEN", "DCGM_FI_DEV_PCIE_LINK_WIDTH"

_OF_INSTANCES = (GPU_UTIL, MEM_COPY_UTIL, GR_ENGINE_ACTIVE, FB_TOTAL, FB_FREE, FB_USED, FB_RESERVED)
_OF_BOTH = (GPU_TEMP, SM_CLOCK, *THROTTLE)
_OF_GPUS = (POWER, XID, *ECC_SINGLE, *ECC_DOUBLE, *REMAPPED, *RETIRED, *PCIE, PCIE_GENERATION, PCIE_WIDTH)
_INHERITED = frozenset(_OF_BOTH + _OF_GPUS)
_NAMES = _OF_INSTANCES + _OF_BOTH + _OF_GPUS
_CANONICAL = {name.lower(): name for name in _NAMES}
WANTED: Mapping[str, Kind] = {spelling: Kind.GAUGE for name in _NAMES for spelling in (name, name.lower())}
"""For ``PageParser``. Counters are read as gauges: what is negative is judged by each field's own range."""

# dcgm_structs.h: DCGM_INT32_BLANK, DCGM_INT64_BLANK and DCGM_FP64_BLANK are the first of sixteen values that say why there is
# none; a page's numbers are doubles, in which all sixteen of the 64-bit ones are 2 to the 63rd.
_INT32_BLANK, _INT64_BLANK, _FP64_BLANK = 0x7FFFFFF0, float(0x7FFFFFFFFFFFFFF0), 140_737_488_355_328.0
_BLANKS = {0: "blank", 1: "not found", 2: "not supported", 3: "not permitted"}


@dataclass(slots=True)
class Entity:
    """A GPU or MIG instance on one page: readings by DCGM's field name, in DCGM's units.

    ``inherited`` are readings of the whole GPU that stood on the page with an instance's labels. ``split`` is true for a
    GPU that has instances.
    """

    device: DeviceId
    own: dict[str, Reading[float]] = field(default_factory=dict)
    inherited: dict[str, Reading[float]] = field(default_factory=dict)
    split: bool = False

    @property
    def is_instance(self) -> bool:
        return self.device.parent_uuid is not None

    def get(self, name: str) -> Reading[float]:
        """The reading of that field; ABSENT where the page does not have it."""
        found = self.own.get(name) or self.inherited.get(name)
        return absent("not on the page") if found is None else found

    def first(self, names: tuple[str, ...]) -> Reading[float]:
        """The first of several names of one thing that has a value; else the reason of one that is on the page."""
        readings = [self.get(name) for name in names if name in self.own or name in self.inherited]
        valued = [reading for reading in readings if reading.status is not Status.ABSENT]
        return next(iter(valued + readings), absent("not on the page"))

    def take(self, name: str, reading: Reading[float]) -> None:
        """Add a reading. The same one again (one per pod that shares the GPU) is nothing new, another one a contradiction."""
        earlier = self.own.setdefault(name, reading)
        if earlier.status is Status.PRESENT and (earlier.value, earlier.status) != (reading.value, reading.status):
            self.own[name] = invalid("told twice, with different values", reading.taken_s)


def entities_of(page: Page, taken_s: float) -> dict[str, Entity]:
    """The GPUs and MIG instances of a page by UUID, at most ``MAX_DEVICES``. Series without a usable identity are left out."""
    found: dict[str, Entity] = {}
    readings = [(key, _raw(value, taken_s)) for key, value in page.samples]
    readings += [(key, invalid(reason.value, taken_s)) for key, reason in page.dropped]
    for key, reading in readings:
        labels = dict(key.labels)
        gpu = _gpu(found, labels)
        if gpu is None:
            continue
        name = _CANONICAL[key.name.lower()]
        instance_id = labels.get("GPU_I_ID", "")
        if not instance_id:
            gpu.take(name, reading)
            continue
        gpu.split = True
        if name in _INHERITED:
            gpu.inherited.setdefault(name, reading)
        instance = _instance(found, gpu, instance_id, labels)
        if instance is not None:
            instance.take(name, reading)
    return found


def _gpu(found: dict[str, Entity], labels: Mapping[str, str]) -> Entity | None:
    uuid = labels.get("UUID") or labels.get("uuid") or ""
    if not 0 < len(uuid) <= MAX_UUID_CHARS:
        return None
    name = labels.get("modelName", "unknown")[:MAX_NAME_CHARS]
    return _entity(found, DeviceId(_number(labels.get("gpu", "")), uuid, name))


def _instance(found: dict[str, Entity], gpu: Entity, instance_id: str, labels: Mapping[str, str]) -> Entity | None:
    number = _number(instance_id)
    if number is None:
        return None
    profile = labels.get("GPU_I_PROFILE", "")
    name = f"{gpu.device.name} MIG {profile}".strip()[:MAX_NAME_CHARS]
    return _entity(found, DeviceId(None, f"MIG-{gpu.device.uuid}/{number}", name, gpu.device.uuid))


def _entity(found: dict[str, Entity], device: DeviceId) -> Entity | None:
    if device.uuid not in found:
        if len(found) >= MAX_DEVICES:
            return None
        found[device.uuid] = Entity(device)
    return found[device.uuid]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None


def _raw(value: float, taken_s: float) -> Reading[float]:
    """The value as DCGM meant it: ABSENT with the reason where it is one of its blank values."""
    for base in (float(_INT32_BLANK), _FP64_BLANK):
        if 0 <= value - base <= 15:
            return absent(_BLANKS.get(int(value - base), "blank"))
    return absent("blank") if value == _INT64_BLANK else present(value, taken_s)


def sample_from(entity: Entity, xid_events: Reading[tuple[XidEvent, ...]], taken_s: float) -> GpuSample:
    """The entity's sample in base units.

    NVLink is ABSENT: the page has bytes, and never what the links could carry.
    """
    numbers = _memory(entity, taken_s) | {
        "utilization_ratio": _utilization(entity, taken_s),
        "memory_copy_utilization_ratio": _scaled("memory_copy_utilization_ratio", _device_ratio(entity, MEM_COPY_UTIL), taken_s),
        "temperature_celsius": _scaled("temperature_celsius", entity.get(GPU_TEMP), taken_s),
        "sm_clock_hz": _scaled("sm_clock_hz", entity.get(SM_CLOCK), taken_s, 1e6),
        "nvlink_utilization_ratio": absent("the page does not say what the links can carry"),
    }
    if not entity.is_instance:
        numbers |= {
            "power_watts": _scaled("power_watts", entity.get(POWER), taken_s),
            "ecc_single_bit_total": _scaled("ecc_single_bit_total", entity.first(ECC_SINGLE), taken_s),
            "ecc_double_bit_total": _scaled("ecc_double_bit_total", entity.first(ECC_DOUBLE), taken_s),
            "retired_pages": _retired(entity, taken_s),
            "pcie_utilization_ratio": _pcie(entity, taken_s),
        }
    return sample_of(numbers, _throttle(entity, taken_s), xid_events)


def _scaled(name: str, raw: Reading[float], taken_s: float, factor: float = 1.0) -> Reading[float]:
    return raw if raw.value is None else reading_of(name, raw.value * factor, taken_s)


def _device_ratio(entity: Entity, name: str) -> Reading[float]:
    """A percentage that the driver has for GPUs that are not split only, as a ratio."""
    if entity.is_instance or entity.split:
        return absent("not supported under MIG")
    return entity.get(name).map(lambda percent: percent / 100)


def _utilization(entity: Entity, taken_s: float) -> Reading[float]:
    percent = _device_ratio(entity, GPU_UTIL)
    engine = entity.get(GR_ENGINE_ACTIVE)
    known = percent if percent.status is not Status.ABSENT or engine.status is Status.ABSENT else engine
    return _scaled("utilization_ratio", known, taken_s)


def _memory(entity: Entity, taken_s: float) -> dict[str, Reading[float]]:
    """Free as the page has it; total as the page has it, else used, free and (where it is there) reserved together."""
    used = _scaled("memory_used_bytes", entity.get(FB_USED), taken_s, _MIB)
    free = _scaled("memory_free_bytes", entity.get(FB_FREE), taken_s, _MIB)
    total = _scaled("memory_total_bytes", entity.get(FB_TOTAL), taken_s, _MIB)
    if used.value is None or free.value is None:
        return memory_readings(total, used, taken_s) if free.status is Status.ABSENT else _three(total, used, free)
    if total.status is Status.ABSENT:
        reserved = _scaled("memory_used_bytes", entity.get(FB_RESERVED), taken_s, _MIB)
        # A driver that reserves none has no such field; one that cannot be read leaves the total unknown.
        parts = used.value + free.value + (reserved.value or 0.0)
        total = reserved if reserved.status is Status.INVALID else reading_of("memory_total_bytes", parts, taken_s)
    if total.value is not None and used.value + free.value > total.value:
        contradiction = invalid("more memory used and free than installed", taken_s)
        return _three(total, contradiction, contradiction)
    return _three(total, used, free)


def _three(total: Reading[float], used: Reading[float], free: Reading[float]) -> dict[str, Reading[float]]:
    return {"memory_total_bytes": total, "memory_used_bytes": used, "memory_free_bytes": free}


def _retired(entity: Entity, taken_s: float) -> Reading[float]:
    """Remapped rows (Ampere and later), or retired pages (before). Half of a sum is no sum."""
    reason = absent("not on the page")
    for names in (REMAPPED, RETIRED):
        parts = [_scaled("retired_pages", entity.get(name), taken_s) for name in names]
        known = [part.value for part in parts if part.value is not None]
        if len(known) == len(parts):
            return reading_of("retired_pages", sum(known), taken_s)
        reason = next((part for part in parts if part.status is Status.INVALID), reason)
    return reason


def _pcie(entity: Entity, taken_s: float) -> Reading[float]:
    """The busier direction's share, where the page has both rates (bytes per second) and the link as it is trained now."""
    generation, width = entity.get(PCIE_GENERATION).value, entity.get(PCIE_WIDTH).value
    rates = [entity.get(name).value for name in PCIE]
    known = [rate for rate in rates if rate is not None]
    if generation is None or width is None or len(known) != len(rates):
        return absent("needs both rates, link generation and width on the page")
    capacity = PCIE_LANE_BYTES_PER_S.get(int(generation), 0.0) * width if 1 <= generation <= 16 and 1 <= width <= 32 else 0.0
    if not capacity:
        return invalid(f"PCIe generation {generation:g}, {width:g} lanes", taken_s)
    return reading_of("pcie_utilization_ratio", min(1.0, max(known) / capacity), taken_s)


def _throttle(entity: Entity, taken_s: float) -> Reading[frozenset[str]]:
    bits = entity.first(THROTTLE)
    if bits.value is None:
        return Reading(bits.status, None, bits.taken_s, bits.reason)
    if not 0 <= bits.value < _FP64_BLANK or bits.value % 1:
        return Reading(Status.INVALID, None, taken_s, f"throttle reasons are {bits.value:g}, not a bit mask")
    return present(throttle_names(bits.value), taken_s)
