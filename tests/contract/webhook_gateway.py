"""A gateway that keeps the webhook contract, for tests: GET and PUT of one JSON document per server, in memory.

A faithful fake: there is no real program of this contract to be had. Its faults are switched on by name, one at a time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

from tests.e2e.tiny_servers import answer, body_of, serving

BASE = "/gate/v1"
NORMAL = {"weight": 1.0, "admission": "serve"}


@dataclass
class WebhookGateway:
    """``documents`` by server is the truth; ``history`` every document put, in order; ``paths`` every path asked."""

    documents: dict[str, dict[str, Any]]
    token: str = ""
    lying: bool = False
    """Answers 200 to a PUT and does nothing."""
    status: int = 200
    """Of every answer; anything but 200 also does nothing."""
    delay_s: float = 0.0
    url: str = ""
    history: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.paths.append(handler.path)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self.delay_s)
        status, body = self._answer(handler, body_of(handler))
        # Counted out before the answer goes: once the client has it, the next request may already be here.
        with self._lock:
            self._at_once -= 1
        answer(handler, status, body, Content_Type="application/json")

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return 401, b'{"error": "bad token"}'
        if self.status != 200:
            return self.status, b'{"error": "as told"}'
        prefix, _, segment = handler.path.rpartition("/")
        server = unquote(segment)
        with self._lock:
            if prefix != BASE or server not in self.documents:
                return 404, b'{"error": "no such server"}'
            if handler.command == "PUT":
                document = json.loads(body)
                self.history.append((server, document))
                if not self.lying:
                    self.documents[server] = document
            return 200, json.dumps(self.documents[server]).encode()


@contextmanager
def webhook_gateway(documents: dict[str, dict[str, Any]]) -> Iterator[WebhookGateway]:
    gateway = WebhookGateway(documents)
    with serving(gateway.handle) as port:
        gateway.url = f"http://127.0.0.1:{port}{BASE}"
        yield gateway
