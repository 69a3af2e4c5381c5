"""Findings and scores as alerts: which labels Alertmanager knows them by, and in which words people are told. Pure.

Labels are an alert's identity: band, factor, strategy, cause and action are among them, so that a change of one reaches
people, and Alertmanager's grouping by backend keeps it the same incident. Everything else is an annotation. The words are for
a person who was asleep a minute ago: what is wrong, whom it hurts, since when, why, what was done, where to look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, TypeVar
from urllib.parse import quote

from tailkeeper_exporter import catalog
from tailkeeper_watchdog import alert_words
from tailkeeper_watchdog.alert_terms import NONE, ROOT_CAUSE_BOARD_UID, RUNBOOK
from tailkeeper_watchdog.alert_words import Case
from tailkeeper_watchdog.attribution import words
from tailkeeper_watchdog.findings import Book
from tailkeeper_watchdog.metrics import ALERT_MIN_CONFIDENCE, SCORE_BAND_SEVERITY
from tailkeeper_watchdog.model import (
    DRAIN,
    EMPTY,
    Backend,
    BackendObservation,
    DesiredState,
    Finding,
    FindingKind,
    HealthScore,
    Knob,
    Lease,
    Mode,
    Pool,
    Severity,
    Share,
    TickRecord,
    Verdict,
)
from tailkeeper_watchdog.scoring.hscore import may_be_below

MAX_ALERTS = 500
"""Firing in one post, pages first; a fleet with more open findings has one cause, and the first pages say so."""
TELL_END_S = 300.0
"""For so long the end of a finding waits for an Alertmanager that does not answer; by then it has resolved it by itself."""
SOURCE = "watchdog"
BOARD_BEFORE_S, BOARD_AFTER_S = 900.0, 300.0
"""What the board's link shows beside the incident itself: how things were before, and whether they are well again."""
CAUSE_SHARE, CAUSE_CONFIDENCE = 0.5, 0.5
"""From here on the largest share is the cause that the label names; below, causes would take turns, each telling people anew."""

ALERT_NAMES: Mapping[FindingKind, str] = {
    FindingKind.HUNG: "BackendHung",
    FindingKind.DOWN: "BackendHung",
    FindingKind.MEMORY_PRESSURE: "MemoryPressure",
    FindingKind.TELEMETRY_LOST: "TelemetryLost",
    FindingKind.COMMON_CAUSE: "HealthDegraded",
    FindingKind.CONTENDED: "HealthDegraded",
    FindingKind.ADVICE: "HealthDegraded",
    FindingKind.IMPROVED_BUT_BROKEN: "HealthDegraded",
}
"""Every other kind is a form of drift in what users get."""
DEFAULT_ALERT = "LatencyDrift"
BURN_ALERTS: Mapping[str, str] = {"fast": "SLOBurnFast", "slow": "SLOBurnSlow", "trickle": "SLOTrickle"}
"""By the rule that holds: one kind of finding, three that differ in what is to be done first."""
DEGRADED_ALERT = "HealthDegraded"
_BEST_BAD = max(map(float, SCORE_BAND_SEVERITY))
"""A score is in a band below this."""
_BY_SIGNAL = (FindingKind.SLO_BURN, FindingKind.ADVICE, FindingKind.CONTENDED)
"""Late and failed requests are two alerts of one backend, as are two pieces of advice and two contended knobs."""
Alert = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Links:
    """Where people go from a notification; addresses as people reach them. ``grafana`` None: no board is linked."""

    console: str
    grafana: str | None = None
    runbook: str = RUNBOOK

    def board(self, backend: str, cluster: str, since_unix_s: float, until_unix_s: float | None) -> str | None:
        """The root-cause board on one backend (of a cluster, where it is known) and the time of its trouble, up to now while
        that goes on."""
        if self.grafana is None:
            return None
        end = "now" if until_unix_s is None else f"{1e3 * (until_unix_s + BOARD_AFTER_S):.0f}"
        # An engine's name may hold half a character, which no URL can.
        name, of = (quote(text.encode("utf-8", "replace"), safe="") for text in (backend, cluster))
        where = f"var-backend={name}{f'&var-cluster={of}' if of else ''}"
        return f"{self.grafana}/d/{ROOT_CAUSE_BOARD_UID}?{where}&from={1e3 * (since_unix_s - BOARD_BEFORE_S):.0f}&to={end}"


@dataclass(frozen=True, slots=True)
class Context:
    """What one tick knows beside its findings, and what every alert gets."""

    now_unix_s: float
    links: Links
    backends: tuple[Backend, ...] = ()
    scores: Mapping[str, HealthScore] = field(default_factory=lambda: EMPTY)
    observations: Mapping[str, BackendObservation] = field(default_factory=lambda: EMPTY)
    desired: tuple[DesiredState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    leases: Callable[[], tuple[Lease, ...]] = tuple
    """What is in force; asked for only where there is something to tell, since thousands may be."""
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    @classmethod
    def of(
        cls,
        record: TickRecord,
        backends: tuple[Backend, ...],
        leases: Callable[[], tuple[Lease, ...]],
        links: Links,
        labels: Mapping[str, str],
    ) -> Context:
        situation = record.situation
        seen = situation.snapshot.observations
        return cls(record.time_unix_s, links, backends, situation.scores, seen, record.desired, record.verdicts, leases, labels)


def score_band(hscore: float | None) -> str:
    """The band of a score below 0.6, as a label: ``0.2``, ``0.4`` or ``0.6``; empty above."""
    if hscore is None:
        return ""
    return next((band for band in SCORE_BAND_SEVERITY if hscore < float(band)), "")


def lately_closed(book: Book, wall: float) -> tuple[Finding, ...]:
    """Findings whose end Alertmanager may not have been told yet: of the last minutes, as many as fit into one post."""
    newest_first = islice(reversed(book.closed), MAX_ALERTS)
    return tuple(takewhile(lambda found: wall - (found.until_unix_s or wall) < TELL_END_S, newest_first))[::-1]


def alerts_for(findings: Iterable[Finding], context: Context) -> list[Alert]:
    """One alert per finding that is worth a notification; information stays on the boards."""
    told = [found for found in findings if found.severity is not Severity.INFO]
    degraded = [score for score in may_be_below(context.scores, _BEST_BAD) if _is_degraded(score)]
    cases = _cases({found.backend for found in told} | {score.backend for score in degraded}, context)
    return [
        *(_of_finding(found, cases[found.backend], context) for found in told),
        *(_degraded(score, cases[score.backend], context) for score in degraded),
    ]


def _is_degraded(score: HealthScore) -> bool:
    """Whether people are to hear of a score: of one that rests on nothing that users saw, only once they are hurt."""
    hscore = score.hscore
    return hscore is not None and hscore < _BEST_BAD and score.veto is None and score.confidence >= ALERT_MIN_CONFIDENCE


def _cases(names: set[str], context: Context) -> Mapping[str, Case]:
    """Looked up once for all alerts of a tick, and only for backends that have one: there may be thousands of others."""
    if not names:
        return EMPTY
    backends = {b.name: b for b in context.backends if b.name in names}
    wishes = _grouped((wish.backend, wish) for wish in context.desired if wish.backend in names)
    leases = _grouped((lease.backend, lease) for lease in context.leases() if lease.backend in names)
    verdicts = _grouped((v.desired.backend, v) for v in context.verdicts if v.desired.backend in names)
    totals = _in_flight_by_pool({b.pool for b in backends.values()}, context)
    return {
        name: Case(
            name,
            backends.get(name),
            _pools(backends.get(name)),
            context.scores.get(name),
            wishes.get(name, ()),
            verdicts.get(name, ()),
            leases.get(name, ()),
            _requests_on(context.observations.get(name)),
            totals.get(backends[name].pool) if name in backends else None,
        )
        for name in names
    }


T = TypeVar("T")


def _grouped(named: Iterable[tuple[str, T]]) -> dict[str, tuple[T, ...]]:
    found: dict[str, list[T]] = defaultdict(list)
    for name, row in named:
        found[name].append(row)
    return {name: tuple(of_one) for name, of_one in found.items()}


def _in_flight_by_pool(pools: set[Pool], context: Context) -> dict[Pool, float | None]:
    """Requests that each pool has now; None where that of a backend of it is not known."""
    totals: dict[Pool, float | None] = {}
    for backend in context.backends:
        if backend.targets and backend.pool in pools:
            own, so_far = _requests_on(context.observations.get(backend.name)), totals.get(backend.pool, 0.0)
            totals[backend.pool] = None if own is None or so_far is None else so_far + own
    return totals


def _requests_on(seen: BackendObservation | None) -> float | None:
    """Running and waiting; None where either is not known: the half that is known would be told as the whole."""
    if seen is None:
        return None
    running, waiting = seen.value(catalog.RUNNING.name), seen.value(catalog.WAITING.name)
    return None if running is None or waiting is None else running + waiting


def _pools(backend: Backend | None) -> str:
    return "" if backend is None else ",".join(sorted({f"{t.gateway}:{t.pool}" for t in backend.targets}))


# Labels


def _labels(name: str, severity: Severity, case: Case, shares: Iterable[Share], context: Context) -> dict[str, str]:
    """Every alert carries every label of ``WATCHDOG_LABELS``, so that an inhibition can never match on what is missing."""
    strategy = next((wish.policy for wish in case.wishes if wish.mode is Mode.ENFORCE), "")
    score = case.score
    return {
        **context.labels,
        "alertname": name,
        "severity": severity.value,
        "backend": case.name or NONE,
        "pool": case.pool or NONE,
        "dominant_factor": (score.dominant_factor if score else None) or NONE,
        "score_band": (score_band(score.hscore) if score else "") or NONE,
        "self_heal_strategy": strategy or NONE,
        "cause": _cause(shares),
        "action": _action(case.leases),
        "source": SOURCE,
    }


def _cause(shares: Iterable[Share]) -> str:
    first = max(shares, key=lambda s: s.share, default=None)
    if first is None or first.share < CAUSE_SHARE or first.confidence < CAUSE_CONFIDENCE or first.dimension == "unknown":
        return NONE
    return f"{first.dimension}:{first.value}"


def _action(leases: Iterable[Lease]) -> str:
    """What is in force, without amounts: a weight that goes back step by step is no news at each step."""
    done = {"drain" if x.knob is Knob.ADMISSION and x.written == DRAIN else x.knob.value for x in leases}
    return ",".join(sorted(done)) or NONE


def _alert_name(finding: Finding) -> str:
    if finding.kind is FindingKind.SLO_BURN:
        return BURN_ALERTS.get(str(finding.evidence.get("rule")), DEGRADED_ALERT)
    return ALERT_NAMES.get(finding.kind, DEFAULT_ALERT)


# One alert


def _of_finding(finding: Finding, case: Case, context: Context) -> Alert:
    name = _alert_name(finding)
    pool = str(finding.evidence.get("pool", "")) or case.pool
    labels = _labels(name, finding.severity, case, finding.shares, context) | {"pool": pool or NONE, "kind": finding.kind.value}
    if finding.kind in _BY_SIGNAL and finding.signal:
        labels["signal"] = finding.signal
    since, until = finding.since_unix_s, finding.until_unix_s
    if until is not None:
        # Alertmanager refuses an end before the start, which a clock step can make.
        until = max(until, since)
    alert: Alert = {
        "labels": labels,
        "annotations": {
            "summary": finding.summary,
            "impact": alert_words.impact(finding, case),
            "since": alert_words.since(since, context.now_unix_s if until is None else until),
            "causes": words.causes(finding.shares) or "not attributed",
            **_common(name, case, context, since, until),
            **({"actions": alert_words.NOBODY_OUT} if finding.kind is FindingKind.COMMON_CAUSE else {}),
            "finding": finding.id,
        },
        "startsAt": alert_words.time(since),
        "generatorURL": context.links.console,
    }
    if until is not None:
        alert["endsAt"] = alert_words.time(until)
        alert["annotations"]["lasted"] = alert_words.span(until - since)
    return alert


def _degraded(score: HealthScore, case: Case, context: Context) -> Alert:
    costly = sorted(score.factors, key=lambda f: -f.loss)[:2]
    factors = ", ".join(f"{f.name} {f.value:.3g} {f.unit}" for f in costly)
    severity = Severity(SCORE_BAND_SEVERITY[score_band(score.hscore)])
    how_bad = alert_words.score_text(score)
    return {
        "labels": _labels(DEGRADED_ALERT, severity, case, (), context),
        "annotations": {
            "summary": f"{score.backend}: health score {how_bad}, mostly {score.dominant_factor} ({factors})",
            "impact": alert_words.degraded_impact(case),
            "causes": ", ".join(f"{f.name} costs {f.loss:.2f}" for f in costly),
            **_common(DEGRADED_ALERT, case, context, context.now_unix_s, None),
        },
        "generatorURL": context.links.console,
    }


def _common(name: str, case: Case, context: Context, since: float, until: float | None) -> dict[str, str]:
    board = context.links.board(case.name, context.labels.get("cluster", ""), since, until)
    return {
        "actions": alert_words.actions(case),
        "score": alert_words.score_text(case.score),
        **({"dashboard_url": board} if board is not None else {}),
        "console": context.links.console,
        "runbook_url": f"{context.links.runbook}#{name.lower()}",
    }
