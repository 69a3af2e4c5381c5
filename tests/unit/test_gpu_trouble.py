"""What is wrong with a backend's GPUs is said: which, why, and what there is instead."""

from __future__ import annotations

import pytest

from tailkeeper_exporter.gpu import DeviceId, DeviceState, GpuReason, GpuSample, GpuSnapshot, Trouble, trouble_of

NOW, STALE_S = 100.0, 5.0
A, B = DeviceId(0, "GPU-aaaa", "H200"), DeviceId(1, "GPU-abbb", "H200")
GOOD = GpuSnapshot((DeviceState(A, GpuSample(), NOW - 1), DeviceState(B, GpuSample(), NOW - 1)), NOW)


def snapshot(**second: object) -> GpuSnapshot:
    return GpuSnapshot((GOOD.devices[0], DeviceState(B, **second)), NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "gpus"),
    [
        (GOOD, ("0", "GPU-abbb")),
        (GOOD, ()),
        (GpuSnapshot(), ("0",)),
        (snapshot(), ("1",)),
        (snapshot(sample=GpuSample(), taken_s=NOW - 99, reason=GpuReason.TIMEOUT), ("0",)),
        (snapshot(sample=GpuSample(), taken_s=NOW - 1, reason=GpuReason.TIMEOUT), ("1",)),
    ],
    ids=["all well", "no gpus", "not listed yet", "not sampled yet", "another backend's", "one call late"],
)
def test_nothing_is_wrong_with_what_is_well_or_not_known_yet(known: GpuSnapshot, gpus: tuple[str, ...]) -> None:
    assert trouble_of(known, gpus, NOW, STALE_S) is None


@pytest.mark.parametrize(
    ("known", "gpus", "reason", "says"),
    [
        (GOOD, ("7",), GpuReason.UNKNOWN_DEVICE, "'7' is none of the devices here: 0 GPU-aaaa, 1 GPU-abbb"),
        (GpuSnapshot((), NOW), ("0",), GpuReason.UNKNOWN_DEVICE, "there are none"),
        (GOOD, ("0", "GPU-a"), GpuReason.AMBIGUOUS, "more than one of"),
        (GpuSnapshot((), None, GpuReason.FILE_INVALID, "gpus.json: bad"), ("0",), GpuReason.FILE_INVALID, "gpus.json: bad"),
        (snapshot(reason=GpuReason.LOST, detail="fell off"), ("1",), GpuReason.LOST, "GPU-abbb: fell off"),
        (
            snapshot(sample=GpuSample(), taken_s=NOW - 6, reason=GpuReason.TIMEOUT, detail="no answer"),
            ("0", "1"),
            GpuReason.TIMEOUT,
            "GPU-abbb: no answer",
        ),
        (
            snapshot(sample=GpuSample(), taken_s=NOW - 6, listed=False),
            ("1",),
            GpuReason.LOST,
            "GPU-abbb: the source no longer lists it",
        ),
    ],
    ids=["unknown", "no device", "ambiguous", "source", "lost", "hung", "no longer listed"],
)
def test_what_is_wrong_is_named(known: GpuSnapshot, gpus: tuple[str, ...], reason: GpuReason, says: str) -> None:
    found = trouble_of(known, gpus, NOW, STALE_S)
    assert found is not None
    assert found == Trouble(reason, found.detail)
    assert says in found.detail


def test_a_list_of_devices_in_a_complaint_is_bounded() -> None:
    many = GpuSnapshot(tuple(DeviceState(DeviceId(n, f"GPU-{n:03}", "H200")) for n in range(64)), NOW)
    found = trouble_of(many, ("99",), NOW, STALE_S)
    assert found is not None
    assert found.detail.endswith("7 GPU-007, and 56 more")
