"""Configured GPUs against devices, and the ranges of a sample's fields."""

from __future__ import annotations

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.gpu import FIELDS, DeviceId, GpuReason, GpuSample, match_devices, open_source
from tailkeeper_exporter.gpu.base import memory_readings, reading_of, sample_of
from tailkeeper_exporter.gpu.dcgm import DcgmSource
from tailkeeper_exporter.gpu.file import FileSource
from tailkeeper_exporter.gpu.nvml import NvmlSource
from tailkeeper_exporter.readings import Status, absent
from tailkeeper_exporter.settings import GpuSettings

DEVICES = (
    DeviceId(0, "GPU-af7b61d8-1", "H200"),
    DeviceId(1, "GPU-af7b99aa-2", "H200"),
    DeviceId(2, "GPU-3c1d0000-3", "H200"),
    DeviceId(None, "MIG-77770000-4", "H200 MIG 1g", parent_uuid="GPU-3c1d0000-3"),
)


@pytest.mark.parametrize(
    ("configured", "indices"),
    [
        (("2", "0"), [2, 0]),
        (("GPU-af7b61d8-1",), [0]),
        (("GPU-af7b61d8",), [0]),
        (("gpu-AF7B9",), [1]),
        (("MIG-7777",), [None]),
        (("0", "GPU-af7b61d8", "0"), [0]),
        ((), []),
    ],
)
def test_a_gpu_is_found_by_index_uuid_or_unique_prefix_in_the_order_given(
    configured: tuple[str, ...], indices: list[int | None]
) -> None:
    matched = match_devices(DEVICES, configured)
    assert [device.index for device in matched.devices] == indices
    assert matched.problems == ()


@pytest.mark.parametrize(
    ("configured", "reason"),
    [
        ("GPU-ffff", GpuReason.UNKNOWN_DEVICE),
        ("7", GpuReason.UNKNOWN_DEVICE),
        ("-1", GpuReason.UNKNOWN_DEVICE),
        ("", GpuReason.UNKNOWN_DEVICE),
        (" ", GpuReason.UNKNOWN_DEVICE),
        ("²", GpuReason.UNKNOWN_DEVICE),
        ("GPU-af7b", GpuReason.AMBIGUOUS),
        ("GPU-", GpuReason.AMBIGUOUS),
    ],
)
def test_an_unknown_or_ambiguous_gpu_is_named_and_never_replaced_by_the_first_one(configured: str, reason: GpuReason) -> None:
    matched = match_devices(DEVICES, (configured, "1"))
    assert [device.index for device in matched.devices] == [1]
    assert matched.problems == ((configured, reason),)


def test_an_exact_uuid_wins_over_longer_ones_that_begin_with_it() -> None:
    devices = (DeviceId(0, "GPU-1", "a"), DeviceId(1, "GPU-12", "b"))
    assert match_devices(devices, ("GPU-1",)).devices == (devices[0],)


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("utilization_ratio", 0, Status.PRESENT),
        ("utilization_ratio", 1.0, Status.PRESENT),
        ("utilization_ratio", 70, Status.INVALID),
        ("utilization_ratio", -0.1, Status.INVALID),
        ("utilization_ratio", float("nan"), Status.INVALID),
        ("utilization_ratio", "0.7", Status.INVALID),
        ("utilization_ratio", True, Status.INVALID),
        ("utilization_ratio", [0.7], Status.INVALID),
        ("temperature_celsius", -5, Status.PRESENT),
        ("temperature_celsius", 10**400, Status.INVALID),
        ("memory_total_bytes", 0, Status.INVALID),
        ("power_watts", 412_500, Status.INVALID),
    ],
)
def test_a_field_is_present_only_with_a_value_that_it_can_have(name: str, value: object, status: Status) -> None:
    assert reading_of(name, value, 0.0).status is status


@pytest.mark.parametrize(
    ("total", "used", "free"),
    [(100, 40, 60.0), (100, 100, 0.0), (100, 101, None), (0, 0, None), (100, None, None), (None, 40, None)],
)
def test_free_memory_is_known_only_where_total_and_used_are_possible(
    total: int | None, used: int | None, free: float | None
) -> None:
    readings = [absent() if value is None else reading_of("memory_used_bytes", value, 0.0) for value in (total, used)]
    if total == 0:
        readings[0] = reading_of("memory_total_bytes", total, 0.0)
    assert memory_readings(readings[0], readings[1], 0.0)["memory_free_bytes"].value == free


def test_every_numeric_field_of_a_sample_is_in_the_table_and_is_filled_by_name() -> None:
    names = {field.name for field in FIELDS}
    other = {"throttle_reasons", "xid_events", "memory_kind"}
    assert names | other == set(GpuSample.__slots__)
    sample = sample_of({name: reading_of(name, 1, 0.0) for name in names})
    assert all(sample.number(name).value == 1 for name in names)
    assert all(not GpuSample().number(name).is_present for name in names)
    assert {field.metric for field in FIELDS} <= set(catalog.CATALOG)


def test_the_configured_source_is_opened_without_touching_a_driver(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("gpu") / "gpus.json"
    assert open_source(GpuSettings(source="none")) is None
    assert isinstance(open_source(GpuSettings(source="file", file=path)), FileSource)
    assert isinstance(open_source(GpuSettings(source="auto")), NvmlSource)
    assert isinstance(open_source(GpuSettings(source="dcgm", url="http://127.0.0.1:9")), DcgmSource)
