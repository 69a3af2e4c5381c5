"""One list of shares that adds up to 1: what explains a shift, and how sure that is. Pure; the seed is given.

``hand_down`` says who gets what. ``unknown`` takes what the stages do not tell, and all in proportion to the chance that two
samples of the same traffic differ so much: at one in twenty, the whole. Confidence is the part of the bootstrap resamples in
which an entry keeps at least half of its share; for resources and changes, which are no sample, times their strength.
Resamples are of ``RESAMPLE`` rows at most, so that confidence is rather too small than too large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import erfc, fsum, sqrt

import numpy as np
from scipy.special import bdtrc

from tailkeeper_watchdog.attribution.hand_down import (
    ANY,
    ERRORS,
    NOTHING,
    Given,
    Key,
    Pair,
    handed,
    left,
    parts_of,
    split,
    suspects_by_stage,
    taken_apart,
    to_gauges,
)
from tailkeeper_watchdog.attribution.request_log import thinned
from tailkeeper_watchdog.attribution.segments import Suspect
from tailkeeper_watchdog.attribution.shapley import Floats
from tailkeeper_watchdog.attribution.stages import UNKNOWN, StageShift, known_stages, p99
from tailkeeper_watchdog.model import Share

MOST = 5_000
"""Rows of each sample; above, they are drawn at random: P99 of the drawn is then, in 19 of 20
draws, the quantile between 98.7 % and 99.3 % of all (``rank_error``)."""
RESAMPLE = 1_000
RESAMPLES = 12
MIN_BASELINE = 100
MIN_CURRENT = 30
MIN_CURRENT_OF_ERRORS = 10
"""A share of failures needs fewer than a P99: whether it can be chance is asked in any case."""
CHANCE = 0.05
"""A shift that chance alone makes this often is wholly unknown; one that it makes a fifth as often, to a fifth."""
LEAST = 0.005
"""Smaller shares are added to unknown: a list for people ends somewhere."""
WITHOUT_RECORDS = 0.5
"""Confidence at most, and what unknown keeps at least, where only means and gauges are known."""
_Told = Callable[[Mapping[Key, float]], float]
_Sure = Callable[[Key, float], float]


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


def attribute(given: Given, seed: int) -> Attribution:
    """Shares of everything that explains the shift. The same values and seed give the same shares."""
    rng = np.random.default_rng(seed)
    pair = _pair(given, rng)
    if pair is None:
        return Attribution(_listed(_without_records(given), lambda key, share: _gauge_confidence(given, key)))
    shift, plan = parts_of(pair, given.signal, rng)
    passed_on = handed(pair, plan)
    blamed = suspects_by_stage(pair, given.signal, left(plan, passed_on))
    point = split(pair, given, plan, passed_on, blamed)
    drawn = [d for _ in range(RESAMPLES) if (d := _resampled(pair, given, blamed, rng)) is not None]
    real = _failures_beyond_chance(pair) if given.signal == ERRORS else _beyond_chance(shift.shift_s, pair, drawn)
    confidence = _Confidence(given, point, [d.found for d in drawn], real)
    shares = _listed({key: share * real for key, share in point.items() if key != NOTHING}, confidence)
    return Attribution(shares, _told(pair, given, shift, blamed))


def _pair(given: Given, rng: np.random.Generator) -> Pair | None:
    if given.baseline is None or given.current is None or not len(given.baseline) or not len(given.current):
        return None
    known: frozenset[str] = frozenset()
    if given.signal != ERRORS:
        known = known_stages(given.baseline.rows, given.signal) & known_stages(given.current.rows, given.signal)
    baseline, current = thinned(given.baseline, MOST, rng), thinned(given.current, MOST, rng)
    before, now = (taken_apart(sample.rows, given.signal, known) for sample in (baseline, current))
    least = MIN_CURRENT_OF_ERRORS if given.signal == ERRORS else MIN_CURRENT
    if before.total_s.size < MIN_BASELINE or now.total_s.size < least:
        return None
    return Pair(baseline, current, before, now)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What one bootstrap resample gave: the statistic before and now, and the split."""

    before: float
    now: float
    found: Mapping[Key, float]


def _resampled(pair: Pair, given: Given, blamed: Mapping[str, tuple[Suspect, ...]], rng: np.random.Generator) -> _Drawn | None:
    """The split on one bootstrap resample. The suspects stay those of the whole samples. None where no latency was drawn."""
    known = frozenset(pair.before.parts_s)
    baseline, current = pair.baseline.redrawn(rng, RESAMPLE), pair.current.redrawn(rng, RESAMPLE)
    before, now = (taken_apart(sample.rows, given.signal, known) for sample in (baseline, current))
    if not before.total_s.size or not now.total_s.size:
        return None
    drawn = Pair(baseline, current, before, now)
    _, plan = parts_of(drawn, given.signal, rng)
    of = _statistic(given.signal)
    return _Drawn(of(before.total_s), of(now.total_s), split(drawn, given, plan, handed(drawn, plan), blamed))


def _statistic(signal: str) -> Callable[[Floats], float]:
    return (lambda values: float(values.mean())) if signal == ERRORS else p99


def _beyond_chance(shift: float, pair: Pair, drawn: list[_Drawn]) -> float:
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


def _failures_beyond_chance(pair: Pair) -> float:
    """The same for a share of failures, by the binomial tail at the share of both samples together: a handful of failures that
    came in one clump is no accident, though most resamples of so few requests would miss it."""
    before, now = pair.before.total_s, pair.now.total_s
    failed = float(now.sum())
    together = (float(before.sum()) + failed) / (before.size + now.size)
    if failed / now.size <= together:
        return 0.0
    return max(0.0, 1.0 - float(bdtrc(failed - 1.0, now.size, together)) / CHANCE)


class _Confidence:
    """How often an entry keeps half of its share; for unknown, whether chance or the stages' silence made it."""

    def __init__(self, given: Given, point: Mapping[Key, float], drawn: list[Mapping[Key, float]], real: float) -> None:
        self._given, self._point, self._drawn, self._real = given, point, drawn, real

    def __call__(self, key: Key, share: float) -> float:
        if key == NOTHING:
            return max(1.0 - self._real, self._kept(lambda found: 1.0 - sum(found.values()) + found.get(key, 0.0), share))
        point = self._point[key]
        return self._kept(lambda found: found.get(key, 0.0), point) * _strength(self._given, key)

    def _kept(self, of: _Told, point: float) -> float:
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
        to_gauges(found, given, ANY, 1.0)
        return found
    for stage, seconds in given.stage_rises.items():
        to_gauges(found, given, stage, seconds / whole)
    return {key: share * (1.0 - WITHOUT_RECORDS) if key[0] == "stage" else share for key, share in found.items()}


def _gauge_confidence(given: Given, key: Key) -> float:
    return 0.0 if key == NOTHING else WITHOUT_RECORDS * _strength(given, key)


def _listed(found: Mapping[Key, float], confidence: _Sure) -> tuple[Share, ...]:
    """Shares largest first; unknown is what is missing to 1."""
    kept = {key: share for key, share in found.items() if key != NOTHING and share >= LEAST}
    missing = max(0.0, 1.0 - fsum(kept.values()))
    listed = {**kept, NOTHING: missing} if missing > 1e-12 else kept
    ranked = sorted(listed.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Share(*key, share=float(share), confidence=min(1.0, max(0.0, confidence(key, share)))) for key, share in ranked)


def _told(pair: Pair, given: Given, shift: StageShift, blamed: Mapping[str, tuple[Suspect, ...]]) -> Shift:
    of = _statistic(given.signal)
    return Shift(
        of(pair.before.total_s),
        of(pair.now.total_s),
        (pair.before.total_s.size, pair.now.total_s.size),
        (pair.baseline.total, pair.current.total),
        {**shift.seconds, UNKNOWN: shift.seconds.get(UNKNOWN, 0.0) + shift.residual_s},
        blamed,
    )
