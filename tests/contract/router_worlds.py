"""The contract suite's worlds for the routers of SGLang and vLLM: the real programs, started once, before fake engines.

The fake engines answer what a router asks before it takes a worker (`/health`, and anything else with 200). Between actuator
and router stands a recorder that counts calls. vLLM's router guards nothing: there the recorder asks for a token, like a proxy.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import httpx
import pytest

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import Actuator, build_actuator
from tailkeeper_watchdog.gateways import SglangRouterGateway, VllmRouterGateway
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue
from tests.e2e.real_programs import RealPrograms, answers_200, free_port, running, wait_until
from tests.e2e.tiny_servers import answer, body_of, serving

TOKEN = "of-the-router"
STARTUP_TIMEOUT_S = 3
"""How long a router tries to add a dead worker; half an hour by default."""
INSTALL = {"sglang-router": "pip install 'sglang-router>=0.3.2'", "vllm-router": "pip install 'vllm-router>=0.1.17'"}


def router_program(name: str) -> str:
    """The path of a router beside this Python; skips or fails as ``binary`` does."""
    path = Path(sys.executable).parent / name
    if path.exists():
        return str(path)
    message = f"{name} is missing; {INSTALL[name]}"
    if os.environ.get("TAILKEEPER_REAL") == "1":
        pytest.fail(message)
    pytest.skip(message)


@dataclass(frozen=True)
class RouterProgram:
    """A running router. Asked here by a client of the tests, never through the actuator."""

    kind: str
    url: str
    token: str
    client: httpx.Client

    def workers(self) -> dict[str, dict[str, Any]]:
        return {row["url"]: row for row in self.client.get("/workers").raise_for_status().json()["workers"]}

    def add(self, url: str, **more: Any) -> None:
        self.client.post("/workers", json={"url": url, **more}).raise_for_status()
        wait_until(lambda: url in self.workers(), f"{url} in the router")

    def remove(self, url: str) -> None:
        name = self.workers()[url].get("id", url)
        self.client.delete(f"/workers/{quote(name, safe='')}").raise_for_status()
        wait_until(lambda: url not in self.workers(), f"{url} out of the router")

    def clear(self) -> None:
        for url in self.workers():
            self.remove(url)

    def send(self, requests: int) -> None:
        for _ in range(requests):
            self.client.post("/v1/completions", json={"model": "unknown", "prompt": "x"}).raise_for_status()


@contextmanager
def router(kind: str, folder: Path, *workers: str, token: str = "", port: int | None = None) -> Iterator[RouterProgram]:
    """A real router, with ``workers`` as its start list."""
    port = port or free_port()
    launch = [router_program("sglang-router"), "launch"] if kind == "sglang_router" else [router_program("vllm-router")]
    argv = [*launch, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin", "--disable-retries"]
    argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    argv += ["--worker-startup-timeout-secs", str(STARTUP_TIMEOUT_S), "--worker-startup-check-interval", "1"]
    argv += ["--health-check-interval-secs", "1"]
    argv += ["--api-key", token] if token else []
    argv += ["--worker-urls", *workers] if workers else []
    url = f"http://127.0.0.1:{port}"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with (
        httpx.Client(base_url=url, headers=headers, timeout=10.0, trust_env=False) as client,
        running(argv, folder / f"{kind}-{port}.log", ready=lambda: answers_200(f"{url}/liveness")),
    ):
        program = RouterProgram(kind, url, token, client)
        wait_until(lambda: set(workers) <= set(program.workers()), "the start list in the router")
        yield program


class KeptRouters:
    """One router of each kind for the whole session: they take two seconds to start, and can be emptied between tests."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._running: dict[str, RouterProgram] = {}

    def emptied(self, kind: str) -> RouterProgram:
        if kind not in self._running:
            token = TOKEN if kind == "sglang_router" else ""
            self._running[kind] = self._stack.enter_context(router(kind, self._folder, token=token))
        self._running[kind].clear()
        return self._running[kind]


class ContractPrograms(RealPrograms):
    """Real programs of one test, and the routers that outlive it."""

    def __init__(self, stack: ExitStack, tmp_path: Path, routers: KeptRouters) -> None:
        super().__init__(stack, tmp_path)
        self.routers = routers


@dataclass
class HttpRecorder:
    """Passes everything on to ``target`` and notes what was asked. With a ``token`` it refuses whoever has another."""

    target: str
    token: str = ""
    asked: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _hop: ClassVar[frozenset[str]] = frozenset({"connection", "transfer-encoding", "content-length", "host"})

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.asked.append(f"{handler.command} {handler.path}")
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        body = body_of(handler)
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            status, answered = 401, b"who are you?"
        else:
            status, answered = self._passed_on(handler, body)
        with self._lock:
            self._at_once -= 1
        answer(handler, status, answered)

    def _passed_on(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.target).netloc, timeout=40)
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in self._hop}
        connection.request(handler.command, handler.path, body or None, headers)
        response = connection.getresponse()
        try:
            return response.status, response.read()
        finally:
            connection.close()


def router_actuator(kind: str, url: str, removed_file: Path, auth: Auth | None = None, *replicas: str) -> Actuator:
    settings = {"name": "edge", "kind": kind, "url": url, "removed_file": removed_file, "replicas": replicas}
    model = SglangRouterGateway if kind == "sglang_router" else VllmRouterGateway
    return build_actuator(model.model_validate({**settings, "auth": auth or Auth()}))


@dataclass
class RouterWorld:
    router: RouterProgram
    recorder: HttpRecorder
    recorder_url: str
    folder: Path
    actuator: Actuator
    a: str
    b: str
    unknown: str = "http://127.0.0.1:9"
    normal: Mapping[Knob, KnobValue] = field(default_factory=lambda: {Knob.ADMISSION: SERVE})

    def truth(self, server: str) -> tuple[float, str]:
        return 1.0, SERVE if server in self.router.workers() else DRAIN

    def set_by_hand(self, server: str, weight: float) -> None:
        raise AssertionError("a router has no weights")

    def steps(self) -> list[tuple[float, str]]:
        raise AssertionError("a router has no weights")

    def most_at_once(self) -> int:
        return self.recorder.most_at_once

    def without_rights(self) -> Actuator:
        return router_actuator(self.router.kind, self.recorder_url, self.folder / "removed.json")


@asynccontextmanager
async def _world(kind: str, programs: RealPrograms) -> AsyncIterator[RouterWorld]:
    assert isinstance(programs, ContractPrograms)
    program = programs.routers.emptied(kind)
    urls = [f"http://127.0.0.1:{programs.backend(name).port}" for name in ("a", "b")]
    for url in urls:
        program.add(url)
    recorder = HttpRecorder(program.url, "" if program.token else TOKEN)
    with tempfile.TemporaryDirectory() as folder, serving(recorder.handle) as port:
        (Path(folder) / "token").write_text(TOKEN)
        at, auth = f"http://127.0.0.1:{port}", Auth(bearer_file=Path(folder) / "token")
        actuator = router_actuator(kind, at, Path(folder) / "removed.json", auth)
        yield RouterWorld(program, recorder, at, Path(folder), actuator, urls[0], urls[1])


@asynccontextmanager
async def sglang_router_world(programs: RealPrograms) -> AsyncIterator[RouterWorld]:
    async with _world("sglang_router", programs) as world:
        yield world


@asynccontextmanager
async def vllm_router_world(programs: RealPrograms) -> AsyncIterator[RouterWorld]:
    async with _world("vllm_router", programs) as world:
        yield world


@dataclass
class FakeEngine:
    """A fake engine: answers the probes of routers, counts completions, and ends a stream only when ``release`` is set.

    While it is not ``well`` it answers 503 to everything.
    """

    name: str
    url: str = ""
    well: bool = True
    requests: int = 0
    streaming: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = body_of(handler)
        if not self.well:
            return answer(handler, 503, b"not well")
        if handler.path in ("/server_info", "/get_server_info"):
            told = {"model_path": "tiny", "served_model_name": "tiny", "tp_size": 1, "dp_size": 1}
            return answer(handler, 200, json.dumps(told).encode(), Content_Type="application/json")
        if handler.path != "/v1/completions":
            return answer(handler, 200, b"{}", Content_Type="application/json")
        self.requests += 1
        if json.loads(body).get("stream"):
            return self._stream(handler)
        return answer(handler, 200, json.dumps({"from": self.name}).encode(), Content_Type="application/json")

    def _stream(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(f"data: {self.name} first\n\n".encode())
        handler.wfile.flush()
        self.streaming.set()
        self.release.wait(20.0)
        handler.wfile.write(f"data: {self.name} last\n\ndata: [DONE]\n\n".encode())
        handler.close_connection = True


@contextmanager
def fake_engine(name: str) -> Iterator[FakeEngine]:
    engine = FakeEngine(name)
    with serving(engine.handle) as port:
        engine.url = f"http://127.0.0.1:{port}"
        try:
            yield engine
        finally:
            engine.release.set()
