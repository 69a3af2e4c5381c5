"""dcgm-exporter's page as a GPU source: what each value means, what has none, one fetch per round, and hostile servers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.fetch import Fetched
from tailkeeper_exporter.gpu import DeviceId, GpuError, GpuReason, GpuSample, GpuSampler, GpuSnapshot, XidEvent
from tailkeeper_exporter.gpu.base import FIELDS
from tailkeeper_exporter.gpu.dcgm import DcgmSource, PageGetter
from tailkeeper_exporter.gpu.sampler import XidLedger
from tailkeeper_exporter.page import MAX_BYTES
from tailkeeper_exporter.readings import Status
from tests.unit.loopback import Handler, head, reply, routes, serving, silence, stream

FIXTURE = (Path(__file__).parents[1] / "fixtures" / "gpu" / "dcgm-exporter-from-docs.prom").read_bytes()
A = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
B = "GPU-72ad4d20-cfed-f08d-c894-f620962ca3e4"
SPLIT = "GPU-0451a3f1-f345-8e4c-6592-e96c0feca949"
MIB = 1024 * 1024
DRIPS: tuple[bytes | float, ...] = (0.05, b"x") * 100


class Dcgm:
    """A source over a page that a test writes, with clocks that stand still and a count of fetches."""

    def __init__(self, body: bytes | str = FIXTURE) -> None:
        self.now = 100.0
        self.cpu_s = 0.0
        self.cost_s = 0.0
        self.fetches = 0
        self.body = body
        self.failure: Exception | None = None
        self.source = DcgmSource(
            "http://127.0.0.1:9400", 1.0, lambda: self.now, lambda: 1.7e9 + self.now, lambda: self.cpu_s, self.get
        )

    def get(self, url: str) -> Fetched:
        assert url == "http://127.0.0.1:9400/metrics"
        self.fetches += 1
        self.cpu_s += self.cost_s
        if self.failure is not None:
            raise self.failure
        return Fetched(self.body if isinstance(self.body, bytes) else self.body.encode(), "text/plain")

    def sample(self, uuid: str = "GPU-1") -> GpuSample:
        return self.source.sample(DeviceId(0, uuid, "x"))

    def later(self, *lines: str, uuid: str = "GPU-1") -> GpuSample:
        """One interval on, with these lines as the page."""
        self.now += 1
        self.body = page(*lines)
        return self.sample(uuid)


def page(*lines: str) -> str:
    """Lines `NAME VALUE` as series of GPU-1."""
    return "".join(f'DCGM_FI_{name}{{gpu="0",UUID="GPU-1"}} {value}\n' for name, value in (line.split() for line in lines))


def failure(source: DcgmSource, uuid: str = A) -> GpuReason:
    with pytest.raises(GpuError) as caught:
        source.sample(DeviceId(0, uuid, "x"))
    return caught.value.reason


def test_the_fixture_says_that_it_was_written_from_documentation() -> None:
    assert b"from documentation" in FIXTURE.splitlines()[0]


def test_gpus_and_mig_instances_are_listed_with_index_name_and_parent() -> None:
    assert Dcgm().source.devices() == (
        DeviceId(0, A, "NVIDIA H200"),
        DeviceId(1, B, "NVIDIA H200"),
        DeviceId(2, SPLIT, "NVIDIA A100 80GB PCIe"),
        DeviceId(None, f"MIG-{SPLIT}/1", "NVIDIA A100 80GB PCIe MIG 4g.40gb", SPLIT),
        DeviceId(None, f"MIG-{SPLIT}/2", "NVIDIA A100 80GB PCIe MIG 3g.40gb", SPLIT),
    )


def test_all_fields_of_a_whole_gpu_are_read_in_base_units() -> None:
    sample = Dcgm().sample(A)
    assert {field.name: sample.number(field.name).value for field in FIELDS} == {
        "utilization_ratio": 0.73,
        "memory_total_bytes": (40960 + 102400 + 411) * MIB,
        "memory_used_bytes": 102400 * MIB,
        "memory_free_bytes": 40960 * MIB,
        "memory_copy_utilization_ratio": 0.31,
        "memory_fragmentation_ratio": None,
        "temperature_celsius": 61,
        "power_watts": 412.5,
        "sm_clock_hz": 1.98e9,
        "retired_pages": 3,
        "pcie_utilization_ratio": pytest.approx(6_301_600_000 / (3_938.5e6 * 16)),
        "nvlink_utilization_ratio": None,
        "ecc_single_bit_total": 7,
        "ecc_double_bit_total": 0,
    }
    assert sample.throttle_reasons.value == frozenset({"sw_power_cap"})
    assert sample.xid_events.value == ()
    assert sample.temperature_celsius.taken_s == 100.0


def test_a_blank_value_is_absent_with_its_reason_and_zero_is_a_measurement() -> None:
    sample = Dcgm().sample(B)
    assert (sample.power_watts.status, sample.power_watts.reason) == (Status.ABSENT, "not supported")
    assert (sample.ecc_single_bit_total.status, sample.ecc_single_bit_total.reason) == (Status.ABSENT, "not supported")
    assert sample.utilization_ratio.value == 0
    assert sample.throttle_reasons.value == frozenset(), "an idle GPU is not held back"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("2147483632", "blank"),
        ("2147483633", "not found"),
        ("2147483634", "not supported"),
        ("2147483635", "not permitted"),
        ("2147483647", "blank"),
        ("9223372036854775792", "blank"),
        ("9223372036854775794", "blank"),
        ("9223372036854775807", "blank"),
        ("140737488355328.0", "blank"),
        ("140737488355329", "not found"),
        ("140737488355330.000000", "not supported"),
        ("140737488355331.0", "not permitted"),
    ],
)
@pytest.mark.parametrize("name", ["DEV_GPU_UTIL", "DEV_GPU_TEMP", "DEV_XID_ERRORS", "DEV_CLOCK_THROTTLE_REASONS", "DEV_FB_USED"])
def test_every_blank_value_of_dcgm_is_absent_in_every_field(name: str, value: str, reason: str) -> None:
    sample = Dcgm(page(f"{name} {value}")).sample()
    numbers = [sample.number(field.name) for field in FIELDS]
    told = [(reading.status, reading.reason) for reading in numbers]
    told += [
        (sample.throttle_reasons.status, sample.throttle_reasons.reason),
        (sample.xid_events.status, sample.xid_events.reason),
    ]
    assert {status for status, _ in told} == {Status.ABSENT}
    assert reason in {why for _, why in told}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("DEV_GPU_UTIL 101", "utilization_ratio"),
        ("DEV_GPU_UTIL -1", "utilization_ratio"),
        ("DEV_GPU_TEMP 1e30", "temperature_celsius"),
        ("DEV_POWER_USAGE NaN", "power_watts"),
        ("DEV_SM_CLOCK 1e9", "sm_clock_hz"),
        ("DEV_ECC_DBE_AGG_TOTAL -5", "ecc_double_bit_total"),
        ("DEV_CLOCK_THROTTLE_REASONS -1", "throttle_reasons"),
        ("DEV_CLOCK_THROTTLE_REASONS 1.5", "throttle_reasons"),
        ("DEV_XID_ERRORS 31.5", "xid_events"),
        ("DEV_XID_ERRORS 1e6", "xid_events"),
    ],
)
def test_an_impossible_value_costs_its_own_field_only(line: str, field: str) -> None:
    sample = Dcgm(page(line, "PROF_GR_ENGINE_ACTIVE 0.5", "DEV_MEM_COPY_UTIL 5")).sample()
    assert getattr(sample, field).status is Status.INVALID
    assert sample.memory_copy_utilization_ratio.value == 0.05


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["FB_USED 30", "FB_FREE 60"], (90, 30, 60)),
        (["FB_USED 30", "FB_FREE 60", "FB_RESERVED 10"], (100, 30, 60)),
        (["FB_USED 30", "FB_FREE 60", "FB_RESERVED -10"], (None, 30, 60)),
        (["FB_USED 30", "FB_FREE 60", "FB_TOTAL 100"], (100, 30, 60)),
        (["FB_USED 30", "FB_TOTAL 100"], (100, 30, 70)),
        (["FB_USED 30"], (None, 30, None)),
        (["FB_FREE 60"], (None, None, 60)),
        (["FB_USED 60", "FB_FREE 60", "FB_TOTAL 100"], (100, None, None)),
        (["FB_USED 0", "FB_FREE 0"], (None, 0, 0)),
    ],
)
def test_memory_adds_up_or_is_not_told(lines: list[str], expected: tuple[int | None, ...]) -> None:
    sample = Dcgm(page(*(f"DEV_{line}" for line in lines))).sample()
    known = (sample.memory_total_bytes, sample.memory_used_bytes, sample.memory_free_bytes)
    assert tuple(reading.value for reading in known) == tuple(None if value is None else value * MIB for value in expected)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["RETIRED_SBE 2", "RETIRED_DBE 1"], 3),
        (["RETIRED_SBE 2"], None),
        (["RETIRED_SBE 2", "RETIRED_DBE 1", "CORRECTABLE_REMAPPED_ROWS 4", "UNCORRECTABLE_REMAPPED_ROWS 5"], 9),
        (["CORRECTABLE_REMAPPED_ROWS 9223372036854775794", "UNCORRECTABLE_REMAPPED_ROWS 5"], None),
    ],
)
def test_remapped_rows_or_retired_pages_and_never_half_of_a_sum(lines: list[str], expected: int | None) -> None:
    assert Dcgm(page(*(f"DEV_{line}" for line in lines))).sample().retired_pages.value == expected


def test_a_mig_instance_has_its_own_memory_and_never_the_utilisation_that_reads_zero() -> None:
    dcgm = Dcgm()
    one, two = dcgm.sample(f"MIG-{SPLIT}/1"), dcgm.sample(f"MIG-{SPLIT}/2")
    assert (one.memory_free_bytes.value, two.memory_free_bytes.value) == (30000 * MIB, 19968 * MIB)
    assert one.utilization_ratio.value == pytest.approx(0.06868), "the share of time in which its engine was active"
    assert (two.utilization_ratio.status, two.utilization_ratio.reason) == (Status.ABSENT, "not supported under MIG")
    assert two.memory_copy_utilization_ratio.status is Status.ABSENT
    assert two.temperature_celsius.value == 47
    for whole in (one.power_watts, one.ecc_single_bit_total, one.xid_events, one.retired_pages):
        assert whole.status is Status.ABSENT


def test_what_belongs_to_the_whole_gpu_is_told_of_the_gpu_that_is_split() -> None:
    sample = Dcgm().sample(SPLIT)
    assert (sample.power_watts.value, sample.temperature_celsius.value, sample.ecc_double_bit_total.value) == (151.25, 47, 0)
    assert sample.utilization_ratio.status is Status.ABSENT
    assert sample.memory_total_bytes.status is Status.ABSENT
    assert sample.xid_events.value == ()


def test_a_split_gpu_that_has_series_of_its_own_is_not_idle_because_its_utilisation_reads_zero() -> None:
    own = page("DEV_GPU_UTIL 0", "DEV_MEM_COPY_UTIL 0", "DEV_POWER_USAGE 200")
    instance = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"} 190\n'
    for body in (own + instance, instance + own):
        sample = Dcgm(body).sample()
        assert sample.utilization_ratio.status is Status.ABSENT
        assert sample.memory_copy_utilization_ratio.status is Status.ABSENT
        assert sample.power_watts.value == 200, "its own series before an instance's"


def test_one_gpu_shared_by_pods_counts_once_and_contradicting_series_are_not_believed() -> None:
    line = 'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-1",pod="{}"}} {}\n'
    assert Dcgm(line.format("a", 40) + line.format("b", 40)).sample().utilization_ratio.value == 0.4
    assert Dcgm(line.format("a", 40) + line.format("b", 0)).sample().utilization_ratio.status is Status.INVALID


def test_the_old_namespace_is_read_too() -> None:
    dcgm = Dcgm('dcgm_fi_prof_gr_engine_active{gpu="1",uuid="GPU-1",device="nvidia1"} 0.25\n')
    assert dcgm.sample().utilization_ratio.value == 0.25
    assert dcgm.source.devices() == (DeviceId(1, "GPU-1", "unknown"),)


def test_an_xid_counts_when_the_value_changes_and_not_while_it_sticks() -> None:
    dcgm, seen = Dcgm(), []
    for value in (0, 0, 31, 31, 79, 0, 31):
        seen.append(len(dcgm.later(f"DEV_XID_ERRORS {value}").xid_events.value or ()))
    assert seen == [0, 0, 1, 1, 2, 2, 3]
    assert (dcgm.sample().xid_events.value or ())[0] == XidEvent(31, 1.7e9 + 103)


def test_an_xid_that_was_there_before_us_is_not_an_event_and_a_gap_changes_nothing() -> None:
    dcgm, ledger = Dcgm(), XidLedger()
    for line in (
        "DEV_XID_ERRORS 79",
        "DEV_GPU_TEMP 50",
        "DEV_XID_ERRORS 79",
        "DEV_XID_ERRORS 9223372036854775794",
        "DEV_XID_ERRORS 79",
    ):
        ledger.take(dcgm.later(line).xid_events.value or ())
    assert dict(ledger.totals) == {}
    ledger.take(dcgm.later("DEV_XID_ERRORS 48").xid_events.value or ())
    ledger.take(dcgm.later("DEV_XID_ERRORS 48").xid_events.value or ())
    assert dict(ledger.totals) == {48: 1}


def test_one_fetch_serves_all_devices_of_a_round_whether_it_failed_or_not() -> None:
    dcgm = Dcgm()
    for expected in (1, 2):
        dcgm.source.devices()
        for uuid in (A, B, SPLIT):
            dcgm.sample(uuid)
        assert dcgm.fetches == expected
        dcgm.now += 1
    dcgm.failure = OSError("broken")
    assert {failure(dcgm.source, uuid) for uuid in (A, B, SPLIT)} == {GpuReason.FAILED}
    assert dcgm.fetches == 3


def test_a_device_is_never_given_the_same_page_twice() -> None:
    dcgm = Dcgm()
    dcgm.sample(A)
    dcgm.body = FIXTURE.replace(b"} 61\n", b"} 62\n")
    assert dcgm.sample(A).temperature_celsius.value == 62


def test_a_device_that_comes_late_does_not_take_the_page_of_an_earlier_round_for_new() -> None:
    dcgm = Dcgm()
    dcgm.sample(A)
    dcgm.now += 0.9
    assert dcgm.sample(B).temperature_celsius.taken_s == 100.9
    assert dcgm.fetches == 2


def test_a_page_that_costs_much_cpu_is_read_rarely_and_the_devices_say_why() -> None:
    dcgm = Dcgm()
    dcgm.cost_s = 1.0
    dcgm.sample(A)
    for dcgm.now in (101.0, 109.0):
        with pytest.raises(GpuError, match="too costly"):
            dcgm.sample(A)
    dcgm.now = 110.1
    dcgm.sample(A)
    assert dcgm.fetches == 2


def test_a_device_that_is_no_longer_on_the_page_is_lost() -> None:
    assert failure(Dcgm(page("DEV_GPU_TEMP 50")).source) is GpuReason.LOST


@pytest.mark.parametrize(
    "body", ["", "<html></html>", '{"a": 1}', "DCGM_FI_DEV_GPU_TEMP 5", "up 1\n", 'DCGM_FI_DEV_GPU_TEMP{UUID=""} 5\n', "\x00\n"]
)
def test_a_page_without_a_gpu_is_said_to_be_no_page_of_dcgm_exporter(body: str) -> None:
    with pytest.raises(GpuError, match=r"page_invalid: .*127\.0\.0\.1:9400/metrics"):
        Dcgm(body).source.devices()


def test_a_password_in_the_url_is_in_no_message() -> None:
    source = DcgmSource("http://user:secret@127.0.0.1:9400", get=lambda url: Fetched(b"", ""))
    with pytest.raises(GpuError) as caught:
        source.devices()
    assert "secret" not in str(caught.value)


def test_no_more_devices_are_kept_than_the_label_allows() -> None:
    body = "".join(f'DCGM_FI_DEV_XID_ERRORS{{gpu="{i}",UUID="GPU-{i}"}} 0\n' for i in range(500))
    assert len(Dcgm(body).source.devices()) == 64


_labels = st.lists(
    st.tuples(
        st.sampled_from(["UUID", "uuid", "gpu", "GPU_I_ID", "GPU_I_PROFILE", "modelName"]),
        st.sampled_from(["", "0", "1", A, "é"]),
    ),
    max_size=4,
    unique_by=lambda pair: pair[0],
)
_values = st.one_of(
    st.floats().map(repr), st.integers().map(str), st.sampled_from(["x", "", "2147483634", "9223372036854775794"])
)
_names = st.sampled_from(
    [line.split("{")[0] for line in FIXTURE.decode().splitlines() if not line.startswith("#")] + ["up", "dcgm_fi"]
)


def _line(name: str, labels: list[tuple[str, str]], value: str) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels)
    return f"{name}{{{inside}}} {value}"


_lines = st.builds(_line, _names, _labels, _values)


@given(st.one_of(st.binary(max_size=300), st.lists(_lines, max_size=30).map(lambda lines: "\n".join([*lines, ""]).encode())))
def test_any_page_gives_possible_values_or_an_error_value(body: bytes) -> None:
    dcgm = Dcgm(body)
    # Whatever else is raised fails the test.
    devices: tuple[DeviceId, ...] = ()
    with contextlib.suppress(GpuError):
        devices = dcgm.source.devices()
    for device in devices:
        sample = dcgm.source.sample(device)
        for field in FIELDS:
            value = sample.number(field.name).value
            assert value is None or field.low <= value <= field.high


# --- a real server, a real event loop, real threads ---


async def sampled(source: DcgmSource, uuid: str = A) -> GpuSample | GpuError:
    try:
        return await asyncio.to_thread(source.sample, DeviceId(0, uuid, "x"))
    except GpuError as error:
        return error


async def test_the_page_is_read_over_http_and_a_redirect_on_the_same_host_is_followed() -> None:
    handler = routes({"/metrics": reply(307, b"", "location: /metrics/"), "/metrics/": reply(200, FIXTURE)})
    async with serving(handler) as server:
        sample = await sampled(DcgmSource(server.url))
        assert isinstance(sample, GpuSample)
        assert sample.temperature_celsius.value == 61
        assert server.paths() == ["/metrics", "/metrics/"]


async def test_an_address_with_a_path_is_used_as_it_is() -> None:
    async with serving(routes({"/gpu": reply(200, FIXTURE)})) as server:
        assert isinstance(await sampled(DcgmSource(f"{server.url}/gpu")), GpuSample)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (silence, GpuReason.TIMEOUT),
        (stream(b"DCGM", *DRIPS), GpuReason.TIMEOUT),
        (reply(500, b"no"), GpuReason.UNREACHABLE),
        (reply(307, b"", "location: http://127.0.0.2:1/metrics"), GpuReason.UNREACHABLE),
        (reply(307, b"", "location: /metrics"), GpuReason.UNREACHABLE),
        (reply(200, b"x" * (MAX_BYTES + 1)), GpuReason.PAGE_INVALID),
        (reply(200, FIXTURE[:-5]), GpuReason.PAGE_INVALID),
        (reply(200, b""), GpuReason.PAGE_INVALID),
    ],
)
async def test_a_hostile_server_is_a_reason_within_the_deadline(handler: Handler, reason: GpuReason) -> None:
    async with serving(handler) as server, asyncio.timeout(5):
        error = await sampled(DcgmSource(server.url, get=PageGetter(0.5)))
    assert isinstance(error, GpuError)
    assert error.reason is reason


async def test_a_head_that_drips_ends_at_the_deadline_too() -> None:
    async def drip(seen: object, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200)[:-4])
        while True:
            writer.write(b"\r\nx: y")
            await asyncio.sleep(0.05)

    async with serving(drip) as server, asyncio.timeout(5):
        error = await sampled(DcgmSource(server.url, get=PageGetter(0.3)))
    assert isinstance(error, GpuError)
    assert error.reason is GpuReason.TIMEOUT


async def until(sampler: GpuSampler, condition: Callable[[GpuSnapshot], bool]) -> GpuSnapshot:
    async with asyncio.timeout(10):
        while not condition(sampler.snapshot()):
            await sampler.changed.wait()
            sampler.changed.clear()
    return sampler.snapshot()


async def test_when_the_server_goes_away_the_devices_ages_grow_and_nothing_else_happens() -> None:
    now = [100.0]
    async with serving(reply(200, FIXTURE)) as server:
        sampler = GpuSampler(DcgmSource(server.url, 1.0, lambda: now[0], get=PageGetter(0.5)), 1.0, lambda: now[0])
        sampler.poll()
        await until(sampler, lambda snapshot: len(snapshot.devices) == 5)
        now[0] += 1
        sampler.poll()
        await until(sampler, lambda snapshot: all(device.sample for device in snapshot.devices))
        assert len(server.requests) == 2, "one fetch for the list, one for all five devices"
    for missed in (1, 2):
        now[0] += 1
        sampler.poll()
        await until(sampler, lambda snapshot, missed=missed: all(d.failures == missed for d in snapshot.devices))  # type: ignore[misc]
    for device in sampler.snapshot().devices:
        assert (device.age_s(now[0]), device.reason, device.listed) == (2.0, GpuReason.UNREACHABLE, True)
        assert device.sample is not None
    sampler.close()


async def test_threads_that_come_at_once_share_one_fetch() -> None:
    dcgm, barrier = Dcgm(), threading.Barrier(3)

    def take(uuid: str) -> GpuSample:
        barrier.wait(10)
        return dcgm.sample(uuid)

    await asyncio.gather(*(asyncio.to_thread(take, uuid) for uuid in (A, B, SPLIT)))
    assert dcgm.fetches == 1
