"""Symptoms of one tick become findings with a life: opened, kept, closed. Pure; the loop owns the book.

A finding closes only on fresh evidence that its symptom has been gone for a while. Where the telemetry is lost it
stays open and says so: blind is not healed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tailkeeper_watchdog.detectors.base import Detector, Symptom
from tailkeeper_watchdog.model import EMPTY, Finding, FindingKind, Situation

MAX_CLOSED = 1_000
"""Closed findings kept in memory: weeks at a healthy fleet's rate, and under 2 MB."""

ADVICE_CLOSES_AFTER_S = 30.0
"""Advice that comes and goes is one finding, not a notification each time."""

Key = tuple[FindingKind, str, str]


@dataclass(frozen=True, slots=True)
class Book:
    """Open findings by key, when each symptom was last seen (monotonic), and the latest closed ones."""

    open: Mapping[Key, Finding] = field(default_factory=lambda: EMPTY)
    last_seen: Mapping[Key, float] = field(default_factory=lambda: EMPTY)
    closed: tuple[Finding, ...] = ()

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        return tuple(self.open.values())


def update(book: Book, symptoms: tuple[Symptom, ...], detectors: tuple[Detector, ...], situation: Situation) -> Book:
    """The book after this tick."""
    now, wall = situation.snapshot.now, situation.snapshot.time_unix_s
    patience = {FindingKind.ADVICE: ADVICE_CLOSES_AFTER_S} | {kind: d.close_after_s for d in detectors for kind in d.kinds}
    still = {s.key: s for s in symptoms}
    opened = dict(book.open)
    last_seen = dict(book.last_seen)
    closed = list(book.closed)
    for key, symptom in still.items():
        opened[key] = _opened(book.open.get(key), symptom, wall)
        last_seen[key] = now
    over = [k for k in opened if k not in still]
    fleet = {backend.name for backend in situation.snapshot.backends} if over else set()
    for key in over:
        finding = opened[key]
        if not _may_close(finding, fleet, situation):
            opened[key] = _marked_lost(finding)
        elif now - last_seen[key] >= patience.get(key[0], 0.0):
            closed.append(replace(finding, until_unix_s=wall))
            del opened[key], last_seen[key]
    return Book(opened, last_seen, tuple(closed[-MAX_CLOSED:]))


CLOSED_BECAUSE = "closed_because"
"""Key in the evidence of a finding that something else than fresh evidence has closed."""


def close_gone(book: Book, gone: frozenset[str], reason: str, wall: float) -> Book:
    """The book without open findings about backends that are gone: they end now, and say why."""
    over = [key for key in book.open if key[1] in gone]
    if not over:
        return book
    closed = tuple(_closed(book.open[key], reason, wall) for key in over)
    kept = {key: finding for key, finding in book.open.items() if key[1] not in gone}
    return Book(kept, {key: book.last_seen[key] for key in kept}, (*book.closed, *closed)[-MAX_CLOSED:])


def _closed(finding: Finding, reason: str, wall: float) -> Finding:
    summary = f"{finding.summary}; over: {reason}"
    return replace(finding, until_unix_s=wall, summary=summary, evidence={**finding.evidence, CLOSED_BECAUSE: reason})


def _opened(known: Finding | None, symptom: Symptom, wall: float) -> Finding:
    since = known.since_unix_s if known else wall
    name = known.id if known else f"{symptom.kind}:{symptom.backend}:{symptom.signal}:{wall:.3f}".replace("::", ":")
    return Finding(
        name, symptom.kind, symptom.backend, symptom.severity, since, symptom.summary, symptom.evidence, signal=symptom.signal
    )


def _may_close(finding: Finding, fleet: set[str], situation: Situation) -> bool:
    """What is of nobody in the fleet, or of a pool, needs no evidence of its backend."""
    gone = finding.backend not in fleet
    return finding.kind is FindingKind.COMMON_CAUSE or gone or situation.fresh(finding.backend) is not None


def _marked_lost(finding: Finding) -> Finding:
    if finding.evidence.get("telemetry_lost"):
        return finding
    return replace(finding, evidence={**finding.evidence, "telemetry_lost": True})
