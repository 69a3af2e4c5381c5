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
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.alerting import MAX_ALERTS, Alert, Context, alerts_for, lately_closed
from tailkeeper_watchdog.findings import Book, close_gone
from tailkeeper_watchdog.fleet import GONE
from tailkeeper_watchdog.model import FindingKind, Severity
from tailkeeper_watchdog.notify import Notifier
from tests.e2e.real_programs import RealPrograms, wait_until
from tests.e2e.real_programs import programs as programs
from tests.e2e.tiny_servers import answer, body_of, serving
from tests.unit.told import CONTRACT_LABELS, LINKS, alerts, finding, lease, score, wish

LIMIT_S = 10.0


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


def _names(alerts: list[Alert]) -> list[tuple[str, str, bool]]:
    """(alert, backend, ended) of each."""
    return [(a["labels"]["alertname"], a["labels"]["backend"], "endsAt" in a) for a in alerts]


# Over the wire


async def test_an_alert_about_a_backend_that_is_gone_ends_under_its_own_labels_and_says_why() -> None:
    """With the backend its pool and score are gone too, so the labels of its end alone would name another alert."""
    scores = {"a": score(0.5)}
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(finding(), scores=scores, desired=(wish(),)), frozenset({"a"}))
            (told,) = await fake.after(1)
            book = close_gone(Book({(FindingKind.HUNG, "a", ""): finding()}, {}), frozenset({"a"}), GONE, 1.7e9 + 60)
            assert book.open == {}
            ended = alerts_for(lately_closed(book, 1.7e9 + 61), Context(1.7e9 + 61, LINKS))
            notifier.offer(ended, frozenset({"lonely"}))
            over = (await fake.after(2))[1]
    assert sorted(_names(over)) == [("BackendHung", "a", True), ("HealthDegraded", "a", True)]
    assert {tuple(a["labels"].items()) for a in over} == {tuple(a["labels"].items()) for a in told}
    assert [a["annotations"]["summary"].partition("; over: ")[2] for a in over] == [GONE, GONE]
    assert next(a for a in over if "finding" in a["annotations"])["endsAt"] == "2023-11-14T22:14:20+00:00"


async def test_an_open_finding_is_posted_at_once_to_the_v2_api() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url + "/")) as notifier:
            notifier.offer(alerts(finding()))
            (post,) = await fake.after(1)
    assert fake.paths == ["/api/v2/alerts"]
    assert post == alerts(finding())


async def test_what_stays_the_same_is_sent_again_only_when_it_is_due() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url, resend_s=0.05)) as notifier:
            notifier.offer(alerts(finding(summary="first")))
            await fake.after(1)
            for _ in range(20):
                notifier.offer(alerts(finding(summary="newest")))
            posts = await fake.after(3)
    assert [_names(p) for p in posts[:3]] == [[("BackendHung", "a", False)]] * 3
    assert posts[2][0]["annotations"]["summary"] == "newest"


async def test_a_closed_finding_is_sent_once_with_its_end() -> None:
    closed = finding(until_unix_s=1.7e9 + 60)
    with _fake() as fake:
        async with _running(_notifier(fake.url, resend_s=0.02)) as notifier:
            notifier.offer(alerts(finding(), finding(FindingKind.DOWN, "b")))
            await fake.after(1)
            notifier.offer(alerts(closed, finding(FindingKind.DOWN, "b")))
            posts = await fake.after(6)
    ends = [a for post in posts for a in post if "endsAt" in a]
    assert [(a["labels"]["backend"], a["endsAt"]) for a in ends] == [("a", "2023-11-14T22:14:20+00:00")]


async def test_a_finding_that_opens_again_is_not_ended_by_its_former_self() -> None:
    """Both have the same labels, so Alertmanager would take the end of the old one for the end of the new one."""
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(finding()))
            await fake.after(1)
            another = finding(FindingKind.DOWN, "b")
            notifier.offer(alerts(finding(since_unix_s=1.7e9 + 90), finding(until_unix_s=1.7e9 + 60), another))
            posts = await fake.after(2)
    assert _names(posts[1]) == [("BackendHung", "a", False), ("BackendHung", "b", False)]


async def test_what_was_never_told_is_not_ended() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(finding(until_unix_s=1.7e9 + 60), finding(FindingKind.DOWN, "b")))
            (post,) = await fake.after(1)
    assert _names(post) == [("BackendHung", "b", False)]


async def test_the_end_of_a_finding_is_owed_for_as_long_as_its_beginning_may_be_known_and_its_end_is_not() -> None:
    told, never = finding(until_unix_s=1.7e9 + 60), finding(FindingKind.DOWN, "b", until_unix_s=1.7e9 + 60)
    with _fake() as fake:
        notifier = _notifier(fake.url)
        assert notifier.owed([told, never]) == []
        notifier.offer(alerts(finding()))
        assert notifier.owed([told, never]) == [told], "it may be sent at any moment"
        fake.stuck = answers = threading.Event()
        async with _running(notifier):
            await fake.after(1)
            for _ in range(2):  # for as many ticks as the answer takes
                assert notifier.owed([told, never]) == [told]
                notifier.offer(alerts(*notifier.owed([told, never])))
            answers.set()
            over = (await fake.after(2))[1]
            await _until(lambda: not notifier._told)
            assert notifier.owed([told, never]) == []
    assert [(a["labels"]["backend"], a["endsAt"]) for a in over] == [("a", "2023-11-14T22:14:20+00:00")]


async def test_a_score_that_recovered_is_ended_though_no_finding_closes() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url, wall=lambda: 1.7e9 + 30)) as notifier:
            notifier.offer(alerts(scores={"a": score(0.3)}))
            await fake.after(1)
            notifier.offer(alerts(scores={"a": score(0.9)}))
            posts = await fake.after(2)
    assert _names(posts[1]) == [("HealthDegraded", "a", True)]
    assert posts[1][0]["endsAt"] == "2023-11-14T22:13:50+00:00"


def _tells(notifier: Notifier, alerts: int) -> bool:
    return len(notifier._told) == alerts


async def test_a_score_that_falls_into_another_band_is_bad_since_it_was_bad_first() -> None:
    now = [1.7e9]
    with _fake() as fake:
        async with _running(_notifier(fake.url, wall=lambda: now[0])) as notifier:
            for passed, value in enumerate((0.5, 0.3, 0.9), 1):
                notifier.offer(alerts(scores={"a": score(value)}))
                posts = await fake.after(passed)
                told = int(value < 0.6)
                await _until(partial(_tells, notifier, told))
                now[0] += 1_200
    assert [post[0]["annotations"]["since"] for post in posts] == [
        "22:13 UTC, for 0 s",
        "22:13 UTC, for 20 min",
        "22:13 UTC, for 20 min",
    ]
    assert posts[2][0]["annotations"]["lasted"] == "40 min"


async def test_a_change_of_band_ends_the_former_identity_in_the_same_post() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(scores={"a": score(0.5)}))
            await fake.after(1)
            notifier.offer(alerts(scores={"a": score(0.3)}))
            posts = await fake.after(2)
    assert [(a["labels"]["score_band"], "endsAt" in a) for a in posts[1]] == [("0.4", False), ("0.6", True)]


@pytest.mark.parametrize(
    "change",
    [
        {"leases": (lease(),)},
        {"scores": {"a": score(0.7, veto=State.HUNG)}},
        {"desired": (wish(),)},
    ],
)
async def test_a_change_of_action_cause_or_strategy_is_told_at_once_and_begins_a_new_alert_of_the_same_finding(
    change: dict[str, Any],
) -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url, wall=lambda: 1.7e9 + 90)) as notifier:
            notifier.offer(alerts(finding()))
            await fake.after(1)
            await _until(lambda: bool(notifier._told))
            notifier.offer(alerts(finding(), **change))
            await fake.after(2)
            notifier.offer(alerts(finding(), finding(FindingKind.DOWN, "b"), **change))
            posts = await fake.after(3)
    assert _names(posts[1]) == [("BackendHung", "a", False), ("BackendHung", "a", True)]
    new, old = posts[1]
    assert new["annotations"]["finding"] == old["annotations"]["finding"]
    # One that claimed to be older would set off the reminder of its band beside the update.
    assert (old["startsAt"], new["startsAt"]) == ("2023-11-14T22:13:20+00:00", "2023-11-14T22:14:50+00:00")
    assert new["annotations"]["since"].startswith("22:13 UTC"), "people are told since when it is wrong"
    assert posts[2][0]["startsAt"] == new["startsAt"], "and it stays that alert"


async def test_a_refused_post_is_repeated_until_it_is_taken_and_logged_once() -> None:
    with _fake() as fake, capture_logs() as logs:
        fake.status, fake.said = 503, b"not now\n"
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(finding()))
            await fake.after(3)
            fake.status = 200
            await _until(lambda: notifier.last_error is None and notifier.failures == 0 and len(fake.posts) >= 4)
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]
    assert logs[0]["error"] == "answered 503: not now"


async def test_the_end_of_a_finding_survives_an_outage_of_alertmanager() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(finding()))
            await fake.after(1)
            fake.status = 500
            notifier.offer(alerts(finding(until_unix_s=1.7e9 + 60)))
            await fake.after(3)
            fake.status = 200
            await _until(lambda: notifier.failures == 0)
            told = len(fake.posts)
            notifier.offer(alerts(finding(FindingKind.DOWN, "b")))
            posts = await fake.after(told + 1)
    assert _names(posts[told - 1]) == [("BackendHung", "a", True)]
    assert _names(posts[told]) == [("BackendHung", "b", False)], "ended already, and not ended twice"


async def test_nobody_listening_is_an_error_and_not_the_end() -> None:
    with _fake() as fake:
        url = fake.url
    with capture_logs():
        async with _running(_notifier(url)) as notifier:
            notifier.offer(alerts(finding()))
            await _until(lambda: notifier.failures >= 2)
            assert notifier.last_error is not None
            assert "ConnectError" in notifier.last_error


async def test_an_answer_that_never_comes_ends_at_the_deadline() -> None:
    with _fake() as fake, capture_logs():
        fake.stuck = threading.Event()
        async with _running(_notifier(fake.url, deadline_s=0.05)) as notifier:
            notifier.offer(alerts(finding()))
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
            notifier.offer(alerts(finding()))
            await _until(lambda: notifier.failures >= 1)
            assert notifier.last_error == "answered 307: {}"
    assert "s3cret" not in repr(logs)


async def test_a_rotated_token_is_taken_up(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    with _fake() as fake:
        async with _running(_notifier(fake.url, Auth(bearer_file=token))) as notifier:
            notifier.offer(alerts(finding()))
            await fake.after(1)
            token.write_text("new\n")
            notifier.offer(alerts(finding(FindingKind.DOWN, "b")))
            await fake.after(2)
    assert fake.credentials == ["Bearer old", "Bearer new"]


async def test_a_token_file_that_is_gone_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    with _fake() as fake, capture_logs():
        async with _running(_notifier(fake.url, Auth(bearer_file=token))) as notifier:
            token.unlink()
            notifier.offer(alerts(finding()))
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
            notifier.offer(alerts(finding()))
            await _until(lambda: notifier.failures >= 1)
    assert logs
    assert "hunter2" not in repr(logs)


async def test_a_reason_with_half_a_character_is_sent_and_does_not_end_the_sender() -> None:
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(finding(summary="bad \ud800 reason")))
            (post,) = await fake.after(1)
    assert post[0]["annotations"]["summary"] == "bad ? reason"


async def test_pages_come_first_and_one_post_is_bounded() -> None:
    tickets = [finding(FindingKind.TELEMETRY_LOST, f"t{i}", severity=Severity.TICKET) for i in range(MAX_ALERTS)]
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(*tickets, finding(FindingKind.COMMON_CAUSE, "edge:llm")))
            (post,) = await fake.after(1)
    assert len(post) == MAX_ALERTS
    assert post[0]["labels"]["kind"] == "common_cause"


async def test_what_no_longer_fits_into_a_post_is_not_ended() -> None:
    tickets = [finding(FindingKind.TELEMETRY_LOST, f"t{i}", severity=Severity.TICKET) for i in range(MAX_ALERTS)]
    with _fake() as fake:
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(*tickets))
            await fake.after(1)
            notifier.offer(alerts(*tickets, finding(FindingKind.COMMON_CAUSE, "edge:llm")))
            posts = await fake.after(2)
    assert not any("endsAt" in alert for alert in posts[1])


async def test_an_alertmanager_that_hangs_delays_no_offer() -> None:
    with _fake() as fake, capture_logs():
        fake.stuck = threading.Event()
        async with _running(_notifier(fake.url)) as notifier:
            notifier.offer(alerts(finding()))
            await fake.after(1)
            for i in range(1_000):
                notifier.offer(alerts(finding(FindingKind.DOWN, f"b{i}")))
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
            notifier.offer(alerts(*(finding(backend=f"b{i}") for i in sorted(tick))))
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

    bad, now = score(0.5), time.time() - 5.0
    async with _running(_notifier(real.url)) as notifier:
        notifier.offer(alerts(finding(since_unix_s=now), scores={"a": bad}, desired=(wish(),)))
        await asyncio.to_thread(wait_until, lambda: len(seen()) == 2, "two alerts")
        found = {a["labels"]["alertname"]: a for a in seen()}
        assert set(found["BackendHung"]["labels"]) >= CONTRACT_LABELS
        assert found["BackendHung"]["annotations"]["actions"].startswith("gpu_health_gate wants")
        notifier.offer(alerts(replace(finding(since_unix_s=now), until_unix_s=now), scores={"a": score(0.3)}))
        await asyncio.to_thread(wait_until, lambda: [_band_of(a) for a in seen()] == ["0.4"], "the new band alone")
        assert notifier.last_error is None
