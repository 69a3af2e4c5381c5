"""Who is told: an HTTP server that keeps what Alertmanager posts to it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_KEPT = 50_000


@dataclass
class Receiver:
    """``alerts`` are the labels and the status of every alert that came, in order."""

    url: str = ""
    posts: int = 0
    alerts: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def take(self, body: Any) -> None:
        self.posts += 1
        for alert in body["alerts"]:
            if len(self.alerts) < MAX_KEPT:
                self.alerts.append((alert["status"], dict(alert["labels"])))

    def counts(self) -> dict[str, int]:
        """Alerts that came by name, as firing, counted once for each post."""
        found = Counter(labels["alertname"] for status, labels in tuple(self.alerts) if status == "firing")
        return dict(sorted(found.items()))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Alertmanager is killed in the middle of its posts; that is part of the run."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

        def do_POST(self) -> None:
            receiver.take(json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = _Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
