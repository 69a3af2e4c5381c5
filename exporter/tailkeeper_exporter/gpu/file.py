"""GPUs from a JSON file, for simulated fleets and tests. The file is read anew for each sample.

``null`` is a field that the device does not support, a wrong type or an impossible number is INVALID, a device missing
from the file is lost, and ``hang_s`` makes the call block as a driver does, for as long as the file says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tailkeeper_exporter.gpu.base import (
    FIELDS,
    MAX_DEVICES,
    MAX_REASON_CHARS,
    DeviceId,
    GpuError,
    GpuReason,
    GpuSample,
    XidEvent,
    memory_readings,
    reading_of,
    sample_of,
)
from tailkeeper_exporter.readings import Reading, Status, absent, present

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_XID_EVENTS = 1_024
MAX_THROTTLE_REASONS = 12
_HANG_SLICE_S = 0.1
"""How often a hanging call looks whether the file has let go of it."""

Entry = dict[str, object]


class FileSource:
    """A ``GpuSource`` over one file."""

    name = "file"

    def __init__(
        self, path: Path, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path = path
        self._monotonic = monotonic
        self._sleep = sleep

    def devices(self) -> tuple[DeviceId, ...]:
        """The devices in the file; entries without a usable index or UUID are left out, of equal UUIDs the first counts."""
        found: dict[str, DeviceId] = {}
        for entry in self._entries():
            device = _device(entry)
            if device is not None:
                found.setdefault(device.uuid, device)
        return tuple(found.values())[:MAX_DEVICES]

    def sample(self, device: DeviceId) -> GpuSample:
        start_s = self._monotonic()
        entry = self._entry(device)
        while (left_s := start_s + _hang_s(entry) - self._monotonic()) > 0:
            self._sleep(min(left_s, _HANG_SLICE_S))
            entry = self._entry(device)
        return _sample(entry, self._monotonic())

    def _entry(self, device: DeviceId) -> Entry:
        for entry in self._entries():
            if entry.get("uuid") == device.uuid:
                return entry
        raise GpuError(GpuReason.LOST, f"{self._path} has no GPU {device.uuid}")

    def _entries(self) -> list[Entry]:
        gpus = self._document().get("gpus")
        if not isinstance(gpus, list):
            raise GpuError(GpuReason.FILE_INVALID, f"{self._path}: `gpus` must be a list")
        return [entry for entry in gpus if isinstance(entry, dict)]

    def _document(self) -> Entry:
        try:
            if self._path.stat().st_size > MAX_FILE_BYTES:
                raise GpuError(GpuReason.FILE_INVALID, f"{self._path} is larger than {MAX_FILE_BYTES} bytes")
            document = json.loads(self._path.read_bytes())
        except OSError as error:
            raise GpuError(GpuReason.FILE_MISSING, f"{self._path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise GpuError(GpuReason.FILE_INVALID, f"{self._path}: {error}") from error
        if not isinstance(document, dict):
            raise GpuError(GpuReason.FILE_INVALID, f"{self._path}: must be an object with `gpus`")
        return document


def _device(entry: Entry) -> DeviceId | None:
    index, uuid, name = entry.get("index"), entry.get("uuid"), entry.get("name")
    if isinstance(index, bool) or not isinstance(index, int) or index < 0 or not isinstance(uuid, str) or not uuid:
        return None
    return DeviceId(index, uuid, name if isinstance(name, str) else "unknown")


def _hang_s(entry: Entry) -> float:
    value = entry.get("hang_s")
    return float(min(value, 1e9)) if isinstance(value, int | float) and value > 0 else 0.0


def _sample(entry: Entry, taken_s: float) -> GpuSample:
    numbers = {field.name: _number(entry, field.name, taken_s) for field in FIELDS}
    numbers |= memory_readings(numbers["memory_total_bytes"], numbers["memory_used_bytes"], taken_s)
    return sample_of(numbers, _throttle_reasons(entry, taken_s), _xid_events(entry, taken_s))


def _number(entry: Entry, name: str, taken_s: float) -> Reading[float]:
    value = entry.get(name)
    return absent("not supported") if value is None else reading_of(name, value, taken_s)


def _throttle_reasons(entry: Entry, taken_s: float) -> Reading[frozenset[str]]:
    value = entry.get("throttle_reasons")
    if value is None:
        return Reading(Status.ABSENT, reason="not supported")
    if not isinstance(value, list) or not all(isinstance(item, str) and 0 < len(item) <= MAX_REASON_CHARS for item in value):
        return Reading(Status.INVALID, None, taken_s, "throttle_reasons is not a list of names")
    reasons = frozenset(value)
    return present(reasons if len(reasons) <= MAX_THROTTLE_REASONS else frozenset({"other"}), taken_s)


def _xid_events(entry: Entry, taken_s: float) -> Reading[tuple[XidEvent, ...]]:
    value = entry.get("xid_events")
    if value is None:
        return Reading(Status.ABSENT, reason="not supported")
    events = [_xid_event(item) for item in value] if isinstance(value, list) else [None]
    known = tuple(event for event in events if event is not None)
    if len(known) != len(events):
        return Reading(Status.INVALID, None, taken_s, "xid_events is not a list of {xid, at}")
    return present(known[-MAX_XID_EVENTS:], taken_s)


def _xid_event(item: object) -> XidEvent | None:
    if not isinstance(item, dict):
        return None
    xid, at_unix_s = item.get("xid"), item.get("at")
    if isinstance(xid, bool) or not isinstance(xid, int) or isinstance(at_unix_s, bool) or not isinstance(at_unix_s, int | float):
        return None
    return XidEvent(xid, float(at_unix_s)) if 0 <= xid < 10_000 and 0 <= at_unix_s < 1e11 else None
