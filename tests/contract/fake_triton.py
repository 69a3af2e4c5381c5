"""A small fake of Triton's HTTP server, for tests: configurations, readiness, and loading in explicit mode.

Made after tritonserver 2.51, whose answers it gives word for word; what is asked of it here was seen there too. A model is
loaded as slowly as the test says, and its faults are switched on by name.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.e2e.tiny_servers import answer, body_of, serving

CONFIG: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "gateways" / "triton-2.51.0-config.json").read_text()
)
"""As told of a model with a queue delay of 200 ms."""
ADMIN = "x-triton-admin"


def model(name: str, **changes: Any) -> dict[str, Any]:
    return {**deepcopy(CONFIG), "name": name, **changes}


@dataclass
class FakeTriton:
    """``models`` is the truth, ``history`` each window that was loaded, ``paths`` every request."""

    models: dict[str, dict[str, Any]]
    explicit: bool = True
    secret: str = ""
    """Needed to load; as --http-restricted-api=model-repository."""
    load_s: float = 0.0
    hangs_up: bool = False
    """Takes a load, ends the connection, and loads all the same."""
    lying: bool = False
    """Answers 200 to a load and does nothing."""
    broken: frozenset[str] = frozenset()
    """Models that are not ready."""
    refusing: bool = False
    """Every load fails as that of an invalid configuration does."""
    spoils: str = ""
    """A key that a load changes beside what it was told."""
    url: str = ""
    history: list[tuple[str, float]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def window(self, name: str) -> float:
        return float(self.models[name]["dynamic_batching"]["max_queue_delay_microseconds"] / 1e6)

    def loads(self) -> int:
        return sum(path.endswith("/load") and "tailkeeper" not in path for path in self.paths)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.paths.append(handler.path)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        given = body_of(handler)
        if self.hangs_up and handler.path.endswith("/load") and given:
            handler.connection.shutdown(socket.SHUT_RDWR)
        status, body = self._answer(handler, given)
        with self._lock:
            self._at_once -= 1
        answer(handler, status, body, Content_Type="application/json")

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        parts = handler.path.strip("/").split("/")
        if parts[:3] == ["v2", "repository", "models"] and parts[-1] == "load":
            return self._load(parts[3], handler.headers.get(ADMIN, ""), body)
        if parts[:2] != ["v2", "models"] or len(parts) != 4:
            return 404, b'{"error":"Not Found"}'
        name, what = parts[2:]
        if what == "ready":
            ready = name in self.models and name not in self.broken
            return (200, b"") if ready else (400, b'{"error":"Model version not ready"}')
        if name not in self.models:
            return 404, json.dumps({"error": f"Request for unknown model: '{name}' is not found"}).encode()
        return 200, json.dumps(self.models[name]).encode()

    def _load(self, name: str, secret: str, body: bytes) -> tuple[int, bytes]:
        if secret != self.secret:
            return 403, b'{"error": "This API is restricted, expecting header \'x-triton-admin\'"}'
        if not self.explicit:
            return 503, b'{"error":"explicit model load / unload is not allowed if polling is enabled"}'
        failed = 500, json.dumps({"error": f"failed to load '{name}', failed to poll from model repository"}).encode()
        if name not in self.models:
            return failed
        config = json.loads(json.loads(body)["parameters"]["config"])
        delay = config["dynamic_batching"]["max_queue_delay_microseconds"]
        time.sleep(self.load_s)
        if delay < 0 or self.refusing:
            return failed
        self.history.append((name, delay / 1e6))
        if not self.lying:
            self.models[name] = {"name": name, "backend": "python", "max_batch_size": 0, "input": [], "output": [], **config}
            if self.spoils:
                self.models[name][self.spoils] = "spoilt"
        return 200, b""


@contextmanager
def fake_triton(*models: dict[str, Any]) -> Iterator[FakeTriton]:
    triton = FakeTriton({model["name"]: model for model in models})
    with serving(triton.handle) as port:
        triton.url = f"http://127.0.0.1:{port}"
        yield triton
