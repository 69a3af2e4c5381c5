"""A server that is everything a configuration names, and repeats every credential that it is shown, in every way it can.

The first part of a path says how it answers: as an engine that is well (`ok`), with a status and the echo, with an echo that is
no JSON, with a redirect that carries the echo. What was shown to it is kept, so that a test knows what was at stake.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import quote

from tests.e2e.tiny_servers import answer, serving

STATUSES = {"s400": 400, "s401": 401, "s404": 404, "s429": 429, "s500": 500, "s503": 503}
MODES = ("ok", *STATUSES, "json", "text", "moved")
_ORDINARY = frozenset({"host", "accept", "accept-encoding", "connection", "user-agent", "content-type", "content-length"})
PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="tiny"} 0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{model_name="tiny"} %d
"""


@dataclass
class Mirror:
    """``shown`` are the headers that came, ``bodies`` what was posted, and ``paths``."""

    url: str = ""
    shown: set[str] = field(default_factory=set)
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    more: str = ""
    """Secrets of its own, which it tells with the echo: provider keys, and the like."""
    elsewhere: str = ""
    """An address to which it sends whoever goes where he is told."""
    tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        mode, _, rest = handler.path.lstrip("/").partition("/")
        shown = {value for name, value in handler.headers.items() if name.lower() not in _ORDINARY}
        with self._lock:
            self.shown |= shown
            self.bodies.append(body)
            self.paths.append(handler.path)
            self.tokens += 1
        if mode == "ok":
            self._be_well(handler, rest.partition("?")[0])
            return
        echo = self._echo(sorted(shown))
        self._answer(handler, mode, echo)

    def _echo(self, shown: list[str]) -> str:
        every = [form for value in shown for form in _forms(value)]
        return f"invalid {' '.join(every)} {self.more}"

    def _answer(self, handler: BaseHTTPRequestHandler, mode: str, echo: str) -> None:
        message: dict[str, Any] = {
            "error": {"message": echo},
            "detail": echo,
            "errors": [echo],
            "message": echo,
            "data": {"result": echo},
        }
        message |= {"url": self.elsewhere, "urls": [self.elsewhere], "workers": [{"url": self.elsewhere}]}
        body = echo.encode() if mode == "text" else json.dumps(message).encode()
        more = {"WWW_Authenticate": f'Bearer error="invalid_token", error_description="{echo[:2_000]}"'}
        if mode == "moved":
            there = self.elsewhere.replace("//", f"//user:{quote(echo[:400], safe='')}@")
            answer(handler, 302, body, Location=f"{there}/?token={quote(echo[:400])}", **more)
            return
        kind = "text/plain" if mode == "text" else "application/json"
        answer(handler, STATUSES.get(mode, 200), body, Content_Type=kind, **more)

    def _be_well(self, handler: BaseHTTPRequestHandler, rest: str) -> None:
        if rest.endswith("metrics"):
            answer(handler, 200, (PAGE % self.tokens).encode(), Content_Type="text/plain")
        elif rest.endswith("completions"):
            said = b'data: {"choices":[{"index":0,"text":" a","delta":{"content":" a"},"finish_reason":"length"}]}\n\n'
            answer(handler, 200, said + b"data: [DONE]\n\n", Content_Type="text/event-stream")
        elif rest.endswith("models"):
            answer(handler, 200, b'{"object":"list","data":[{"id":"tiny","object":"model"}]}', Content_Type="application/json")
        elif rest.endswith(("traces", "logs")):
            answer(handler, 200, b"", Content_Type="application/x-protobuf")
        else:
            answer(handler, 200, b"{}", Content_Type="application/json")


def _forms(value: str) -> Iterator[str]:
    """A header's value as it came, its parts, decoded where it is `Basic`, and in other writings."""
    scheme, _, rest = value.partition(" ")
    for text in (value, *([rest] if rest else [])):
        yield text
        yield quote(text, safe="")
        yield base64.b64encode(text.encode()).decode()
    if scheme == "Basic":
        yield base64.b64decode(rest).decode()


@contextmanager
def mirror(more: str = "", elsewhere: str = "http://127.0.0.1:1") -> Iterator[Mirror]:
    found = Mirror(more=more, elsewhere=elsewhere)
    with serving(found.handle) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


@contextmanager
def canary() -> Iterator[tuple[str, list[str]]]:
    """An address of another name than the servers', and whoever has called there."""
    callers: list[str] = []
    with socket.create_server(("127.0.0.2", 0)) as listening:
        listening.settimeout(0.1)
        ended = threading.Event()

        def listen() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    connection, _ = listening.accept()
                    with connection:
                        connection.settimeout(1)
                        callers.append(connection.recv(1_000).decode("latin-1"))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield f"http://127.0.0.2:{listening.getsockname()[1]}", callers
        finally:
            ended.set()
            thread.join()
