"""One list of shares that adds up to 1: what explains a shift, and how sure that is. Pure; the seed is given.

One shift is told in one currency, so that nothing is counted twice. The stages share it (``stages``). Then each stage's part
is handed down to whatever explains that stage, most particular first:

1. the queue's part to what filled it: more work, and whose, or slower prefill and decode (``demand``);
2. to segments, by how much of the stage's shift is gone without their requests (``segments``);
3. of the rest, to unusual resources that can slow this stage, by their strength (``resources``);
4. of the rest, to what changed shortly before, by its age (``changes``); what remains is the stage's own.

``unknown`` takes what the stages do not tell, and all in proportion to the chance that two samples of the same traffic differ
so much: at one in twenty, the whole. Confidence is the part of the bootstrap resamples in which an entry keeps at least half
of its share; for resources and changes, which are no sample, times their strength. Resamples are of ``RESAMPLE`` rows at most,
so that confidence is rather too small than too large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import erfc, fsum, sqrt

import numpy as np

from tailkeeper_watchdog.attribution.changes import Candidate
from tailkeeper_watchdog.attribution.demand import Handed, hand_on
from tailkeeper_watchdog.attribution.request_log import ERROR, OK, REJECTED, Rows, Sample, thinned
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
    known_stages,
    p99,
    stage_shift,
    staged,
)
from tailkeeper_watchdog.model import EMPTY, Share

MOST = 5_000
"""Rows of each sample; above, they are drawn at random: P99 of the drawn is then, in 19 of 20
draws, the quantile between 98.7 % and 99.3 % of all (``rank_error``)."""
RESAMPLE = 1_000
RESAMPLES = 12
MIN_BASELINE = 100
MIN_CURRENT = 30
CHANCE = 0.05
"""A shift that chance alone makes this often is wholly unknown; one that it makes a fifth as often, to a fifth."""
LEAST = 0.005
"""Smaller shares are added to unknown: a list for people ends somewhere."""
MIN_STAGE = 0.1
"""A stage with less of the shift is not handed down: who is behind a tenth is not worth the time."""
WITHOUT_RECORDS = 0.5
"""Confidence at most, and what unknown keeps at least, where only means and gauges are known."""
PREPARED_IN = (NETWORK, PREFILL, UNKNOWN)
"""Where the CPU's work on a prompt hides: before an engine's queue, or behind a tap in all that the engine does."""
ERRORS = "errors"
ANY = "any"

Key = tuple[str, str]
_Of = Callable[[Mapping[Key, float]], float]
_Of2 = Callable[[Key, float], float]
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


@dataclass(frozen=True, slots=True)
class Shift:
    """What moved, for people. Seconds, or a ratio for errors. ``suspects`` by stage."""

    before: float
    now: float
    samples: tuple[int, int]
    of: tuple[int, int]
    stages: Mapping[str, float]
    suspects: Mapping[str, tuple[Suspect, ...]]


@dataclass(frozen=True, slots=True)
class Attribution:
    """``shares`` add up to 1, largest first. ``shift`` is None where there were not enough records."""

    shares: tuple[Share, ...]
    shift: Shift | None = None


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both samples taken apart in the same way."""

    baseline: Sample
    current: Sample
    before: Staged
    now: Staged


def attribute(given: Given, seed: int) -> Attribution:
    """Shares of everything that explains the shift. The same values and seed give the same shares."""
    rng = np.random.default_rng(seed)
    pair = _pair(given, rng)
    if pair is None:
        return Attribution(_listed(_without_records(given), lambda key, share: _gauge_confidence(given, key)))
    shift, plan = _parts_of(pair, given.signal, rng)
    handed = _handed(pair, plan)
    blamed = _suspects(pair, given.signal, _left(plan, handed))
    point = _split(pair, given, plan, handed, blamed)
    drawn = [d for _ in range(RESAMPLES) if (d := _resampled(pair, given, blamed, rng)) is not None]
    real = _beyond_chance(shift.shift_s, pair, drawn)
    confidence = _Confidence(given, point, [d.found for d in drawn], real)
    shares = _listed({key: share * real for key, share in point.items() if key != NOTHING}, confidence)
    return Attribution(shares, _told(pair, given, shift, blamed))


def _pair(given: Given, rng: np.random.Generator) -> _Pair | None:
    if given.baseline is None or given.current is None or not len(given.baseline) or not len(given.current):
        return None
    known: frozenset[str] = frozenset()
    if given.signal != ERRORS:
        known = known_stages(given.baseline.rows, given.signal) & known_stages(given.current.rows, given.signal)
    baseline, current = thinned(given.baseline, MOST, rng), thinned(given.current, MOST, rng)
    before, now = (_taken_apart(sample.rows, given.signal, known) for sample in (baseline, current))
    if before.total_s.size < MIN_BASELINE or now.total_s.size < MIN_CURRENT:
        return None
    return _Pair(baseline, current, before, now)


def _taken_apart(rows: Rows, signal: str, known: frozenset[str]) -> Staged:
    if signal != ERRORS:
        return staged(rows, signal, known)
    rows = rows[np.isin(rows["outcome"], (OK, ERROR, REJECTED))]
    failed = (rows["outcome"] != OK).astype(np.float64)
    return Staged(rows, failed, {ERRORS: failed})


def _parts_of(pair: _Pair, signal: str, rng: np.random.Generator) -> tuple[StageShift, Mapping[str, float]]:
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


def _suspects(pair: _Pair, signal: str, left: Mapping[str, float]) -> Mapping[str, tuple[Suspect, ...]]:
    """For each stage that matters, who may be behind it. A queue is everyone's: what filled it is asked instead."""
    found: dict[str, tuple[Suspect, ...]] = {}
    for stage, share in left.items():
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


def _handed(pair: _Pair, plan: Mapping[str, float]) -> Handed:
    if plan.get(QUEUE, 0.0) < MIN_STAGE:
        return Handed({}, {})
    return hand_on(pair.baseline, pair.current, pair.before.rows, pair.now.rows)


def _left(plan: Mapping[str, float], handed: Handed) -> dict[str, float]:
    """The stages' parts after the queue has handed on what others filled it with."""
    left = dict(plan)
    queue = left.get(QUEUE, 0.0)
    for stage, part in handed.stages.items():
        left[stage] = left.get(stage, 0.0) + queue * part
    if queue:
        left[QUEUE] = queue * max(0.0, 1.0 - sum(handed.segments.values()) - sum(handed.stages.values()))
    return left


def _split(
    pair: _Pair, given: Given, plan: Mapping[str, float], handed: Handed, blamed: Mapping[str, tuple[Suspect, ...]]
) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for key, part in handed.segments.items():
        _add(found, key, plan[QUEUE] * part)
    prepared = _preprocessing(pair, given)
    for stage, amount in _left(plan, handed).items():
        part = prepared if stage in PREPARED_IN else 0.0
        _add(found, ("resource", PREPROCESS), amount * part)
        rest = amount * (1.0 - part)
        rest -= _to_segments(found, pair, given.signal, stage, rest, blamed.get(stage, ()))
        _to_gauges(found, given, stage, rest, frozenset({CPU}) if part > 0 else frozenset())
    return found


def _preprocessing(pair: _Pair, given: Given) -> float:
    """Preprocessing is a stage that only a mean tells: its rise in seconds, of the mean rise of the stages that hold it."""
    evidence = next((e for e in given.resources if e.name == PREPROCESS and e.usual is not None), None)
    held = [stage for stage in PREPARED_IN if stage in pair.before.parts_s]
    if evidence is None or evidence.usual is None or not held:
        return 0.0
    risen = sum(float(pair.now.parts_s[s].mean() - pair.before.parts_s[s].mean()) for s in held)
    return min(1.0, max(0.0, (evidence.now - evidence.usual) / risen)) if risen > 0 else 0.0


def _to_segments(
    found: dict[Key, float], pair: _Pair, signal: str, stage: str, amount: float, blamed: tuple[Suspect, ...]
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


def _alone(pair: _Pair, signal: str, stage: str, suspect: Suspect) -> float:
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


def _to_gauges(found: dict[Key, float], given: Given, stage: str, amount: float, told: frozenset[str] = frozenset()) -> None:
    """Hand down to resources and changes; what they leave is the stage's own, or unknown. ``told`` groups had their part."""
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
    _add(found, NOTHING if stage in (UNKNOWN, ANY, ERRORS) else ("stage", stage), amount)


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


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What one bootstrap resample gave: the statistic before and now, and the split."""

    before: float
    now: float
    found: Mapping[Key, float]


def _resampled(pair: _Pair, given: Given, blamed: Mapping[str, tuple[Suspect, ...]], rng: np.random.Generator) -> _Drawn | None:
    """The split on one bootstrap resample. The suspects stay those of the whole samples. None where no latency was drawn."""
    known = frozenset(pair.before.parts_s)
    baseline, current = pair.baseline.redrawn(rng, RESAMPLE), pair.current.redrawn(rng, RESAMPLE)
    before, now = (_taken_apart(sample.rows, given.signal, known) for sample in (baseline, current))
    if not before.total_s.size or not now.total_s.size:
        return None
    drawn = _Pair(baseline, current, before, now)
    _, plan = _parts_of(drawn, given.signal, rng)
    of = _statistic(given.signal)
    return _Drawn(of(before.total_s), of(now.total_s), _split(drawn, given, plan, _handed(drawn, plan), blamed))


def _statistic(signal: str) -> Callable[[Floats], float]:
    return (lambda values: float(values.mean())) if signal == ERRORS else p99


def _beyond_chance(shift: float, pair: _Pair, drawn: list[_Drawn]) -> float:
    """How far two samples of the same traffic would not differ by so much: 1 minus the chance of it, as a part of ``CHANCE``.

    A resample is smaller than its sample, and scatters by that much more.
    """
    if shift <= 0 or len(drawn) < 2:
        return 0.0
    variance = sum(
        float(np.var(found, ddof=1)) * min(1.0, RESAMPLE / size)
        for found, size in (([d.before for d in drawn], len(pair.baseline)), ([d.now for d in drawn], len(pair.current)))
    )
    chance = erfc(shift / sqrt(2.0 * variance)) / 2.0 if variance > 0 else 0.0
    return max(0.0, 1.0 - chance / CHANCE)


class _Confidence:
    """How often an entry keeps half of its share; for unknown, whether chance or the stages' silence made it."""

    def __init__(self, given: Given, point: Mapping[Key, float], drawn: list[Mapping[Key, float]], real: float) -> None:
        self._given, self._point, self._drawn, self._real = given, point, drawn, real

    def __call__(self, key: Key, share: float) -> float:
        if key == NOTHING:
            return max(1.0 - self._real, self._kept(lambda found: 1.0 - sum(found.values()) + found.get(key, 0.0), share))
        point = self._point[key]
        return self._kept(lambda found: found.get(key, 0.0), point) * _strength(self._given, key)

    def _kept(self, of: _Of, point: float) -> float:
        return float(np.mean([of(found) >= 0.5 * point for found in self._drawn])) if self._drawn else 0.0


def _strength(given: Given, key: Key) -> float:
    if key[0] == "resource":
        return next((e.strength for e in given.resources if e.name == key[1]), 0.0)
    if key[0] == "change":
        return next((c.claim for c in given.changes if c.text == key[1]), 0.0)
    return 1.0


def _without_records(given: Given) -> dict[Key, float]:
    """From means and gauges alone. At least half stays unknown where the stages are told by their means only."""
    found: dict[Key, float] = {}
    whole = sum(given.stage_rises.values())
    if whole <= 0 or given.signal == ERRORS:
        _to_gauges(found, given, ANY, 1.0)
        return found
    for stage, seconds in given.stage_rises.items():
        _to_gauges(found, given, stage, seconds / whole)
    return {key: share * (1.0 - WITHOUT_RECORDS) if key[0] == "stage" else share for key, share in found.items()}


def _gauge_confidence(given: Given, key: Key) -> float:
    return 0.0 if key == NOTHING else WITHOUT_RECORDS * _strength(given, key)


def _listed(found: Mapping[Key, float], confidence: _Of2) -> tuple[Share, ...]:
    """Shares largest first; unknown is what is missing to 1."""
    kept = {key: share for key, share in found.items() if key != NOTHING and share >= LEAST}
    missing = max(0.0, 1.0 - fsum(kept.values()))
    listed = {**kept, NOTHING: missing} if missing > 1e-12 else kept
    ranked = sorted(listed.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Share(*key, share=float(share), confidence=min(1.0, max(0.0, confidence(key, share)))) for key, share in ranked)


def _told(pair: _Pair, given: Given, shift: StageShift, blamed: Mapping[str, tuple[Suspect, ...]]) -> Shift:
    of = _statistic(given.signal)
    return Shift(
        of(pair.before.total_s),
        of(pair.now.total_s),
        (pair.before.total_s.size, pair.now.total_s.size),
        (pair.baseline.total, pair.current.total),
        {**shift.seconds, UNKNOWN: shift.seconds.get(UNKNOWN, 0.0) + shift.residual_s},
        blamed,
    )
