"""``tailkeeper notify-test``: one marked notification through the configured Alertmanager, followed to its receivers, and ended.

What Alertmanager's API cannot tell is whether a message arrived in a channel: so the report says where to look, and for what.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from tailkeeper.ending import FAILED, USAGE
from tailkeeper_exporter.hiding import hidden_of
from tailkeeper_exporter.tls import BROKEN, tls_trouble
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt, without_password
from tailkeeper_watchdog.alert_terms import NONE, WATCHDOG_LABELS
from tailkeeper_watchdog.settings import AlertmanagerSettings

ALERT_NAME = "TailkeeperTest"
SEVERITIES = ("page", "ticket", "info")
DEADLINE_S = 5.0
"""For one call."""
SEEN_WITHIN_S = 15.0
"""Alertmanager shows an alert at once, and whom it is for when its dispatcher has taken it up."""
POLL_S = 0.5
REMINDER_ENDING = "-again"

Say = Callable[[str], None]


class NotifyTestError(Exception):
    """What went wrong, where, and what to do. ``code`` is the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Trial:
    """One test: where to, as loud as what, for how long. Clock and pause are passed in by tests of this command."""

    settings: AlertmanagerSettings
    url: str
    severity: str
    backend: str
    wait_s: float
    wall: Callable[[], float] = field(default=time.time, compare=False)
    sleep: Callable[[float], None] = field(default=time.sleep, compare=False)

    @classmethod
    def of(cls, settings: AlertmanagerSettings, severity: str, backend: str, wait_s: float) -> Trial:
        """Raises NotifyTestError where there is nothing to send to, or a severity that nobody knows."""
        if severity not in SEVERITIES:
            raise NotifyTestError(USAGE, f"--severity: {severity!r} is none; allowed are {', '.join(SEVERITIES)}")
        if not backend:
            raise NotifyTestError(USAGE, "--backend: must not be empty")
        if settings.url is None:
            raise NotifyTestError(
                USAGE,
                "watchdog.alertmanager.url: is not set, so nobody would be told of anything; "
                "set it to Alertmanager's address, for example http://127.0.0.1:9093",
            )
        return cls(settings, settings.url, severity, backend, wait_s)

    def alert(self, now_unix_s: float, ended: bool) -> dict[str, Any]:
        """Carries every label that real alerts carry, so that it is routed and grouped as they are."""
        began = datetime.fromtimestamp(now_unix_s, UTC)
        alert: dict[str, Any] = {
            "labels": {
                **self.settings.labels,
                **dict.fromkeys(WATCHDOG_LABELS, NONE),
                "alertname": ALERT_NAME,
                "severity": self.severity,
                "backend": self.backend,
                "source": "notify-test",
            },
            "annotations": {
                "summary": f"TEST of notifications ({self.severity}), sent by `tailkeeper notify-test`: nothing is wrong",
                "impact": "Nobody. No user, no backend and no gateway is touched.",
                "since": f"{began:%H:%M} UTC",
                "causes": "Somebody ran the command to see whether messages like this one arrive.",
                "actions": "If you read this where you expected it, notifications work. It ends by itself.",
                "runbook_url": f"{self.settings.runbook_url}",
            },
            "startsAt": began.isoformat(),
        }
        if ended:
            alert["endsAt"] = datetime.fromtimestamp(max(self.wall(), now_unix_s), UTC).isoformat()
        return alert


def run(test: Trial, say: Say) -> None:
    """The whole test, told line by line. Raises NotifyTestError; an alert that was sent is ended in any case."""
    with _client(test) as client:
        began = test.wall()
        _post(client, test, test.alert(began, ended=False))
        say(f"sent: {ALERT_NAME}, severity {test.severity}, backend {test.backend}, to {without_password(test.url)}")
        try:
            _report(client, test, say)
            if test.wait_s:
                say(f"it ends in {test.wait_s:g} s")
                test.sleep(test.wait_s)
        finally:
            _post(client, test, test.alert(began, ended=True))
        say("ended: whoever is told of ends gets a second message, [RESOLVED], within about a minute")


def _report(client: httpx.Client, test: Trial, say: Say) -> None:
    seen = _wait_for_it(client, test)
    reached = sorted({receiver["name"] for receiver in seen["receivers"]})
    people = [name for name in reached if name != "watchdog" and not name.endswith(REMINDER_ENDING)]
    say(f"Alertmanager has it and sends it to: {', '.join(reached)}")
    muted = _muted(seen)
    say(f"but it is muted by {muted}, so nothing will come" if muted else "nothing mutes it")
    others = [name for name in _receivers(client, test) if name not in reached and not name.endswith(REMINDER_ENDING)]
    if others:
        say(f"not for this severity and backend: {', '.join(others)} (try --severity page, or --backend NAME)")
    if not people:
        say("no person hears of it, only the watchdog's own webhook; docs/notifications.md says how to turn a receiver on")
        return
    if muted:
        return
    say(
        f"look at {', '.join(people)}, within half a minute, for a message that begins with\n"
        f"  [{test.severity.upper()}] TEST of notifications"
    )
    say("if nothing comes: Alertmanager's log names the receiver and the error; so does alertmanager_notifications_failed_total")


def _muted(seen: dict[str, Any]) -> str:
    """By what, in words; empty by nothing."""
    status = seen.get("status") or {}
    by = [name for name, key in (("a silence", "silencedBy"), ("another alert", "inhibitedBy")) if status.get(key)]
    return " and ".join(by)


def _wait_for_it(client: httpx.Client, test: Trial) -> dict[str, Any]:
    """The alert as Alertmanager shows it, once it knows whom it is for."""
    ends = test.wall() + SEEN_WITHIN_S
    while True:
        rows = _get(client, test, "/api/v2/alerts", {"filter": [f'alertname="{ALERT_NAME}"', f"backend={_quoted(test.backend)}"]})
        found: dict[str, Any] | None = next((row for row in rows if _is_ours(row, test)), None)
        if found is not None:
            return found
        if test.wall() >= ends:
            raise NotifyTestError(
                FAILED,
                f"{without_password(test.url)}: took the test, and does not show it after {SEEN_WITHIN_S:g} s; "
                "is this one address of several Alertmanagers that do not know of each other?",
            )
        test.sleep(POLL_S)


def _is_ours(row: Any, test: Trial) -> bool:
    labels = row.get("labels") if isinstance(row, dict) else None
    if not isinstance(labels, dict) or not isinstance(row.get("receivers"), list):
        return False
    state = (row.get("status") or {}).get("state")
    return labels.get("backend") == test.backend and labels.get("severity") == test.severity and state != "unprocessed"


def _receivers(client: httpx.Client, test: Trial) -> list[str]:
    rows = _get(client, test, "/api/v2/receivers", {})
    return [str(row["name"]) for row in rows if isinstance(row, dict) and "name" in row]


def _quoted(value: str) -> str:
    """As a matcher of Alertmanager's API."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


# Calls, each failure in words


def _client(test: Trial) -> httpx.Client:
    try:
        context = http_auth.tls_context(test.settings.auth)
        headers = dict(http_auth.headers(test.settings.auth))
    except CallError as error:
        raise NotifyTestError(USAGE, f"watchdog.alertmanager.auth: {error.message}") from None
    return httpx.Client(headers=headers, verify=context, timeout=DEADLINE_S, trust_env=False)


def _post(client: httpx.Client, test: Trial, alert: dict[str, Any]) -> None:
    body = json.dumps([alert], ensure_ascii=False).encode("utf-8", "replace")
    _call(test, lambda: client.post(f"{test.url}/api/v2/alerts", content=body, headers={"content-type": "application/json"}))


def _get(client: httpx.Client, test: Trial, path: str, query: dict[str, list[str]]) -> list[Any]:
    answer = _call(test, lambda: client.get(f"{test.url}{path}", params=query))
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, list):
        raise NotifyTestError(
            FAILED, f"{without_password(test.url)}{path}: this is not Alertmanager's API; is the address right?"
        )
    return document


def _call(test: Trial, send: Callable[[], httpx.Response]) -> httpx.Response:
    try:
        answer = send()
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NotifyTestError(FAILED, f"{without_password(test.url)}: {_why(error, test.url.startswith('https:'))}") from None
    if answer.status_code < 300:
        return answer
    raise NotifyTestError(FAILED, f"{without_password(test.url)}: {_refusal(answer)}")


def _why(error: Exception, over_tls: bool) -> str:
    text = str(error) or type(error).__name__
    trouble = BROKEN if over_tls and isinstance(error, (httpx.ReadError, httpx.WriteError)) else tls_trouble(error)
    if trouble is not None:
        return f"TLS: {trouble.at('watchdog.alertmanager.auth')}"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {DEADLINE_S:g} s; is a firewall between, or is the address right?"
    if isinstance(error, httpx.ConnectError):
        return f"nobody answers there ({excerpt(text)}); is Alertmanager running, and is this its address from here?"
    return excerpt(text)


def _refusal(answer: httpx.Response) -> str:
    said = excerpt(hidden_of(answer.content, answer.request.headers).decode("utf-8", "replace"))
    if answer.status_code in (401, 403):
        return f"refused the credentials ({answer.status_code}); see watchdog.alertmanager.auth (bearer_file, basic_file)"
    if answer.status_code == 404:
        return "has no /api/v2/alerts (404); is the address right, with the path that a proxy puts before it?"
    return f"answered {answer.status_code}: {said or 'nothing'}"
