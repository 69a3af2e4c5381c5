"""The doubles over HTTP: OTLP comes in, Tempo's and Loki's query APIs answer from what came.

    python -m tools.doubles.server --listen 127.0.0.1:4318

A test double, for tests and for pictures of boards on a machine without Tempo and Loki; it keeps everything in memory. A query
that it does not know is answered 400 with the reason, never with an empty result. Loopback only, unless told otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tools.doubles import loki, tempo
from tools.doubles.lexing import QueryError
from tools.doubles.store import Store

MAX_BODY_BYTES = 32 * 1024 * 1024
_FLAGS = "X-Loki-Response-Encoding-Flags"
Query = Mapping[str, str]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = 30.0
    store: ClassVar[Store]

    def do_POST(self) -> None:
        kinds: dict[str, Callable[[bytes], None]] = {"/v1/traces": self._spans, "/v1/logs": self._logs}
        take = kinds.get(self.path)
        length = int(self.headers.get("content-length") or 0)
        if take is None or not 0 <= length <= MAX_BODY_BYTES:
            self.close_connection = True
            self._send(404 if take is None else 413, {"message": "use /v1/traces or /v1/logs, up to 32 MiB"})
            return
        body = self.rfile.read(length)
        try:
            take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
        except (DecodeError, OSError, EOFError) as error:
            self._send(400, {"message": f"not OTLP in protobuf: {error}"})
            return
        self._send(200, b"", "application/x-protobuf")

    def _spans(self, body: bytes) -> None:
        self.store.add_spans(ExportTraceServiceRequest.FromString(body))

    def _logs(self, body: bytes) -> None:
        self.store.add_logs(ExportLogsServiceRequest.FromString(body))

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        try:
            self._answer(unquote(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True)))
        except QueryError as error:
            self._send(400, str(error).encode(), "text/plain; charset=utf-8")

    def _answer(self, path: str, query: Query) -> None:
        whole: dict[str, Callable[[], Any]] = {
            "/ready": lambda: {"status": "ready"},
            "/api/search": lambda: tempo.search(self.store, query),
            "/loki/api/v1/query_range": lambda: loki.query_range(self.store, query, self.headers.get(_FLAGS, "")),
            "/loki/api/v1/query": lambda: loki.query_instant(self.store, query),
            "/loki/api/v1/labels": lambda: loki.label_names(self.store, query),
        }
        if path in whole:
            self._send(200, whole[path]())
        elif path.startswith("/loki/api/v1/label/") and path.endswith("/values"):
            self._send(200, loki.label_values(self.store, path.split("/")[5], query))
        elif path.startswith(("/api/traces/", "/api/v2/traces/")):
            found = tempo.trace_by_id(self.store, path.rpartition("/")[2])
            second = path.startswith("/api/v2/")
            if found is None:
                self._send(404, b"trace not found", "text/plain; charset=utf-8")
            else:
                self._send(200, {"trace": {"resourceSpans": found}} if second else {"batches": found})
        else:
            self._send(404, {"message": "this double has /v1/traces, /v1/logs, /api/search, /api/traces/ID and /loki/api/v1/…"})

    def _send(self, status: int, body: object, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.suppress(ConnectionError):  # who asked may have left
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing: tests read the answers."""


@dataclass(frozen=True, slots=True)
class Doubles:
    """Running doubles; ``url`` is the base of OTLP, Tempo and Loki alike."""

    url: str
    store: Store


@contextmanager
def doubles(host: str = "127.0.0.1", port: int = 0) -> Iterator[Doubles]:
    """Serve until the end of the block."""
    store = Store()
    server = ThreadingHTTPServer((host, port), type("Handler", (_Handler,), {"store": store}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Doubles(f"http://{host}:{server.server_address[1]}", store)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--listen", default="127.0.0.1:4318")
    host, _, port = arguments.parse_args().listen.rpartition(":")
    with doubles(host, int(port)) as running:
        print(f"doubles of Tempo and Loki, and OTLP: {running.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
