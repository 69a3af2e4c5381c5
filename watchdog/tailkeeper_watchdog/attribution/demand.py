"""What filled the queue: more work, whose, or slower work. Pure.

Waiting is a consequence, so the queue's part of a shift is handed on. Work that comes in is counted in prompt tokens a second
that had to be computed; slowness in seconds of prefill per token (within buckets of prompt length, so that longer prompts
are not slower ones) and in seconds between tokens. The rises of the three, as logarithms, share the queue: a queue feels
their product. Where none rose, nobody knows what filled it, and it stays the queue's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from tailkeeper_watchdog.attribution.request_log import OTHER, Rows, Sample
from tailkeeper_watchdog.attribution.segments import DIMENSIONS, TIE, codes_of, main_codes, names_of
from tailkeeper_watchdog.attribution.shapley import Floats
from tailkeeper_watchdog.attribution.stages import DECODE, PREFILL, fresh_tokens, own_share

MIN_RISE = log(1.1)
"""A rise below a tenth is within what two samples of the same traffic differ by."""
MIN_EXCESS = 0.4
"""A segment is named for a rise in work when this much of the rise is beyond its own part of the work before."""
MIN_IN_BUCKET = 10


@dataclass(frozen=True, slots=True)
class Handed:
    """Parts of the queue that belong to others; what is missing to 1 stays the queue's."""

    stages: Mapping[str, float]
    segments: Mapping[tuple[str, str], float]


def hand_on(baseline: Sample, current: Sample, before: Rows, now: Rows) -> Handed:
    """``before`` and ``now`` are the rows of the two samples that ended well."""
    rises = {PREFILL: _prefill_rise(before, now), DECODE: _decode_rise(before, now)}
    slower = {stage: rise for stage, rise in rises.items() if rise > MIN_RISE}
    grown, owner = _demand(baseline, current)
    whole = sum(slower.values()) + grown
    if whole <= 0:
        return Handed({}, {})
    return Handed(
        {stage: rise / whole for stage, rise in slower.items()}, {key: share * grown / whole for key, share in owner.items()}
    )


def _prefill_rise(before: Rows, now: Rows) -> float:
    """Rise of the time per prompt token, weighted by the work of each bucket of prompt length."""
    earlier, later = _prefill_s(before), _prefill_s(now)
    then, current = codes_of(before, "prompt_length"), codes_of(now, "prompt_length")
    expected = measured = 0.0
    for code in range(1, int(then.max(initial=0)) + 1):
        a, b = earlier[then == code], later[current == code]
        if min(a.size, b.size) >= MIN_IN_BUCKET:
            tokens = fresh_tokens(now)[current == code]
            per_token = a.mean() / fresh_tokens(before)[then == code].mean()
            expected += float(per_token * tokens.sum())
            measured += float(b.sum())
    return log(measured / expected) if measured > 0 and expected > 0 else 0.0


def _prefill_s(rows: Rows) -> Floats:
    spent = rows["prefill_s"].astype(np.float64) * own_share(rows)
    return np.where(np.isfinite(spent), spent, 0.0)


def _decode_rise(before: Rows, now: Rows) -> float:
    earlier, later = before["itl_s"][np.isfinite(before["itl_s"])], now["itl_s"][np.isfinite(now["itl_s"])]
    if min(earlier.size, later.size) < MIN_IN_BUCKET or earlier.mean() <= 0 or later.mean() <= 0:
        return 0.0
    return log(float(later.mean()) / float(earlier.mean()))


def _demand(baseline: Sample, current: Sample) -> tuple[float, dict[tuple[str, str], float]]:
    """The rise of work per second, and which segments of one dimension brought it: (dimension, value) → part of the rise."""
    before, now = _work(baseline), _work(current)
    if before is None or now is None:
        return 0.0, {}
    rise = log(now.sum() / before.sum()) - 2.0 * sqrt(_variance(before) + _variance(now))
    if rise <= MIN_RISE:
        return 0.0, {}
    best: tuple[float, dict[tuple[str, str], float]] = (0.0, {})
    for dimension in DIMENSIONS:
        excess = _excess(baseline, current, before, now, dimension)
        explained = sum(excess.values())
        if explained >= MIN_EXCESS and explained > best[0] + TIE:
            best = (explained, excess)
    return rise, best[1]


def _work(sample: Sample) -> Floats | None:
    """Prompt tokens to compute, per second, of each row; per row of the sample where the span is not known."""
    tokens = fresh_tokens(sample.rows)
    if tokens.size == 0 or np.isfinite(tokens).mean() < 0.8:
        return None
    scale = sample.total / len(sample) / sample.span_s if sample.span_s else 1.0 / len(sample)
    return np.where(np.isfinite(tokens), tokens, 0.0) * scale


def _variance(work: Floats) -> float:
    """Of the logarithm of the sum, where both how many come and what each brings are chance (compound Poisson)."""
    return float((work**2).sum() / work.sum() ** 2)


def _excess(baseline: Sample, current: Sample, before: Floats, now: Floats, dimension: str) -> dict[tuple[str, str], float]:
    then, current_codes = codes_of(baseline.rows, dimension), codes_of(current.rows, dimension)
    texts = names_of(current.names, dimension)
    grown = float(now.sum() - before.sum())
    found: dict[tuple[str, str], float] = {}
    for code in main_codes(then, current_codes, now > np.median(now)):
        earlier, later = float(before[then == code].sum()), float(now[current_codes == code].sum())
        usual = earlier / float(before.sum())
        beyond = ((later - earlier) / grown - usual) / max(1e-9, 1.0 - usual)
        if code and texts[code] != OTHER and beyond > TIE and usual < 1:
            found[dimension, texts[code]] = min(1.0, beyond)
    whole = sum(found.values())
    return found if whole <= 1 else {key: value / whole for key, value in found.items()}
