"""Whose requests it is: the shift shared among the segments of one dimension, and how much of it is theirs alone. Pure.

Two questions. ``segment_shift``: what did each segment add, by having more or less of the traffic (mix) and by being slower
itself (within)? Exact Shapley value over both for every segment. ``alone``: would the others have got worse in the same
proportion? If they would, the segments only feel what happens to all, however much of the tail they are. Logarithms, because
a machine at half speed adds seconds to long prompts and milliseconds to short ones, and it is one machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from tailkeeper_watchdog.attribution.request_log import LABELS, OTHER, UNLABELLED, Rows
from tailkeeper_watchdog.attribution.shapley import Floats, shapley
from tailkeeper_watchdog.attribution.stages import Q, p99

Codes = NDArray[np.intp]

LENGTH = "prompt_length"
DIMENSIONS = (*LABELS, LENGTH)
"""In the order of preference where two describe the same requests: who sent them or serves them before what they look like."""
LENGTH_BOUNDS = (512, 2_048, 8_192, 32_768)
LENGTH_NAMES = (UNLABELLED, "up to 512", "513 to 2048", "2049 to 8192", "8193 to 32768", "above 32768")
MAX_SEGMENTS = 5
"""The four with most of the current tail, and the rest as ``other``: 2 players each, 1,024 coalitions."""
MIN_REST = 30
"""With fewer other requests nobody can say how they fared."""
MIN_REST_P99 = 200
"""With fewer, their P99 is one or two requests; their P90 is asked instead."""
MIN_ALONE = 0.25
"""What a segment seems to explain by chance where all got slower alike stays below this (measured in the incident lab)."""
SHORTEST_S = 1e-4
"""A stage shorter than this counts as this long: a rise from nothing to next to nothing is none."""
TIE = 0.15
"""Two dimensions that explain the same to this much are one fact, told by the preferred one."""


@dataclass(frozen=True, slots=True)
class Values:
    """One value and one code a request."""

    of: Floats
    codes: Codes


@dataclass(frozen=True, slots=True)
class Part:
    """What one segment added to P99, in the unit of the values."""

    value: str
    mix: float
    within: float

    @property
    def total(self) -> float:
        return self.mix + self.within


@dataclass(frozen=True, slots=True)
class Suspect:
    """One or two segments of a dimension that may be behind the shift, with each one's part of what they explain."""

    dimension: str
    members: Mapping[int, float]
    """Share by code; they add up to 1."""
    names: tuple[str, ...]
    parts: tuple[Part, ...]
    """What every segment of the dimension added, for people."""

    @property
    def counted(self) -> float:
        """How much of what they explain is theirs: of prompt lengths, only that there are more of them. Each token slower
        makes long prompts the slowest, and is not their doing."""
        if self.dimension != LENGTH:
            return 1.0
        mine = [p for p in self.parts if p.value in {self.names[code] for code in self.members}]
        mix = sum(max(0.0, p.mix) for p in mine)
        whole = mix + sum(max(0.0, p.within) for p in mine)
        return mix / whole if whole > 0 else 0.0


def codes_of(rows: Rows, dimension: str) -> Codes:
    """The code of each row; 0 where the row does not say."""
    if dimension != LENGTH:
        return rows[dimension].astype(np.intp)
    tokens = rows["prompt_tokens"]
    return np.where(np.isfinite(tokens), 1 + np.searchsorted(LENGTH_BOUNDS, tokens, side="left"), 0).astype(np.intp)


def names_of(names: Mapping[str, tuple[str, ...]], dimension: str) -> tuple[str, ...]:
    return LENGTH_NAMES if dimension == LENGTH else names.get(dimension, (UNLABELLED,))


def main_codes(before: Codes, now: Codes, in_tail: NDArray[np.bool_]) -> list[int]:
    """The segments that are told apart: those with most of the current tail, then with most requests."""
    size = int(max(before.max(initial=0), now.max(initial=0))) + 1
    tail = np.bincount(now[in_tail], minlength=size)
    count = np.bincount(now, minlength=size) + np.bincount(before, minlength=size)
    found = [code for code in range(size) if count[code]]
    found.sort(key=lambda code: (-tail[code], -count[code], code))
    return found[: MAX_SEGMENTS - 1]


def segment_shift(
    before: Values, now: Values, codes: list[int], names: tuple[str, ...], errors: bool = False
) -> tuple[Part, ...]:
    """The exact Shapley value of mix and within for each of ``codes`` and for the rest together. Largest first.

    Of P99 of the values, or with ``errors`` of their mean.
    """
    size = len(codes) + 1
    before, now = Values(before.of, _local(before.codes, codes)), Values(now.of, _local(now.codes, codes))
    added = shapley(_worth(before, now, size, errors))
    labels = [*(names[code] for code in codes), OTHER]
    parts = [Part(labels[s], float(added[s]), float(added[size + s])) for s in range(size)]
    return tuple(sorted(parts, key=lambda part: -part.total))


def _local(codes: Codes, chosen: list[int]) -> Codes:
    """Codes as 0 … in the order of ``chosen``, whatever else as one more."""
    table = np.full(max(int(codes.max(initial=0)), max(chosen, default=0)) + 1, len(chosen), dtype=np.intp)
    table[chosen] = np.arange(len(chosen))
    return table[codes]


def _worth(before: Values, now: Values, size: int, errors: bool) -> Floats:
    """The worth of every coalition. Bit s: the mix of segment s is as now; bit size + s: its own values are.

    A segment that was not there before has no values to have changed: its coming is mix.
    """
    counts = np.stack([np.bincount(values.codes, minlength=size) for values in (before, now)]).astype(np.float64)
    mass = counts / counts.sum(axis=1, keepdims=True)
    masks, segments = np.arange(1 << (2 * size))[:, None], np.arange(size)
    weights = mass[(masks >> segments) & 1, segments]
    # Where everything of before has left and nothing of now has come, there is no traffic: as before.
    weights = np.where(weights.sum(axis=1, keepdims=True) > 0, weights, mass[0])
    moved = (masks >> (size + segments)) & 1
    moved = np.where(counts[moved, segments] > 0, moved, 1 - moved)
    if errors:
        sums = np.stack([np.bincount(v.codes, weights=v.of, minlength=size) for v in (before, now)])
        means = sums / np.maximum(1.0, counts)
        mixed: Floats = (weights * means[moved, segments]).sum(axis=1) / weights.sum(axis=1)
        return mixed
    return _p99_of_mixtures(before, now, counts, weights, moved * size + segments)


def _p99_of_mixtures(before: Values, now: Values, counts: Floats, weights: Floats, place: Codes) -> Floats:
    """Exact: each segment is counted on the pooled values, and P99 found there by bisection for all coalitions at once."""
    size = counts.shape[1]
    values = np.concatenate([before.of, now.of])
    order = np.argsort(values, kind="stable")
    below = np.zeros((values.size + 1, 2 * size))
    below[np.arange(1, values.size + 1), np.concatenate([before.codes, size + now.codes])[order]] = 1.0
    np.cumsum(below, axis=0, out=below)
    below /= np.maximum(1.0, counts.ravel())
    target = Q * weights.sum(axis=1) - 1e-12
    low, high = np.zeros(len(weights), np.intp), np.full(len(weights), values.size, np.intp)
    for _ in range(int(values.size).bit_length() + 1):
        middle = (low + high) // 2
        enough = (weights * below[middle[:, None], place]).sum(axis=1) >= target
        high, low = np.where(enough, middle, high), np.where(enough, low, np.minimum(middle + 1, high))
    found: Floats = values[order][np.clip(high - 1, 0, values.size - 1)]
    return found


def alone(before: Values, now: Values, members: Collection[int], errors: bool = False) -> float:
    """How much of the shift is gone without the requests of these segments, in [0, 1].

    The others get the benefit of the doubt: a standard error is added to what they rose by, or three where they are the
    minority: that a few others did not get worse says little against the many.
    """
    rest_before, rest_now = _others(before, members), _others(now, members)
    if min(rest_before.size, rest_now.size) < MIN_REST:
        return 0.0
    rise = _difference if errors else _rise
    whole, _ = rise(before.of, now.of)
    others, error = rise(rest_before, rest_now)
    if whole <= 0:
        return 0.0
    doubt = 1.0 if 2 * rest_now.size >= now.of.size else 3.0
    found = 1.0 - max(0.0, others + doubt * error) / whole
    return found if found >= MIN_ALONE else 0.0


def _others(values: Values, members: Collection[int]) -> Floats:
    other = np.ones(values.codes.size, np.bool_)
    for member in members:
        other &= values.codes != member
    return values.of[other]


def _rise(before: Floats, now: Floats) -> tuple[float, float]:
    """By how much the logarithm of P99 rose, and the standard error of that; of P90 where P99 would be one or two requests."""
    q = Q if min(before.size, now.size) >= MIN_REST_P99 else 0.9
    (earlier, spread), (later, spread_now) = _log_quantile(before, q), _log_quantile(now, q)
    return later - earlier, sqrt(spread**2 + spread_now**2)


def _log_quantile(values: Floats, q: float) -> tuple[float, float]:
    """The logarithm of a quantile, and half the distance between those one standard error of rank below and above."""
    off = sqrt(q * (1.0 - q) / values.size)
    ranks = [int(min(1.0, max(0.0, level)) * (values.size - 1)) for level in (q - off, q, q + off)]
    low, middle, high = (log(max(value, SHORTEST_S)) for value in np.partition(values, ranks)[ranks].tolist())
    return middle, (high - low) / 2.0


def _difference(before: Floats, now: Floats) -> tuple[float, float]:
    """By how much a mean rose, and the standard error of that."""
    error = sqrt(float(before.var()) / before.size + float(now.var()) / now.size)
    return float(now.mean() - before.mean()), error


def suspects(
    before: Floats, before_rows: Rows, now: Floats, now_rows: Rows, names: Mapping[str, tuple[str, ...]], errors: bool = False
) -> tuple[Suspect, ...]:
    """For each dimension with more than one segment to choose from, the segments that added most."""
    found: list[Suspect] = []
    in_tail = now > (0.5 if errors else p99(before))
    for dimension in DIMENSIONS:
        then, current = Values(before, codes_of(before_rows, dimension)), Values(now, codes_of(now_rows, dimension))
        codes = main_codes(then.codes, current.codes, in_tail)
        if len(codes) < 2:
            continue
        texts = names_of(names, dimension)
        parts = segment_shift(then, now=current, codes=codes, names=texts, errors=errors)
        members = _members(parts, {texts[code]: code for code in codes}, then, current, errors)
        found.append(Suspect(dimension, members, texts, parts))
    return tuple(found)


def _members(parts: tuple[Part, ...], codes: Mapping[str, int], before: Values, now: Values, errors: bool) -> Mapping[int, float]:
    """The segment that added most; the first two where only both together explain clearly more. An unlabelled rest is none."""
    ranked = [(codes[p.value], p.total) for p in parts if p.total > 0 and p.value in codes and p.value not in (UNLABELLED, OTHER)]
    one, two = dict(ranked[:1]), dict(ranked[:2])
    both = len(two) == 2 and alone(before, now, two, errors) >= alone(before, now, one, errors) + 2 * TIE
    chosen = two if both else one
    whole = sum(chosen.values()) or 1.0
    return {code: added / whole for code, added in chosen.items()}
