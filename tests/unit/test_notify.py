"""What Alertmanager is told: over a real loopback HTTP server, a real Alertmanager where there is one, and by properties."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.findings import Book, close_gone
from tailkeeper_watchdog.fleet import GONE
from tailkeeper_watchdog.model import (
    Backend,
    DesiredState,
    Factor,
    Finding,
    FindingKind,
    HealthScore,
    Knob,
    Mode,
    Severity,
    Share,
    Target,
)
from tailkeeper_watchdog.notify import MAX_ALERTS, Alert, Notifier, alerts_for, lately_closed, score_band
from tests.e2e.real_programs import RealPrograms, wait_until
from tests.e2e.real_programs import programs as programs
from tests.e2e.tiny_servers import answer, body_of, serving

CONSOLE = "http://127.0.0.1:8088/"
CONTRACT_LABELS = {"alertname", "severity", "backend", "pool", "dominant_factor", "score_band", "self_heal_strategy"}
LIMIT_S = 10.0
BACKENDS = (Backend("a", "m", (Target("edge", "a", "llm"), Target("west", "a", "llm"))), Backend("lonely", "m"))


@dataclass
class FakeAlertmanager:
    """Answers what it is told to, keeps every body and credential it was sent."""

    url: str = ""
    status: int = 200
    said: bytes = b"{}"
    posts: list[list[Alert]] = field(default_factory=list)
    credentials: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    stuck: threading.Event | None = None
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = body_of(handler)
        with self._arrived:
            self.posts.append(json.loads(body))
            self.credentials.append(handler.headers.get("authorization"))
            self.paths.append(handler.path)
            status, said, stuck = self.status, self.said, self.stuck
            self._arrived.notify_all()
        if stuck is not None:
            stuck.wait(LIMIT_S)
        answer(handler, status, said)

    def _wait(self, count: int) -> list[list[Alert]]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.posts) >= count, LIMIT_S), f"{len(self.posts)} of {count} posts"
            return list(self.posts)

    async def after(self, count: int) -> list[list[Alert]]:
        """All posts once there are ``count``."""
        return await asyncio.to_thread(self._wait, count)


@contextmanager
def _fake() -> Iterator[FakeAlertmanager]:
    fake = FakeAlertmanager()
    with serving(fake.handle) as port:
        fake.url = f"http://127.0.0.1:{port}"
        yield fake


@asynccontextmanager
async def _running(notifier: Notifier) -> AsyncIterator[Notifier]:
    task = asyncio.create_task(notifier.run())
    try:
        yield notifier
    finally:
        ended_by_itself = task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await notifier.close()
        assert not ended_by_itself, "the sender must live as long as the watchdog"


async def _until(holds: Callable[[], bool]) -> None:
    """The sender has no event for its failures, and a server's thread cannot set one of ours: look, often."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def _notifier(url: str, auth: Auth | None = None, **more: Any) -> Notifier:
    settings: dict[str, Any] = {"resend_s": 3_600.0, "retry_s": (0.01,), **more}
    return Notifier(url, auth, **settings)


def _finding(kind: FindingKind = FindingKind.HUNG, backend: str = "a", **more: Any) -> Finding:
    given: dict[str, Any] = {"severity": Severity.PAGE, "since_unix_s": 1.7e9, "summary": f"{backend} is {kind}", **more}
    return Finding(f"{kind}:{backend}", kind, backend, **given)


def _alerts(
    *findings: Finding, scores: dict[str, HealthScore] | None = None, desired: tuple[DesiredState, ...] = ()
) -> list[Alert]:
    return alerts_for(findings, scores or {}, BACKENDS, desired, CONSOLE)


def _names(alerts: list[Alert]) -> list[tuple[str, str, bool]]:
    """(alert, backend, ended) of each."""
    return [(a["labels"]["alertname"], a["labels"]["backend"], "endsAt" in a) for a in alerts]


def _wish(mode: Mode = Mode.ENFORCE) -> DesiredState:
    return DesiredState("gpu_health_gate", "a", Knob.ADMISSION, "drain", "hung", mode)


def _score(hscore: float | None, **more: Any) -> HealthScore:
    return HealthScore("a", hscore, (Factor("latency", 0.1, 0.6, 2.5, "s"), Factor("uptime", 1.0, 0.4, 1.0, "ratio")), **more)


# What an alert says


@pytest.mark.parametrize(
    ("hscore", "band"),
    [(None, ""), (1.0, ""), (0.6, ""), (0.599, "0.6"), (0.4, "0.6"), (0.399, "0.4"), (0.2, "0.4"), (0.199, "0.2"), (0.0, "0.2")],
)
def test_a_score_falls_into_the_band_it_is_below(hscore: float | None, band: str) -> None:
    assert score_band(hscore) == band


@pytest.mark.parametrize("kind", list(FindingKind))
@pytest.mark.parametrize("backend", ["a", "lonely", "edge:llm"])
def test_every_alert_carries_every_label_with_a_value(kind: FindingKind, backend: str) -> None:
    for alert in _alerts(_finding(kind, backend), scores={"a": _score(0.1)}):
        assert set(alert["labels"]) >= CONTRACT_LABELS
        assert all(alert["labels"].values()), "Alertmanager drops a label whose value is empty"
        assert {"summary", "impact", "causes", "actions", "score", "console", "runbook_url"} <= set(alert["annotations"])


def test_a_hung_backend_is_told_with_its_pools_and_the_policy_that_acts() -> None:
    (alert,) = _alerts(_finding(), desired=(_wish(),))
    assert alert["labels"] == {
        "alertname": "BackendHung",
        "severity": "page",
        "backend": "a",
        "pool": "edge:llm,west:llm",
        "dominant_factor": "none",
        "score_band": "none",
        "self_heal_strategy": "gpu_health_gate",
        "kind": "hung",
    }
    assert alert["annotations"]["actions"] == "gpu_health_gate wants admission drain (mode enforce)"
    assert alert["startsAt"] == "2023-11-14T22:13:20+00:00"
    assert "endsAt" not in alert


@pytest.mark.parametrize(("rule", "name"), [("fast", "SLOBurnFast"), ("slow", "SLOBurnSlow"), ("trickle", "SLOTrickle")])
def test_a_burn_is_told_by_the_rule_that_holds_and_each_signal_is_an_alert_of_its_own(rule: str, name: str) -> None:
    found = [replace(_finding(FindingKind.SLO_BURN), evidence={"rule": rule}, signal=signal) for signal in ("ttft", "itl", "")]
    alerts = _alerts(*found)
    assert {alert["labels"]["alertname"] for alert in alerts} == {name}
    assert [alert["labels"].get("signal") for alert in alerts] == ["ttft", "itl", None]


def test_a_policy_that_only_observes_is_no_strategy() -> None:
    (alert,) = _alerts(_finding(), desired=(_wish(Mode.OBSERVE),))
    assert alert["labels"]["self_heal_strategy"] == "none"
    assert "mode observe" in alert["annotations"]["actions"]


async def test_an_alert_about_a_backend_that_is_gone_ends_under_its_own_labels_and_says_why() -> None:
    """With the backend its pool and score are gone too, so the labels of its end alone would name another alert."""
    scores = {"a": _score(0.5)}
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(_finding(), scores=scores, desired=(_wish(),)), frozenset({"a"}))
            (told,) = await fake.after(1)
            book = close_gone(Book({(FindingKind.HUNG, "a", ""): _finding()}, {}), frozenset({"a"}), GONE, 1.7e9 + 60)
            assert book.open == {}
            ended = alerts_for(lately_closed(book, 1.7e9 + 61), {}, (), (), CONSOLE)
            notifier.offer(ended, frozenset({"lonely"}))
            over = (await fake.after(2))[1]
    assert sorted(_names(over)) == [("BackendHung", "a", True), ("HealthDegraded", "a", True)]
    assert {tuple(a["labels"].items()) for a in over} == {tuple(a["labels"].items()) for a in told}
    assert [a["annotations"]["summary"].partition("; over: ")[2] for a in over] == [GONE, GONE]
    assert next(a for a in over if "finding" in a["annotations"])["endsAt"] == "2023-11-14T22:14:20+00:00"


def test_an_end_is_told_for_some_minutes_in_the_order_of_the_ends() -> None:
    closed = tuple(replace(_finding(backend=f"b{n}"), until_unix_s=float(n)) for n in range(1_000))
    told = lately_closed(Book(closed=closed), 1_000.0)
    assert [f.until_unix_s for f in told] == [float(n) for n in range(701, 1_000)]
    assert len(lately_closed(Book(closed=closed), 0.0)) == MAX_ALERTS, "no more than one post has, also after a clock step"


def test_information_is_no_alert() -> None:
    assert _alerts(_finding(severity=Severity.INFO)) == []


def test_the_largest_shares_are_named_as_causes() -> None:
    shares = (Share("stage", "queue", 0.2, 0.9), Share("stage", "prefill", 0.64, 0.9), Share("tenant", "x", 0.16, 0.5))
    (alert,) = _alerts(_finding(FindingKind.GROWTH, shares=shares))
    assert alert["annotations"]["causes"] == "stage prefill 64%, stage queue 20%, tenant x 16%; confidence high"


def test_a_common_cause_names_its_pool() -> None:
    (alert,) = _alerts(_finding(FindingKind.COMMON_CAUSE, "edge:llm", evidence={"pool": "edge:llm"}))
    assert alert["labels"]["pool"] == "edge:llm"


@pytest.mark.parametrize(("hscore", "severity"), [(0.5, "ticket"), (0.3, "page"), (0.1, "page")])
def test_a_degraded_score_is_told_with_its_band_and_its_dominant_factor(hscore: float, severity: str) -> None:
    (alert,) = _alerts(scores={"a": _score(hscore)})
    labels = alert["labels"]
    assert (labels["alertname"], labels["severity"], labels["dominant_factor"]) == ("HealthDegraded", severity, "latency")
    assert labels["score_band"] == score_band(hscore)
    assert str(hscore) not in "".join(v for k, v in labels.items() if k != "score_band"), "a score as a label splits alerts"


@pytest.mark.parametrize("score", [_score(None), _score(0.6), _score(0.0, veto=State.HUNG)])
def test_an_unknown_a_good_and_a_vetoed_score_are_not_degraded(score: HealthScore) -> None:
    assert _alerts(scores={"a": score}) == []


def test_an_end_never_lies_before_its_start() -> None:
    (alert,) = _alerts(_finding(until_unix_s=1.6e9))
    assert alert["endsAt"] == alert["startsAt"]


# Over the wire


async def test_an_open_finding_is_posted_at_once_to_the_v2_api() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url + "/")) as notifier:
            notifier.offer(_alerts(_finding()))
            (post,) = await fake.after(1)
    assert fake.paths == ["/api/v2/alerts"]
    assert post == _alerts(_finding())


async def test_what_stays_the_same_is_sent_again_only_when_it_is_due() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url, resend_s=0.05)) as notifier:
            notifier.offer(_alerts(_finding(summary="first")))
            await fake.after(1)
            for _ in range(20):
                notifier.offer(_alerts(_finding(summary="newest")))
            posts = await fake.after(3)
    assert [_names(p) for p in posts[:3]] == [[("BackendHung", "a", False)]] * 3
    assert posts[2][0]["annotations"]["summary"] == "newest"


async def test_a_closed_finding_is_sent_once_with_its_end() -> None:
    closed = _finding(until_unix_s=1.7e9 + 60)
    with _fake() as fake:
        async with _running(_notifier(fake.url, resend_s=0.02)) as notifier:
            notifier.offer(_alerts(_finding(), _finding(FindingKind.DOWN, "b")))
            await fake.after(1)
            notifier.offer(_alerts(closed, _finding(FindingKind.DOWN, "b")))
            posts = await fake.after(6)
    ends = [a for post in posts for a in post if "endsAt" in a]
    assert [(a["labels"]["backend"], a["endsAt"]) for a in ends] == [("a", "2023-11-14T22:14:20+00:00")]


async def test_a_finding_that_opens_again_is_not_ended_by_its_former_self() -> None:
    """Both have the same labels, so Alertmanager would take the end of the old one for the end of the new one."""
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(_finding()))
            await fake.after(1)
            notifier.offer(
                _alerts(_finding(since_unix_s=1.7e9 + 90), _finding(until_unix_s=1.7e9 + 60), desired=(_wish(Mode.ADVISE),))
            )
            posts = await fake.after(2)
    assert _names(posts[1]) == [("BackendHung", "a", False)]


async def test_what_was_never_told_is_not_ended() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(_finding(until_unix_s=1.7e9 + 60), _finding(FindingKind.DOWN, "b")))
            (post,) = await fake.after(1)
    assert _names(post) == [("BackendHung", "b", False)]


async def test_a_score_that_recovered_is_ended_though_no_finding_closes() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url, wall=lambda: 1.7e9 + 30)) as notifier:
            notifier.offer(_alerts(scores={"a": _score(0.3)}))
            await fake.after(1)
            notifier.offer(_alerts(scores={"a": _score(0.9)}))
            posts = await fake.after(2)
    assert _names(posts[1]) == [("HealthDegraded", "a", True)]
    assert posts[1][0]["endsAt"] == "2023-11-14T22:13:50+00:00"


async def test_a_change_of_band_ends_the_former_identity_in_the_same_post() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(scores={"a": _score(0.5)}))
            await fake.after(1)
            notifier.offer(_alerts(scores={"a": _score(0.3)}))
            posts = await fake.after(2)
    assert [(a["labels"]["score_band"], "endsAt" in a) for a in posts[1]] == [("0.4", False), ("0.6", True)]


async def test_a_refused_post_is_repeated_until_it_is_taken_and_logged_once() -> None:
    with _fake() as fake, capture_logs() as logs:
        fake.status, fake.said = 503, b"not now\n"
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(_finding()))
            await fake.after(3)
            fake.status = 200
            await _until(lambda: notifier.last_error is None and notifier.failures == 0 and len(fake.posts) >= 4)
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]
    assert logs[0]["error"] == "answered 503: not now"


async def test_the_end_of_a_finding_survives_an_outage_of_alertmanager() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(_finding()))
            await fake.after(1)
            fake.status = 500
            notifier.offer(_alerts(_finding(until_unix_s=1.7e9 + 60)))
            await fake.after(3)
            fake.status = 200
            await _until(lambda: notifier.failures == 0)
            told = len(fake.posts)
            notifier.offer(_alerts(_finding(FindingKind.DOWN, "b")))
            posts = await fake.after(told + 1)
    assert _names(posts[told - 1]) == [("BackendHung", "a", True)]
    assert _names(posts[told]) == [("BackendHung", "b", False)], "ended already, and not ended twice"


async def test_nobody_listening_is_an_error_and_not_the_end() -> None:
    with _fake() as fake:
        url = fake.url
    with capture_logs():
        async with _running(_notifier(url)) as notifier:
            notifier.offer(_alerts(_finding()))
            await _until(lambda: notifier.failures >= 2)
            assert notifier.last_error is not None
            assert "ConnectError" in notifier.last_error


async def test_an_answer_that_never_comes_ends_at_the_deadline() -> None:
    with _fake() as fake, capture_logs():
        fake.stuck = threading.Event()
        async with _running(_notifier(fake.url, deadline_s=0.05)) as notifier:
            notifier.offer(_alerts(_finding()))
            await _until(lambda: notifier.failures >= 1)
            assert notifier.last_error is not None
            assert "ReadTimeout" in notifier.last_error or "no answer within" in notifier.last_error
        fake.stuck.set()


async def test_a_redirect_is_not_followed_with_our_credential(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with _fake() as fake, capture_logs() as logs:
        fake.status = 307
        async with _running(_notifier(fake.url, Auth(bearer_file=token))) as notifier:
            notifier.offer(_alerts(_finding()))
            await _until(lambda: notifier.failures >= 1)
            assert notifier.last_error == "answered 307: {}"
    assert "s3cret" not in repr(logs)


async def test_a_rotated_token_is_taken_up(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    with _fake() as fake:
        async with _running(_notifier(fake.url, Auth(bearer_file=token))) as notifier:
            notifier.offer(_alerts(_finding()))
            await fake.after(1)
            token.write_text("new\n")
            notifier.offer(_alerts(_finding(FindingKind.DOWN, "b")))
            await fake.after(2)
    assert fake.credentials == ["Bearer old", "Bearer new"]


async def test_a_token_file_that_is_gone_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    with _fake() as fake, capture_logs():
        async with _running(_notifier(fake.url, Auth(bearer_file=token))) as notifier:
            token.unlink()
            notifier.offer(_alerts(_finding()))
            await _until(lambda: notifier.failures >= 1)
            assert notifier.last_error is not None
            assert str(token) in notifier.last_error
            token.write_text("back")
            await fake.after(1)
    assert fake.credentials == ["Bearer back"]


async def test_a_password_in_the_url_is_not_logged() -> None:
    with _fake() as fake, capture_logs() as logs:
        fake.status = 400
        async with _running(_notifier(fake.url.replace("//", "//me:hunter2@"))) as notifier:
            notifier.offer(_alerts(_finding()))
            await _until(lambda: notifier.failures >= 1)
    assert logs
    assert "hunter2" not in repr(logs)


async def test_a_reason_with_half_a_character_is_sent_and_does_not_end_the_sender() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(_finding(summary="bad \ud800 reason")))
            (post,) = await fake.after(1)
    assert post[0]["annotations"]["summary"] == "bad ? reason"


async def test_pages_come_first_and_one_post_is_bounded() -> None:
    tickets = [_finding(FindingKind.TELEMETRY_LOST, f"t{i}", severity=Severity.TICKET) for i in range(MAX_ALERTS)]
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(*tickets, _finding(FindingKind.COMMON_CAUSE, "edge:llm")))
            (post,) = await fake.after(1)
    assert len(post) == MAX_ALERTS
    assert post[0]["labels"]["kind"] == "common_cause"


async def test_what_no_longer_fits_into_a_post_is_not_ended() -> None:
    tickets = [_finding(FindingKind.TELEMETRY_LOST, f"t{i}", severity=Severity.TICKET) for i in range(MAX_ALERTS)]
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(*tickets))
            await fake.after(1)
            notifier.offer(_alerts(*tickets, _finding(FindingKind.COMMON_CAUSE, "edge:llm")))
            posts = await fake.after(2)
    assert not any("endsAt" in alert for alert in posts[1])


async def test_an_alertmanager_that_hangs_delays_no_offer() -> None:
    with _fake() as fake, capture_logs():
        fake.stuck = threading.Event()
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(_alerts(_finding()))
            await fake.after(1)
            for i in range(1_000):
                notifier.offer(_alerts(_finding(FindingKind.DOWN, f"b{i}")))
            fake.stuck.set()
            posts = await fake.after(2)
    assert _names(posts[1]) == [("BackendHung", "b999", False), ("BackendHung", "a", True)], "only the newest state is kept"


@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=6))
def test_after_every_post_alertmanager_knows_exactly_what_is_open(ticks: list[set[int]]) -> None:
    """Alertmanager as a set of firing labels: each post adds what has no end and takes out what has one."""

    async def follow() -> None:
        notifier = _notifier("http://127.0.0.1:9")
        firing: set[str] = set()

        async def take(alerts: list[Alert]) -> str | None:
            for alert in alerts:
                (firing.discard if "endsAt" in alert else firing.add)(alert["labels"]["backend"])
            return None

        notifier._post = take  # type: ignore[method-assign]
        for tick in ticks:
            notifier.offer(_alerts(*(_finding(backend=f"b{i}") for i in sorted(tick))))
            await notifier._send()
            assert firing == {f"b{i}" for i in tick}
        await notifier.close()

    asyncio.run(follow())


def _band_of(alert: Alert) -> str:
    return str(alert["labels"]["score_band"])


@pytest.mark.real
async def test_a_real_alertmanager_shows_the_open_finding_and_drops_it_when_it_closes(programs: RealPrograms) -> None:
    config = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    real = programs.alertmanager(config)

    def seen() -> list[dict[str, Any]]:
        alerts: list[dict[str, Any]] = real.get("/api/v2/alerts")
        return alerts

    score, now = _score(0.5), time.time() - 5.0
    async with _running(_notifier(real.url)) as notifier:
        notifier.offer(_alerts(_finding(since_unix_s=now), scores={"a": score}, desired=(_wish(),)))
        await asyncio.to_thread(wait_until, lambda: len(seen()) == 2, "two alerts")
        found = {a["labels"]["alertname"]: a for a in seen()}
        assert set(found["BackendHung"]["labels"]) >= CONTRACT_LABELS
        assert found["BackendHung"]["annotations"]["actions"].startswith("gpu_health_gate wants")
        notifier.offer(_alerts(replace(_finding(since_unix_s=now), until_unix_s=now), scores={"a": _score(0.3)}))
        await asyncio.to_thread(wait_until, lambda: [_band_of(a) for a in seen()] == ["0.4"], "the new band alone")
        assert notifier.last_error is None


def test_two_pieces_of_advice_are_two_alerts_and_nobody_is_said_to_wait_for_them() -> None:
    told = _alerts(*(_finding(FindingKind.ADVICE, signal=signal) for signal in ("gate:admission", "quarantine")))

    assert len({tuple(alert["labels"].items()) for alert in told}) == 2
    assert {alert["labels"]["alertname"] for alert in told} == {"HealthDegraded"}
    assert "wait longer" not in told[0]["annotations"]["impact"]
