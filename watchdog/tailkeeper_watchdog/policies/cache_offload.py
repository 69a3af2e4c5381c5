"""Answer more from caches while memory is short, one tier at a time, and never throw a warm cache away under load.

Memory pressure at 80 % for 10 s puts the first of ``tiers`` into use, and every further 30 s the next one. Tiers are values of
the knob ``cache_mode``: the tap has ``local``, an exact-match cache of its own for deterministic requests, which tenants never
share. A gateway behind the webhook may have more, for example ``redis`` (entries for 60 s, purged on change) and ``object``
(an object store or CDN, revalidated by ETag).

A tier is taken back only after a minute below 60 % with nothing waiting, and one at a time: until then the warm cache stays.
An engine's own cache tier is not touched: switching it needs a drain first, and that is another policy's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.columns import columns
from tailkeeper_watchdog.model import EMPTY, DesiredState, Knob, Mode, Situation
from tailkeeper_watchdog.policies.base import Policy
from tailkeeper_watchdog.policy_params import CacheOffloadParams

NAME = "cache_offload"


@dataclass(frozen=True, slots=True)
class Offload:
    """How many tiers are in use at one backend; since when the pressure is high or low, and the last step; monotonic seconds."""

    tiers: int = 0
    high_since: float | None = None
    low_since: float | None = None
    stepped_at: float = float("-inf")


_NONE = Offload()


@dataclass(frozen=True, slots=True)
class Memory:
    offloads: Mapping[str, Offload] = field(default_factory=lambda: EMPTY)


def decide(
    situation: Situation, params: CacheOffloadParams, mode: Mode, memory: Memory
) -> tuple[Memory, tuple[DesiredState, ...]]:
    """The cache mode of each backend that is, or was a moment ago, short of memory."""
    offloads: dict[str, Offload] = {}
    desired: list[DesiredState] = []
    fleet = columns(situation)
    high = fleet.told(catalog.VRAM_PRESSURE.name) >= params.pressure_ratio
    high[fleet.places(memory.offloads)] = True
    for place in np.flatnonzero(high):  # of nearly all of a fleet there is nothing to say
        name, seen = fleet.names[place], fleet.seen[place]
        before = memory.offloads.get(name, _NONE)
        pressure = seen.value(catalog.VRAM_PRESSURE.name) if seen is not None else None
        if seen is None or pressure is None:  # unknown wants nothing; how long it was high or low begins anew
            if before.tiers:
                offloads[name] = replace(before, high_since=None, low_since=None)
            continue
        idle = seen.value(catalog.WAITING.name) == 0
        after = step(before, pressure, idle, situation.snapshot.now, params)
        if after != Offload():
            offloads[name] = after
        if after.tiers:
            reason = f"memory pressure {pressure:.0%}: {after.tiers} of {len(params.tiers)} cache tiers in use"
            tier = params.tiers[after.tiers - 1]
            desired.append(DesiredState(NAME, name, Knob.CACHE_MODE, tier, reason, mode, ("memory_pressure",), seen.age_s))
    return Memory(offloads), tuple(desired)


def step(before: Offload, pressure: float, idle: bool, now: float, params: CacheOffloadParams) -> Offload:
    """The tiers after this look. ``idle``: nothing waits, so that a cold cache costs nobody."""
    if pressure >= params.pressure_ratio:
        since = now if before.high_since is None else before.high_since
        due = now - since >= params.pressure_after_s and now - before.stepped_at >= params.step_s
        if due and before.tiers < len(params.tiers):
            return Offload(before.tiers + 1, since, None, now)
        return replace(before, high_since=since, low_since=None)
    if pressure >= params.relief_ratio or not idle or not before.tiers:
        return replace(before, high_since=None, low_since=None) if before.tiers else Offload()
    since = now if before.low_since is None else before.low_since
    if now - since < params.relief_after_s:
        return replace(before, high_since=None, low_since=since)
    fewer = Offload(before.tiers - 1, None, now, now)
    return fewer if fewer.tiers else Offload()


POLICY = Policy(
    name=NAME,
    summary="Use caches, tier by tier, while memory is short.",
    knobs=(Knob.CACHE_MODE,),
    new_memory=Memory,
    decide=decide,
)
