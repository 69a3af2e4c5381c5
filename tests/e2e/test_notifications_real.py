"""What people get, by a real Alertmanager with the generated configuration and templates: mail in a mailbox, webhooks, ends.

Only the intervals are shorter than generated, and the addresses are of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiosmtpd.controller import Controller
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper_alerts.alertmanager import configuration, templates
from tailkeeper_alerts.notifications.integrations import WatchdogWebhook
from tailkeeper_alerts.notifications.receivers import Receivers
from tailkeeper_alerts.notifications.routes import Timing
from tailkeeper_watchdog.alerting import Alert, Links
from tailkeeper_watchdog.model import Finding, FindingKind, Severity
from tailkeeper_watchdog.notify import Notifier
from tests.e2e.real_programs import HttpProgram, RealPrograms, answers_200, free_port, running, wait_until
from tests.e2e.real_programs import programs as programs
from tests.e2e.tiny_servers import WebhookReceiver
from tests.unit.told import alerts, finding, lease, score

pytestmark = pytest.mark.real

QUICK = Timing("200ms", "500ms", "1h")
REMINDED = {"group_wait": "1500ms", "group_interval": "1500ms", "repeat_interval": "1s"}
LINKS = Links("https://console.example/", "https://grafana.example", "https://docs.example/runbook")
LIMIT_S = 20.0
NOTED_S = 0.3
"""A mail is in the mailbox a moment before Alertmanager has noted that it was sent; ended in between, it would send it again."""
QUIET_S = 2.0
"""Four group intervals: what has not come by then does not come."""


@dataclass
class Mailbox:
    """Takes every message, as an SMTP server without TLS and login."""

    port: int = 0
    messages: list[email.message.EmailMessage] = field(default_factory=list)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, email.message.EmailMessage)
        self.messages.append(message)
        return "250 taken"

    @property
    def subjects(self) -> list[str]:
        return [str(message["subject"]) for message in self.messages]


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox(free_port())
    server = Controller(box, hostname="127.0.0.1", port=box.port)
    server.start()
    try:
        yield box
    finally:
        server.stop()


@dataclass(frozen=True)
class Desk:
    """Alertmanager and everybody it tells: the watchdog, a mailbox, another team's webhook."""

    alertmanager: HttpProgram
    watchdog: WebhookReceiver
    mailbox: Mailbox
    team: WebhookReceiver

    def known(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Alerts by name and backend, as the API shows them."""
        rows: list[dict[str, Any]] = self.alertmanager.get("/api/v2/alerts")
        return {(row["labels"]["alertname"], row["labels"]["backend"]): row for row in rows}


def _receivers(mailbox: Mailbox, team: WebhookReceiver) -> Receivers:
    mail = {"kind": "email", "to": "oncall@example.com", "sender": "t@example.com", "smarthost": f"127.0.0.1:{mailbox.port}"}
    hook = {"kind": "webhook", "name": "team", "url": team.url, "severities": ["page"], "backends": "a|b"}
    return Receivers.model_validate({"receivers": [{**mail, "require_tls": False}, hook]})


@pytest.fixture
def desk(programs: RealPrograms, mailbox: Mailbox, tmp_path: Path) -> Desk:
    watchdog, team = programs.webhook_receiver(), programs.webhook_receiver()
    token = tmp_path / "token"
    token.write_text("t0ken")
    text = configuration(_receivers(mailbox, team), WatchdogWebhook(watchdog.url, str(token)), QUICK)
    document = yaml.safe_load(text)
    for route in document["route"]["routes"]:
        if route["receiver"].endswith("-again"):
            route.update(REMINDED)
    return Desk(programs.alertmanager(document, templates()), watchdog, mailbox, team)


@contextlib.asynccontextmanager
async def _telling(url: str) -> AsyncIterator[Notifier]:
    notifier = Notifier(url, resend_s=0.3, retry_s=(0.1,))
    task = asyncio.create_task(notifier.run())
    try:
        yield notifier
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await notifier.close()


async def _until(holds: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, holds, what, LIMIT_S)


def _found(kind: FindingKind = FindingKind.HUNG, backend: str = "a", **more: Any) -> Finding:
    return finding(kind, backend, **{"since_unix_s": time.time() - 70, **more})


def _told(*findings: Finding, **more: Any) -> list[Alert]:
    return alerts(*findings, **{"links": LINKS, "now_unix_s": time.time(), **more})


def _groups(receiver: WebhookReceiver) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """(group, (alert, backend, status) of each) of every notification, in the order in which they came."""
    return [
        (
            body["groupLabels"].get("backend", ""),
            sorted((a["labels"]["alertname"], a["labels"]["backend"], a["status"]) for a in body["alerts"]),
        )
        for body in list(receiver.bodies)
    ]


async def test_a_page_reaches_a_mailbox_and_a_webhook_and_so_does_its_end(desk: Desk) -> None:
    since = time.time() - 370
    async with _telling(desk.alertmanager.url) as notifier:
        notifier.offer(_told(_found(since_unix_s=since), leases=(lease(),)))
        await _until(lambda: len(desk.mailbox.messages) == 1 and len(desk.team.bodies) == 1, "mail and webhook")
        notifier.offer(_told(_found(since_unix_s=since, until_unix_s=time.time())))
        await _until(lambda: len(desk.mailbox.messages) == 2 and len(desk.team.bodies) == 2, "their ends")
    first, last = desk.mailbox.messages
    assert desk.mailbox.subjects == ["[PAGE] a is hung", "[RESOLVED] a is hung; users felt it for 6 min"]
    plain, html = (first.get_body((kind,)) for kind in ("plain", "html"))
    assert plain is not None
    assert html is not None
    for part in (plain.get_content(), html.get_content()):
        for said in ("Whom it hurts", "for 6 min", "drained at edge since", "tailkeeper-root-cause?var-backend=a"):
            assert said in part
    over = last.get_body(("plain",))
    assert over is not None
    assert "users felt it for 6 min" in over.get_content()
    assert [body["status"] for body in desk.team.bodies] == ["firing", "resolved"]


async def test_one_incident_is_one_group_and_another_backend_is_another(desk: Desk) -> None:
    async with _telling(desk.alertmanager.url) as notifier:
        pressure = _found(FindingKind.MEMORY_PRESSURE, "a", severity=Severity.TICKET)
        notifier.offer(_told(_found(), pressure, _found(FindingKind.DOWN, "b")))
        await _until(lambda: len(desk.mailbox.messages) >= 2, "two mails")
        await asyncio.sleep(QUIET_S)
    assert sorted(desk.mailbox.subjects) == ["[PAGE] a is hung (and 1 more)", "[PAGE] b is down"]
    assert sorted(_groups(desk.team)) == [
        ("a", [("BackendHung", "a", "firing")]),
        ("b", [("BackendHung", "b", "firing")]),
    ]


async def test_a_worse_band_and_an_action_update_the_incident_and_end_nothing(desk: Desk) -> None:
    async with _telling(desk.alertmanager.url) as notifier:
        notifier.offer(_told(scores={"a": score(0.35)}))
        await _until(lambda: len(desk.team.bodies) == 1, "the first")
        notifier.offer(_told(scores={"a": score(0.15)}, leases=(lease(),)))
        await _until(lambda: len(desk.team.bodies) == 2, "the update")
        await asyncio.sleep(QUIET_S)
    first, update = desk.team.bodies[:2]
    assert first["groupKey"] == update["groupKey"]
    assert update["status"] == "firing"
    said = next(a["annotations"]["actions"] for a in update["alerts"] if a["status"] == "firing")
    assert said.startswith("drained at edge since")
    assert not [subject for subject in desk.mailbox.subjects if "RESOLVED" in subject]


async def test_a_hung_backend_silences_its_own_bad_score_and_no_other(desk: Desk) -> None:
    rules = [
        {"labels": {"alertname": "HealthDegraded", "severity": "page", "score_band": "0.2", "backend": backend}}
        for backend in ("a", "b")
    ]
    same = {"labels": {"alertname": "BackendHung", "severity": "page", "backend": "a"}}
    async with _telling(desk.alertmanager.url) as notifier:
        notifier.offer(_told(_found()))
        await _until(lambda: ("BackendHung", "a") in desk.known(), "the watchdog's alert")
        assert await asyncio.to_thread(desk.alertmanager.post, "/api/v2/alerts", [*rules, same]) == 200
        await _until(lambda: ("b", [("HealthDegraded", "b", "firing")]) in _groups(desk.team), "the other backend's page")
        await asyncio.sleep(QUIET_S)
    rows = desk.alertmanager.get("/api/v2/alerts")
    muted = {(r["labels"]["alertname"], r["labels"]["backend"], r["labels"].get("source")): r["status"]["state"] for r in rows}
    assert muted == {
        ("BackendHung", "a", "watchdog"): "active",
        ("BackendHung", "a", None): "suppressed",
        ("HealthDegraded", "a", None): "suppressed",
        ("HealthDegraded", "b", None): "active",
    }
    assert ("a", [("BackendHung", "a", "firing")]) in _groups(desk.team)
    assert not [names for group, names in _groups(desk.team) if group == "a" and len(names) > 1]


async def test_one_burn_that_watchdog_and_rules_see_is_told_once_and_another_of_the_same_backend_too(desk: Desk) -> None:
    """Failed requests and late ones are two burns, and each is told by whoever knows more of it."""
    named = {"alertname": "SLOBurnFast", "severity": "page", "backend": "a"}
    rules = [{"labels": named | signal} for signal in ({}, {"signal": "ttft"}, {"signal": "itl"})]
    burns = [_found(FindingKind.SLO_BURN, signal=signal, evidence={"rule": "fast"}) for signal in ("", "ttft")]
    async with _telling(desk.alertmanager.url) as notifier:
        notifier.offer(_told(*burns))
        await _until(lambda: len(desk.alertmanager.get("/api/v2/alerts")) == 2, "the watchdog's alerts")
        assert await asyncio.to_thread(desk.alertmanager.post, "/api/v2/alerts", rules) == 200
        await _until(lambda: any(len(names) >= 3 for _, names in _groups(desk.team)), "the burn that only the rules see")
        await asyncio.sleep(QUIET_S)
    rows = desk.alertmanager.get("/api/v2/alerts")
    states = {(r["labels"].get("signal", ""), r["labels"].get("source")): r["status"]["state"] for r in rows}
    assert states == {
        ("", "watchdog"): "active",
        ("ttft", "watchdog"): "active",
        ("", None): "suppressed",
        ("ttft", None): "suppressed",
        ("itl", None): "active",
    }
    assert _groups(desk.team)[-1] == ("a", [("SLOBurnFast", "a", "firing")] * 3)


async def test_people_are_reminded_by_band_and_not_told_of_the_end_twice(desk: Desk) -> None:
    degraded = {"scores": {"a": score(0.1)}}
    async with _telling(desk.alertmanager.url) as notifier:
        notifier.offer(_told(**degraded))
        await _until(lambda: len(desk.mailbox.messages) >= 3, "two reminders")
        assert desk.mailbox.subjects[:3] == [desk.mailbox.subjects[0]] * 3
        assert desk.mailbox.subjects[0].startswith("[PAGE] a: health score 0.10")
        notifier.offer(_told())
        await _until(lambda: any("RESOLVED" in subject for subject in desk.mailbox.subjects), "the end")
        await asyncio.sleep(QUIET_S)
    assert [subject.partition("]")[0] for subject in desk.mailbox.subjects].count("[RESOLVED") == 1


async def test_a_silence_mutes_people_and_the_watchdog_goes_on_telling(desk: Desk) -> None:
    now = time.time()
    times = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + more)) for more in (-10, 600)]
    silence = {"matchers": [{"name": "backend", "value": "a", "isRegex": False}], "startsAt": times[0], "endsAt": times[1]}
    silence |= {"createdBy": "night shift", "comment": "known"}
    assert await asyncio.to_thread(desk.alertmanager.post, "/api/v2/silences", silence) == 200
    async with _telling(desk.alertmanager.url) as notifier:
        notifier.offer(_told(_found(), leases=(lease(),)))
        await _until(lambda: ("BackendHung", "a") in desk.known(), "the alert")
        notifier.offer(_told(_found(), _found(FindingKind.DOWN, "b")))
        await _until(lambda: "[PAGE] b is down" in desk.mailbox.subjects, "the other backend's page")
        await asyncio.sleep(QUIET_S)
        assert notifier.last_error is None
    assert desk.mailbox.subjects == ["[PAGE] b is down"]
    assert desk.known()[("BackendHung", "a")]["status"]["silencedBy"]


async def test_an_alertmanager_that_is_gone_and_comes_back_is_told_what_is_open_and_what_is_over(desk: Desk) -> None:
    process, folder = desk.alertmanager.process, desk.alertmanager.folder
    first, second = _found(), _found(FindingKind.DOWN, "b")
    async with _telling(desk.alertmanager.url) as notifier:
        notifier.offer(_told(first, second))
        await _until(lambda: len(desk.mailbox.messages) == 2, "both pages")
        await asyncio.sleep(NOTED_S)
        process.terminate()
        await asyncio.to_thread(process.wait, 10)
        over = _found(FindingKind.DOWN, "b", since_unix_s=second.since_unix_s, until_unix_s=time.time())
        third = _found(FindingKind.DOWN, "c")
        notifier.offer(_told(first, over, third))
        await _until(lambda: notifier.failures > 1, "the absence")
        argv = process.args
        assert isinstance(argv, list)
        ready = f"{desk.alertmanager.url}/-/ready"
        with running([str(word) for word in argv], folder / "log2", ready=lambda: answers_200(ready)):
            await _until(lambda: notifier.last_error is None, "the return")
            await _until(lambda: ("BackendHung", "c") in desk.known(), "what began meanwhile")
            await _until(lambda: any("c is down" in subject for subject in desk.mailbox.subjects), "its page")
            await asyncio.sleep(QUIET_S)
            assert set(desk.known()) == {("BackendHung", "a"), ("BackendHung", "c")}
    assert desk.mailbox.subjects.count("[PAGE] a is hung") == 1, "Alertmanager remembers whom it has told"


async def test_slack_pagerduty_and_opsgenie_get_what_their_apis_ask_for(programs: RealPrograms, tmp_path: Path) -> None:
    slack, pagerduty, opsgenie = (programs.webhook_receiver() for _ in range(3))
    for name, secret in (("slack", slack.url), ("pd", "r0uting"), ("og", "k3y")):
        (tmp_path / name).write_text(secret)
    receivers = [
        {"kind": "slack", "channel": "#llm", "api_url_file": "slack"},
        {"kind": "pagerduty", "routing_key_file": "pd"},
        {"kind": "opsgenie", "api_key_file": "og", "api_url": opsgenie.url, "team": "llm"},
    ]
    given = Receivers.model_validate({"secrets_dir": str(tmp_path), "receivers": receivers})
    document = yaml.safe_load(configuration(given, timing=QUICK))
    next(r for r in document["receivers"] if r["name"] == "pagerduty")["pagerduty_configs"][0]["url"] = pagerduty.url
    real = programs.alertmanager(document, templates())
    async with _telling(real.url) as notifier:
        notifier.offer(_told(_found(backend="<!channel>"), leases=(lease(),)))
        await _until(lambda: all(r.bodies for r in (slack, pagerduty, opsgenie)), "all three")
    (attachment,) = slack.bodies[0]["attachments"]
    assert (attachment["color"], attachment["title"]) == ("#c62828", "[PAGE] &lt;!channel&gt; is hung")
    assert attachment["title_link"].startswith("https://grafana.example/d/tailkeeper-root-cause?var-backend=%3C%21channel%3E")
    assert attachment["text"].startswith("*Whom it hurts*  Users of &lt;!channel&gt;.")
    event = pagerduty.bodies[0]
    assert (event["routing_key"], event["event_action"], event["payload"]["severity"]) == ("r0uting", "trigger", "critical")
    assert event["payload"]["component"] == "<!channel>"
    assert event["payload"]["custom_details"]["firing"].startswith("<!channel> is hung\nWhom it hurts")
    assert [link["text"] for link in event["links"]] == ["Root-cause board", "Console: hold or release it", "Runbook", "Silence"]
    assert event["dedup_key"]
    alert = next(body for body in opsgenie.bodies if "priority" in body)
    assert (alert["priority"], alert["message"]) == ("P1", "[PAGE] <!channel> is hung")
    assert alert["responders"] == [{"type": "team", "name": "llm"}]


def _config(tmp_path: Path, url: str) -> str:
    file = tmp_path / "tailkeeper.yaml"
    file.write_text(json.dumps({"watchdog": {"alertmanager": {"url": url}}}))
    return str(file)


def test_notify_test_reaches_a_mailbox_says_so_and_ends(desk: Desk, tmp_path: Path) -> None:
    argv = ["notify-test", "-c", _config(tmp_path, desk.alertmanager.url), "--wait", "2", "--severity", "page", "--backend", "a"]
    done = CliRunner().invoke(app, argv)
    assert done.exit_code == 0, done.output
    assert "sends it to: email, team, watchdog" in done.output
    assert "look at email, team" in done.output
    wait_until(lambda: len(desk.mailbox.messages) == 2, "the test and its end", LIMIT_S)
    first, last = desk.mailbox.subjects
    assert first.startswith("[PAGE] TEST of notifications (page)")
    assert re.match(r"\[RESOLVED\] TEST of .*: nothing is wrong; it lasted \d s", last)


def test_notify_test_names_the_receivers_that_its_severity_leaves_out(desk: Desk, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["notify-test", "-c", _config(tmp_path, desk.alertmanager.url), "--wait", "0"])
    assert done.exit_code == 0, done.output
    assert "sends it to: email, watchdog" in done.output
    assert "not for this severity and backend: team (try --severity page" in done.output


def test_notify_test_says_when_a_silence_keeps_it_back(desk: Desk, tmp_path: Path) -> None:
    now = time.time()
    times = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + more)) for more in (-10, 600)]
    everything = {"matchers": [{"name": "alertname", "value": ".+", "isRegex": True}], "startsAt": times[0], "endsAt": times[1]}
    desk.alertmanager.post("/api/v2/silences", everything | {"createdBy": "x", "comment": "x"})
    done = CliRunner().invoke(app, ["notify-test", "-c", _config(tmp_path, desk.alertmanager.url), "--wait", "0"])
    assert done.exit_code == 0, done.output
    assert "muted by a silence" in done.output
    assert "look at" not in done.output


def test_the_generated_default_starts_a_real_alertmanager_that_tells_the_watchdog_alone(programs: RealPrograms) -> None:
    real = programs.alertmanager(yaml.safe_load(configuration()), templates())
    assert [receiver["name"] for receiver in real.get("/api/v2/receivers")] == ["watchdog"]
    assert subprocess.Popen.poll(real.process) is None
