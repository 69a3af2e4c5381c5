"""Hung, down, telemetry lost and memory pressure: what the exporter's word says by itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.columns import columns
from tailkeeper_watchdog.detectors.base import Detector, Symptom
from tailkeeper_watchdog.metrics import (
    DOWN_PAGES_AFTER_S,
    MEMORY_PRESSURE_LIMIT_RATIO,
    MEMORY_RISK_AFTER_S,
    MEMORY_RISK_RATIO,
)
from tailkeeper_watchdog.model import EMPTY, Backend, BackendObservation, FindingKind, Pool, Severity, Situation
from tailkeeper_watchdog.window import Window

_IN_FLIGHT = ((catalog.RUNNING, "running"), (catalog.WAITING, "waiting"))

PAGE_PATIENCE_S = 2.0
"""Beyond the age at which evidence is stale: the exporter's usual time-out, so that one page that takes all of it is not lost."""


@dataclass(frozen=True, slots=True)
class Memory:
    """``paged`` has the backends whose metrics page was read at least once: one that has no page cannot lose it.

    ``awaited`` has those that were never heard of, with when they were first asked for (monotonic): they have as long to answer
    as evidence takes to grow stale.
    """

    paged: Mapping[str, bool] = field(default_factory=lambda: EMPTY)
    awaited: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    pressed: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """Since when the memory of each is under pressure enough to be a risk, monotonic."""
    down_since: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """Of those that are down now, monotonic."""


def detect(situation: Situation, memory: Memory) -> tuple[Memory, tuple[Symptom, ...]]:
    symptoms: list[Symptom] = []
    new: dict[str, bool] = {}
    awaited: dict[str, float] = {}
    pressed: dict[str, float] = {}
    down: dict[str, float] = {}
    now, limit_s = situation.snapshot.now, situation.stale_after_s + PAGE_PATIENCE_S
    fleet = columns(situation)
    pressure_of, page_age_s = fleet.told(catalog.VRAM_PRESSURE.name), fleet.told(catalog.SCRAPE_AGE.name)
    for place in np.flatnonzero(page_age_s <= limit_s):
        if fleet.names[place] not in memory.paged:
            new[fleet.names[place]] = True
    # Nearly all of a fleet are heard of and well, and their pages are read.
    for place in np.flatnonzero(~fleet.heard | fleet.dead | (pressure_of >= MEMORY_RISK_RATIO) | (page_age_s > limit_s)):
        backend, seen = situation.snapshot.backends[place], fleet.seen[place]
        if seen is None:
            if _never_heard_of(situation, backend.name):
                awaited[backend.name] = memory.awaited.get(backend.name, now)
            if now - awaited.get(backend.name, -inf) >= situation.stale_after_s:
                symptoms.append(_lost(situation, backend.name))
        else:
            if seen.state.is_dead:
                if seen.state is State.DOWN:
                    down[backend.name] = memory.down_since.get(backend.name, now)
                symptoms.append(_dead(seen, _severity(backend, down.get(backend.name), situation)))
            pressure = seen.value(catalog.VRAM_PRESSURE.name)
            if pressure is not None and pressure >= MEMORY_RISK_RATIO:
                since = pressed[backend.name] = memory.pressed.get(backend.name, now)
                symptoms.extend(_pressure(seen, pressure, now - since, situation.recent.get(backend.name)))
            age_s = seen.value(catalog.SCRAPE_AGE.name)
            speaks = not seen.state.is_dead and seen.state is not State.STARTING
            if speaks and age_s is not None and age_s > limit_s and backend.name in memory.paged:
                symptoms.append(_page_lost(seen, age_s, limit_s))
    if not new and (awaited, pressed, down) == (memory.awaited, memory.pressed, memory.down_since):
        return memory, tuple(symptoms)
    return Memory({**memory.paged, **new} if new else memory.paged, awaited, pressed, down), tuple(symptoms)


def _never_heard_of(situation: Situation, name: str) -> bool:
    seen = situation.snapshot.observations.get(name)
    return seen is None or seen.age_s is None


def _severity(backend: Backend, down_since: float | None, situation: Situation) -> Severity:
    """A page; a ticket where it went down a moment ago, as in a restart, and its pool can do without it. It is drained all the
    same."""
    if down_since is None or situation.snapshot.now - down_since >= DOWN_PAGES_AFTER_S:
        return Severity.PAGE
    serving = situation.worked_out("serving pools", _serving_pools)
    return Severity.TICKET if any((t.gateway, t.pool) in serving for t in backend.targets) else Severity.PAGE


def _serving_pools(situation: Situation) -> frozenset[Pool]:
    """Those in which somebody takes work: whoever is down does not."""
    heard = situation.heard
    return frozenset(
        (target.gateway, target.pool)
        for backend in situation.snapshot.backends
        if (seen := heard.get(backend.name)) is not None and seen.state.takes_work
        for target in backend.targets
    )


def _page_lost(seen: BackendObservation, age_s: float, limit_s: float) -> Symptom:
    """The exporter answers and cannot read the engine's page: what only the page tells is unknown; blind is not dead."""
    summary = f"{seen.backend}: its metrics page cannot be read; by its probe it is {seen.state}, and nothing is done for this"
    evidence = {"why": "the exporter cannot read the engine's metrics page", "age_s": age_s, "limit_s": limit_s}
    return Symptom(FindingKind.TELEMETRY_LOST, seen.backend, Severity.TICKET, summary, evidence)


def _lost(situation: Situation, name: str) -> Symptom:
    seen = situation.snapshot.observations.get(name)
    why = situation.snapshot.source_error or (_said(seen) if seen else "") or "no fresh evidence"
    age = seen.age_s if seen else None
    return Symptom(
        FindingKind.TELEMETRY_LOST,
        name,
        Severity.TICKET,
        f"{name}: nothing is known ({why}); no action is taken on it",
        {"why": why, "age_s": age, "limit_s": situation.stale_after_s},
    )


def _said(seen: BackendObservation) -> str:
    return seen.error or "; ".join(seen.reasons)


def _dead(seen: BackendObservation, severity: Severity) -> Symptom:
    kind = FindingKind.HUNG if seen.state is State.HUNG else FindingKind.DOWN
    evidence = {
        "reasons": list(seen.reasons),
        "running": seen.value(catalog.RUNNING.name),
        "waiting": seen.value(catalog.WAITING.name),
        "evidence_age_s": seen.age_s,
    }
    flight = [f"{seen.value(m.name):.0f} {word}" for m, word in _IN_FLIGHT if seen.value(m.name)]
    why = "; ".join([*flight, *seen.reasons]) or "reported by the exporter"
    return Symptom(kind, seen.backend, severity, f"{seen.backend} is {seen.state}: {why}", evidence)


def _pressure(seen: BackendObservation, pressure: float, for_s: float, recent: Window | None) -> list[Symptom]:
    """A ticket: at the limit at once, below it where it lasts."""
    over = pressure > MEMORY_PRESSURE_LIMIT_RATIO
    if not over and for_s < MEMORY_RISK_AFTER_S:
        return []
    limit = MEMORY_PRESSURE_LIMIT_RATIO if over else MEMORY_RISK_RATIO
    evidence = {
        "pressure_ratio": pressure,
        "limit_ratio": limit,
        "for_s": for_s,
        "kv_usage_ratio": seen.value(catalog.KV_USAGE.name),
        "preemptions_per_s": recent.rate(catalog.PREEMPTIONS.name) if recent else None,
    }
    lasting = "" if over else f" for {for_s:.0f} s"
    summary = f"{seen.backend}: memory pressure {pressure:.0%}{lasting}, limit {limit:.0%}"
    return [Symptom(FindingKind.MEMORY_PRESSURE, seen.backend, Severity.TICKET, summary, evidence)]


DETECTOR = Detector(
    name="state",
    kinds=(FindingKind.HUNG, FindingKind.DOWN, FindingKind.TELEMETRY_LOST, FindingKind.MEMORY_PRESSURE),
    new_memory=Memory,
    detect=detect,
    close_after_s=5.0,
)
