"""NVML through pynvml's own ctypes path, against a fake library compiled here. No GPU and no driver are needed.

What the fake cannot show: that a real driver answers these calls in these units. Their units are those of nvml.h.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

from tailkeeper_exporter.gpu import DeviceId, GpuError, GpuReason, XidEvent
from tailkeeper_exporter.gpu.base import FIELDS
from tailkeeper_exporter.gpu.nvml import RETRY_RARELY_S, NvmlSource
from tailkeeper_exporter.gpu.nvml_fields import throttle_names
from tailkeeper_exporter.readings import Status

NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN, LIBRARY_NOT_FOUND = 3, 9, 15, 999, 12
UUIDS = (
    "GPU-af7b61d8-0000-0000-0000-000000000000",
    "GPU-af7b99aa-0000-0000-0000-000000000001",
    "GPU-3c1d0000-0000-0000-0000-000000000002",
    "GPU-77770000-0000-0000-0000-000000000003",
)
FIRST = DeviceId(0, UUIDS[0], "NVIDIA H200")
SECOND = DeviceId(1, UUIDS[1], "NVIDIA H200")
GIB = 1 << 30


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-o", str(path), str(source)], check=True)
    return path


class Nvml:
    """The fake library, a clock, and a source over both."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fake_reset()
        self.now = 1_000.0
        self.unix_s = 1.7e9
        self.source = self.new_source()

    def new_source(self, optional: bool = False) -> NvmlSource:
        return NvmlSource(
            optional,
            monotonic=lambda: self.now,
            wall_clock=lambda: self.unix_s,
            host_memory=lambda: (121.0 * GIB, 50.0 * GIB),
        )

    def fail(self, call: str, code: int, device: int = 0) -> None:
        self.library.fake_fail(device, call.encode(), code)

    def set(self, name: str, value: int, device: int = 0) -> None:
        self.library.fake_set(device, name.encode(), ctypes.c_longlong(value))


@pytest.fixture
def nvml(library_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    real = ctypes.CDLL
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", lambda _name: real(str(library_path)))
    return Nvml(library_path)


def failure(source: NvmlSource, device: DeviceId = FIRST) -> GpuReason:
    with pytest.raises(GpuError) as caught:
        source.sample(device)
    return caught.value.reason


def test_devices_are_listed_with_index_uuid_and_name(nvml: Nvml) -> None:
    assert nvml.source.devices() == tuple(DeviceId(i, uuid, "NVIDIA H200") for i, uuid in enumerate(UUIDS))


def test_a_sample_has_every_field_in_base_units(nvml: Nvml) -> None:
    nvml.source.sample(FIRST)
    nvml.now += 2
    nvml.set("sent_kib", 1000 + 2 * 18 * 26_562 * 1_000_000 // 1024 // 4)
    sample = nvml.source.sample(FIRST)
    values = {field.name: sample.number(field.name).value for field in FIELDS}
    assert values == {
        "utilization_ratio": 0.7,
        "memory_total_bytes": 150 * GIB,
        "memory_used_bytes": 100 * GIB,
        "memory_free_bytes": 50 * GIB,
        "memory_copy_utilization_ratio": 0.3,
        "memory_fragmentation_ratio": None,
        "temperature_celsius": 60,
        "power_watts": 412.5,
        "sm_clock_hz": 1.98e9,
        "retired_pages": 4,
        "pcie_utilization_ratio": pytest.approx(0.5),
        "nvlink_utilization_ratio": pytest.approx(0.25),
        "ecc_single_bit_total": 31,
        "ecc_double_bit_total": 2,
    }
    assert sample.throttle_reasons.value == frozenset()
    assert sample.xid_events.value == ()
    assert sample.memory_kind == "dedicated"
    assert sample.power_watts.taken_s == nvml.now


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0, set()),
        (0x1, set()),
        (0x4 | 0x1, {"sw_power_cap"}),
        (0x2 | 0x100, {"applications_clocks_setting", "display_clock_setting"}),
        (0x8 | 0x40 | 0x80, {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}),
        (0x10 | 0x20, {"sync_boost", "sw_thermal_slowdown"}),
        (0x200 | 0x4, {"sw_power_cap", "other"}),
    ],
)
def test_throttle_bits_have_names_and_idle_is_not_throttled(bits: int, names: set[str]) -> None:
    assert throttle_names(bits) == names


CALLS = {
    "nvmlDeviceGetUtilizationRates": {"utilization_ratio", "memory_copy_utilization_ratio"},
    "nvmlDeviceGetMemoryInfo": {"memory_total_bytes", "memory_used_bytes", "memory_free_bytes"},
    "nvmlDeviceGetTemperature": {"temperature_celsius"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetClockInfo": {"sm_clock_hz"},
    "nvmlDeviceGetPcieThroughput": {"pcie_utilization_ratio"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_utilization_ratio"},
    "nvmlDeviceGetFieldValues": {"nvlink_utilization_ratio"},
    "nvmlDeviceGetTotalEccErrors": {"ecc_single_bit_total", "ecc_double_bit_total"},
    "nvmlDeviceGetCurrentClocksThrottleReasons": {"throttle_reasons"},
}


@pytest.mark.parametrize(("code", "status"), [(NOT_SUPPORTED, Status.ABSENT), (UNKNOWN, Status.INVALID)])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_costs_its_own_fields_and_no_zero_appears(nvml: Nvml, call: str, code: int, status: Status) -> None:
    nvml.source.sample(FIRST)
    nvml.now += 1
    nvml.fail(call, code)
    sample = nvml.source.sample(FIRST)
    names = [field.name for field in FIELDS if field.name != "memory_fragmentation_ratio"] + ["throttle_reasons"]
    statuses = {name: getattr(sample, name).status for name in names}
    assert {name for name, found in statuses.items() if found is not Status.PRESENT} == CALLS[call]
    assert {statuses[name] for name in CALLS[call]} - {status} <= {Status.ABSENT}


def test_what_is_not_supported_is_asked_again_only_rarely(nvml: Nvml) -> None:
    nvml.fail("nvmlDeviceGetTemperature", NOT_SUPPORTED)
    assert nvml.source.sample(FIRST).temperature_celsius.status is Status.ABSENT
    nvml.fail("nvmlDeviceGetTemperature", 0)
    nvml.now += RETRY_RARELY_S - 1
    assert nvml.source.sample(FIRST).temperature_celsius.status is Status.ABSENT
    assert nvml.source.sample(SECOND).temperature_celsius.value == 60
    nvml.now += 1
    assert nvml.source.sample(FIRST).temperature_celsius.value == 60


def test_retired_pages_stand_in_for_remapped_rows_on_older_devices(nvml: Nvml) -> None:
    nvml.fail("nvmlDeviceGetRemappedRows", NOT_SUPPORTED)
    assert nvml.source.sample(FIRST).retired_pages.value == 7


def test_a_total_of_zero_bytes_is_no_memory_to_divide_by(nvml: Nvml) -> None:
    nvml.set("total", 0)
    nvml.set("used", 0)
    sample = nvml.source.sample(FIRST)
    assert sample.memory_total_bytes.status is Status.INVALID
    assert not sample.memory_free_bytes.is_present


@pytest.mark.parametrize(("figure", "value"), [("links", 0), ("field_code", NOT_SUPPORTED)])
def test_a_device_without_nvlink_has_no_nvlink_reading(nvml: Nvml, figure: str, value: int) -> None:
    nvml.set(figure, value)
    assert nvml.source.sample(FIRST).nvlink_utilization_ratio.status is Status.ABSENT


def test_a_pcie_generation_not_known_here_gives_no_ratio(nvml: Nvml) -> None:
    nvml.set("generation", 9)
    assert nvml.source.sample(FIRST).pcie_utilization_ratio.status is Status.ABSENT


def test_nvlink_use_is_unknown_until_there_are_two_counts_and_after_a_count_fell(nvml: Nvml) -> None:
    assert nvml.source.sample(FIRST).nvlink_utilization_ratio.status is Status.ABSENT
    nvml.now += 1
    assert nvml.source.sample(FIRST).nvlink_utilization_ratio.value == 0
    nvml.now += 1
    nvml.set("sent_kib", 3)
    nvml.set("received_kib", 3)
    assert nvml.source.sample(FIRST).nvlink_utilization_ratio.status is Status.ABSENT


def test_with_mig_on_the_parents_utilisation_is_unknown_and_the_instances_are_devices(nvml: Nvml) -> None:
    nvml.set("mig", 1)
    nvml.set("gpu", 0)
    devices = nvml.source.devices()
    children = [device for device in devices if device.parent_uuid == UUIDS[0]]
    assert [(child.index, child.uuid) for child in children] == [(None, "MIG-00000000"), (None, "MIG-00000001")]
    parent = nvml.source.sample(devices[0])
    assert parent.utilization_ratio.status is Status.ABSENT
    child = nvml.source.sample(children[0])
    assert child.utilization_ratio.status is Status.ABSENT
    assert child.memory_free_bytes.value == 50 * GIB


def test_a_gpu_that_shares_the_hosts_memory_reports_the_hosts_and_says_so(nvml: Nvml) -> None:
    nvml.set("unified", 1)
    nvml.fail("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
    sample = nvml.source.sample(nvml.source.devices()[0])
    assert (sample.memory_total_bytes.value, sample.memory_free_bytes.value) == (121 * GIB, 50 * GIB)
    assert sample.memory_kind == "unified"


def test_a_gpu_with_its_own_memory_never_falls_back_to_the_hosts(nvml: Nvml) -> None:
    nvml.fail("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
    sample = nvml.source.sample(FIRST)
    assert sample.memory_total_bytes.status is Status.ABSENT
    assert sample.memory_kind == "dedicated"


def test_a_lost_device_is_lost_alone_and_does_not_restart_the_library(nvml: Nvml) -> None:
    nvml.source.sample(SECOND)
    nvml.fail("nvmlDeviceGetUtilizationRates", GPU_IS_LOST)
    for _ in range(20):
        assert failure(nvml.source) is GpuReason.LOST
        assert nvml.source.sample(SECOND).utilization_ratio.value == 0.71
        nvml.now += 10
    assert nvml.library.fake_shutdowns() == 0
    nvml.now += RETRY_RARELY_S
    nvml.fail("nvmlDeviceGetUtilizationRates", 0)
    assert nvml.source.sample(FIRST).utilization_ratio.value == 0.7
    assert nvml.library.fake_shutdowns() == 1


def test_a_device_that_the_driver_no_longer_finds_is_lost(nvml: Nvml) -> None:
    assert failure(nvml.source, DeviceId(0, "GPU-gone", "H200")) is GpuReason.LOST


def test_after_a_driver_update_the_library_is_started_anew(nvml: Nvml) -> None:
    nvml.source.sample(FIRST)
    nvml.fail("nvmlDeviceGetUtilizationRates", DRIVER_NOT_LOADED)
    nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED, device=-1)
    assert failure(nvml.source) is GpuReason.DRIVER
    for _ in range(3):
        nvml.now += 10
        assert failure(nvml.source) is GpuReason.DRIVER
    nvml.fail("nvmlDeviceGetUtilizationRates", 0)
    nvml.fail("nvmlInitWithFlags", 0, device=-1)
    nvml.now += 10
    assert nvml.source.sample(FIRST).utilization_ratio.value == 0.7
    assert nvml.library.fake_starts() == 2


def test_a_driver_that_is_gone_is_not_asked_on_every_sample(nvml: Nvml) -> None:
    nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED, device=-1)
    assert failure(nvml.source) is GpuReason.DRIVER
    calls = nvml.library.fake_calls()
    for _ in range(10):
        nvml.now += 0.1
        assert failure(nvml.source) is GpuReason.DRIVER
    assert nvml.library.fake_calls() == calls


def test_a_hundred_restarts_leave_the_library_started_once(nvml: Nvml) -> None:
    for _ in range(100):
        nvml.fail("nvmlDeviceGetUtilizationRates", DRIVER_NOT_LOADED)
        assert failure(nvml.source) is GpuReason.DRIVER
        nvml.fail("nvmlDeviceGetUtilizationRates", 0)
        nvml.now += 10
        nvml.source.sample(FIRST)
    assert nvml.library.fake_starts() - nvml.library.fake_shutdowns() == 1
    assert len(nvml.source._devices) == 1


def test_two_equal_xids_are_two_events_and_stay_known(nvml: Nvml) -> None:
    nvml.set("xids", 2, device=-1)
    assert nvml.source.sample(FIRST).xid_events.value == (XidEvent(31, 1.7e9), XidEvent(31, 1.7e9))
    nvml.unix_s += 30
    nvml.set("xids", 1, device=-1)
    nvml.set("xid", 79, device=-1)
    events = nvml.source.sample(FIRST).xid_events.value
    assert events is not None
    assert [event.xid for event in events] == [31, 31, 79]
    assert nvml.source.sample(FIRST).xid_events.value == events


def test_a_device_without_xid_events_is_asked_again_only_rarely(nvml: Nvml) -> None:
    nvml.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED)
    assert nvml.source.sample(FIRST).xid_events.status is Status.ABSENT
    nvml.fail("nvmlDeviceRegisterEvents", 0)
    assert nvml.source.sample(FIRST).xid_events.status is Status.ABSENT
    nvml.now += RETRY_RARELY_S
    assert nvml.source.sample(FIRST).xid_events.value == ()


def test_a_device_that_cannot_be_named_is_left_out_of_the_list(nvml: Nvml) -> None:
    nvml.fail("nvmlDeviceGetUUID", UNKNOWN, device=1)
    assert [device.index for device in nvml.source.devices()] == [0, 2, 3]


def test_without_the_library_nvml_is_an_error_and_auto_has_no_devices(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", missing)
    with pytest.raises(GpuError) as caught:
        nvml.source.devices()
    assert caught.value.reason is GpuReason.LIBRARY_MISSING
    assert nvml.new_source(optional=True).devices() == ()


def test_without_the_python_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(GpuError, match=r"library_missing: .*nvidia-ml-py.*tailkeeper\[gpu\]"):
        NvmlSource().devices()
    assert NvmlSource(optional=True).devices() == ()


def test_auto_reports_a_driver_that_was_there_and_went_away(nvml: Nvml) -> None:
    source = nvml.new_source(optional=True)
    assert len(source.devices()) == 4
    nvml.fail("nvmlDeviceGetCount_v2", DRIVER_NOT_LOADED, device=-1)
    nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED, device=-1)
    for _ in range(2):
        nvml.now += 10
        with pytest.raises(GpuError):
            source.devices()
