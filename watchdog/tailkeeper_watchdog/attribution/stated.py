"""Findings that say themselves what is wrong: an engine that is stuck or gone, memory that is full. Pure.

No records need be compared for them, and a stuck engine ends none. What is left to ask is what changed shortly before, and
whether what is gone was only started anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailkeeper_watchdog.attribution.changes import Candidate
from tailkeeper_watchdog.attribution.combine import Attribution
from tailkeeper_watchdog.attribution.hand_down import Given, Key
from tailkeeper_watchdog.model import Finding, FindingKind, Share

KINDS = frozenset({FindingKind.HUNG, FindingKind.DOWN, FindingKind.MEMORY_PRESSURE})
STUCK: Key = ("engine", "stuck")
AWAY: Key = ("engine", "not answering")
RESTART = "restart"


def attribute(finding: Finding, given: Given) -> Attribution:
    """What the finding measured, less what a change shortly before may claim. A restart claims all of an engine's absence."""
    if finding.kind is FindingKind.DOWN and (restart := _restart(given.changes)) is not None:
        return Attribution((Share("change", restart.text, 1.0, 1.0),))
    claim = max((c.claim for c in given.changes), default=0.0)
    whole = sum(c.claim for c in given.changes)
    found = [Share("change", c.text, claim * c.claim / whole, c.claim) for c in given.changes if c.claim > 0]
    found.append(Share(*_measured(finding), 1.0 - sum(share.share for share in found), 1.0))
    return Attribution(tuple(sorted(found, key=lambda s: (-s.share, s.dimension, s.value))))


def _restart(changes: tuple[Candidate, ...]) -> Candidate | None:
    return next((c for c in changes if c.kind == RESTART), None)


def _measured(finding: Finding) -> Key:
    if finding.kind is FindingKind.HUNG:
        return STUCK
    if finding.kind is FindingKind.DOWN:
        return AWAY
    kv, limit = finding.evidence.get("kv_usage_ratio"), finding.evidence.get("limit_ratio")
    if kv is not None and limit is not None and kv > limit:  # preemptions add to the pressure then, and come from the same
        return ("resource", "kv_usage")
    preemptions = finding.evidence.get("preemptions_per_s")
    if preemptions is not None and limit is not None and preemptions > limit:  # one a second is a pressure of 1
        return ("resource", "preemptions")
    return ("resource", "gpu_memory")


def sentence(finding: Finding, attribution: Attribution) -> str:
    """What it is, and the numbers that say so."""
    first = attribution.shares[0]
    if first.dimension == "change" and finding.kind is FindingKind.DOWN:
        return f"The engine was started anew ({first.value}): it was away and came back with its counters at zero."
    also = "".join(f" Shortly before: {s.value}." for s in attribution.shares if s.dimension == "change")
    if finding.kind is FindingKind.HUNG:
        return f"The engine itself is stuck: no token progress while {_in_flight(finding)}.{also}"
    if finding.kind is FindingKind.DOWN:
        return f"The engine itself does not answer{_reasons(finding)}.{also}"
    if first.value == "preemptions":
        rate = finding.evidence["preemptions_per_s"]
        return f"Requests are put back for want of KV memory, {rate:.1f} a second; KV use {_ratio(finding)} now.{also}"
    name = "KV memory" if first.value == "kv_usage" else "GPU memory"
    return f"{name} is full: pressure {finding.evidence['pressure_ratio']:.0%}, KV use {_ratio(finding)}.{also}"


def _in_flight(finding: Finding) -> str:
    known = [(finding.evidence.get(word), word) for word in ("running", "waiting")]
    return " and ".join(f"{value:.0f} requests are {word}" for value, word in known if value) or "requests are in flight"


def _reasons(finding: Finding) -> str:
    reasons = finding.evidence.get("reasons")
    return f": {'; '.join(str(reason) for reason in reasons)}" if reasons else ""


def _ratio(finding: Finding) -> str:
    kv = finding.evidence.get("kv_usage_ratio")
    return "unknown" if kv is None else f"{kv:.0%}"


def evidence(finding: Finding) -> Mapping[str, Any]:
    """What was measured, under the finding's own names; ``words.gauges`` adds machines and changes."""
    names = ("running", "waiting", "reasons", "pressure_ratio", "kv_usage_ratio", "preemptions_per_s", "limit_ratio")
    return {name: finding.evidence[name] for name in names if finding.evidence.get(name) is not None}
