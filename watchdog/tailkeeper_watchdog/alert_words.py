"""The words of an alert about one backend: whom it hurts, since when, what was done. Pure.

For a person who was asleep a minute ago: plain, short, about users first, and nothing that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from tailkeeper_watchdog import knob_words
from tailkeeper_watchdog.model import Backend, DesiredState, Finding, FindingKind, HealthScore, Lease, Verdict

TENANT_SHARE = 0.2
"""Of a finding's causes; from here on the tenant is named as the one that is hit most."""
IMPACTS: Mapping[FindingKind, str] = {
    FindingKind.HUNG: "Requests on it get no answer, and new ones neither while it is in the pool.",
    FindingKind.DOWN: "Requests on it fail, and new ones too while it is in the pool.",
    FindingKind.MEMORY_PRESSURE: "Requests on it queue for memory; some may be preempted or fail.",
    FindingKind.TELEMETRY_LOST: "Unknown: nobody can say how its users fare, and no action is taken on it.",
    FindingKind.COMMON_CAUSE: "Users of the whole pool; taking backends out would not help them.",
    FindingKind.CONTENDED: "None by itself: two hands change the same knob, and ours lets go.",
    FindingKind.ADVICE: "None by itself: a person is asked to decide what is done about this backend.",
    FindingKind.SLO_BURN: "They wait too long, or get errors, more often than the SLO allows.",
    FindingKind.IMPROVED_BUT_BROKEN: "They get an answer sooner, and it is an error or next to nothing.",
}
_NOBODY_HURT = (FindingKind.CONTENDED, FindingKind.ADVICE, FindingKind.COMMON_CAUSE, FindingKind.TELEMETRY_LOST)
NOBODY_OUT = "nothing, on purpose: taking out a backend that is bad would put its load on others that are bad too"
"""What is done about a common cause: it has no backend whose changes could be told."""
DEFAULT_IMPACT = "They wait longer than before."
MINUTES_KNOWN = 1_024
"""Remembered: the last hours' worth."""
DEGRADED_IMPACT = "They wait longer than the SLO allows, or get errors."


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of one backend, or of what stands in a backend's place."""

    name: str
    backend: Backend | None
    pool: str
    score: HealthScore | None
    wishes: tuple[DesiredState, ...]
    verdicts: tuple[Verdict, ...]
    leases: tuple[Lease, ...]
    requests: float | None
    pool_requests: float | None


def _users(case: Case) -> str:
    model = f"of {case.backend.model} " if case.backend is not None and case.backend.model else f"of {case.name} "
    return f"Users {model}on pool {case.pool}." if case.pool else f"Users {model.rstrip()}."


def impact(finding: Finding, case: Case) -> str:
    sentence = IMPACTS.get(finding.kind, DEFAULT_IMPACT)
    if finding.kind in _NOBODY_HURT:
        return sentence
    tenant = max((s for s in finding.shares if s.dimension == "tenant"), key=lambda s: s.share, default=None)
    mostly = f" Mostly tenant {tenant.value} ({tenant.share:.0%})." if tenant and tenant.share >= TENANT_SHARE else ""
    return f"{_users(case)} {sentence}{_in_flight(case)}{mostly}"


def degraded_impact(case: Case) -> str:
    return f"{_users(case)} {DEGRADED_IMPACT}{_in_flight(case)}"


def _in_flight(case: Case) -> str:
    """How many requests are on it now, of those of its pool where all of it is known. Nothing where it is not known."""
    if case.requests is None:
        return ""
    if case.pool_requests is None:
        return f" {case.requests:.0f} requests are on it now."
    return f" {case.requests:.0f} of the {case.pool_requests:.0f} requests that its pool has now are on it."


def actions(case: Case) -> str:
    """What is in force, then what was wanted and is not, with the reason."""
    held = {(x.policy, x.knob) for x in case.leases}
    done = [_in_force(x) for x in case.leases]
    refused = {id(v.desired): v for v in case.verdicts if v.refusal is not None}
    wanted = [_wanted(w, refused.get(id(w))) for w in case.wishes if (w.policy, w.knob) not in held]
    return "; ".join(dict.fromkeys([*done, *wanted])) or "no policy wants a change"


def _in_force(lease: Lease) -> str:
    done = knob_words.done(lease.knob, lease.written, lease.prior)
    began, until = _clock(lease.created_unix_s), _clock(lease.expires_unix_s)
    unsure = "" if lease.confirmed else ", not read back yet"
    return f"{done} at {lease.target.gateway} since {began} by {lease.policy} (lease until {until}{unsure})"


def _wanted(wish: DesiredState, verdict: Verdict | None) -> str:
    wants = f"{wish.policy} wants {knob_words.setting(wish.knob, wish.value)} (mode {wish.mode.value})"
    if verdict is None or verdict.refusal is None:
        return wants
    detail = f" ({verdict.detail})" if verdict.detail else ""
    return f"{wants}, not done: {verdict.refusal.value}{detail}"


def score_text(score: HealthScore | None) -> str:
    return "unknown" if score is None or score.hscore is None else f"{score.hscore:.2f}"


def time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _clock(unix_s: float) -> str:
    return _minute(int(round(unix_s, 6) // 60))  # to the microsecond, as a datetime is


@lru_cache(maxsize=MINUTES_KNOWN)
def _minute(number: int) -> str:
    """In words, so many minutes after the epoch: half of all words of an alert are times, and most alerts share theirs."""
    return f"{datetime.fromtimestamp(60 * number, UTC):%H:%M} UTC"


def since(since_unix_s: float, now_unix_s: float) -> str:
    """To the minute, so that the words change no oftener than they are sent again."""
    day = "" if now_unix_s - since_unix_s < 12 * 3_600 else f", {datetime.fromtimestamp(since_unix_s, UTC):%d %b}"
    return f"{_clock(since_unix_s)}{day}, for {span(now_unix_s - since_unix_s)}"


def span(seconds: float) -> str:
    """Rounded for people: seconds below a minute, else minutes, hours and days."""
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // (24 * 60)} d {minutes // 60 % 24} h"
