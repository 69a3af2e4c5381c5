"""Real programs for tests: HAProxy, Prometheus, VictoriaMetrics, Alertmanager, Redis. Free loopback ports, ended with the test.

Each is a context manager, and the fixture ``programs`` starts them with the test's own folder and ends them with the test.
Their configuration and logs stay in that folder. A missing binary skips the test and says how to install it, unless
``TAILKEEPER_REAL=1``, when it fails: CI must not pass because nothing was tested.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.tiny_servers import TinyBackend, WebhookReceiver, tiny_backend, webhook_receiver

__all__ = ["RealPrograms", "TinyBackend", "WebhookReceiver", "alertmanager", "binary", "free_port", "haproxy", "prometheus"]

READY_LIMIT_S = 30.0
"""The slowest of them, Prometheus on a loaded two-core machine, took 3 s."""
END_LIMIT_S = 10.0
POLL_S = 0.02
LOG_TAIL_CHARS = 2_000

_PACKAGES = {
    "haproxy": "haproxy",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
    "redis-server": "redis-server",
    "chromium": "chromium",
    "openssl": "openssl",
    "victoria-metrics": "victoria-metrics",
    "vmalert": "victoria-metrics",
}
"""Debian's package for each binary; Debian calls Alertmanager's binary by the package's name."""


def binary(name: str) -> str:
    """The path of a real program, or the end of this test: skipped, or failed under ``TAILKEEPER_REAL=1``."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if found is not None:
        return found
    message = f"{name} is missing; apt-get install -y --no-install-recommends {_PACKAGES[name]}"
    if os.environ.get("TAILKEEPER_REAL") == "1":
        pytest.fail(message)
    pytest.skip(message)


def free_port() -> int:
    """A loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = READY_LIMIT_S) -> None:
    """Poll until ``holds``. Raises AssertionError after ``limit_s``."""
    ends_at = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < ends_at, f"{what} within {limit_s:g} s did not happen"
        time.sleep(POLL_S)


open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""As ``urllib.request.urlopen``, but a proxy of the environment never stands between a test and loopback."""


def answers_200(url: str) -> bool:
    try:
        with open_url(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


@contextmanager
def running(argv: Sequence[str], log: Path, ready: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """One program, from ready to ended. Raises AssertionError with the end of its log when it does not get ready."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or ready(), f"{argv[0]} getting ready")
        assert process.poll() is None, f"{argv[0]} ended with {process.returncode}: {log.read_text()[-LOG_TAIL_CHARS:]}"
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _folder(tmp_path: Path, name: str) -> Path:
    """A folder of its own for each start, so that two of a kind can run in one test. Short: socket paths end at 97 bytes."""
    return Path(tempfile.mkdtemp(prefix=name[0], dir=tmp_path))


@dataclass(frozen=True)
class HaproxyServer:
    """One `server` line: ``options`` as in haproxy.cfg."""

    name: str
    port: int
    options: str = "weight 100 check inter 100ms fall 1 rise 1"


@dataclass(frozen=True)
class Haproxy:
    """A running HAProxy. ``socket``, ``operator_socket`` and ``user_socket`` are stats sockets of these levels."""

    url: str
    backend: str
    socket: str
    operator_socket: str
    user_socket: str
    tcp_socket: str
    process: subprocess.Popen[bytes]
    folder: Path

    def ask(self, command: str) -> str:
        """One Runtime API command, by a client that shares no code with ours."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self.socket)
            client.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: client.recv(65_536), b"")).decode()


_HAPROXY_CFG = """
global
  stats socket {folder}/a mode 600 level admin
  stats socket {folder}/o mode 600 level operator
  stats socket {folder}/u mode 600 level user
  stats socket ipv4@127.0.0.1:{tcp} level admin
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
frontend front
  bind 127.0.0.1:{front}
  default_backend {backend}
backend {backend}
  balance {balance}
  option httpchk GET /health
{more}
"""


@contextmanager
def haproxy(
    servers: Sequence[HaproxyServer], tmp_path: Path, *, backend: str = "llm", balance: str = "roundrobin", more: str = ""
) -> Iterator[Haproxy]:
    """HAProxy with one frontend and one backend; ``more`` are further lines of the backend.

    Its servers count as up until their first check, so wait for the state that the test needs.
    """
    program, folder, front, tcp = binary("haproxy"), _folder(tmp_path, "haproxy"), free_port(), free_port()
    lines = [f"  server {server.name} 127.0.0.1:{server.port} {server.options}\n" for server in servers]
    text = _HAPROXY_CFG.format(folder=folder, front=front, tcp=tcp, backend=backend, balance=balance, more=more)
    (folder / "haproxy.cfg").write_text(text + "".join(lines))
    argv = [program, "-db", "-f", str(folder / "haproxy.cfg")]
    with running(argv, folder / "log", ready=(folder / "a").exists) as process:
        sockets = (f"{folder}/a", f"{folder}/o", f"{folder}/u", f"127.0.0.1:{tcp}")
        yield Haproxy(f"http://127.0.0.1:{front}", backend, *sockets, process, folder)


@dataclass(frozen=True)
class HttpProgram:
    """A running Prometheus, VictoriaMetrics or Alertmanager."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path

    def get(self, path: str, **query: str) -> Any:
        """The JSON at ``path``, which starts with a slash."""
        with open_url(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as response:
            return json.load(response)

    def post(self, path: str, body: object = None) -> int:
        """Send ``body`` as JSON (nothing where None); the status."""
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method="POST")
        with open_url(request, timeout=10) as response:
            return int(response.status)


@contextmanager
def prometheus(
    config: Mapping[str, Any], rules: Mapping[str, str], tmp_path: Path, history: str | None = None
) -> Iterator[HttpProgram]:
    """Prometheus with ``config``; ``rules`` are the texts of rule files by file name, added to its `rule_files`.

    ``history`` are OpenMetrics samples with times, which it then has from the start. `POST /-/reload` and remote write are on.
    """
    program, folder, port = binary("prometheus"), _folder(tmp_path, "prometheus"), free_port()
    for name, text in rules.items():
        (folder / name).write_text(text)
    whole = {**config, "rule_files": [*config.get("rule_files", ()), *(str(folder / name) for name in rules)]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(whole))
    if history is not None:
        (folder / "history").write_text(history)
        backfill = [binary("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet", f"{folder}/history"]
        subprocess.run([*backfill, f"{folder}/data"], check=True, capture_output=True, timeout=60)
    url = f"http://127.0.0.1:{port}"
    argv = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-lifecycle", "--web.enable-remote-write-receiver"]
    # Alertmanagers are discovered some seconds after the start; an alert of before that is sent again only after this delay.
    argv += ["--rules.alert.resend-delay=1s"]
    with running(argv, folder / "log", ready=lambda: answers_200(f"{url}/-/ready")) as process:
        yield HttpProgram(url, process, folder)


@contextmanager
def victoria_metrics(config: Mapping[str, Any], tmp_path: Path) -> Iterator[HttpProgram]:
    """VictoriaMetrics (single node) that scrapes by ``config``, which is as Prometheus's; rules are not its business."""
    program, folder, port = binary("victoria-metrics"), _folder(tmp_path, "victoria-metrics"), free_port()
    (folder / "scrape.yml").write_text(yaml.safe_dump(dict(config)))
    url = f"http://127.0.0.1:{port}"
    argv = [program, f"-promscrape.config={folder}/scrape.yml", f"-storageDataPath={folder}/data"]
    argv += [f"-httpListenAddr=127.0.0.1:{port}", "-memory.allowedBytes=256MB"]
    with running(argv, folder / "log", ready=lambda: answers_200(f"{url}/health")) as process:
        yield HttpProgram(url, process, folder)


@contextmanager
def alertmanager(config: Mapping[str, Any], tmp_path: Path, templates: Mapping[str, str] | None = None) -> Iterator[HttpProgram]:
    """Alertmanager alone (no cluster port), with ``templates`` as texts by file name, added to its `templates`."""
    program, folder, port = binary("prometheus-alertmanager"), _folder(tmp_path, "alertmanager"), free_port()
    for name, text in (templates or {}).items():
        (folder / name).write_text(text)
    whole = {**config, "templates": [*config.get("templates", ()), *(str(folder / name) for name in templates or ())]}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(whole))
    url = f"http://127.0.0.1:{port}"
    argv = [program, f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/data"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with running(argv, folder / "log", ready=lambda: answers_200(f"{url}/-/ready")) as process:
        yield HttpProgram(url, process, folder)


@dataclass(frozen=True)
class Redis:
    url: str
    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def redis(tmp_path: Path) -> Iterator[Redis]:
    """Redis that keeps nothing on disk."""
    program, folder, port = binary("redis-server"), _folder(tmp_path, "redis"), free_port()
    argv = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with running(argv, folder / "log", ready=lambda: _pongs(port)) as process:
        yield Redis(f"redis://127.0.0.1:{port}", port, process)


def _pongs(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
    except OSError:
        return False


class RealPrograms:
    """Starts programs that live until the end of the test, all in ``tmp_path``."""

    def __init__(self, stack: ExitStack, tmp_path: Path) -> None:
        self._stack = stack
        self.tmp_path = tmp_path

    def haproxy(
        self, servers: Sequence[HaproxyServer], *, backend: str = "llm", balance: str = "roundrobin", more: str = ""
    ) -> Haproxy:
        return self._stack.enter_context(haproxy(servers, self.tmp_path, backend=backend, balance=balance, more=more))

    def prometheus(
        self, config: Mapping[str, Any], rules: Mapping[str, str] | None = None, history: str | None = None
    ) -> HttpProgram:
        return self._stack.enter_context(prometheus(config, rules or {}, self.tmp_path, history))

    def victoria_metrics(self, config: Mapping[str, Any]) -> HttpProgram:
        return self._stack.enter_context(victoria_metrics(config, self.tmp_path))

    def alertmanager(self, config: Mapping[str, Any], templates: Mapping[str, str] | None = None) -> HttpProgram:
        return self._stack.enter_context(alertmanager(config, self.tmp_path, templates))

    def redis(self) -> Redis:
        return self._stack.enter_context(redis(self.tmp_path))

    def backend(self, name: str) -> TinyBackend:
        return self._stack.enter_context(tiny_backend(name))

    def webhook_receiver(self) -> WebhookReceiver:
        return self._stack.enter_context(webhook_receiver())


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[RealPrograms]:
    """Real programs for one test, ended in reverse order of their start."""
    with ExitStack() as stack:
        yield RealPrograms(stack, tmp_path)
