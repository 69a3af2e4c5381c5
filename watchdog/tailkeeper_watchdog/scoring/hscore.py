"""HScore: Σ weight · goodness over what is known, 0 for a dead backend, None when nothing is known. Pure.

The goodness functions are the public contract's: latency min(1, SLO ÷ P95 of TTFT); error rate a sigmoid
1/(1 + exp((e − 0.01)/0.0025)) over its value at 0; CPU 1 up to 85 %, then exp(−(u − 0.85)/0.05); uptime the share of
the last hour. A factor without evidence is left out, named, and its weight shared among the others.

A score says how much it rests on: its confidence is the share of the weight whose factors are known, each counted in full
from so many samples on and in proportion below. A dead backend's 0 rests on its state and not on the factors: full confidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.model import BackendObservation, Factor, HealthScore, Slo
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


def score(
    seen: BackendObservation | None, window: Window | None, weights: Mapping[str, float], slo: Slo, name: str
) -> HealthScore:
    """The score of one backend. ``seen`` is None where the evidence is stale or missing: then nothing is known."""
    if seen is None:
        return HealthScore(name, None, (), FACTORS)
    known = _known(seen, window, slo)
    # One pass, and no generators: this is done for every backend at every tick.
    total = sum([weights[f] for f in known])
    factors: tuple[Factor, ...] = ()
    hscore = sure = 0.0
    if total > 0:
        made = []
        for factor, (goodness, value, unit, known_share) in known.items():
            weight = weights[factor]
            made.append(Factor(factor, goodness, weight / total, value, unit))
            hscore += weight / total * goodness
            sure += weight * known_share
        factors = tuple(made)
    unknown = () if len(known) == len(FACTORS) else tuple([f for f in FACTORS if f not in known])
    if seen.state.is_dead:
        return HealthScore(name, 0.0, factors, unknown, veto=seen.state, confidence=1.0)
    if not factors:
        return HealthScore(name, None, (), unknown)
    confidence = min(1.0, sure / sum(weights.values()))
    return HealthScore(name, min(1.0, max(0.0, hscore)), factors, unknown, confidence=confidence)


_Known = tuple[float, float, str, float]
"""Goodness, value and unit of a factor, and in [0, 1] how much of what it takes to know it is there."""


def _latency(window: Window, requests: float, failed: float, slo: Slo) -> _Known | None:
    """P95 of what succeeded. Where requests failed and none succeeded it is not unknown but as bad as can be: failing altogether
    must not be better than being slow. Its value is then the time in which no first token came."""
    p95 = window.quantile("ttft", 0.95)
    if p95 is None and requests > 0 and failed >= requests:
        return 0.0, window.seconds, "s", min(1.0, requests / ENOUGH_FOR_LATENCY)
    # A saturated P95 is at least its value: below the SLO that says neither good nor bad.
    if p95 is None or (p95.saturated and p95.value <= slo.ttft_p99_s):
        return None
    return latency_goodness(p95.value, slo.ttft_p99_s), p95.value, "s", min(1.0, p95.samples / ENOUGH_FOR_LATENCY)


def _known(seen: BackendObservation, window: Window | None, slo: Slo) -> dict[str, _Known]:
    """Each factor with evidence."""
    known: dict[str, _Known] = {}
    requests, failed = (window.finished if window else None) or (0.0, 0.0)
    latency = _latency(window, requests, failed, slo) if window else None
    if latency is not None:
        known["latency"] = latency
    if requests > 0:
        ratio = failed / requests
        known["error_rate"] = (error_goodness(ratio), ratio, "ratio", min(1.0, requests / ENOUGH_FOR_ERRORS))
    cpu = seen.value(catalog.CPU_USAGE.name)
    if cpu is not None and cpu >= 0:
        known["cpu_usage"] = (cpu_goodness(cpu), cpu, "ratio", 1.0)
    if window is not None and window.uptime_ratio is not None:
        known["uptime"] = (window.uptime_ratio, window.uptime_ratio, "ratio", 1.0)
    return known
