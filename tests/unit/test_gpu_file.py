"""The GPU file: every field on its own, and the ways in which a file or a device can be lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailkeeper_exporter.gpu import DeviceId, GpuError, GpuReason, XidEvent
from tailkeeper_exporter.gpu.file import FileSource
from tailkeeper_exporter.readings import Status

UUID = "GPU-1"
DEVICE = DeviceId(0, UUID, "H200")
ENTRY: dict[str, object] = {
    "index": 0,
    "uuid": UUID,
    "name": "H200",
    "utilization_ratio": 0.7,
    "memory_total_bytes": 100,
    "memory_used_bytes": 40,
    "memory_copy_utilization_ratio": 0.3,
    "temperature_celsius": 60,
    "power_watts": 400,
    "sm_clock_hz": 1.9e9,
    "throttle_reasons": ["sw_power_cap"],
    "ecc_single_bit_total": 3,
    "ecc_double_bit_total": 0,
    "retired_pages": 0,
    "xid_events": [{"xid": 31, "at": 1.7e9}],
    "hang_s": 0,
}


class Clock:
    """Monotonic time that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 100.0
        self.on_sleep: list[object] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep.append(seconds)


class GpuFile:
    """A file in the contract's shape and the source over it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpus.json"
        self.clock = Clock()
        self.source = FileSource(self.path, self.clock.monotonic, self.clock.sleep)

    def write(self, *entries: object) -> None:
        self.path.write_text(json.dumps({"driver": "550.54", "gpus": list(entries)}))


@pytest.fixture
def gpus(tmp_path: Path) -> GpuFile:
    return GpuFile(tmp_path)


def failure(source: FileSource, device: DeviceId = DEVICE) -> GpuReason:
    with pytest.raises(GpuError) as caught:
        source.sample(device)
    return caught.value.reason


def test_all_fields_of_the_contract_are_read_in_base_units(gpus: GpuFile) -> None:
    gpus.write(ENTRY)
    sample = gpus.source.sample(DEVICE)
    assert sample.utilization_ratio.value == 0.7
    assert sample.memory_total_bytes.value == 100
    assert sample.memory_used_bytes.value == 40
    assert sample.memory_free_bytes.value == 60
    assert sample.memory_copy_utilization_ratio.value == 0.3
    assert sample.temperature_celsius.value == 60
    assert sample.power_watts.value == 400
    assert sample.sm_clock_hz.value == 1.9e9
    assert sample.throttle_reasons.value == frozenset({"sw_power_cap"})
    assert sample.ecc_single_bit_total.value == 3
    assert sample.ecc_double_bit_total.value == 0
    assert sample.retired_pages.value == 0
    assert sample.xid_events.value == (XidEvent(31, 1.7e9),)
    assert sample.utilization_ratio.taken_s == 100.0
    assert not sample.pcie_utilization_ratio.is_present


@pytest.mark.parametrize("name", sorted(set(ENTRY) - {"index", "uuid", "name", "hang_s"}))
@pytest.mark.parametrize(
    ("value", "status"), [(None, Status.ABSENT), ("x", Status.INVALID), (True, Status.INVALID), ({}, Status.INVALID)]
)
def test_one_field_that_is_null_or_of_a_wrong_type_costs_itself_only(
    gpus: GpuFile, name: str, value: object, status: Status
) -> None:
    gpus.write(ENTRY | {name: value})
    sample = gpus.source.sample(DEVICE)
    fields = {other: getattr(sample, other).status for other in ENTRY if hasattr(sample, other)}
    assert fields.pop(name) is status
    assert set(fields.values()) == {Status.PRESENT}
    if name.startswith("memory_") and name != "memory_copy_utilization_ratio":
        assert not sample.memory_free_bytes.is_present


@pytest.mark.parametrize("name", ["throttle_reasons", "xid_events", "utilization_ratio"])
def test_a_field_left_out_is_not_supported(gpus: GpuFile, name: str) -> None:
    gpus.write({key: value for key, value in ENTRY.items() if key != name})
    assert getattr(gpus.source.sample(DEVICE), name).status is Status.ABSENT


@pytest.mark.parametrize(
    "events", [[{"xid": "31", "at": 1}], [{"xid": 31}], [31], [{"xid": True, "at": 1}], [{"xid": -1, "at": 1}]]
)
def test_xid_events_of_a_wrong_shape_are_invalid(gpus: GpuFile, events: object) -> None:
    gpus.write(ENTRY | {"xid_events": events})
    assert gpus.source.sample(DEVICE).xid_events.status is Status.INVALID


def test_more_throttle_reasons_than_a_label_may_have_become_other(gpus: GpuFile) -> None:
    gpus.write(ENTRY | {"throttle_reasons": [f"r{i}" for i in range(40)]})
    assert gpus.source.sample(DEVICE).throttle_reasons.value == frozenset({"other"})


def test_the_file_is_read_anew_for_each_sample(gpus: GpuFile) -> None:
    gpus.write(ENTRY)
    assert gpus.source.sample(DEVICE).temperature_celsius.value == 60
    gpus.write(ENTRY | {"temperature_celsius": 90})
    assert gpus.source.sample(DEVICE).temperature_celsius.value == 90


def test_a_device_that_is_not_in_the_file_is_lost(gpus: GpuFile) -> None:
    gpus.write(ENTRY)
    assert failure(gpus.source, DeviceId(0, "GPU-2", "H200")) is GpuReason.LOST


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, GpuReason.FILE_MISSING),
        ("", GpuReason.FILE_INVALID),
        ('{"gpus": [{"index"', GpuReason.FILE_INVALID),
        ("[]", GpuReason.FILE_INVALID),
        ("{}", GpuReason.FILE_INVALID),
        ('{"gpus": {}}', GpuReason.FILE_INVALID),
        ("[" * 100_000, GpuReason.FILE_INVALID),
        ("\udcff", GpuReason.FILE_INVALID),
        (" " * 4_200_000, GpuReason.FILE_INVALID),
        ('{"gpus": [null, 5, {}]}', GpuReason.LOST),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_with_its_reason(gpus: GpuFile, text: str | None, reason: GpuReason) -> None:
    if text is not None:
        gpus.path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert failure(gpus.source) is reason


def test_a_file_that_is_not_there_says_so_when_devices_are_listed(gpus: GpuFile) -> None:
    with pytest.raises(GpuError, match=r"file_missing: .*gpus\.json: No such file"):
        gpus.source.devices()


def test_entries_without_a_usable_identity_are_left_out_and_not_guessed(gpus: GpuFile) -> None:
    gpus.write(ENTRY, ENTRY | {"name": "twin"}, {"index": "1", "uuid": "GPU-2"}, {"index": 2}, {"index": -1, "uuid": "GPU-3"}, 7)
    assert gpus.source.devices() == (DEVICE,)


def test_at_most_as_many_devices_are_listed_as_the_label_allows(gpus: GpuFile) -> None:
    gpus.write(*[{"index": i, "uuid": f"GPU-{i}"} for i in range(100)])
    assert len(gpus.source.devices()) == 64


def test_a_hanging_device_blocks_for_its_time_and_then_answers(gpus: GpuFile) -> None:
    gpus.write(ENTRY | {"hang_s": 2})
    sample = gpus.source.sample(DEVICE)
    assert gpus.clock.now == pytest.approx(102.0)
    assert sample.utilization_ratio.taken_s == pytest.approx(102.0)


def test_a_hang_ends_when_the_file_no_longer_says_so(gpus: GpuFile, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.write(ENTRY | {"hang_s": 3_600})

    def sleep(seconds: float) -> None:
        gpus.clock.sleep(seconds)
        gpus.write(ENTRY | {"hang_s": 0})

    monkeypatch.setattr(gpus.source, "_sleep", sleep)
    assert gpus.source.sample(DEVICE).utilization_ratio.value == 0.7
    assert gpus.clock.now < 101
