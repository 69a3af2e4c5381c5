"""An attribution as a sentence, and as evidence that a person can check. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any

from tailkeeper_watchdog.attribution.changes import Candidate
from tailkeeper_watchdog.attribution.combine import MOST, Attribution, Shift
from tailkeeper_watchdog.attribution.hand_down import ERRORS, Given
from tailkeeper_watchdog.attribution.resources import PREPROCESS, Evidence
from tailkeeper_watchdog.attribution.segments import Suspect
from tailkeeper_watchdog.model import Share

MAX_TOLD = 4
"""Of each kind of evidence; the first ones are the strongest."""
_SIGNALS: Mapping[str, str] = {
    "ttft": "P99 of the first token",
    "itl": "P99 of the time between tokens",
    "e2e": "P99 of the whole answer",
    ERRORS: "The share of failed requests",
}
RESOURCE_WORDS: Mapping[str, str] = {
    "gpu_throttled": "throttled GPU clocks",
    "gpu_sm_clock": "the clock of the GPU's multiprocessors",
    "gpu_temperature": "GPU temperature",
    PREPROCESS: "tokenising and image decoding on the CPU",
    "cpu_usage": "CPU use",
    "pcie": "PCIe throughput",
    "nvlink": "NVLink throughput",
    "preemptions": "preemptions for want of KV memory",
    "kv_usage": "KV blocks in use",
    "gpu_utilization": "GPU use",
    "gpu_memory": "GPU memory",
}


def confidence_word(confidence: float) -> str:
    return "high" if confidence >= 0.8 else "medium" if confidence >= 0.5 else "low"


def causes(shares: Iterable[Share], most: int = 3) -> str:
    """The largest shares in one line, with how sure the first is; empty without shares."""
    ranked = sorted(shares, key=lambda s: -s.share)[:most]
    if not ranked:
        return ""
    named = [f"{said(s)} {s.share:.0%}" for s in ranked]
    return f"{', '.join(named)}; confidence {confidence_word(ranked[0].confidence)}"


def sentence(attribution: Attribution, given: Given) -> str:
    """What explains the shift most, and what the shift is."""
    first = attribution.shares[0]
    if first.dimension == "unknown":
        why = f"Mostly unexplained ({first.share:.0%})"
    else:
        why = f"Mostly {said(first)} ({first.share:.0%}, confidence {confidence_word(first.confidence)})"
    others = [s for s in attribution.shares[1:3] if s.share >= 0.1 and s.dimension != "unknown"]
    also = f", then {' and '.join(f'{said(s)} ({s.share:.0%})' for s in others)}" if others else ""
    return f"{why}{also}. {_moved(attribution.shift, given)}"


def said(share: Share) -> str:
    """What a share is of, for people: machines by what the catalogue means by them, all else by its own name."""
    if share.dimension == share.value:
        return share.value
    if share.dimension == "resource":
        return RESOURCE_WORDS.get(share.value, share.value.replace("_", " "))
    return f"{share.dimension.replace('_', ' ')} {share.value}"


def _moved(shift: Shift | None, given: Given) -> str:
    if shift is None:
        return "There were not enough request records to compare: told from means and gauges alone."
    signal = given.signal
    before, now = (_quantity(value, signal) for value in (shift.before, shift.now))
    if given.is_pool:
        others, own = shift.samples
        return f"{_SIGNALS[signal]} is {now} (n {own}) where the rest of its pool has {before} (n {others})."
    return f"{_SIGNALS[signal]} went from {before} (n {shift.samples[0]}) to {now} (n {shift.samples[1]})."


def _quantity(value: float, signal: str) -> str:
    if signal == ERRORS:
        return f"{value:.3g}" if value < 0.0005 else f"{value:.1%}"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def evidence(attribution: Attribution, given: Given) -> dict[str, Any]:
    """The numbers behind the shares, finite and plain, with their units in their names."""
    told: dict[str, Any] = {"signal": given.signal, **gauges(given)}
    shift = attribution.shift
    if shift is None:
        return {**told, "records": None, "stage_mean_rises_s": {k: _short(v) for k, v in given.stage_rises.items()}}
    return {**told, "before_is": "its pool now" if given.is_pool else "its own past", **_records(shift, given.signal)}


def gauges(given: Given) -> dict[str, Any]:
    """What is unusual at its machine, what is not, and what changed shortly before."""
    return {
        "resources": [_resource(e) for e in given.resources[:MAX_TOLD]],
        "resources_usual": list(given.usual),
        "changes": [_change(c) for c in given.changes[:MAX_TOLD]],
    }


def _records(shift: Shift, signal: str) -> dict[str, Any]:
    unit = "ratio" if signal == ERRORS else "s"
    return {
        f"before_{unit}": _short(shift.before),
        f"now_{unit}": _short(shift.now),
        "records": {"before": shift.samples[0], "now": shift.samples[1]},
        "of": {"before": shift.of[0], "now": shift.of[1]},
        "rank_error": _short(rank_error(min(shift.samples))) if min(shift.samples) >= MOST else None,
        f"stages_{unit}": {stage: _short(value) for stage, value in shift.stages.items()},
        "segments": [row for stage, found in shift.suspects.items() for s in found for row in _segment(stage, s)][: 3 * MAX_TOLD],
    }


def rank_error(size: int) -> float:
    """How far the rank of P99 of so many drawn requests may be from 0.99 of all, in 19 of 20 draws."""
    return 1.96 * sqrt(0.99 * 0.01 / size)


def _segment(stage: str, suspect: Suspect) -> list[dict[str, Any]]:
    names = {suspect.names[code] for code in suspect.members}
    return [
        {"stage": stage, "dimension": suspect.dimension, "value": p.value, "mix": _short(p.mix), "within": _short(p.within)}
        for p in suspect.parts
        if p.value in names
    ]


def _resource(evidence: Evidence) -> dict[str, Any]:
    usual, peers = (None if v is None else _short(v) for v in (evidence.usual, evidence.peers))
    own_z, peers_z = (None if v is None else _short(v) for v in (evidence.own_z, evidence.peers_z))
    return {
        "resource": evidence.name,
        "unit": evidence.unit,
        "now": _short(evidence.now),
        "usual": usual,
        "peers": peers,
        "z_own": own_z,
        "z_peers": peers_z,
    }


def _change(change: Candidate) -> dict[str, Any]:
    return {"kind": change.kind, "what": change.text, "age_s": round(change.age_s, 1)}


def _short(value: float) -> float:
    return float(f"{value:.4g}")
