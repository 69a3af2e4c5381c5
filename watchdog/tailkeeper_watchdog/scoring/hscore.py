"""HScore: Σ weight · goodness over what is known, 0 for a dead backend, None when nothing is known. Pure.

The goodness functions are the public contract's: latency min(1, SLO ÷ P95 of TTFT); error rate a sigmoid
1/(1 + exp((e − 0.01)/0.0025)) over its value at 0; CPU 1 up to 85 %, then exp(−(u − 0.85)/0.05); uptime the share of
the last hour. A factor without evidence is left out, named, and its weight shared among the others.

A score says how much it rests on: its confidence is the share of the weight whose factors are known, each counted in full
from so many samples on and in proportion below. A dead backend's 0 rests on its state and not on the factors: full confidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import exp, log
from typing import NamedTuple

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.columns import columns
from tailkeeper_watchdog.many_windows import number_or_none
from tailkeeper_watchdog.model import BackendObservation, Factor, HealthScore, Situation, Slo
from tailkeeper_watchdog.window import Window

FACTORS = ("latency", "error_rate", "cpu_usage", "uptime")
ERROR_MIDPOINT = 0.01
ERROR_SLOPE = 0.0025
CPU_KNEE = 0.85
CPU_SCALE = 0.05
ENOUGH_FOR_LATENCY = 20.0
"""Requests: with fewer, none of them need lie above the P95."""
ENOUGH_FOR_ERRORS = 100.0
"""Finished requests: the goodness of the error rate turns at one in a hundred."""
ROUNDING = 1e-9
NO_WINDOW = Window()
_MAX_EXPONENT = 700.0  # exp() overflows a float just above 709


def latency_goodness(p95_s: float, slo_s: float) -> float:
    return 1.0 if p95_s <= slo_s else slo_s / p95_s


def _sigmoid(error_ratio: float) -> float:
    return 1.0 / (1.0 + exp(min(_MAX_EXPONENT, (error_ratio - ERROR_MIDPOINT) / ERROR_SLOPE)))


_SIGMOID_AT_ZERO = _sigmoid(0.0)


def error_goodness(error_ratio: float) -> float:
    return _sigmoid(error_ratio) / _SIGMOID_AT_ZERO


def cpu_goodness(usage_ratio: float) -> float:
    return 1.0 if usage_ratio <= CPU_KNEE else exp(-(usage_ratio - CPU_KNEE) / CPU_SCALE)


class Evidence(NamedTuple):
    """What a score is made of, in seconds and ratios; None is not known. A tuple, as one is made for each backend and tick."""

    p95_s: float | None
    """Of the first token, over ``samples``. Where it is ``saturated`` it is at least that."""
    samples: float
    saturated: bool
    finished: float
    """Requests that finished in the window; 0 also where nobody tells which of them failed."""
    failed: float
    seconds: float
    """How long the window is."""
    cpu: float | None
    uptime: float | None


def score(
    seen: BackendObservation | None, window: Window | None, weights: Mapping[str, float], slo: Slo, name: str
) -> HealthScore:
    """The score of one backend. ``seen`` is None where the evidence is stale or missing: then nothing is known."""
    if seen is None:
        return HealthScore(name, None, (), FACTORS)
    window = window or NO_WINDOW
    p95 = window.quantile("ttft", 0.95)
    p95_s, samples, saturated = (None, 0, False) if p95 is None else (p95.value, p95.samples, p95.saturated)
    finished, failed = window.finished or (0.0, 0.0)
    cpu = seen.value(catalog.CPU_USAGE.name)
    evidence = Evidence(p95_s, samples, saturated, finished, failed, window.seconds, cpu, window.uptime_ratio)
    return _score(name, seen.state, evidence, weights, slo)


class Scores(Mapping[str, HealthScore]):
    """As ``score`` of each backend of the fleet, each made when somebody asks for it: a tick itself asks for few."""

    def __init__(self, situation: Situation, weights: Mapping[str, float]) -> None:
        fleet, windows = columns(situation), situation.windows
        self._weights, self._slo, self._names, self._seen = weights, situation.slo, fleet.names, fleet.seen
        self._place = {name: place for place, name in enumerate(fleet.names)}
        self._p95, (self._finished, self._failed) = fleet.minute.quantile("ttft", 0.95), fleet.minute.finished()
        self._seconds, self._cpu = fleet.minute.seconds, fleet.told(catalog.CPU_USAGE.name)
        self._uptime = np.array([windows.get(name, NO_WINDOW).uptime_ratio for name in fleet.names], dtype=float)
        self._alive = fleet.heard & ~fleet.dead
        self._made: dict[str, HealthScore] = {}

    def __getitem__(self, name: str) -> HealthScore:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._make(name, self._place[name])
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _make(self, name: str, place: int) -> HealthScore:
        seen = self._seen[place]
        if seen is None:
            return HealthScore(name, None, (), FACTORS)
        p95 = self._p95.at(place)
        p95_s, samples, saturated = (None, 0, False) if p95 is None else (p95.value, p95.samples, p95.saturated)
        finished, failed, seconds = self._finished[place], self._failed[place], self._seconds[place]
        evidence = Evidence(
            p95_s,
            samples,
            saturated,
            number_or_none(finished) or 0.0,
            number_or_none(failed) or 0.0,
            number_or_none(seconds) or 0.0,
            number_or_none(self._cpu[place]),
            number_or_none(self._uptime[place]),
        )
        return _score(name, seen.state, evidence, self._weights, self._slo)

    def may_be_below(self, limit: float) -> list[HealthScore]:
        """All scores below ``limit``, in (0, 1), and few others; of the dead and of the silent none. A mean is below it only
        where one of its parts is; a latency of 0 because all failed is a part beside errors that are below it too."""
        limit += ROUNDING
        late = self._p95.value > self._slo.ttft_p99_s / limit
        failing = self._failed > self._finished * (ERROR_MIDPOINT + ERROR_SLOPE * log(1.0 / (limit * _SIGMOID_AT_ZERO) - 1.0))
        loaded = self._cpu > CPU_KNEE - CPU_SCALE * log(limit)
        places = np.flatnonzero(self._alive & (late | failing | loaded | (self._uptime < limit)))
        return [self[self._names[place]] for place in places.tolist()]


def _score(name: str, state: State, evidence: Evidence, weights: Mapping[str, float], slo: Slo) -> HealthScore:
    known = _known(evidence, slo)
    # One pass, and no generators: this is done for every backend at every tick.
    total = sum([weights[factor] for factor, *_ in known])
    factors: tuple[Factor, ...] = ()
    hscore = sure = 0.0
    if total > 0:
        made = []
        for factor, goodness, value, unit, known_share in known:
            weight = weights[factor]
            made.append(Factor(factor, goodness, weight / total, value, unit))
            hscore += weight / total * goodness
            sure += weight * known_share
        factors = tuple(made)
    unknown = () if len(known) == len(FACTORS) else _others(known)
    if state.is_dead:
        return HealthScore(name, 0.0, factors, unknown, veto=state, confidence=1.0)
    if not factors:
        return HealthScore(name, None, (), unknown)
    confidence = min(1.0, sure / sum(weights.values()))
    return HealthScore(name, min(1.0, max(0.0, hscore)), factors, unknown, confidence=confidence)


_Known = tuple[str, float, float, str, float]
"""A factor, its goodness, value and unit, and in [0, 1] how much of what it takes to know it is there."""


def _others(known: list[_Known]) -> tuple[str, ...]:
    told = {factor for factor, *_ in known}
    return tuple([factor for factor in FACTORS if factor not in told])


def _latency(evidence: Evidence, slo: Slo) -> _Known | None:
    """P95 of what succeeded. Where requests failed and none succeeded it is not unknown but as bad as can be: failing altogether
    must not be better than being slow. Its value is then the time in which no first token came."""
    p95_s = evidence.p95_s
    if p95_s is None:
        if not evidence.finished > 0 or evidence.failed < evidence.finished:
            return None
        return "latency", 0.0, evidence.seconds, "s", min(1.0, evidence.finished / ENOUGH_FOR_LATENCY)
    # A saturated P95 is at least its value: below the SLO that says neither good nor bad.
    if evidence.saturated and p95_s <= slo.ttft_p99_s:
        return None
    return "latency", latency_goodness(p95_s, slo.ttft_p99_s), p95_s, "s", min(1.0, evidence.samples / ENOUGH_FOR_LATENCY)


def _known(evidence: Evidence, slo: Slo) -> list[_Known]:
    """Each factor with evidence, in the order of ``FACTORS``."""
    known: list[_Known] = []
    latency = _latency(evidence, slo)
    if latency is not None:
        known.append(latency)
    if evidence.finished > 0:
        ratio = evidence.failed / evidence.finished
        known.append(("error_rate", error_goodness(ratio), ratio, "ratio", min(1.0, evidence.finished / ENOUGH_FOR_ERRORS)))
    cpu = evidence.cpu
    if cpu is not None and cpu >= 0:
        known.append(("cpu_usage", cpu_goodness(cpu), cpu, "ratio", 1.0))
    if evidence.uptime is not None:
        known.append(("uptime", evidence.uptime, evidence.uptime, "ratio", 1.0))
    return known


def may_be_below(scores: Mapping[str, HealthScore], limit: float) -> Iterable[HealthScore]:
    """All that are below ``limit``, and as few others as can be told without making them."""
    return scores.may_be_below(limit) if isinstance(scores, Scores) else scores.values()
