"""Why a backend's GPUs cannot be told: what an operator has to read, not only to miss. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_exporter.gpu.base import GpuReason
from tailkeeper_exporter.gpu.sampler import DeviceState, GpuSnapshot

MAX_NAMED = 8
"""Devices that a complaint names; a node has no more as a rule."""

_GONE = "the source no longer lists it"


@dataclass(frozen=True, slots=True)
class Trouble:
    """``detail`` is for people, and names the device."""

    reason: GpuReason
    detail: str


def trouble_of(snapshot: GpuSnapshot, gpus: tuple[str, ...], now: float, stale_after_s: float) -> Trouble | None:
    """The first thing that is wrong with a backend's configured GPUs; None while nothing is, or nothing is known yet."""
    if not gpus:
        return None
    if snapshot.reason is not None:
        return Trouble(snapshot.reason, snapshot.detail)
    if snapshot.listed_s is None:
        return None
    matched = snapshot.match(gpus)
    for text, reason in matched.problems:
        return Trouble(reason, f"gpus: {text!r} is {_said(reason)} the devices here: {_names(snapshot)}")
    states = [state for device in matched.devices if (state := snapshot.of(device.uuid)) is not None]
    silent = next((state for state in states if _is_silent(state, now, stale_after_s)), None)
    return None if silent is None else Trouble(_why(silent), f"{silent.device.uuid}: {silent.detail or _GONE}")


def _said(reason: GpuReason) -> str:
    return "more than one of" if reason is GpuReason.AMBIGUOUS else "none of"


def _names(snapshot: GpuSnapshot) -> str:
    listed = [state.device for state in snapshot.devices if state.listed]
    names = [device.uuid if device.index is None else f"{device.index} {device.uuid}" for device in listed[:MAX_NAMED]]
    more = [f"and {len(listed) - MAX_NAMED} more"] if len(listed) > MAX_NAMED else []
    return ", ".join([*names, *more]) or "there are none"


def _is_silent(state: DeviceState, now: float, stale_after_s: float) -> bool:
    age_s = state.age_s(now)
    return state.reason is not None if age_s is None else age_s > stale_after_s


def _why(state: DeviceState) -> GpuReason:
    return state.reason or (GpuReason.FAILED if state.listed else GpuReason.LOST)
