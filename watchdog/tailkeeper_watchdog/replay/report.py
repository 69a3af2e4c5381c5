"""The document that a replay gives: what was found against when users felt it, what would have been done, what is unknown. Pure.

Times are epoch seconds, durations seconds, shares between 0 and 1; what is not known is null and named under ``unknown``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.model import Decision, Finding, FindingKind, Slo
from tailkeeper_watchdog.records.plain import to_plain
from tailkeeper_watchdog.replay.story import BackendStory, Breach, Story

FELT_BEFORE_S = 900.0
"""A breach that ended longer before a finding is another story."""
_ABOUT_USERS = frozenset(FindingKind) - {FindingKind.TELEMETRY_LOST, FindingKind.CONTENDED}
"""Kinds that users may have felt; the others are about ourselves."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was replayed, in words for people and as it was given."""

    kind: str
    where: str
    decides: str
    """Whose configuration decided."""
    notes: tuple[str, ...] = ()
    """What could not be known, and why."""
    details: Mapping[str, Any] = field(default_factory=dict)


def document(story: Story, asked: Asked, policies: Mapping[str, PolicySetting]) -> dict[str, Any]:
    """The whole report."""
    first, last = story.first_unix_s, story.last_unix_s
    return {
        "source": {"kind": asked.kind, "where": asked.where, "decides": asked.decides, **asked.details},
        "period": {
            "start": first,
            "end": last,
            "seconds": None if first is None or last is None else last - first,
            "ticks": story.ticks,
        },
        "slo": asdict(story.slo),
        "backends": [_backend(name, one, story.slo) for name, one in sorted(story.backends.items())],
        "findings": [_finding(f, story.backends) for f in sorted(story.findings.values(), key=lambda f: f.since_unix_s)],
        "decisions": [_decision(d) for d in story.decisions],
        "decisions_left_out": story.more_decisions,
        "policies": [_policy(name, setting, story.decisions) for name, setting in policies.items()],
        "unknown": [*asked.notes, *_unknown(story)],
    }


def _backend(name: str, one: BackendStory, slo: Slo) -> dict[str, Any]:
    late = one.late_share(slo.ttft_p99_s)
    breaches = sorted(one.breaches, key=lambda b: b.since)
    return {
        "backend": name,
        "seen_s": round(one.seen_s, 3),
        "unseen_s": round(one.unseen_s, 3),
        "states_s": {state: round(seconds, 3) for state, seconds in sorted(one.states.items())},
        "requests": one.requests() if one.outcomes else None,
        "failed": one.failed() if one.outcomes else None,
        "late_first_tokens_share": late,
        "over_slo_time_share": one.over_s / one.judged_s if one.judged_s > 0 else None,
        "judged_s": round(one.judged_s, 3),
        "good_share": good_share(one, late),
        "sla_kept": None if (good := good_share(one, late)) is None else good >= slo.objective,
        "worst_p99_s": one.worst_p99_s,
        "first_breach": breaches[0].since if breaches else None,
        "breaches": [
            {"signal": b.signal, "since": b.since, "until": b.until, "worst_s": b.worst_s} for b in breaches
        ],
    }  # fmt: skip


def good_share(one: BackendStory, late: float | None) -> float | None:
    """Share of requests that ended well and had their first token in time; None where one of the two is unknown."""
    requests = one.requests()
    if late is None or requests <= 0:
        return None
    return (1.0 - one.failed() / requests) * (1.0 - late)


def _finding(finding: Finding, backends: Mapping[str, BackendStory]) -> dict[str, Any]:
    felt = _felt(finding, backends.get(finding.backend))
    return {
        "kind": finding.kind.value,
        "backend": finding.backend,
        "signal": finding.signal,
        "severity": finding.severity.value,
        "since": finding.since_unix_s,
        "until": finding.until_unix_s,
        "summary": finding.summary,
        "evidence": _finite(to_plain(finding.evidence)),
        "users_felt": None if felt is None else {"since": felt.since, "signal": felt.signal, "worst_s": felt.worst_s},
        "found_before_users_s": None if felt is None else felt.since - finding.since_unix_s,
    }


def _finite(value: Any) -> Any:
    """``value`` as strict JSON has it: what is not a finite number is not known."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _felt(finding: Finding, one: BackendStory | None) -> Breach | None:
    """The first breach that belongs to the finding: one that was on, or had just been, or came while it was open."""
    if one is None or finding.kind not in _ABOUT_USERS:
        return None
    ends = (finding.until_unix_s or float("inf")) + FELT_BEFORE_S
    near = [b for b in one.breaches if b.until >= finding.since_unix_s - FELT_BEFORE_S and b.since <= ends]
    return min(near, key=lambda b: b.since, default=None)


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "time": decision.time_unix_s,
        "policy": decision.policy,
        "backend": decision.backend,
        "knob": decision.knob.value,
        "from": decision.from_value,
        "to": decision.to_value,
        "verdict": decision.verdict.value,
        "reason": decision.reason,
    }


def _policy(name: str, setting: PolicySetting, decisions: Iterable[Decision]) -> dict[str, Any]:
    verdicts: dict[str, int] = {}
    refusals: dict[str, int] = {}
    for decision in decisions:
        if decision.policy == name:
            verdicts[decision.verdict.value] = verdicts.get(decision.verdict.value, 0) + 1
            if decision.verdict.value == "refused":
                why = decision.reason.partition(" (")[0]
                refusals[why] = refusals.get(why, 0) + 1
    return {"policy": name, "mode": setting.mode.value, "verdicts": verdicts, "refusals": refusals}


def _unknown(story: Story) -> list[str]:
    lines = []
    for name, one in sorted(story.backends.items()):
        if one.unseen_s > 0:
            why = one.why_unseen.most_common(1)[0][0]
            lines.append(f"{name}: nothing is known of {one.unseen_s:.0f} s ({why})")
        if one.judged_s <= 0:
            lines.append(f"{name}: no P99, because no minute had enough requests with a latency")
    lines += [f"{count} ticks failed then: {error}" for error, count in story.failed_ticks.most_common(5)]
    return lines
