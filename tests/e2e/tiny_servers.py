"""Small HTTP servers in threads of the test itself: a backend that counts what reaches it, a receiver of webhooks.

Loopback only, ports chosen by the kernel, each ended by its context manager.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STREAM_LIMIT_S = 20.0
"""A stream that the test forgot to release ends then, so that no test hangs for ever."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that hung up in the middle is part of these tests; the client's side is what they judge."""


@contextmanager
def serving(handle: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    """A threaded HTTP server that answers every GET, PUT, POST and DELETE by ``handle``; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Silent: what matters is recorded by ``handle``."""

        def do_GET(self) -> None:
            handle(self)

        do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the base class looks these names up

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """A complete answer; header names with `_` for `-`."""
    handler.send_response(status)
    for name, value in ({"Content_Length": str(len(body))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def body_of(handler: BaseHTTPRequestHandler) -> bytes:
    return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))


@dataclass
class TinyBackend:
    """Answers `/health` uncounted, `/stream` in two parts with ``release`` between them, and everything else at once."""

    name: str
    port: int = 0
    requests: int = 0
    streaming: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/health":
            return answer(handler, 200, b"ok")
        with self._lock:
            self.requests += 1
        if handler.path != "/stream":
            return answer(handler, 200, self.name.encode())
        return self._stream(handler)

    def _stream(self, handler: BaseHTTPRequestHandler) -> None:
        first, last = f"{self.name} first\n".encode(), f"{self.name} last\n".encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(first) + len(last)))
        handler.end_headers()
        handler.wfile.write(first)
        handler.wfile.flush()
        self.streaming.set()
        self.release.wait(STREAM_LIMIT_S)
        handler.wfile.write(last)


@contextmanager
def tiny_backend(name: str) -> Iterator[TinyBackend]:
    backend = TinyBackend(name)
    with serving(backend.handle) as backend.port:
        try:
            yield backend
        finally:
            backend.release.set()


@dataclass
class WebhookReceiver:
    """Records every JSON body that is sent to it, whatever the path, and answers 200; 400 to what is not JSON."""

    url: str = ""
    bodies: list[Any] = field(default_factory=list)
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        try:
            body = json.loads(body_of(handler))
        except ValueError:
            return answer(handler, 400, b"not JSON")
        with self._arrived:
            self.bodies.append(body)
            self._arrived.notify_all()
        return answer(handler, 200, b"{}")

    def wait_for(self, count: int, timeout_s: float) -> list[Any]:
        """The bodies once there are at least ``count`` of them. Raises AssertionError after ``timeout_s``."""
        with self._arrived:
            enough = self._arrived.wait_for(lambda: len(self.bodies) >= count, timeout_s)
            assert enough, f"{len(self.bodies)} of {count} webhooks arrived within {timeout_s:g} s"
            return list(self.bodies)


@contextmanager
def webhook_receiver() -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver()
    with serving(receiver.handle) as port:
        receiver.url = f"http://127.0.0.1:{port}"
        yield receiver
