"""Findings to Alertmanager's v2 API. Beside the loop, never in it: an Alertmanager that is down delays nothing.

Only the newest state is kept to be sent (a bound of one): changes go out at once and everything open again each minute,
so that Alertmanager neither forgets nor needs to be remembered. What Alertmanager was told and is over, or is now told
under other labels (another band, cause or strategy), is ended there by name, once: it would fire on for five minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Any
from urllib.parse import urlsplit

import httpx
import structlog

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.attribution import words
from tailkeeper_watchdog.findings import Book
from tailkeeper_watchdog.fleet import GONE
from tailkeeper_watchdog.metrics import SCORE_BAND_SEVERITY
from tailkeeper_watchdog.model import Backend, DesiredState, Finding, FindingKind, HealthScore, Mode, Severity

log = structlog.get_logger("tailkeeper.notify")

RESEND_S = 60.0
"""Well inside Alertmanager's default resolve_timeout of 5 min."""
RETRY_S = (1.0, 2.0, 5.0)
"""Waits after failures in a row, the last for ever: a page must not wait a minute because Alertmanager was restarted."""
SEND_DEADLINE_S = 5.0
"""For one whole post, however slowly the answer drips."""
MAX_ALERTS = 500
"""Firing in one post, pages first; a fleet with more open findings has one cause, and the first pages say so."""
TELL_END_S = 300.0
"""For so long the end of a finding waits for an Alertmanager that does not answer; by then it has resolved it by itself."""
ERROR_BODY_LIMIT_BYTES = 2_048
RUNBOOK = "docs/runbook.md"
NONE = "none"

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
IMPACTS: Mapping[FindingKind, str] = {
    FindingKind.HUNG: "Requests on it get no answer, and new ones neither while it is in the pool.",
    FindingKind.DOWN: "Requests on it fail, and new ones too while it is in the pool.",
    FindingKind.MEMORY_PRESSURE: "Requests on it queue for memory; some may be preempted or fail.",
    FindingKind.TELEMETRY_LOST: "Unknown: nobody can say how its users fare, and no action is taken on it.",
    FindingKind.COMMON_CAUSE: "Users of the whole pool; taking backends out would not help them.",
    FindingKind.CONTENDED: "None by itself: two hands change the same knob, and ours lets go.",
    FindingKind.ADVICE: "None by itself: a person is asked to decide what is done about this backend.",
    FindingKind.SLO_BURN: "Its users wait too long, or get errors, more often than the SLO allows.",
    FindingKind.IMPROVED_BUT_BROKEN: "Its users get an answer sooner, and it is an error or next to nothing.",
}
_BY_SIGNAL = (FindingKind.SLO_BURN, FindingKind.ADVICE)
DEFAULT_IMPACT = "Its users wait longer than before."

Alert = dict[str, Any]
Key = tuple[tuple[str, str], ...]
_RANK = {Severity.PAGE.value: 0, Severity.TICKET.value: 1}


def score_band(hscore: float | None) -> str:
    """The band of a score below 0.6, as a label: ``0.2``, ``0.4`` or ``0.6``; empty above."""
    if hscore is None:
        return ""
    return next((band for band in SCORE_BAND_SEVERITY if hscore < float(band)), "")


def lately_closed(book: Book, wall: float) -> tuple[Finding, ...]:
    """Findings whose end Alertmanager may not have been told yet: of the last minutes, as many as fit into one post."""
    newest_first = islice(reversed(book.closed), MAX_ALERTS)
    return tuple(takewhile(lambda found: wall - (found.until_unix_s or wall) < TELL_END_S, newest_first))[::-1]


def alerts_for(
    findings: tuple[Finding, ...],
    scores: Mapping[str, HealthScore],
    backends: tuple[Backend, ...],
    desired: tuple[DesiredState, ...],
    console_url: str,
) -> list[Alert]:
    """One alert per finding that is worth a notification; information stays on the boards."""
    pools = {b.name: ",".join(sorted({f"{t.gateway}:{t.pool}" for t in b.targets})) for b in backends}
    wishes: dict[str, list[DesiredState]] = {}
    for wish in desired:
        wishes.setdefault(wish.backend, []).append(wish)
    alerts = []
    for found in findings:
        if found.severity is not Severity.INFO:
            pool = str(found.evidence.get("pool", "")) or pools.get(found.backend, "")
            alerts.append(_of_finding(found, scores.get(found.backend), pool, wishes.get(found.backend, []), console_url))
    for score in scores.values():
        if score_band(score.hscore) and score.veto is None:
            alerts.append(_degraded(score, pools.get(score.backend, ""), wishes.get(score.backend, []), console_url))
    return alerts


def _labels(
    name: str, severity: Severity, backend: str, pool: str, score: HealthScore | None, wishes: list[DesiredState]
) -> dict[str, str]:
    """Every alert carries every label, so that an inhibition can never match on what is missing. Alertmanager drops an
    empty label, hence ``none``."""
    strategy = next((wish.policy for wish in wishes if wish.mode is Mode.ENFORCE), "")
    return {
        "alertname": name,
        "severity": severity.value,
        "backend": backend or NONE,
        "pool": pool or NONE,
        "dominant_factor": (score.dominant_factor if score else None) or NONE,
        "score_band": (score_band(score.hscore) if score else "") or NONE,
        "self_heal_strategy": strategy or NONE,
    }


def _of_finding(finding: Finding, score: HealthScore | None, pool: str, wishes: list[DesiredState], console_url: str) -> Alert:
    name = _alert_name(finding)
    alert: Alert = {
        "labels": {
            **_labels(name, finding.severity, finding.backend, pool, score, wishes),
            "kind": finding.kind.value,
            # Late and failed requests are two alerts of one backend, as are two pieces of advice.
            **({"signal": finding.signal} if finding.kind in _BY_SIGNAL and finding.signal else {}),
        },
        "annotations": {
            "summary": finding.summary,
            "impact": IMPACTS.get(finding.kind, DEFAULT_IMPACT),
            "causes": _causes(finding),
            **_common_annotations(name, score, wishes, console_url),
            "finding": finding.id,
        },
        "startsAt": _time(finding.since_unix_s),
        "generatorURL": console_url,
    }
    if finding.until_unix_s is not None:
        # Alertmanager refuses an end before the start, which a clock step can make.
        alert["endsAt"] = _time(max(finding.until_unix_s, finding.since_unix_s))
    return alert


def _alert_name(finding: Finding) -> str:
    if finding.kind is FindingKind.SLO_BURN:
        return BURN_ALERTS.get(str(finding.evidence.get("rule")), DEGRADED_ALERT)
    return ALERT_NAMES.get(finding.kind, DEFAULT_ALERT)


def _causes(finding: Finding) -> str:
    return words.causes(finding.shares) or "not attributed"


def _common_annotations(name: str, score: HealthScore | None, wishes: list[DesiredState], console_url: str) -> dict[str, str]:
    wanted = [f"{wish.policy} wants {wish.knob.value} {_shown(wish.value)} (mode {wish.mode.value})" for wish in wishes]
    return {
        "actions": "; ".join(dict.fromkeys(wanted)) or "no policy wants a change",
        "score": _score_text(score),
        "console": console_url,
        "runbook_url": f"{RUNBOOK}#{name.lower()}",
    }


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2g}"


def _degraded(score: HealthScore, pool: str, wishes: list[DesiredState], console_url: str) -> Alert:
    costly = sorted(score.factors, key=lambda f: -f.loss)[:2]
    factors = ", ".join(f"{f.name} {f.value:.3g} {f.unit}" for f in costly)
    severity = Severity(SCORE_BAND_SEVERITY[score_band(score.hscore)])
    return {
        "labels": _labels(DEGRADED_ALERT, severity, score.backend, pool, score, wishes),
        "annotations": {
            "summary": f"{score.backend}: health score {_score_text(score)}, mostly {score.dominant_factor} ({factors})",
            "impact": "Its users wait longer than the SLO allows, or get errors.",
            "causes": ", ".join(f"{f.name} costs {f.loss:.2f}" for f in costly),
            **_common_annotations(DEGRADED_ALERT, score, wishes, console_url),
        },
        "generatorURL": console_url,
    }


def _score_text(score: HealthScore | None) -> str:
    return "unknown" if score is None or score.hscore is None else f"{score.hscore:.2f}"


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _key(alert: Alert) -> Key:
    """What Alertmanager takes for the identity of an alert: its labels."""
    return tuple(sorted(alert["labels"].items()))


def _by_key(alerts: Iterable[Alert]) -> dict[Key, Alert]:
    return {_key(alert): alert for alert in alerts}


class Notifier:
    """Posts to one Alertmanager. ``offer`` never blocks; ``run`` sends until cancelled. ``wall`` gives epoch seconds.

    Raises CallError where the files for TLS cannot be used; other credentials are read anew at each post.
    """

    def __init__(
        self,
        url: str,
        auth: Auth | None = None,
        *,
        resend_s: float = RESEND_S,
        retry_s: tuple[float, ...] = RETRY_S,
        deadline_s: float = SEND_DEADLINE_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._auth = auth or Auth()
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self._client = httpx.AsyncClient(trust_env=False, verify=http_auth.tls_context(self._auth), timeout=deadline_s)
        self._resend_s, self._retry_s, self._deadline_s, self._wall = resend_s, retry_s, deadline_s, wall
        self._open: dict[Key, Alert] = {}
        self._ended: dict[Key, Alert] = {}
        self._ended_findings: dict[str, Alert] = {}
        self._names: frozenset[str] | None = None
        self._told: dict[Key, Alert] = {}
        self._changed = asyncio.Event()
        self._fingerprint: object = ()
        self.failures = 0
        self.last_error: str | None = None

    def offer(self, alerts: list[Alert], names: frozenset[str] | None = None) -> None:
        """Take the alerts of this tick, open and ended; wakes the sender only when an identity or an action has changed.

        ``names`` are the backends that there are: the alert of one that is gone ends with that reason.
        """
        self._names = names
        self._open = _by_key(a for a in alerts if "endsAt" not in a)
        # The same trouble may have ended earlier and be open again: then only the open one is told.
        self._ended = {key: a for key, a in _by_key(a for a in alerts if "endsAt" in a).items() if key not in self._open}
        self._ended_findings = {a["annotations"]["finding"]: a for a in self._ended.values() if "finding" in a["annotations"]}
        fingerprint = {key: alert["annotations"].get("actions") for key, alert in self._open.items()}
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            self._changed.set()

    async def run(self) -> None:
        while True:
            if self.failures:
                await asyncio.sleep(self._retry_s[min(self.failures, len(self._retry_s)) - 1])
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._resend_s)
            self._changed.clear()
            await self._send()

    async def _send(self) -> None:
        firing = sorted(self._open.values(), key=lambda a: _RANK.get(a["labels"]["severity"], len(_RANK)))[:MAX_ALERTS]
        over = [self._end_of(key, alert) for key, alert in self._told.items() if key not in self._open]
        if not firing and not over:
            self.failures = 0  # nothing is owed; whether Alertmanager answers shows at the next post
            return
        error = await self._post([*firing, *over])
        self._note(error)
        if error is None:
            # What is still open but did not fit into this post stays known as told.
            self._told = {key: alert for key, alert in self._told.items() if key in self._open} | _by_key(firing)

    def _end_of(self, key: Key, told: Alert) -> Alert:
        """Under the labels that Alertmanager knows it by: with its score and its backend, its labels may be gone as well."""
        ended = self._ended.get(key)
        if ended is not None:
            return ended
        finding = self._ended_findings.get(told["annotations"].get("finding", ""))
        if finding is not None:
            return {**told, "annotations": finding["annotations"], "endsAt": finding["endsAt"]}
        annotations = told["annotations"]
        if self._names is not None and told["labels"]["backend"] not in self._names and "finding" not in annotations:
            annotations = {**annotations, "summary": f"{annotations['summary']}; over: {GONE}"}
        return {**told, "annotations": annotations, "endsAt": _time(self._wall())}

    async def _post(self, alerts: list[Alert]) -> str | None:
        """None, or in words why Alertmanager did not take them."""
        # A reason that an engine sent may hold half a character, which JSON cannot say.
        body = json.dumps(alerts, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        try:
            headers = {"content-type": "application/json", **await asyncio.to_thread(http_auth.headers, self._auth)}
            async with asyncio.timeout(self._deadline_s):
                return await self._exchange(body, headers)
        except TimeoutError:
            return f"no answer within {self._deadline_s:g} s"
        except CallError as failure:
            return failure.message
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as failure:
            return f"{type(failure).__name__}: {failure}"

    async def _exchange(self, body: bytes, headers: Mapping[str, str]) -> str | None:
        async with self._client.stream("POST", self._url, content=body, headers=dict(headers)) as response:
            if response.status_code < 300:
                return None
            said = bytearray()
            async for part in response.aiter_raw():
                said += part
                if len(said) >= ERROR_BODY_LIMIT_BYTES:
                    break
            return f"answered {response.status_code}: {excerpt(said.decode('utf-8', 'replace'))}"

    def _note(self, error: str | None) -> None:
        """The same failure is logged once, and its end."""
        if error is not None and error != self.last_error:
            log.warning("alertmanager did not take the alerts", url=_without_userinfo(self._url), error=error)
        if error is None and self.last_error is not None:
            log.info("alertmanager takes alerts again", url=_without_userinfo(self._url), after_failures=self.failures)
        self.failures = 0 if error is None else self.failures + 1
        self.last_error = error

    async def close(self) -> None:
        await self._client.aclose()


def _without_userinfo(url: str) -> str:
    """A password in the URL is never logged."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
