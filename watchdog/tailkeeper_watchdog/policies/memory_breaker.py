"""Act before memory runs out: first a note, then no new work.

Memory pressure is ``llm_vram_pressure_ratio``: for engines that pre-allocate the largest of KV use, headroom lost since
warm-up and preemptions per second, else used ÷ total.

* Level 1, at 80 % for 30 s: the annotation ``oom-risk=level1``. A ticket is there in any mode, and above 92 % at once.
* Level 2, at 90 % for 10 s: drain, the annotation ``oom-risk=level2``, and after 5 s of grace for what is in flight the taint
  ``gpu-mem-pressure=high:NoSchedule``, so that a scheduler puts nothing more there. A drain needs a second signal beside the
  pressure: preemptions, memory-copy use above 85 %, rising single-bit ECC errors, or a broken latency SLO. Once
  drained there is no traffic to show it with, so what was seen last goes on to count.

A level ends where the pressure has fallen 5 points below its limit. A gap in the evidence starts the waiting anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.columns import columns
from tailkeeper_watchdog.model import DRAIN, EMPTY, BackendObservation, DesiredState, Knob, KnobValue, Mode, Situation
from tailkeeper_watchdog.policies.base import Policy
from tailkeeper_watchdog.policy_params import MemoryBreakerParams
from tailkeeper_watchdog.window import Window

NAME = "memory_breaker"
TAINT = "gpu-mem-pressure=high:NoSchedule"
ANNOTATION = "oom-risk"


@dataclass(frozen=True, slots=True)
class Level:
    """Since when the pressure is above a limit, and since when that is called a level; monotonic seconds, None while not."""

    above_since: float | None = None
    since: float | None = None

    def after(self, pressure: float, limit: float, hysteresis: float, wait_s: float, now: float) -> Level:
        if self.since is not None:
            return self if pressure >= limit - hysteresis else Level()
        if pressure < limit:
            return Level()
        above = now if self.above_since is None else self.above_since
        return Level(above, now if now - above >= wait_s else None)


@dataclass(frozen=True, slots=True)
class Memory:
    first: Mapping[str, Level] = field(default_factory=lambda: EMPTY)
    second: Mapping[str, Level] = field(default_factory=lambda: EMPTY)
    ecc: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """Single-bit ECC errors counted when the pressure began."""
    agreed: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: EMPTY)
    """What last said the same above the second limit. It counts on while the backend is drained: without traffic there is nothing
    to preempt, and it would be let in again with its memory as full as before."""


def decide(
    situation: Situation, params: MemoryBreakerParams, mode: Mode, memory: Memory
) -> tuple[Memory, tuple[DesiredState, ...]]:
    """What each backend under pressure should have; nothing for one whose pressure is not known."""
    first: dict[str, Level] = {}
    second: dict[str, Level] = {}
    ecc: dict[str, float] = {}
    agreed: dict[str, tuple[str, ...]] = {}
    desired: list[DesiredState] = []
    now = situation.snapshot.now
    lowest = min(params.level1_ratio, params.level2_ratio)
    fleet = columns(situation)
    high = fleet.told(catalog.VRAM_PRESSURE.name) >= lowest
    high[fleet.places(memory.first)] = True
    for place in np.flatnonzero(high):  # of nearly all of a fleet there is nothing to say
        backend, seen = situation.snapshot.backends[place], fleet.seen[place]
        name = backend.name
        pressure = seen.value(catalog.VRAM_PRESSURE.name) if seen is not None else None
        if seen is None or pressure is None:
            continue
        one = memory.first.get(name, Level())
        one = one.after(pressure, params.level1_ratio, params.hysteresis_ratio, params.level1_after_s, now)
        two = memory.second.get(name, Level())
        two = two.after(pressure, params.level2_ratio, params.hysteresis_ratio, params.level2_after_s, now)
        if one == two == Level():
            continue
        first[name], second[name] = one, two
        errors = _single_bit_errors(seen)
        if errors is not None:
            ecc[name] = memory.ecc.get(name, errors)
        agreeing = tuple(_agreeing(seen, situation.recent.get(name), ecc.get(name), situation, params))
        if two != Level():
            before = memory.agreed.get(name, ()) if situation.is_drained(backend) else ()
            agreeing = agreed[name] = tuple(dict.fromkeys((*before, *agreeing)))
        signals = ("memory_pressure", *agreeing)
        for knob, value, reason in _wants(pressure, one, two, signals, now, params):
            desired.append(DesiredState(NAME, name, knob, value, reason, mode, signals, seen.age_s))
    return Memory(first, second, ecc, agreed), tuple(desired)


def _wants(
    pressure: float, one: Level, two: Level, signals: tuple[str, ...], now: float, params: MemoryBreakerParams
) -> Iterator[tuple[Knob, KnobValue, str]]:
    if two.since is not None:
        also = ", ".join(signals[1:]) or "no second signal"
        reason = f"memory pressure {pressure:.0%}, at {params.level2_ratio:.0%} for {params.level2_after_s:g} s; with {also}"
        yield Knob.ADMISSION, DRAIN, reason
        yield Knob.ANNOTATION, f"{ANNOTATION}=level2", reason
        if now - two.since >= params.drain_grace_s and len(signals) > 1:
            yield Knob.TAINT, TAINT, f"{reason}; {params.drain_grace_s:g} s of grace are over"
    elif one.since is not None:
        reason = f"memory pressure {pressure:.0%}, at {params.level1_ratio:.0%} for {params.level1_after_s:g} s"
        yield Knob.ANNOTATION, f"{ANNOTATION}=level1", reason


def _agreeing(
    seen: BackendObservation, recent: Window | None, ecc_before: float | None, situation: Situation, params: MemoryBreakerParams
) -> Iterator[str]:
    """What says the same as the pressure and is not made from it alone."""
    preemptions = recent.rate(catalog.PREEMPTIONS.name) if recent else None
    if preemptions is not None and preemptions > params.preemptions_limit_per_s:
        yield "preemptions"
    copying = [value for gpu in seen.gpus if (value := gpu.memory_copy_ratio.value) is not None]
    if copying and max(copying) > params.memory_copy_limit_ratio:
        yield "memory_copy"
    errors = _single_bit_errors(seen)
    if errors is not None and ecc_before is not None and errors > ecc_before:
        yield "ecc_errors"
    p95 = recent.quantile("ttft", 0.95) if recent else None
    if p95 is not None and p95.value > situation.slo.ttft_p99_s:
        yield "latency"


def _single_bit_errors(seen: BackendObservation) -> float | None:
    counts = [value for gpu in seen.gpus if (value := gpu.ecc_single_bit_total.value) is not None]
    return sum(counts) if counts else None


POLICY = Policy(
    name=NAME,
    summary="Stop new work before memory runs out.",
    knobs=(Knob.ADMISSION, Knob.ANNOTATION, Knob.TAINT),
    new_memory=Memory,
    decide=decide,
)
