"""Findings to Alertmanager's v2 API. Beside the loop, never in it: an Alertmanager that is down delays nothing.

Only the newest state is kept to be sent (a bound of one), changes go out at once and everything open again each
minute, so that Alertmanager neither forgets nor needs to be remembered. A closed finding is sent once more with its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
import structlog

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.model import Backend, DesiredState, Finding, FindingKind, HealthScore, Severity

log = structlog.get_logger("tailkeeper.notify")

RESEND_S = 60.0
"""Well inside Alertmanager's default resolve_timeout of 5 min."""
SEND_DEADLINE_S = 5.0
MAX_ALERTS = 500
"""In one post; a fleet with more open findings has one cause, and the first pages say so."""

ALERT_NAMES: Mapping[FindingKind, str] = {
    FindingKind.HUNG: "BackendHung",
    FindingKind.DOWN: "BackendHung",
    FindingKind.MEMORY_PRESSURE: "MemoryPressure",
    FindingKind.TELEMETRY_LOST: "TelemetryLost",
}
"""Every other kind is a form of drift in what users get."""
DEFAULT_ALERT = "LatencyDrift"
SCORE_BANDS = (0.2, 0.4, 0.6)

Alert = dict[str, Any]


def score_band(hscore: float | None) -> str:
    """The band of a score below 0.6, as a label: ``0.2``, ``0.4`` or ``0.6``; empty above."""
    if hscore is None:
        return ""
    return next((f"{band:g}" for band in SCORE_BANDS if hscore < band), "")


def alerts_for(
    findings: tuple[Finding, ...],
    scores: Mapping[str, HealthScore],
    backends: tuple[Backend, ...],
    desired: tuple[DesiredState, ...],
    console_url: str,
) -> list[Alert]:
    """One alert per finding that is worth a notification; information stays on the boards."""
    pools = {b.name: ",".join(sorted({f"{t.gateway}:{t.pool}" for t in b.targets})) for b in backends}
    strategies = {wish.backend: wish.policy for wish in desired}
    alerts = [
        _alert(f, scores.get(f.backend), pools.get(f.backend, ""), strategies.get(f.backend, ""), console_url)
        for f in findings
        if f.severity is not Severity.INFO
    ]
    for score in scores.values():
        if score_band(score.hscore) and score.veto is None:
            alerts.append(_degraded(score, pools.get(score.backend, ""), strategies.get(score.backend, ""), console_url))
    return alerts[:MAX_ALERTS]


def _labels(name: str, severity: Severity, backend: str, pool: str, score: HealthScore | None, strategy: str) -> dict[str, str]:
    """Every alert carries every label, so that an inhibition can never match on what is missing."""
    return {
        "alertname": name,
        "severity": severity.value,
        "backend": backend,
        "pool": pool,
        "dominant_factor": (score.dominant_factor if score else None) or "none",
        "score_band": (score_band(score.hscore) if score else "") or "none",
        "self_heal_strategy": strategy or "none",
    }


def _alert(finding: Finding, score: HealthScore | None, pool: str, strategy: str, console_url: str) -> Alert:
    alert: Alert = {
        "labels": {
            **_labels(ALERT_NAMES.get(finding.kind, DEFAULT_ALERT), finding.severity, finding.backend, pool, score, strategy),
            "kind": finding.kind.value,
        },
        "annotations": {
            "summary": finding.summary,
            "finding": finding.id,
            "score": _score_text(score),
            "console": console_url,
        },
        "startsAt": _time(finding.since_unix_s),
        "generatorURL": console_url,
    }
    if finding.until_unix_s is not None:
        alert["endsAt"] = _time(finding.until_unix_s)
    return alert


def _degraded(score: HealthScore, pool: str, strategy: str, console_url: str) -> Alert:
    factors = ", ".join(f"{f.name} {f.value:.3g} {f.unit}" for f in sorted(score.factors, key=lambda f: -f.loss)[:2])
    summary = f"{score.backend}: health score {_score_text(score)}, mostly {score.dominant_factor} ({factors})"
    severity = Severity.PAGE if score.hscore is not None and score.hscore < SCORE_BANDS[0] else Severity.TICKET
    return {
        "labels": _labels("HealthDegraded", severity, score.backend, pool, score, strategy),
        "annotations": {"summary": summary, "score": _score_text(score), "console": console_url},
        "generatorURL": console_url,
    }


def _score_text(score: HealthScore | None) -> str:
    return "unknown" if score is None or score.hscore is None else f"{score.hscore:.2f}"


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


class Notifier:
    """Posts to one Alertmanager. ``offer`` never blocks; ``run`` sends until cancelled."""

    def __init__(self, url: str, auth: Auth | None = None) -> None:
        auth = auth or Auth()
        self._url = f"{url}/api/v2/alerts"
        self._client = httpx.AsyncClient(
            trust_env=False, headers=dict(http_auth.headers(auth)), verify=http_auth.tls_context(auth), timeout=SEND_DEADLINE_S
        )
        self._newest: list[Alert] = []
        self._changed = asyncio.Event()
        self._fingerprint = ""
        self.failures = 0
        self.last_error: str | None = None

    def offer(self, alerts: list[Alert]) -> None:
        """Take the alerts of this tick; wakes the sender only when labels or ends have changed."""
        fingerprint = repr([(a["labels"], a.get("endsAt")) for a in alerts])
        self._newest = alerts
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            self._changed.set()

    async def run(self) -> None:
        wait_s = RESEND_S
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
            self._changed.clear()
            started = time.monotonic()
            sent = await self._send()
            # Failed: again after a second, then two, up to the usual interval.
            wait_s = RESEND_S if sent else min(RESEND_S, 2.0 ** min(self.failures, 6))
            if not sent:
                await asyncio.sleep(max(0.0, min(wait_s, 5.0) - (time.monotonic() - started)))

    async def _send(self) -> bool:
        alerts = self._newest
        if not alerts:
            return True
        error: str | None = None
        try:
            response = await self._client.post(self._url, json=alerts)
            if response.status_code >= 300:
                error = f"answered {response.status_code}: {response.text[:200]}"
        except (httpx.HTTPError, OSError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        if error is not None and error != self.last_error:
            log.warning("alertmanager cannot be reached", url=self._url, error=error)
        if error is None and self.last_error is not None:
            log.info("alertmanager answers again", url=self._url, after_failures=self.failures)
        self.failures = 0 if error is None else self.failures + 1
        self.last_error = error
        return error is None

    async def close(self) -> None:
        await self._client.aclose()
