"""GPUs through NVIDIA's management library. Blocking calls behind ``GpuSource``; the library is loaded on first use.

Each call of a sample is isolated: one that fails costs its own fields. A call that the device does not support is
remembered and tried again after ``RETRY_RARELY_S``, because some drivers log a warning each time. Errors that mean that
the driver went away (an update) end the sample and start the library anew; a lost device does so only rarely, because a
new start disturbs the other devices.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from tailkeeper_exporter.gpu.base import (
    MAX_DEVICES,
    DeviceId,
    GpuError,
    GpuReason,
    GpuSample,
    XidEvent,
    memory_readings,
    reading_of,
    sample_of,
)
from tailkeeper_exporter.gpu.nvml_fields import CALLS, Handle, Raw, link_rate_ratio, throttle_names
from tailkeeper_exporter.readings import Reading, Status, absent, invalid, present

RETRY_RARELY_S = 600.0
RESTART_EVERY_S = 5.0
"""At most one new start of the library in this time: each one stops every device's calls for a moment."""
MAX_XID_EVENTS = 256
UNIFIED_MEMORY_NAMES = ("GB10",)
"""GPUs without memory of their own, for which the driver supports no memory query (field report B2)."""

# NVML's return codes, from nvml.h; they are part of its ABI.
_UNINITIALIZED, _NOT_SUPPORTED, _NO_PERMISSION, _DRIVER_NOT_LOADED, _TIMEOUT = 1, 3, 4, 9, 10
_LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND, _GPU_IS_LOST, _RESET_REQUIRED, _VERSION_MISMATCH = 12, 13, 15, 16, 18
_UNSUPPORTED = {_NOT_SUPPORTED: "not supported", _FUNCTION_NOT_FOUND: "not in this driver", _NO_PERMISSION: "not permitted"}
_DEVICE_LOST = frozenset({_GPU_IS_LOST, _RESET_REQUIRED})
_DRIVER_GONE = frozenset({_UNINITIALIZED, _DRIVER_NOT_LOADED, _VERSION_MISMATCH})
_XID_EVENT = 8


def load_pynvml() -> ModuleType:
    """The ``pynvml`` module of the package nvidia-ml-py. Raises GpuError where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise GpuError(GpuReason.LIBRARY_MISSING, "python package nvidia-ml-py: pip install 'tailkeeper[gpu]'") from error


def host_memory_bytes() -> tuple[float, float]:
    """Total and available memory of this host, from /proc/meminfo. Raises OSError where there is none."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        kibibytes = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)}
    return float(kibibytes["MemTotal"]) * 1024, float(kibibytes["MemAvailable"]) * 1024


@dataclass(slots=True)
class _Device:
    """What is remembered of one device. Only its own sampling thread touches it, and ``devices`` before there is one."""

    handle: Handle
    start: int
    mig_parent: bool
    retry_at_s: dict[str, float]
    xids: deque[XidEvent]
    event_set: Handle | None = None
    links: tuple[float, float] | None = None


class NvmlSource:
    """A ``GpuSource`` over NVML. With ``optional`` a host without the library or driver simply has no devices."""

    name = "nvml"

    def __init__(
        self,
        optional: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        load: Callable[[], ModuleType] = load_pynvml,
        host_memory: Callable[[], tuple[float, float]] = host_memory_bytes,
    ) -> None:
        self._optional = optional
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._load = load
        self._host_memory = host_memory
        self._lock = threading.Lock()
        self._nvml: ModuleType | None = None
        self._starts = 0
        self._tried_s: float | None = None
        self._failure: GpuError | None = None
        self._restart_due_s: float | None = None
        self._devices: dict[str, _Device] = {}

    def devices(self) -> tuple[DeviceId, ...]:
        try:
            nvml = self._library()
        except GpuError:
            if self._optional and not self._starts:
                return ()
            raise
        start = self._starts
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise self._device_error(error, "nvmlDeviceGetCount", start) from error
        return tuple(device for index in range(count) for device in self._listed(nvml, index, start))[:MAX_DEVICES]

    def sample(self, device: DeviceId) -> GpuSample:
        nvml = self._library()
        known = self._known(nvml, device)
        raw: dict[str, Reading[float]] = {}
        for call in CALLS:
            raw |= self._attempt(nvml, device, known, call.name, call.fields, call.read)
        taken_s = self._monotonic()
        memory = memory_readings(raw["memory_total_bytes"], raw["memory_used_bytes"], taken_s)
        kind = "dedicated"
        if not raw["memory_total_bytes"].is_present and any(name in device.name for name in UNIFIED_MEMORY_NAMES):
            memory, kind = self._unified_memory(taken_s), "unified"
        nvlink = self._nvlink(raw.pop("_nvlink_bytes"), raw.pop("_nvlink_bytes_per_s"), known, taken_s)
        throttle = raw.pop("_throttle_bits")
        numbers = raw | memory | {"nvlink_utilization_ratio": nvlink}
        return sample_of(numbers, throttle.map(throttle_names), self._xids(nvml, device, known), kind)

    def _library(self) -> ModuleType:
        """The started library; starts it anew where a call said that the driver went away."""
        with self._lock:
            now = self._monotonic()
            if self._nvml is not None and (self._restart_due_s is None or now < self._restart_due_s):
                return self._nvml
            if self._failure is not None and self._tried_s is not None and now - self._tried_s < RESTART_EVERY_S:
                raise self._failure
            self._tried_s = now
            try:
                self._nvml = self._start(self._nvml)
            except GpuError as error:
                self._failure = error
                raise
            self._failure = self._restart_due_s = None
            self._starts += 1
            return self._nvml

    def _start(self, running: ModuleType | None) -> ModuleType:
        nvml = running or self._load()
        try:
            if running is not None:
                self._shut_down(nvml)
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            reason = GpuReason.LIBRARY_MISSING if error.value == _LIBRARY_NOT_FOUND else GpuReason.DRIVER
            raise GpuError(reason, f"nvmlInit: {error}") from error
        return nvml

    @staticmethod
    def _shut_down(nvml: ModuleType) -> None:
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            # A driver that was unloaded has forgotten that the library was started; that is what is wanted.
            if error.value != _UNINITIALIZED:
                raise

    def _device_error(self, error: Exception, call: str, start: int) -> GpuError:
        """The error of a call on which all others depend, and a note to start the library anew where that helps.

        ``start`` is the start of the library under which the call was made: what failed because another thread was
        starting it anew is no reason for one more.
        """
        code = getattr(error, "value", None)
        if start == self._starts and code in _DRIVER_GONE:
            self._restart_due_s = self._monotonic()
        elif start == self._starts and code in _DEVICE_LOST and self._restart_due_s is None:
            self._restart_due_s = self._monotonic() + RETRY_RARELY_S
        reason = GpuReason.LOST if code in _DEVICE_LOST else GpuReason.DRIVER if code in _DRIVER_GONE else GpuReason.FAILED
        return GpuError(reason, f"{call}: {error}")

    def _listed(self, nvml: ModuleType, index: int, start: int) -> Iterator[DeviceId]:
        """The device of that index and its MIG instances. A device that cannot be named now is left out, not guessed."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            parent = DeviceId(index, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError as error:
            self._device_error(error, "nvmlDeviceGetHandleByIndex", start)
            return
        yield parent
        for instance in range(self._mig_places(nvml, handle)):
            # Most of the places for an instance are empty, and the driver says so with an error.
            with contextlib.suppress(nvml.NVMLError):
                child = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, instance)
                yield DeviceId(None, nvml.nvmlDeviceGetUUID(child), nvml.nvmlDeviceGetName(child), parent.uuid)

    @staticmethod
    def _mig_places(nvml: ModuleType, handle: Handle) -> int:
        """For how many MIG instances there is room; 0 where MIG is off or unknown."""
        try:
            return int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) if nvml.nvmlDeviceGetMigMode(handle)[0] else 0
        except nvml.NVMLError:
            return 0

    def _known(self, nvml: ModuleType, device: DeviceId) -> _Device:
        """The device's handle, got again after each start of the library: old handles are void."""
        known = self._devices.get(device.uuid)
        if known is not None and known.start == self._starts:
            return known
        start = self._starts
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        except nvml.NVMLError as error:
            failure = self._device_error(error, f"nvmlDeviceGetHandleByUUID {device.uuid}", start)
            raise GpuError(GpuReason.DRIVER if failure.reason is GpuReason.DRIVER else GpuReason.LOST, failure.detail) from error
        mig_parent = device.parent_uuid is None and self._mig_places(nvml, handle) > 0
        xids: deque[XidEvent] = deque(maxlen=MAX_XID_EVENTS) if known is None else known.xids
        fresh = _Device(handle, start, mig_parent, {} if known is None else known.retry_at_s, xids)
        self._devices[device.uuid] = fresh
        return fresh

    def _attempt(
        self,
        nvml: ModuleType,
        device: DeviceId,
        known: _Device,
        call: str,
        fields: tuple[str, ...],
        read: Callable[[ModuleType, Handle], Raw],
    ) -> dict[str, Reading[float]]:
        """Readings of one call's fields, whatever becomes of the call. Raises GpuError where the device is gone."""
        if known.mig_parent and call == "utilization":
            # The driver, or a tool in front of it, has been seen to say 0 here (field report B1).
            return dict.fromkeys(fields, absent("not known while MIG is on"))
        now = self._monotonic()
        if now < known.retry_at_s.get(call, 0.0):
            return dict.fromkeys(fields, absent("not supported"))
        try:
            values = read(nvml, known.handle)
        except nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in _DRIVER_GONE | _DEVICE_LOST:
                raise self._device_error(error, f"{device.uuid} {call}", known.start) from error
            if code not in _UNSUPPORTED:
                return dict.fromkeys(fields, invalid(f"{call}: {error}", now))
            known.retry_at_s[call] = now + RETRY_RARELY_S
            return dict.fromkeys(fields, absent(_UNSUPPORTED[code]))
        known.retry_at_s.pop(call, None)
        taken_s = self._monotonic()
        return {name: _reading(name, value, taken_s) for name, value in zip(fields, values, strict=True)}

    def _unified_memory(self, taken_s: float) -> dict[str, Reading[float]]:
        try:
            total, available = self._host_memory()
        except (OSError, KeyError, ValueError) as error:
            unknown = invalid(f"/proc/meminfo: {error}", taken_s)
            return memory_readings(unknown, unknown, taken_s)
        total_reading = reading_of("memory_total_bytes", total, taken_s)
        return memory_readings(total_reading, reading_of("memory_used_bytes", total - available, taken_s), taken_s)

    def _nvlink(self, moved: Reading[float], capacity: Reading[float], known: _Device, taken_s: float) -> Reading[float]:
        """NVLink use from two counts of bytes; ABSENT on the first sample, for want of an earlier count."""
        if moved.value is None or capacity.value is None:
            return absent("not supported") if moved.status is Status.ABSENT else invalid(moved.reason or "unknown", taken_s)
        earlier, known.links = known.links, (moved.value, taken_s)
        return link_rate_ratio(earlier, known.links, capacity.value)

    def _xids(self, nvml: ModuleType, device: DeviceId, known: _Device) -> Reading[tuple[XidEvent, ...]]:
        """XID events since the library was started, oldest first; drains what has come since the last sample."""
        now = self._monotonic()
        if device.parent_uuid is not None or now < known.retry_at_s.get("xid", 0.0):
            return Reading(Status.ABSENT, reason="not supported")
        try:
            if known.event_set is None:
                event_set = nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(known.handle, _XID_EVENT, event_set)
                known.event_set = event_set
            for _ in range(MAX_XID_EVENTS):
                event = nvml.nvmlEventSetWait_v2(known.event_set, 0)
                known.xids.append(XidEvent(int(event.eventData), self._wall_clock()))
        except nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in _UNSUPPORTED:
                known.retry_at_s["xid"] = now + RETRY_RARELY_S
                return Reading(Status.ABSENT, reason=_UNSUPPORTED[code])
            if code != _TIMEOUT:
                return Reading(Status.INVALID, None, now, f"xid events: {error}")
        return present(tuple(known.xids), now)


def _reading(name: str, value: float, taken_s: float) -> Reading[float]:
    # Names with an underscore in front are intermediate figures, not fields of a sample.
    return present(value, taken_s) if name.startswith("_") else reading_of(name, value, taken_s)
