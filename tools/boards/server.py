"""Serves the board harness's page, the boards as JSON, and one origin for Prometheus, Tempo and Loki. Loopback only.

The page is what `tools/board_harness` builds. Boards come as documents, so that a changed copy can be shown as well as a
generated file. Data flows browser → here → the programs that answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import mimetypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

Json = dict[str, Any]
HARNESS = Path(__file__).parents[1] / "board_harness"
PAGE = HARNESS / "dist"
_MODULES = HARNESS / "node_modules"
_ICONS = _MODULES / "@grafana" / "ui" / "dist" / "public"
_FONTS = _MODULES / "@fontsource" / "inter" / "files"
_WEIGHTS = {"Regular": 400, "Medium": 500, "SemiBold": 600, "Bold": 700}
"""Grafana's typeface, which its packages name and do not bring: with another one, widths and what is cut would be wrong."""
UPSTREAM_S = 30.0
NOT_BUILT = "the board harness is not built; make board-harness"


@dataclass(frozen=True, slots=True)
class Sources:
    """Base addresses, and what Grafana's data sources are told: scrape interval, where exemplars and log lines lead."""

    prometheus: str
    tempo: str
    loki: str
    scrape_s: float = 15.0
    exemplars: Sequence[Mapping[str, str]] = ()
    derived: Sequence[Mapping[str, str]] = ()


@dataclass(slots=True)
class Served:
    """``boards`` by uid; what is put here is served from then on."""

    url: str
    boards: dict[str, Json] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = 60.0
    sources: ClassVar[Sources]
    served: ClassVar[Served]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        first, _, rest = path.lstrip("/").partition("/")
        upstream = {"prometheus": self.sources.prometheus, "tempo": self.sources.tempo, "loki": self.sources.loki}.get(first)
        if upstream is not None:
            self._pass_on(upstream, self.path.removeprefix(f"/{first}"))
        elif first == "d":
            self._file(PAGE, "index.html")
        elif path == "/harness/config.json":
            self._json(200, self._config())
        elif path.startswith("/harness/boards/"):
            found = self.served.boards.get(path.rpartition("/")[2].removesuffix(".json"))
            self._json(200 if found else 404, found or {})
        elif first == "harness":
            self._file(PAGE, rest)
        elif path.startswith("/public/fonts/inter/Inter-"):
            weight = _WEIGHTS.get(path.rpartition("-")[2].partition(".")[0], 400)
            self._file(_FONTS, f"inter-latin-{weight}-normal.woff2")
        elif first == "public":
            self._file(_ICONS, rest.removeprefix("build/"))
        else:
            self._send(404, b"Not in the harness: it has /d/UID alone", "text/plain")

    def _config(self) -> Json:
        boards = [{key: board.get(key) for key in ("uid", "title", "tags")} for board in self.served.boards.values()]
        links = {"exemplars": list(self.sources.exemplars), "derived": list(self.sources.derived)}
        return {"scrape_s": self.sources.scrape_s, "boards": boards, **links}

    def _pass_on(self, upstream: str, path: str) -> None:
        """The answer unchanged; 502 with the reason where there is none."""
        connection = http.client.HTTPConnection(urlsplit(upstream).netloc, timeout=UPSTREAM_S)
        wanted = {name: value for name, value in self.headers.items() if name.lower().startswith(("accept", "x-loki"))}
        try:
            connection.request("GET", path, headers={**wanted, "Accept-Encoding": "identity"})
            answer = connection.getresponse()
            self._send(answer.status, answer.read(), answer.headers.get("content-type", "application/json"))
        except (OSError, http.client.HTTPException) as error:
            self._json(502, {"status": "error", "errorType": "proxy", "error": str(error)})
        finally:
            connection.close()

    def _file(self, folder: Path, name: str) -> None:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            self._send(404, b"no such file", "text/plain")
            return
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self._send(200, path.read_bytes(), kind, "max-age=3600")

    def _json(self, status: int, document: object) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str, keep: str = "no-store") -> None:
        with contextlib.suppress(ConnectionError):  # a browser that leaves a page waits for nothing more of it
            self.send_response(status)
            self.send_header("cache-control", keep)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the report says what went wrong."""


@contextmanager
def page_server(sources: Sources, boards: Sequence[Json]) -> Iterator[Served]:
    """Serve until the end of the block. Raises FileNotFoundError where the page is not built."""
    if not (PAGE / "main.js").exists():
        raise FileNotFoundError(NOT_BUILT)
    served = Served("", {board["uid"]: board for board in boards})
    handler = type("Handler", (_Handler,), {"sources": sources, "served": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
