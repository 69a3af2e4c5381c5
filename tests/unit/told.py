"""Findings, scores, wishes and leases as tests of notifications need them, and the alerts that come of them."""

from __future__ import annotations

from typing import Any

from tailkeeper_watchdog.alerting import Alert, Context, Links, alerts_for
from tailkeeper_watchdog.model import (
    Backend,
    DesiredState,
    Factor,
    Finding,
    FindingKind,
    HealthScore,
    Knob,
    KnobValue,
    Lease,
    Mode,
    Severity,
    Target,
)

NOW = 1.7e9 + 61
"""2023-11-14, 22:14:21 UTC; findings begin 61 s before."""
LINKS = Links("http://127.0.0.1:8088/")
CONTRACT_LABELS = {"alertname", "severity", "backend", "pool", "dominant_factor", "score_band", "self_heal_strategy"}
EDGE, WEST = Target("edge", "a", "llm"), Target("west", "a", "llm")
BACKENDS = (Backend("a", "m", (EDGE, WEST)), Backend("lonely", "m"))


def finding(kind: FindingKind = FindingKind.HUNG, backend: str = "a", **more: Any) -> Finding:
    given: dict[str, Any] = {"severity": Severity.PAGE, "since_unix_s": 1.7e9, "summary": f"{backend} is {kind}", **more}
    return Finding(f"{kind}:{backend}", kind, backend, **given)


def alerts(
    *findings: Finding,
    scores: dict[str, HealthScore] | None = None,
    desired: tuple[DesiredState, ...] = (),
    leases: tuple[Lease, ...] = (),
    **more: Any,
) -> list[Alert]:
    """What is told at ``NOW`` of two backends, of which only ``a`` has gateways."""
    given: dict[str, Any] = {"now_unix_s": NOW, "links": LINKS, "backends": BACKENDS, **more}
    return alerts_for(findings, Context(scores=scores or {}, desired=desired, leases=lambda: leases, **given))


def wish(mode: Mode = Mode.ENFORCE) -> DesiredState:
    return DesiredState("gpu_health_gate", "a", Knob.ADMISSION, "drain", "hung", mode)


def score(hscore: float | None, **more: Any) -> HealthScore:
    factors = (Factor("latency", 0.1, 0.6, 2.5, "s"), Factor("uptime", 1.0, 0.4, 1.0, "ratio"))
    return HealthScore("a", hscore, factors, **{"confidence": 0.45, **more})


def lease(knob: Knob = Knob.ADMISSION, written: KnobValue = "drain", prior: KnobValue = "serve", **more: Any) -> Lease:
    given: dict[str, Any] = {"created_unix_s": NOW - 60, "expires_unix_s": NOW + 240, "confirmed": True, **more}
    return Lease(1, "a", EDGE, knob, "gpu_health_gate", prior, written, "hung", **given)
