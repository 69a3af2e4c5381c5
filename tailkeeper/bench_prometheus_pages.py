"""The pages of ``bench prometheus``: what exporters over thousands of backends say, cheaply, from a process of its own.

``python -m tailkeeper.bench_prometheus_pages BACKENDS`` prints its port and serves ``/N``: the page of the N-th exporter, over
``A_PAGE`` backends. One real exporter has read one engine (with a GPU) before; its lines are repeated with the other names. The
values stand still, which is less work for the server's disk and the same for whoever reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tailkeeper_exporter.app import build
from tailkeeper_exporter.bench_loop import Silent, moving_engines, synthetic_page
from tailkeeper_exporter.metrics_page import Dialect, MetricsPage
from tailkeeper_exporter.settings import BackendSettings, ExporterSettings

A_PAGE = 1_000
"""Backends of one exporter. In life there are fewer of them on each and more exporters; a server stores the same series."""
STAND_IN = "backend-xxxxx"
"""The name in the template, as long as the names that take its place."""
SETTLE_S = 4.0
"""Three pages of the engine and more, so that every derived gauge is there."""
GPU = {
    "index": 0,
    "uuid": f"GPU-{STAND_IN}",
    "name": "H200",
    "utilization_ratio": 0.7,
    "memory_total_bytes": 151_397_597_184,
    "memory_used_bytes": 90_000_000_000,
    "memory_copy_utilization_ratio": 0.3,
    "temperature_celsius": 60,
    "power_watts": 400,
    "sm_clock_hz": 1.9e9,
    "throttle_reasons": [],
    "ecc_single_bit_total": 0,
    "ecc_double_bit_total": 0,
    "retired_pages": 0,
    "xid_events": [],
    "hang_s": 0,
}


def name_of(number: int) -> str:
    return f"backend-{number:05d}"


def template() -> bytes:
    """All lines of one backend, as our exporter writes them after a few seconds. Types and helps are left out."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder, moving_engines(synthetic_page()) as engines:
        file = Path(folder) / "gpus.json"
        file.write_text(json.dumps({"driver": "550.54", "gpus": [GPU]}))
        page = asyncio.run(_page(f"http://127.0.0.1:{engines.port}", file))
    return b"".join(line + b"\n" for line in page.splitlines() if not line.startswith(b"#"))


async def _page(url: str, gpus: Path) -> bytes:
    backend = BackendSettings(name=STAND_IN, engine="vllm", url=url, gpus=("0",))
    settings = ExporterSettings.model_validate({"gpu": {"source": "file", "file": str(gpus)}})
    exporter = build((backend,), settings, log=Silent())
    async with exporter.running():
        await exporter.ready()
        await asyncio.sleep(SETTLE_S)
        return MetricsPage(exporter.ring).render(exporter.views.values(), exporter.gpu_snapshot(), exporter.now(), Dialect.TEXT)


def server(backends: int, lines: bytes) -> ThreadingHTTPServer:
    """Serves the pages at a free port; the caller starts and closes it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first = int(self.path.lstrip("/") or 0) * A_PAGE
            numbers = range(first, min(first + A_PAGE, backends))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(lines) * len(numbers)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the server may be ended in the middle of a scrape
                for number in numbers:
                    self.wfile.write(lines.replace(STAND_IN.encode(), name_of(number).encode()))

        def log_message(self, format: str, *args: object) -> None:
            del format, args  # nobody reads that

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def main() -> None:
    """Entry point. Serves until ended."""
    lines = template()
    with server(int(sys.argv[1]), lines) as running:
        print(json.dumps({"port": running.server_port, "series_a_backend": lines.count(b"\n")}), flush=True)
        running.serve_forever()


if __name__ == "__main__":
    main()
