"""The sampler: one call per device at a time, a hang costs one device its age, and the snapshot is always there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.gpu import DeviceId, GpuError, GpuReason, GpuSample, GpuSampler, GpuSnapshot, XidEvent
from tailkeeper_exporter.gpu.sampler import OTHER_XID, DeviceState, XidLedger
from tailkeeper_exporter.gpu.xid import xid_named
from tailkeeper_exporter.readings import present

A, B = DeviceId(0, "GPU-aaaa", "H200"), DeviceId(1, "GPU-bbbb", "H200")


class FakeSource:
    """A source whose calls fail or block as a test says. ``released`` ends every block."""

    name = "fake"

    def __init__(self, *devices: DeviceId) -> None:
        self.listed = devices
        self.released = threading.Event()
        self.hanging: set[str] = set()
        self.failing: dict[str, Exception] = {}
        self.xids: tuple[XidEvent, ...] = ()
        self.calls: list[str] = []
        self.outstanding: dict[str, int] = {}
        self.most_outstanding = 0

    def devices(self) -> tuple[DeviceId, ...]:
        self._take_call("list")
        return self.listed

    def sample(self, device: DeviceId) -> GpuSample:
        self.outstanding[device.uuid] = self.outstanding.get(device.uuid, 0) + 1
        self.most_outstanding = max(self.most_outstanding, self.outstanding[device.uuid])
        try:
            self._take_call(device.uuid)
        finally:
            self.outstanding[device.uuid] -= 1
        return GpuSample(temperature_celsius=present(60.0, 0.0), xid_events=present(self.xids, 0.0))

    def _take_call(self, what: str) -> None:
        self.calls.append(what)
        if what in self.hanging:
            self.released.wait(30)
        if what in self.failing:
            raise self.failing[what]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def source() -> Iterator[FakeSource]:
    fake = FakeSource(A, B)
    yield fake
    fake.released.set()


async def until(sampler: GpuSampler, condition: Callable[[GpuSnapshot], bool]) -> GpuSnapshot:
    """Wait for outcomes, not for time, until the snapshot is as wanted."""
    async with asyncio.timeout(10):
        while not condition(sampler.snapshot()):
            await sampler.changed.wait()
            sampler.changed.clear()
    return sampler.snapshot()


async def listed(sampler: GpuSampler) -> None:
    sampler.poll()
    await until(sampler, lambda snapshot: snapshot.listed_s is not None)


def state(sampler: GpuSampler, device: DeviceId) -> DeviceState:
    found = sampler.snapshot().of(device.uuid)
    assert found is not None
    return found


async def test_every_device_is_sampled_and_its_age_grows_from_then(source: FakeSource) -> None:
    clock = Clock()
    sampler = GpuSampler(source, 1.0, clock.monotonic)
    await listed(sampler)
    clock.now = 105.0
    sampler.poll()
    await until(sampler, lambda snapshot: all(device.sample for device in snapshot.devices))
    assert [device.device for device in sampler.snapshot().devices] == [A, B]
    assert state(sampler, A).age_s(107.5) == 2.5
    assert state(sampler, A).failures == 0
    sampler.close()


async def test_a_hanging_device_costs_its_own_age_and_has_one_call_outstanding(source: FakeSource) -> None:
    clock = Clock()
    sampler = GpuSampler(source, 1.0, clock.monotonic)
    await listed(sampler)
    sampler.poll()
    await until(sampler, lambda snapshot: all(device.sample for device in snapshot.devices))
    source.hanging.add(A.uuid)
    for _ in range(5):
        clock.now += 1
        sampler.poll()
        await until(sampler, lambda snapshot, now=clock.now: snapshot.devices[1].taken_s == now)  # type: ignore[misc]
    hung, other = state(sampler, A), state(sampler, B)
    assert (hung.failures, hung.age_s(clock.now), hung.pending_since_s) == (4, 5.0, 101.0)
    assert hung.reason is GpuReason.TIMEOUT
    assert hung.sample is not None
    assert (other.failures, other.age_s(clock.now)) == (0, 0.0)
    assert source.most_outstanding == 1
    source.hanging.clear()
    source.released.set()
    await until(sampler, lambda snapshot: snapshot.devices[0].taken_s == clock.now)
    assert state(sampler, A).failures == 0
    sampler.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [(GpuError(GpuReason.LOST, "gone"), GpuReason.LOST), (RuntimeError("binding broke"), GpuReason.FAILED)],
)
async def test_failures_in_a_row_are_counted_and_keep_the_last_sample(
    source: FakeSource, error: Exception, reason: GpuReason
) -> None:
    clock = Clock()
    sampler = GpuSampler(source, 1.0, clock.monotonic)
    await listed(sampler)
    sampler.poll()
    await until(sampler, lambda snapshot: all(device.sample for device in snapshot.devices))
    source.failing[A.uuid] = error
    for failures in (1, 2, 3):
        clock.now += 1
        sampler.poll()
        await until(sampler, lambda snapshot, count=failures: snapshot.devices[0].failures == count)  # type: ignore[misc]
    failed = state(sampler, A)
    assert (failed.reason, failed.taken_s) == (reason, 100.0)
    assert failed.sample is not None
    source.failing.clear()
    sampler.poll()
    await until(sampler, lambda snapshot: snapshot.devices[0].failures == 0)
    assert state(sampler, A).reason is None
    sampler.close()


async def test_a_list_that_cannot_be_had_is_said_and_asked_for_again(source: FakeSource) -> None:
    clock = Clock()
    sampler = GpuSampler(source, 1.0, clock.monotonic)
    source.failing["list"] = GpuError(GpuReason.FILE_MISSING, "gpus.json: No such file or directory")
    sampler.poll()
    snapshot = await until(sampler, lambda snapshot: snapshot.reason is not None)
    assert (snapshot.reason, snapshot.devices) == (GpuReason.FILE_MISSING, ())
    source.failing.clear()
    clock.now += 1
    await listed(sampler)
    assert sampler.snapshot().reason is None
    assert len(sampler.snapshot().devices) == 2
    sampler.close()


async def test_the_list_is_refreshed_rarely_and_a_device_off_it_stays_known(source: FakeSource) -> None:
    clock = Clock()
    sampler = GpuSampler(source, 1.0, clock.monotonic)
    await listed(sampler)
    source.listed = (DeviceId(0, "GPU-cccc", "H200"), B)
    clock.now += 9
    sampler.poll()
    assert source.calls.count("list") == 1
    clock.now += 1
    sampler.poll()
    await until(sampler, lambda snapshot: len(snapshot.devices) == 3)
    assert [(s.device.uuid, s.listed) for s in sampler.snapshot().devices] == [
        ("GPU-cccc", True),
        ("GPU-bbbb", True),
        ("GPU-aaaa", False),
    ]
    assert [device.uuid for device in sampler.match(("0",)).devices] == ["GPU-cccc"]
    assert [device.uuid for device in sampler.match(("GPU-aaaa",)).devices] == ["GPU-aaaa"]
    sampler.close()


async def test_a_lost_device_is_still_found_by_its_index(source: FakeSource) -> None:
    clock = Clock()
    sampler = GpuSampler(source, 1.0, clock.monotonic)
    await listed(sampler)
    source.listed = (B,)
    clock.now += 10
    sampler.poll()
    await until(sampler, lambda snapshot: not snapshot.devices[-1].listed)
    assert sampler.match(("0", "1")).devices == (A, B)
    sampler.close()


async def test_more_devices_than_the_bound_are_not_kept_and_a_lost_one_makes_room() -> None:
    source = FakeSource(*[DeviceId(i, f"GPU-{i:04}", "H200") for i in range(catalog.GPU.bound + 3)])
    clock = Clock()
    sampler = GpuSampler(source, 1.0, clock.monotonic)
    await listed(sampler)
    assert len(sampler.snapshot().devices) == catalog.GPU.bound
    source.listed = (DeviceId(0, "GPU-new", "H200"), *source.listed[1 : catalog.GPU.bound])
    clock.now += 10
    sampler.poll()
    await until(sampler, lambda snapshot: snapshot.of("GPU-new") is not None)
    assert len(sampler.snapshot().devices) == catalog.GPU.bound
    assert sampler.snapshot().of("GPU-0000") is None
    sampler.close()


async def test_a_hanging_list_leaves_known_devices_sampled(source: FakeSource) -> None:
    clock = Clock()
    sampler = GpuSampler(source, 1.0, clock.monotonic)
    await listed(sampler)
    source.hanging.add("list")
    for _ in range(3):
        clock.now += 10
        sampler.poll()
        await until(sampler, lambda snapshot, now=clock.now: all(s.taken_s == now for s in snapshot.devices))  # type: ignore[misc]
    async with asyncio.timeout(10):
        while source.calls.count("list") < 2:  # noqa: ASYNC110 - a thread of its own, which may begin after the others have ended
            await asyncio.sleep(0.001)
    assert source.calls.count("list") == 2
    sampler.close()


async def test_stopping_does_not_wait_for_a_call_that_hangs(source: FakeSource) -> None:
    source.hanging |= {A.uuid}
    sampler = GpuSampler(source, 0.001)
    task = asyncio.create_task(sampler.run())
    await until(sampler, lambda _: A.uuid in source.calls and state(sampler, B).sample is not None)
    task.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("tailkeeper-gpu"))


async def test_a_running_sampler_samples_again_and_again(source: FakeSource) -> None:
    sampler = GpuSampler(source, 0.001)
    task = asyncio.create_task(sampler.run())
    async with asyncio.timeout(10):
        while source.calls.count(A.uuid) < 5 or source.calls.count(B.uuid) < 5:
            await sampler.changed.wait()
            sampler.changed.clear()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert source.most_outstanding == 1


async def test_without_a_source_there_are_no_devices_and_nothing_runs() -> None:
    sampler = GpuSampler(None, 1.0)
    sampler.poll()
    await sampler.run()
    assert sampler.snapshot() == GpuSnapshot()
    assert sampler.match(("0",)).problems == (("0", GpuReason.UNKNOWN_DEVICE),)


async def test_a_snapshot_is_there_at_once_while_everything_hangs(source: FakeSource) -> None:
    source.hanging |= {"list", A.uuid, B.uuid}
    sampler = GpuSampler(source, 1.0)
    sampler.poll()
    start = time.perf_counter()
    for _ in range(1_000):
        sampler.snapshot()
    assert time.perf_counter() - start < 0.1
    sampler.close()


def test_an_xid_counts_once_however_often_the_source_repeats_it() -> None:
    ledger = XidLedger()
    first, second = XidEvent(31, 100.0), XidEvent(31, 130.0)
    for events in [(first,), (first, second), (first, second), (second,), ()]:
        ledger.take(events)
    assert ledger.totals == {31: 2}
    assert ledger.last == second
    ledger.take((XidEvent(79, 50.0),))
    assert ledger.totals == {31: 2, 79: 1}
    assert ledger.last == second


def test_two_equal_events_at_one_time_are_two() -> None:
    ledger = XidLedger()
    event = XidEvent(31, 100.0)
    for events in [(event,), (event, event), (event, event)]:
        ledger.take(events)
    assert ledger.totals == {31: 2}


async def test_a_new_xid_is_told_once_with_its_device() -> None:
    source, told = FakeSource(A), list[tuple[str, int]]()
    sampler = GpuSampler(source, 1.0, on_xid=lambda device, event: told.append((device.uuid, event.xid)))
    await listed(sampler)
    for number, xids in enumerate([(XidEvent(79, 1.0),), (XidEvent(79, 1.0), XidEvent(31, 2.0))]):
        source.xids = xids
        sampler.poll()
        await until(sampler, lambda snapshot, sampled=number + 1: sum(state(sampler, A).xid_totals.values()) == sampled)  # type: ignore[misc]
    sampler.close()
    assert told == [(A.uuid, 79), (A.uuid, 31)]


@pytest.mark.parametrize(
    ("number", "severity"),
    [
        (13, "application"),
        (31, "application"),
        (43, "application"),
        (45, "application"),
        (94, "watch"),
        (63, "watch"),
        (48, "gpu"),
        (79, "gpu"),
        (95, "gpu"),
        (12_345, "unknown"),
    ],
)
def test_an_xid_counts_against_the_gpu_only_where_the_gpu_is_at_fault(number: int, severity: str) -> None:
    assert xid_named(number).severity == severity


def test_xid_numbers_and_events_are_bounded() -> None:
    ledger = XidLedger()
    for start in range(0, 5_000, 500):
        ledger.take(tuple(XidEvent(xid, 1.0) for xid in range(start, start + 500)))
    assert len(ledger.totals) == catalog.XID.bound
    assert sum(ledger.totals.values()) == 5_000
    assert ledger.totals[OTHER_XID] == 5_000 - (catalog.XID.bound - 1)
    assert len(ledger._seen) <= 3_000
