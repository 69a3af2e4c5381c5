"""One shift in one currency: the stages share it, and each part is handed down to what explains that stage. Pure.

Most particular first, so that nothing is counted twice:

1. the queue's part to what filled it: more work, and whose, or slower prefill and decode (``demand``);
2. to segments, by how much of the stage's shift is gone without their requests (``segments``);
3. of the rest, to unusual resources that can slow this stage, by their strength (``resources``);
4. of the rest, to what changed shortly before, by its age (``changes``); what remains is the stage's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tailkeeper_watchdog.attribution.changes import Candidate
from tailkeeper_watchdog.attribution.demand import Handed, hand_on
from tailkeeper_watchdog.attribution.request_log import ERROR, OK, REJECTED, Rows, Sample
from tailkeeper_watchdog.attribution.resources import CPU, PREPROCESS, Evidence
from tailkeeper_watchdog.attribution.segments import DIMENSIONS, TIE, Suspect, Values, alone, codes_of, suspects
from tailkeeper_watchdog.attribution.shapley import Floats
from tailkeeper_watchdog.attribution.stages import (
    DECODE,
    NETWORK,
    PREFILL,
    QUEUE,
    UNKNOWN,
    Staged,
    StageShift,
    stage_shift,
    staged,
)
from tailkeeper_watchdog.model import EMPTY

MIN_STAGE = 0.1
"""A stage with less of the shift is not handed down: who is behind a tenth is not worth the time."""
PREPARED_IN = (NETWORK, PREFILL, UNKNOWN)
"""Where the CPU's work on a prompt hides: before an engine's queue, or behind a tap in all that the engine does."""
ERRORS = "errors"
ANY = "any"
"""The stage of a shift of which no stage is known."""

Key = tuple[str, str]
"""Dimension and value of a share."""
NOTHING: Key = ("unknown", UNKNOWN)


@dataclass(frozen=True, slots=True)
class Given:
    """All that is known. ``signal`` is ttft, itl, e2e, or ``ERRORS`` for the share of failed requests."""

    signal: str
    baseline: Sample | None = None
    current: Sample | None = None
    resources: tuple[Evidence, ...] = ()
    changes: tuple[Candidate, ...] = ()
    stage_rises: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """Seconds by stage, where there are no records."""
    is_pool: bool = False
    """The baseline is what the pool's others do now, because the backend's own past is too short."""
    usual: tuple[str, ...] = ()
    """Resources that were looked at and are not unusual."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both samples taken apart in the same way."""

    baseline: Sample
    current: Sample
    before: Staged
    now: Staged


def taken_apart(rows: Rows, signal: str, known: frozenset[str]) -> Staged:
    if signal != ERRORS:
        return staged(rows, signal, known)
    rows = rows[np.isin(rows["outcome"], (OK, ERROR, REJECTED))]
    failed = (rows["outcome"] != OK).astype(np.float64)
    return Staged(rows, failed, {ERRORS: failed})


def parts_of(pair: Pair, signal: str, rng: np.random.Generator) -> tuple[StageShift, Mapping[str, float]]:
    """The shift, and its parts by stage as shares; unknown is what no stage tells. Stages that got faster explain nothing."""
    if signal == ERRORS:
        moved = float(pair.now.total_s.mean() - pair.before.total_s.mean())
        return StageShift(moved, {ERRORS: moved}, 0.0), {ERRORS: 1.0}
    shift = stage_shift(pair.before, pair.now, rng)
    slower = {stage: max(0.0, seconds) for stage, seconds in shift.seconds.items()}
    whole = sum(slower.values()) + abs(shift.residual_s)
    if whole <= 0:
        return shift, {UNKNOWN: 1.0}
    return shift, {stage: seconds / whole for stage, seconds in slower.items() if seconds > 0}


def suspects_by_stage(pair: Pair, signal: str, plan: Mapping[str, float]) -> Mapping[str, tuple[Suspect, ...]]:
    """For each stage that matters, who may be behind it. A queue is everyone's: what filled it is asked instead."""
    found: dict[str, tuple[Suspect, ...]] = {}
    for stage, share in plan.items():
        (before, then), (now, current) = _times(pair.before, stage), _times(pair.now, stage)
        if share >= MIN_STAGE and stage != QUEUE and before.size and now.size:
            found[stage] = suspects(before, then, now, current, pair.current.names, signal == ERRORS)
    return found


def _times(taken: Staged, stage: str) -> tuple[Floats, Rows]:
    """The times of a stage and their rows. Decode behind a queue, where it is no part of the signal, by its token interval."""
    if stage in taken.parts_s:
        return taken.parts_s[stage], taken.rows
    if stage != DECODE:
        return np.empty(0), taken.rows[:0]
    rows = taken.rows[np.isfinite(taken.rows["itl_s"])]
    return rows["itl_s"].astype(np.float64), rows


def handed(pair: Pair, plan: Mapping[str, float]) -> Handed:
    """What the queue hands on; nothing where it has too little of the shift to matter."""
    if plan.get(QUEUE, 0.0) < MIN_STAGE:
        return Handed({}, {})
    return hand_on(pair.baseline, pair.current, pair.before.rows, pair.now.rows)


def left(plan: Mapping[str, float], passed_on: Handed) -> dict[str, float]:
    """The stages' parts after the queue has handed on what others filled it with."""
    left = dict(plan)
    queue = left.get(QUEUE, 0.0)
    for stage, part in passed_on.stages.items():
        left[stage] = left.get(stage, 0.0) + queue * part
    if queue:
        left[QUEUE] = queue * max(0.0, 1.0 - sum(passed_on.segments.values()) - sum(passed_on.stages.values()))
    return left


def split(
    pair: Pair, given: Given, plan: Mapping[str, float], passed_on: Handed, blamed: Mapping[str, tuple[Suspect, ...]]
) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for key, part in passed_on.segments.items():
        _add(found, key, plan[QUEUE] * part)
    prepared = _preprocessing(pair, given)
    for stage, amount in left(plan, passed_on).items():
        part = prepared if stage in PREPARED_IN else 0.0
        _add(found, ("resource", PREPROCESS), amount * part)
        rest = amount * (1.0 - part)
        rest -= _to_segments(found, pair, given.signal, stage, rest, blamed.get(stage, ()))
        to_gauges(found, given, stage, rest, frozenset({CPU}) if part > 0 else frozenset(), _outcomes(pair, stage))
    return found


def _outcomes(pair: Pair, stage: str) -> Mapping[Key, float]:
    """Of more failures, how much are errors and how much refusals. Nothing for a latency."""
    if stage != ERRORS:
        return EMPTY
    codes = {"error": ERROR, "rejected": REJECTED}
    risen = {
        ("outcome", name): float((pair.now.rows["outcome"] == code).mean() - (pair.before.rows["outcome"] == code).mean())
        for name, code in codes.items()
    }
    more = {key: rise for key, rise in risen.items() if rise > 0}
    return {key: rise / sum(more.values()) for key, rise in more.items()}


def _preprocessing(pair: Pair, given: Given) -> float:
    """Preprocessing is a stage that only a mean tells: its rise in seconds, of the mean rise of the stages that hold it."""
    evidence = next((e for e in given.resources if e.name == PREPROCESS and e.usual is not None), None)
    held = [stage for stage in PREPARED_IN if stage in pair.before.parts_s]
    if evidence is None or evidence.usual is None or not held:
        return 0.0
    risen = sum(float(pair.now.parts_s[s].mean() - pair.before.parts_s[s].mean()) for s in held)
    return min(1.0, max(0.0, (evidence.now - evidence.usual) / risen)) if risen > 0 else 0.0


def _to_segments(
    found: dict[Key, float], pair: Pair, signal: str, stage: str, amount: float, blamed: tuple[Suspect, ...]
) -> float:
    """Hand down to the segments of the dimension that explains most. Returns how much they took."""
    best: tuple[float, Suspect | None] = (0.0, None)
    for suspect in blamed:
        explained = _alone(pair, signal, stage, suspect)
        if explained > best[0] + (TIE if best[1] else 0.0):
            best = (explained, suspect)
    explained, chosen = best
    if chosen is None:
        return 0.0
    for code, part in chosen.members.items():
        _add(found, (chosen.dimension, chosen.names[code]), amount * explained * part)
    return amount * explained


def _alone(pair: Pair, signal: str, stage: str, suspect: Suspect) -> float:
    (before, then), (now, current) = _times(pair.before, stage), _times(pair.now, stage)
    if not suspect.members or not before.size or not now.size:
        return 0.0
    explained = alone(
        Values(before, codes_of(then, suspect.dimension)),
        Values(now, codes_of(current, suspect.dimension)),
        suspect.members,
        signal == ERRORS,
    )
    return explained * suspect.counted


def to_gauges(
    found: dict[Key, float],
    given: Given,
    stage: str,
    amount: float,
    told: frozenset[str] = frozenset(),
    outcomes: Mapping[Key, float] = EMPTY,
) -> None:
    """Hand down to resources and changes; what they leave is the stage's own, the ``outcomes``', or unknown. ``told`` groups
    had their part."""
    unusual = _resources_for(given, stage, told)
    for name, part in unusual.items():
        _add(found, ("resource", name), amount * part)
    amount *= 1.0 - sum(unusual.values())
    named = {f"{dimension} {value}" for dimension, value in found if dimension in DIMENSIONS}
    open_changes = [c for c in given.changes if c.claim > 0 and c.text not in named]
    strongest = max((c.claim for c in open_changes), default=0.0)
    whole = sum(c.claim for c in open_changes)
    for change in open_changes:
        _add(found, ("change", change.text), amount * strongest * change.claim / whole)
    amount *= 1.0 - strongest
    for key, part in (outcomes or {NOTHING if stage in (UNKNOWN, ANY, ERRORS) else ("stage", stage): 1.0}).items():
        _add(found, key, amount * part)


def _resources_for(given: Given, stage: str, told: frozenset[str]) -> dict[str, float]:
    """Parts by name: together as much as the strongest is strong, shared by strength, one of each group."""
    groups: dict[str, Evidence] = {}
    for evidence in given.resources:  # strongest first
        if evidence.group not in told and (stage in evidence.stages or stage in (UNKNOWN, ANY, ERRORS)):
            groups.setdefault(evidence.group, evidence)
    whole = sum(e.strength for e in groups.values())
    most = max((e.strength for e in groups.values()), default=0.0)
    return {e.name: most * e.strength / whole for e in groups.values()} if whole > 0 else {}


def _add(found: dict[Key, float], key: Key, share: float) -> None:
    if share > 0:
        found[key] = found.get(key, 0.0) + share
