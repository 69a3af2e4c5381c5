"""Keeps the last good sample of each GPU. Calls block in one small thread per device, never in the event loop.

At most one call per device is outstanding, so a device that hangs costs its own age and nothing else: others go on, the
snapshot is always there, and shutdown does not wait (the threads are daemons). State is written in the event loop only;
``snapshot`` hands out an immutable view that exists already. Bounds: ``MAX_DEVICES`` devices and one thread for each
and one for the list, ``MAX_KNOWN_EVENTS`` XID events and ``catalog.XID.bound`` XID numbers per device.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import Generic, TypeVar

from tailkeeper_exporter import catalog
from tailkeeper_exporter.gpu.base import (
    MAX_DEVICES,
    DeviceId,
    GpuError,
    GpuReason,
    GpuSample,
    GpuSource,
    Matched,
    XidEvent,
    match_devices,
)

RELIST_S = 10.0
"""How often devices are listed anew; until there is one, and while the list fails, every interval."""
MAX_KNOWN_EVENTS = 1_024
OTHER_XID = -1
"""Counts events of XID numbers beyond the catalogue's bound."""

T = TypeVar("T")
Outcome = tuple[T | None, GpuError | None]


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What is known of one device.

    ``sample`` is the last good one, taken at monotonic ``taken_s``. ``failures`` counts intervals in a row without a
    good sample, whether the call failed or had not come back (``pending_since_s``). ``listed`` is false for a device
    that the source no longer lists. ``xid_totals`` counts events by number, and ``invalid_total`` fields with an
    impossible value, since this process first saw the device.
    """

    device: DeviceId
    sample: GpuSample | None = None
    taken_s: float | None = None
    failures: int = 0
    reason: GpuReason | None = None
    detail: str = ""
    pending_since_s: float | None = None
    listed: bool = True
    xid_totals: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    last_xid: XidEvent | None = None
    invalid_total: int = 0

    def age_s(self, now: float) -> float | None:
        """Seconds since the last good sample; None where there never was one."""
        return None if self.taken_s is None else max(0.0, now - self.taken_s)


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """All devices ever listed, those listed now first. ``reason`` says why the list could not be had, if so."""

    devices: tuple[DeviceState, ...] = ()
    listed_s: float | None = None
    reason: GpuReason | None = None
    detail: str = ""

    def of(self, uuid: str) -> DeviceState | None:
        """The device of that UUID."""
        return next((state for state in self.devices if state.device.uuid == uuid), None)

    def match(self, gpus: tuple[str, ...]) -> Matched:
        """A backend's configured GPUs (index, UUID, unique UUID prefix). An index is that of a listed device, if any."""
        taken = {state.device.index for state in self.devices if state.listed}
        known = (
            state.device if state.listed or state.device.index not in taken else replace(state.device, index=None)
            for state in self.devices
        )
        return match_devices(tuple(known), gpus)


class _Worker(Generic[T]):
    """One daemon thread that makes one blocking call at a time and reports in the event loop."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self._calls: SimpleQueue[tuple[Callable[[], T], Callable[[Outcome[T]], None]] | None] = SimpleQueue()
        self.pending_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> bool:
        """Start ``work`` and have ``done`` called with its outcome; False while an earlier call is outstanding."""
        if self.pending_since_s is not None:
            return False
        self.pending_since_s = self._monotonic()
        self._calls.put((work, done))
        return True

    def stop(self) -> None:
        """End the thread when its call comes back, if ever. Does not wait."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            work, done = item
            outcome = _outcome(work)
            try:
                self._loop.call_soon_threadsafe(self._finish, done, outcome)
            except RuntimeError:
                return  # The loop has been closed; nobody is left to tell.

    def _finish(self, done: Callable[[Outcome[T]], None], outcome: Outcome[T]) -> None:
        self.pending_since_s = None
        done(outcome)


def _outcome(work: Callable[[], T]) -> Outcome[T]:
    try:
        return work(), None
    except GpuError as error:
        return None, error
    except Exception as error:
        # The boundary of one device: whatever a driver's binding raises is this device's failure and no other's.
        return None, GpuError(GpuReason.FAILED, f"{type(error).__name__}: {error}")


class XidLedger:
    """Counts XID events of one device. Sources repeat what they still know, so an event counts once per (number, time)."""

    def __init__(self) -> None:
        self._seen: Counter[XidEvent] = Counter()
        self._totals: Counter[int] = Counter()
        self.last: XidEvent | None = None

    @property
    def totals(self) -> Mapping[int, int]:
        return MappingProxyType(dict(self._totals))

    def take(self, events: tuple[XidEvent, ...]) -> tuple[XidEvent, ...]:
        """Add what is new among ``events``, and say what that was. Two equal events at one time count twice."""
        now_known = Counter(events[-MAX_KNOWN_EVENTS:])
        added: list[XidEvent] = []
        for event, count in now_known.items():
            new = count - self._seen[event]
            if new > 0:
                self._totals[self._number(event.xid)] += new
                self._seen[event] = count
                added.append(event)
                if self.last is None or event.at_unix_s >= self.last.at_unix_s:
                    self.last = event
        if len(self._seen) > 2 * MAX_KNOWN_EVENTS:
            self._seen = now_known
        return tuple(added)

    def _number(self, xid: int) -> int:
        return xid if xid in self._totals or len(self._totals) < catalog.XID.bound - 1 else OTHER_XID


class GpuSampler:
    """Samples every device of ``source`` each ``interval_s`` seconds. Lives in one event loop."""

    def __init__(
        self,
        source: GpuSource | None,
        interval_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        on_xid: Callable[[DeviceId, XidEvent], None] = lambda device, event: None,
    ) -> None:
        self._on_xid = on_xid
        self._source = source
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._snapshot = GpuSnapshot()
        self._states: dict[str, DeviceState] = {}
        self._workers: dict[str, _Worker[GpuSample]] = {}
        self._ledgers: dict[str, XidLedger] = {}
        self._lister: _Worker[tuple[DeviceId, ...]] | None = None
        self._list_asked_s: float | None = None
        self.changed = asyncio.Event()
        """Set whenever a call has come back. Whoever waits for it clears it."""

    def snapshot(self) -> GpuSnapshot:
        """The last known of all devices, at once, whatever hangs."""
        return self._snapshot

    def match(self, gpus: tuple[str, ...]) -> Matched:
        """A backend's configured GPUs as devices."""
        return self._snapshot.match(gpus)

    async def run(self) -> None:
        """Sample until cancelled. Without a source it returns at once."""
        if self._source is None:
            return
        next_s = self._monotonic()
        try:
            while True:
                self.poll()
                # Ticks missed while the loop was busy are not made up for.
                next_s = max(next_s + self._interval_s, self._monotonic())
                await asyncio.sleep(next_s - self._monotonic())
        finally:
            self.close()

    def poll(self) -> None:
        """Start the calls that are due: the list of devices, and a sample of each device that is not busy with one."""
        if self._source is None:
            return
        now = self._monotonic()
        self._ask_for_devices(self._source, now)
        for uuid, worker in self._workers.items():
            started = worker.call(partial(self._source.sample, self._states[uuid].device), partial(self._sampled, uuid))
            self._states[uuid] = replace(self._states[uuid], pending_since_s=worker.pending_since_s)
            if not started:
                self._states[uuid] = _missed(self._states[uuid], now)
        self._publish()

    def close(self) -> None:
        """End the threads without waiting for calls that are outstanding."""
        for worker in self._workers.values():
            worker.stop()
        if self._lister is not None:
            self._lister.stop()
        self._workers.clear()
        self._lister = None

    def _ask_for_devices(self, source: GpuSource, now: float) -> None:
        settled = self._states and self._snapshot.reason is None
        if settled and self._list_asked_s is not None and now - self._list_asked_s < RELIST_S:
            return
        if self._lister is None:
            self._lister = _Worker("tailkeeper-gpu-list", asyncio.get_running_loop(), self._monotonic)
        if self._lister.call(source.devices, self._listed):
            self._list_asked_s = now

    def _listed(self, outcome: Outcome[tuple[DeviceId, ...]]) -> None:
        devices, error = outcome
        if error is not None:
            self._snapshot = replace(self._snapshot, reason=error.reason, detail=error.detail)
        else:
            self._take_list(devices or ())
            self._snapshot = replace(self._snapshot, reason=None, detail="", listed_s=self._monotonic())
        self._publish()
        self.changed.set()

    def _take_list(self, devices: tuple[DeviceId, ...]) -> None:
        now_listed = {device.uuid: device for device in devices[:MAX_DEVICES]}
        for uuid, state in self._states.items():
            self._states[uuid] = replace(state, listed=uuid in now_listed, device=now_listed.get(uuid, state.device))
        for uuid, device in now_listed.items():
            if uuid not in self._states and self._make_room():
                self._states[uuid] = DeviceState(device)
                self._ledgers[uuid] = XidLedger()
                self._workers[uuid] = _Worker(f"tailkeeper-gpu-{uuid[:12]}", asyncio.get_running_loop(), self._monotonic)

    def _make_room(self) -> bool:
        """Whether one more device can be kept; forgets one that is no longer listed where the bound is reached."""
        if len(self._states) < MAX_DEVICES:
            return True
        gone = next((uuid for uuid, state in self._states.items() if not state.listed), None)
        if gone is None:
            return False
        del self._states[gone], self._ledgers[gone]
        self._workers.pop(gone).stop()
        return True

    def _sampled(self, uuid: str, outcome: Outcome[GpuSample]) -> None:
        state, ledger = self._states.get(uuid), self._ledgers.get(uuid)
        if state is None or ledger is None:
            return
        sample, error = outcome
        if sample is None or error is not None:
            reason, detail = (error.reason, error.detail) if error else (GpuReason.FAILED, "no sample")
            state = replace(state, failures=state.failures + 1, reason=reason, detail=detail, pending_since_s=None)
        else:
            for event in ledger.take(sample.xid_events.value or ()):
                self._on_xid(state.device, event)
            state = DeviceState(
                state.device,
                sample,
                self._monotonic(),
                listed=state.listed,
                xid_totals=ledger.totals,
                last_xid=ledger.last,
                invalid_total=state.invalid_total + sample.invalid_fields(),
            )
        self._states[uuid] = state
        self._publish()
        self.changed.set()

    def _publish(self) -> None:
        ordered = sorted(
            self._states.values(), key=lambda s: (not s.listed, s.device.index is None, s.device.index, s.device.uuid)
        )
        self._snapshot = replace(self._snapshot, devices=tuple(ordered))


def _missed(state: DeviceState, now: float) -> DeviceState:
    """The device when an interval is over and its call has not come back."""
    waited_s = now - (state.pending_since_s if state.pending_since_s is not None else now)
    return replace(state, failures=state.failures + 1, reason=GpuReason.TIMEOUT, detail=f"no answer for {waited_s:.1f} s")
