"""Two watchdogs of one ledger, as processes: one leads, one stands by and takes over within a second of a SIGKILL."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.contract.webhook_gateway import NORMAL, WebhookGateway, webhook_gateway
from tests.e2e.real_programs import free_port, wait_until

TAKE_OVER_LIMIT_S = 1.0
COMMAND = [sys.executable, "-m", "tailkeeper.cli"]


def ask(port: int, path: str, method: str = "GET") -> httpx.Response:
    return httpx.request(method, f"http://127.0.0.1:{port}{path}", timeout=5.0, trust_env=False)


def answers(port: int, path: str, status: int) -> bool:
    try:
        return ask(port, path).status_code == status
    except httpx.HTTPError:
        return False


@pytest.fixture
def gateway() -> Iterator[WebhookGateway]:
    with webhook_gateway({"a": dict(NORMAL), "b": dict(NORMAL)}) as made:
        yield made


@pytest.fixture
def config(tmp_path: Path, gateway: WebhookGateway) -> Path:
    document = {
        "backends": [{"name": n, "engine": "vllm", "url": "http://127.0.0.1:9", "gateway": {"name": "edge"}} for n in "ab"],
        "gateways": [{"name": "edge", "kind": "webhook", "url": gateway.url}],
        "watchdog": {
            "listen": f"127.0.0.1:{free_port()}",
            "tick_s": 0.5,
            "state": str(tmp_path / "t.db"),
            "source": {"kind": "exporter", "urls": ["http://127.0.0.1:9"]},
        },
    }
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@contextmanager
def watchdog(config: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    argv = [*COMMAND, "watchdog", "-c", str(config), "--listen", f"127.0.0.1:{port}"]
    with (config.parent / f"{port}.log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: answers(port, "/livez", 200), "it lives", 30)
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=30)


def test_the_second_stands_by_says_who_leads_and_takes_over(config: Path, gateway: WebhookGateway) -> None:
    first, second = free_port(), free_port()
    with watchdog(config, first) as leader, watchdog(config, second) as other:
        wait_until(lambda: answers(first, "/readyz", 200), "the first leads")
        asked_before = _by_two_ticks(gateway)
        said = _stands_by(second, leader.pid, first)
        release = run("release-all", "-c", str(config))  # at the configured address nobody listens
        assert release.returncode == 1
        assert f"nothing is done beside a leader: {said}" in release.stdout

        other.send_signal(signal.SIGUSR1)  # the kill switch works wherever it is pressed
        wait_until(lambda: ask(first, "/api/v1/fleet").json()["paused_because"] == "paused by SIGUSR1", "the leader is paused")
        assert asked_before > 0

        leader.send_signal(signal.SIGKILL)
        leader.wait(10)
        died = time.monotonic()
        wait_until(lambda: answers(second, "/readyz", 200), "the second leads")
        assert time.monotonic() - died < TAKE_OVER_LIMIT_S * _patience()
        assert ask(second, "/api/v1/fleet").json()["tick"] >= 1

        other.send_signal(signal.SIGTERM)
        assert other.wait(10) == 0
    done = run("release-all", "-c", str(config))
    assert (done.returncode, done.stdout) == (0, "0 of 0 changes given back\n")


def _patience() -> float:
    """A machine that others load as well takes longer to build a watchdog; the lock itself is asked for every quarter second."""
    began = time.monotonic()
    sum(n * n for n in range(1_000_000))
    return max(1.0, (time.monotonic() - began) / 0.1)


def _by_two_ticks(gateway: WebhookGateway) -> int:
    before = len(gateway.paths)
    time.sleep(1.2)
    return len(gateway.paths) - before


def _stands_by(port: int, leader_pid: int, leader_port: int) -> str:
    ready = ask(port, "/readyz")
    assert ready.status_code == 503
    reason: Any = ready.json()["reason"]
    assert reason.startswith(f"standing by: another watchdog leads: process {leader_pid} on ")
    assert f"at 127.0.0.1:{leader_port}, since " in reason
    for path, method in (("/api/v1/fleet", "GET"), ("/api/v1/decisions", "GET"), ("/api/v1/release", "POST")):
        refused = ask(port, path, method)
        assert (refused.status_code, refused.json()["detail"]) == (503, reason)
    assert ask(port, "/").status_code == 200
    assert ask(port, "/metrics").status_code == 200
    return str(reason.removeprefix("standing by: "))
