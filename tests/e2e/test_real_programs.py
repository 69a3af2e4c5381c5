"""The fixtures of real programs themselves: each starts, answers, and is gone after its test."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import httpx
import pytest

from tests.e2e import real_programs
from tests.e2e.real_programs import HaproxyServer, RealPrograms, alertmanager, haproxy, open_url, prometheus, redis, wait_until

pytestmark = pytest.mark.real

RULES = """
groups:
  - name: all
    rules:
      - alert: Always
        expr: vector(1)
        labels: {severity: page}
"""


def test_prometheus_evaluates_rules_and_alertmanager_sends_them_to_a_webhook(programs: RealPrograms) -> None:
    receiver = programs.webhook_receiver()
    route = {"receiver": "hook", "group_wait": "100ms", "group_interval": "1s"}
    hook = {"name": "hook", "webhook_configs": [{"url": receiver.url}]}
    manager = programs.alertmanager({"route": route, "receivers": [hook]})
    server = programs.prometheus(
        {
            "global": {"evaluation_interval": "500ms", "scrape_interval": "500ms"},
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.url.removeprefix("http://")]}]}]},
        },
        {"rules.yml": RULES},
    )

    body = receiver.wait_for(1, timeout_s=20)[0]

    assert body["alerts"][0]["labels"] == {"alertname": "Always", "severity": "page"}
    assert server.get("/api/v1/query", query="vector(7)")["data"]["result"][0]["value"][1] == "7"
    assert server.post("/-/reload") == 200
    assert [alert["labels"]["alertname"] for alert in manager.get("/api/v2/alerts")] == ["Always"]


def test_redis_answers_and_haproxy_passes_requests_on(programs: RealPrograms) -> None:
    store = programs.redis()
    with socket.create_connection(("127.0.0.1", store.port)) as client:
        client.sendall(b"SET k 5\r\nGET k\r\n")
        wait_until(lambda: b"$1\r\n5" in client.recv(64, socket.MSG_PEEK), "the answer of redis")
    backend = programs.backend("one")
    proxy = programs.haproxy([HaproxyServer("one", backend.port)])
    with open_url(f"{proxy.url}/", timeout=5) as response:
        assert response.read() == b"one"
    assert backend.requests == 1


def test_every_program_has_ended_when_its_context_ends(tmp_path: Path) -> None:
    config = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    with (
        haproxy([HaproxyServer("a", 1, "")], tmp_path) as first,
        prometheus({}, {}, tmp_path) as second,
        alertmanager(config, tmp_path) as third,
        redis(tmp_path) as fourth,
    ):
        processes = [program.process for program in (first, second, third, fourth)]
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)


def test_a_program_that_does_not_start_fails_with_its_own_words(programs: RealPrograms) -> None:
    with pytest.raises(AssertionError, match="unknown keyword 'nonsense'"):
        programs.haproxy([], more="  nonsense")


@pytest.mark.parametrize(("demanded", "ends_with"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_a_missing_program_skips_with_the_install_line_and_fails_where_real_ones_are_demanded(
    demanded: str, ends_with: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILKEEPER_REAL", demanded)
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with pytest.raises(ends_with, match="apt-get install -y --no-install-recommends prometheus-alertmanager"):
        real_programs.binary("amtool")


def test_a_receiver_keeps_json_and_refuses_everything_else(programs: RealPrograms) -> None:
    receiver = programs.webhook_receiver()
    statuses = []
    for body in (json.dumps({"n": 1}).encode(), b"not JSON"):
        statuses.append(httpx.post(receiver.url, content=body, trust_env=False).status_code)
    assert statuses == [200, 400]
    assert receiver.wait_for(1, timeout_s=1) == [{"n": 1}]
    with pytest.raises(AssertionError, match="1 of 2"):
        receiver.wait_for(2, timeout_s=0.05)
