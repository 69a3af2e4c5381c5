"""Schemathesis, a program of its own, asks all that both servers say of themselves, with all its checks.

One process as users run it (exporter, tap and watchdog), over an engine that works and one that is gone, so that there are
findings, decisions and requests. Few examples here; `make schemathesis` asks for longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.exporter_process import engine_process
from tests.e2e.real_programs import answers_200, free_port, wait_until

CONFIG = Path(__file__).with_name("schemathesis.toml")
PROGRAM = Path(sys.executable).with_name("schemathesis")
TOKEN = "correct-horse-battery-staple"
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "4")
"""Of every operation, beside the cases that cover its description."""
LIMIT_S = 60 + 4 * int(EXAMPLES)
pytestmark = pytest.mark.real


@dataclass(frozen=True)
class Up:
    exporter: str
    watchdog: str
    token: str | None


def _document(folder: Path, engine: str, ports: Sequence[int], token: str | None) -> dict[str, Any]:
    here = [f"127.0.0.1:{port}" for port in ports]
    secret = {} if token is None else {"token_file": str(folder / "token")}
    auth = {} if token is None else {"auth": {"bearer_file": str(folder / "token")}}
    backends: list[dict[str, Any]] = [
        {"name": "a", "engine": "vllm", "url": engine, "tap": {"listen": here[2]}, "gateway": {"name": "taps", "server": "a"}},
        {"name": "b", "engine": "vllm", "url": "http://127.0.0.1:9"},
    ]
    probe = {"interval_s": 0.5, "first_token_timeout_s": 2, "health_timeout_s": 1}
    return {
        "backends": [{**backend, "probe": probe} for backend in backends],
        "gateways": [{"name": "taps", "kind": "tap", "urls": [f"http://{here[0]}"], **auth}],
        "exporter": {"listen": here[0], "scrape_interval_s": 0.3, "gpu": {"source": "none"}, **secret},
        "watchdog": {
            "listen": here[1],
            "tick_s": 0.3,
            "state": str(folder / "t.db"),
            "source": {"kind": "exporter", "urls": [f"http://{here[0]}"]},
            **secret,
        },
    }


@contextmanager
def up(folder: Path, token: str | None) -> Iterator[Up]:
    """Exporter, tap and watchdog in one process; the tap has served, a backend is down and found so."""
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    ports = [free_port() for _ in range(3)]
    with engine_process(tokens_per_page=5) as engine:
        (folder / "t.yaml").write_text(yaml.safe_dump(_document(folder, engine.url, ports, token)))
        argv = [sys.executable, "-m", "tailkeeper.cli", "up", "-c", str(folder / "t.yaml")]
        with (folder / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
            try:
                wait_until(lambda: process.poll() is not None or answers_200(f"http://127.0.0.1:{ports[1]}/readyz"), "a tick", 30)
                assert process.poll() is None, (folder / "log").read_text()
                yield _settled(Up(f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", token), ports[2])
            finally:
                process.terminate()
                process.wait(15)
    said = (folder / "log").read_text()
    assert "Traceback" not in said, said[-4_000:]


def _settled(up: Up, tap: int) -> Up:
    with httpx.Client(trust_env=False, timeout=5) as client:

        def knows(path: str) -> Any:
            try:
                answer = client.get(path)
            except httpx.HTTPError:
                return None
            return answer.json() if answer.status_code == 200 else None

        wait_until(lambda: bool(knows(f"{up.watchdog}/api/v1/findings")), "a finding", 30)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 1, "stream": True}
        wait_until(lambda: client.post(f"http://127.0.0.1:{tap}/v1/completions", json=body).status_code == 200, "the tap", 30)
        wait_until(lambda: bool(knows(f"{up.exporter}/api/v1/requests")["requests"]), "a record", 30)
    return up


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("guarded") / "own", TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("free") / "own", None) as found:
        yield found


def _asking(url: str, token: str | None, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Schemathesis over the document at ``url``; which checks there are is in its configuration."""
    folder.mkdir()
    given = [] if token is None else ["-H", f"Authorization: Bearer {token}"]
    options = ["-n", EXAMPLES, "--seed", "1", "--continue-on-failure"]
    argv = [str(PROGRAM), "--no-color", "--config-file", str(CONFIG), "run", f"{url}/openapi.json", *options, *given, *more]
    return subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _found_nothing(running: subprocess.Popen[str]) -> None:
    """What it finds fails the test and is shown."""
    with running:
        try:
            said, _ = running.communicate(timeout=LIMIT_S)
        finally:
            running.kill()
    assert running.returncode == 0, said[-12_000:]
    assert "generated" in said


def _both(up: Up, folder: Path, *more: str) -> None:
    """Side by side, for both wait for one process most of the time."""
    with ExitStack() as stack:
        for running in [_asking(url, up.token, folder / name, *more) for name, url in (("e", up.exporter), ("w", up.watchdog))]:
            stack.callback(_found_nothing, running)


def test_both_servers_answer_as_they_say_and_ask_for_their_token(guarded: Up, tmp_path: Path) -> None:
    _both(guarded, tmp_path, "--phases", "examples,coverage,fuzzing")


def test_without_a_token_changes_are_answered_as_it_is_said_too(free: Up, tmp_path: Path) -> None:
    changes = [word for method in ("POST", "PUT", "DELETE") for word in ("--include-method", method)]
    _both(free, tmp_path, "--phases", "examples,fuzzing", *changes)
