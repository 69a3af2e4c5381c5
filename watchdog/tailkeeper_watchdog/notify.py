"""Alerts to Alertmanager's v2 API. Beside the loop, never in it: an Alertmanager that is down delays nothing.

Only the newest state is kept to be sent (a bound of one): changes go out at once and everything open again each minute,
so that Alertmanager neither forgets nor needs to be remembered. What Alertmanager was told and is over, or is now told
under other labels (another band, cause or action), is ended there by name, once: it would fire on for five minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping

import httpx
import structlog

from tailkeeper_exporter.fetch import EXCHANGE_ERRORS
from tailkeeper_exporter.hiding import hidden_of
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tls import BROKEN, tls_trouble
from tailkeeper_watchdog import alert_words
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt, without_password
from tailkeeper_watchdog.alerting import MAX_ALERTS, Alert
from tailkeeper_watchdog.fleet import GONE
from tailkeeper_watchdog.model import Finding, Severity

log = structlog.get_logger("tailkeeper.notify")

RESEND_S = 60.0
"""Well inside Alertmanager's default resolve_timeout of 5 min."""
RETRY_S = (1.0, 2.0, 5.0)
"""Waits after failures in a row, the last for ever: a page must not wait a minute because Alertmanager was restarted."""
SEND_DEADLINE_S = 5.0
"""For one whole post, however slowly the answer drips."""
ERROR_BODY_LIMIT_BYTES = 2_048

Key = tuple[tuple[str, str], ...]
_RANK = {Severity.PAGE.value: 0, Severity.TICKET.value: 1}


def _key(alert: Alert) -> Key:
    """What Alertmanager takes for the identity of an alert: its labels."""
    return tuple(sorted(alert["labels"].items()))


def _is_of_score(alert: Alert) -> bool:
    """What comes of no finding comes of a score."""
    return "finding" not in alert["annotations"]


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
        self._under_way: list[Alert] = []
        self._changed = asyncio.Event()
        self._offered: frozenset[Key] = frozenset()
        self._starts: dict[Key, str] = {}
        self._bad_since: dict[str, float] = {}
        self.failures = 0
        self.last_error: str | None = None

    def owed(self, closed: Iterable[Finding]) -> list[Finding]:
        """Those whose end Alertmanager is to be told: it has their beginning, or may get it now. Of nearly all it has both."""
        told = {alert["annotations"].get("finding") for alert in (*self._told.values(), *self._open.values(), *self._under_way)}
        return [finding for finding in closed if finding.id in told]

    def offer(self, alerts: list[Alert], names: frozenset[str] | None = None) -> None:
        """Take the alerts of this tick, open and ended; wakes the sender only when an identity has changed.

        ``names`` are the backends that there are: the alert of one that is gone ends with that reason.
        """
        self._names = names
        self._open = self._begun(_by_key(self._with_since([a for a in alerts if "endsAt" not in a])))
        # The same trouble may have ended earlier and be open again: then only the open one is told.
        self._ended = {key: a for key, a in _by_key(a for a in alerts if "endsAt" in a).items() if key not in self._open}
        self._ended_findings = {a["annotations"]["finding"]: a for a in self._ended.values() if "finding" in a["annotations"]}
        if self._open.keys() != self._offered:
            self._offered = frozenset(self._open)
            self._changed.set()

    def _with_since(self, alerts: list[Alert]) -> list[Alert]:
        """A score has no beginning of its own, and each band of it is another alert: people are told since when it is bad."""
        now = self._wall()
        of_scores = {alert["labels"]["backend"] for alert in (*alerts, *self._told.values()) if _is_of_score(alert)}
        self._bad_since = {backend: self._bad_since.get(backend, now) for backend in of_scores}
        return [self._annotated(a, since=lambda at: alert_words.since(at, now)) for a in alerts]

    def _annotated(self, alert: Alert, **words: Callable[[float], str]) -> Alert:
        if not _is_of_score(alert):
            return alert
        since = self._bad_since.get(alert["labels"]["backend"], self._wall())
        return {**alert, "annotations": {**alert["annotations"], **{name: say(since) for name, say in words.items()}}}

    def _begun(self, alerts: dict[Key, Alert]) -> dict[Key, Alert]:
        """A finding that goes on under other labels is a new alert to Alertmanager, which begins when it got them: one that
        claims to be older would set off the reminder of its new band at once, beside the update itself."""
        told = {alert["annotations"].get("finding") for alert in self._told.values()} - {None}
        known = self._told.keys() | self._offered
        moved = [key for key, a in alerts.items() if key not in known and a["annotations"].get("finding") in told]
        now = alert_words.time(self._wall())
        self._starts = {key: start for key, start in self._starts.items() if key in alerts} | dict.fromkeys(moved, now)
        return {key: a if key not in self._starts else {**a, "startsAt": self._starts[key]} for key, a in alerts.items()}

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
        self._under_way = firing
        error = await self._post([*firing, *over])
        self._note(error)
        if error is None:
            # What is still open but did not fit into this post stays known as told.
            self._told = {key: alert for key, alert in self._told.items() if key in self._open} | _by_key(firing)
        self._under_way = []

    def _end_of(self, key: Key, told: Alert) -> Alert:
        """Under the labels that Alertmanager knows it by: with its score and its backend, its labels may be gone as well."""
        ended = self._ended.get(key)
        if ended is not None:
            return ended
        finding = self._ended_findings.get(told["annotations"].get("finding", ""))
        if finding is not None:
            return {**told, "annotations": finding["annotations"], "endsAt": finding["endsAt"]}
        now = self._wall()
        annotations = self._annotated(told, lasted=lambda since: alert_words.span(now - since))["annotations"]
        if self._names is not None and told["labels"]["backend"] not in self._names and "finding" not in annotations:
            annotations = {**annotations, "summary": f"{annotations['summary']}; over: {GONE}"}
        return {**told, "annotations": annotations, "endsAt": alert_words.time(now)}

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
        except EXCHANGE_ERRORS as failure:
            return self._failed(failure)

    def _failed(self, failure: Exception) -> str:
        trouble = tls_trouble(failure)
        if trouble is None and self._url.startswith("https:") and isinstance(failure, (httpx.ReadError, httpx.WriteError)):
            trouble = BROKEN
        if trouble is None:
            return f"{type(failure).__name__}: {failure}"
        return f"TLS: {trouble.at('watchdog.alertmanager.auth')}"

    async def _exchange(self, body: bytes, headers: Mapping[str, str]) -> str | None:
        async with self._client.stream("POST", self._url, content=body, headers=dict(headers)) as response:
            if response.status_code < 300:
                return None
            said = bytearray()
            async for part in response.aiter_raw():
                said += part
                if len(said) >= ERROR_BODY_LIMIT_BYTES:
                    break
            if response.status_code in (401, 403):  # such an answer may quote the credential
                return f"answered {response.status_code}: the credential is not accepted; check watchdog.alertmanager.auth"
            return f"answered {response.status_code}: {excerpt(hidden_of(bytes(said), headers).decode('utf-8', 'replace'))}"

    def _note(self, error: str | None) -> None:
        """The same failure is logged once, and its end."""
        if error is not None and error != self.last_error:
            log.warning("alertmanager did not take the alerts", url=without_password(self._url), error=error)
        if error is None and self.last_error is not None:
            log.info("alertmanager takes alerts again", url=without_password(self._url), after_failures=self.failures)
        self.failures = 0 if error is None else self.failures + 1
        self.last_error = error

    async def close(self) -> None:
        await self._client.aclose()
