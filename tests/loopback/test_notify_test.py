"""``tailkeeper notify-test`` where nothing is as it should be: each failure is told in words, with its exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from tailkeeper.cli import app
from tailkeeper.notify_test import NotifyTestError, Trial, run
from tailkeeper_watchdog.settings import AlertmanagerSettings
from tests.e2e.real_programs import free_port
from tests.e2e.tiny_servers import answer, body_of, serving


@dataclass
class LooseAlertmanager:
    """Takes alerts, and shows what it is told to show."""

    status: int = 200
    shown: list[Any] | str = field(default_factory=list)
    posted: list[Any] = field(default_factory=list)
    url: str = ""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.command == "POST":
            self.posted += json.loads(body_of(handler))
            return answer(handler, self.status, b"")
        if urlsplit(handler.path).path == "/api/v2/receivers":
            return answer(handler, 200, b'[{"name": "watchdog"}, {"name": "pager"}]')
        return answer(handler, 200, self.shown.encode() if isinstance(self.shown, str) else json.dumps(self.shown).encode())


@contextmanager
def _loose(**more: Any) -> Iterator[LooseAlertmanager]:
    loose = LooseAlertmanager(**more)
    with serving(loose.handle) as port:
        loose.url = f"http://127.0.0.1:{port}"
        yield loose


def _invoke(tmp_path: Path, alertmanager: dict[str, Any], *more: str) -> Result:
    file = tmp_path / "tailkeeper.yaml"
    file.write_text(json.dumps({"watchdog": {"alertmanager": alertmanager}}))
    return CliRunner().invoke(app, ["notify-test", "-c", str(file), "--wait", "0", *more])


def _said(result: Result) -> str:
    return " ".join(result.output.split())


def test_without_an_address_it_says_which_key_to_set(tmp_path: Path) -> None:
    done = _invoke(tmp_path, {})
    assert done.exit_code == 2
    assert "watchdog.alertmanager.url: is not set" in _said(done)


def test_an_unknown_severity_is_wrong_usage(tmp_path: Path) -> None:
    done = _invoke(tmp_path, {"url": "http://127.0.0.1:9"}, "--severity", "loud")
    assert done.exit_code == 2
    assert "allowed are page, ticket, info" in _said(done)


def test_nobody_listening_is_a_failure_that_names_the_address(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = _invoke(tmp_path, {"url": url})
    assert done.exit_code == 1
    assert f"{url}: nobody answers there" in _said(done)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "refused the credentials (401); see watchdog.alertmanager.auth"),
        (403, "refused the credentials (403)"),
        (404, "has no /api/v2/alerts (404)"),
        (500, "answered 500: nothing"),
        (307, "answered 307"),
    ],
)
def test_a_refusal_says_what_to_look_at(tmp_path: Path, status: int, said: str) -> None:
    with _loose(status=status) as loose:
        done = _invoke(tmp_path, {"url": loose.url})
    assert done.exit_code == 1
    assert said in _said(done)


@pytest.mark.parametrize("shown", ["<html>", '{"status": "success"}', ""])
def test_something_else_than_alertmanager_is_recognised_and_the_test_is_ended_there(tmp_path: Path, shown: str) -> None:
    with _loose(shown=shown) as loose:
        done = _invoke(tmp_path, {"url": loose.url})
    assert done.exit_code == 1
    assert "this is not Alertmanager's API; is the address right?" in _said(done)
    assert ["endsAt" in alert for alert in loose.posted] == [False, True]


def test_https_before_a_plain_port_is_explained(tmp_path: Path) -> None:
    with _loose() as loose:
        done = _invoke(tmp_path, {"url": loose.url.replace("http:", "https:")})
    assert done.exit_code == 1
    assert "is it http://" in _said(done)


def test_a_credential_file_that_is_gone_is_wrong_configuration(tmp_path: Path) -> None:
    done = _invoke(tmp_path, {"url": "http://127.0.0.1:9", "auth": {"bearer_file": str(tmp_path / "gone")}})
    assert done.exit_code == 2
    assert str(tmp_path / "gone") in _said(done)


def _row(backend: str = "notify-test", severity: str = "ticket", **more: Any) -> dict[str, Any]:
    labels = {"alertname": "TailkeeperTest", "backend": backend, "severity": severity}
    row: dict[str, Any] = {"labels": labels, "receivers": [{"name": "watchdog"}], "status": {"state": "active"}, **more}
    return row


def test_where_no_person_hears_of_it_that_is_said(tmp_path: Path) -> None:
    with _loose(shown=[_row("another"), _row(severity="page"), "nonsense", {}, _row()]) as loose:
        done = _invoke(tmp_path, {"url": loose.url, "labels": {"cluster": "eu"}})
    assert done.exit_code == 0, done.output
    assert "no person hears of it" in _said(done)
    assert "not for this severity and backend: pager" in _said(done)
    assert all(alert["labels"]["cluster"] == "eu" for alert in loose.posted), "or it would be another incident's route"


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

    now: float = 1.7e9

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_an_alertmanager_that_never_shows_the_test_is_given_up_and_the_test_ended() -> None:
    clock = Clock()
    with _loose(shown=[_row(status={"state": "unprocessed"})]) as loose:
        test = Trial(AlertmanagerSettings(url=loose.url), loose.url, "ticket", "notify-test", 0, lambda: clock.now, clock.sleep)
        with pytest.raises(NotifyTestError, match="does not show it after 15 s") as caught:
            run(test, lambda line: None)
    assert caught.value.code == 1
    assert [alert.get("endsAt") for alert in loose.posted] == [None, "2023-11-14T22:13:35+00:00"]
