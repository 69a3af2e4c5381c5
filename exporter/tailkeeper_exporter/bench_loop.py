"""What watching costs: CPU per backend at the configured pace, with a real page, real sockets and real probes.

Used by ``tailkeeper bench exporter``. The engines run in a thread and event loop of their own and their CPU time is taken
off, so that the figure is the exporter's. Reads no files and prints nothing.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict

from tailkeeper_exporter import catalog
from tailkeeper_exporter.app import Exporter, build
from tailkeeper_exporter.metrics_page import Dialect, MetricsPage
from tailkeeper_exporter.settings import BackendSettings, ExporterSettings

MAX_BACKENDS = 1_000
_TOKEN = b'data: {"choices":[{"text":" yes","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
_COUNTED = "vllm:generation_tokens_total{"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"


class LoopBench(TypedDict):
    """``cpu_ratio_per_backend`` is CPU seconds per second and backend, of one core; times in milliseconds."""

    backends: int
    seconds: float
    page_bytes: int
    scrape_interval_s: float
    pages_read: int
    cpu_ratio_per_backend: float
    cpu_ms_per_page: float
    metrics_page_bytes: int
    metrics_page_ms: float
    rss_growth_bytes: int


@dataclass
class _Engines:
    """One server that all backends read. Its page moves on with each read, so that every page has something new in it."""

    page: str
    port: int = 0
    cpu_s: float = 0.0
    reads: int = 0

    def run(self, ready: threading.Event, stop: threading.Event) -> None:
        asyncio.run(self._serve(ready, stop))

    async def _serve(self, ready: threading.Event, stop: threading.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.05)
            self.cpu_s = time.thread_time()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /metrics"):
                    self.reads += 1
                    self._answer(writer, b"text/plain; version=0.0.4", self._text())
                elif head.startswith(b"POST"):
                    self._answer(writer, b"text/event-stream", _TOKEN)
                    break  # the request's body was not read, so the connection cannot go on
                else:
                    self._answer(writer, b"text/plain", b"")
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, content_type: bytes, body: bytes) -> None:
        writer.write(_HEAD % (content_type, len(body)) + body)

    def _text(self) -> bytes:
        lines = self.page.split("\n")
        moved = [self._moved(line) if line.startswith(_COUNTED) else line for line in lines]
        return "\n".join(moved).encode()

    def _moved(self, line: str) -> str:
        series, _, number = line.rpartition(" ")
        return f"{series} {float(number) + self.reads}"


@contextmanager
def moving_engines(page: str) -> Iterator[_Engines]:
    """Engines whose page has moved on at each read; their ``port`` is on the loopback address."""
    engines, ready, stop = _Engines(page), threading.Event(), threading.Event()
    thread = threading.Thread(target=engines.run, args=(ready, stop), name="tailkeeper-bench-engines", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield engines
    finally:
        stop.set()
        thread.join()


def bench_exporter(backends: int, seconds: float, page: bytes | None = None) -> LoopBench:
    """Watch ``backends`` vLLM engines for ``seconds`` at 1 Hz and say what that cost.

    ``page`` is what the engines' metrics page holds, for example a captured one; by default one with vLLM 0.32's number of
    series. Raises ValueError for figures out of range.
    """
    if not 1 <= backends <= MAX_BACKENDS:
        raise ValueError(f"backends: {backends} is not from 1 to {MAX_BACKENDS}")
    if seconds <= 0:
        raise ValueError(f"seconds: {seconds} is not above 0")
    text = page.decode() if page is not None else synthetic_page()
    with moving_engines(text) as engines:
        return asyncio.run(_measure(backends, seconds, engines))


async def _measure(backends: int, seconds: float, engines: _Engines) -> LoopBench:
    url = f"http://127.0.0.1:{engines.port}"
    configured = tuple(BackendSettings(name=f"bench-{n}", engine="vllm", url=url) for n in range(backends))
    settings = ExporterSettings.model_validate({"gpu": {"source": "none"}})
    exporter = build(configured, settings, log=Silent())
    async with exporter.running():
        await exporter.ready()
        await asyncio.sleep(1.0)  # the second page is where a parser's memory pays
        rss, cpu, theirs, reads, started = _rss_bytes(), time.process_time(), engines.cpu_s, engines.reads, time.monotonic()
        await asyncio.sleep(seconds)
        took, pages = time.monotonic() - started, engines.reads - reads
        used = time.process_time() - cpu - (engines.cpu_s - theirs)
        size, page_ms = _page_cost(exporter)
        return {
            "backends": backends,
            "seconds": round(took, 2),
            "page_bytes": len(engines.page),
            "scrape_interval_s": settings.scrape_interval_s,
            "pages_read": pages,
            "cpu_ratio_per_backend": round(used / took / backends, 5),
            "cpu_ms_per_page": round(1_000 * used / max(pages, 1), 3),
            "metrics_page_bytes": size,
            "metrics_page_ms": page_ms,
            "rss_growth_bytes": _rss_bytes() - rss,
        }


def _page_cost(exporter: Exporter) -> tuple[int, float]:
    """Size of our page, and the median time in milliseconds to write it."""
    writer, times, body = MetricsPage(exporter.ring), [], b""
    for _ in range(5):
        started = time.perf_counter()
        body = writer.render(exporter.views.values(), exporter.gpu_snapshot(), exporter.now(), Dialect.OPEN_METRICS)
        times.append(1_000 * (time.perf_counter() - started))
    return len(body), round(statistics.median(times), 3)


def _rss_bytes() -> int:
    """Resident memory of this process; 0 where there is no /proc, so that the growth reads 0."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4_096
    except OSError:
        return 0


class Silent:
    """A log that nobody reads."""

    def bind(self, **fields: object) -> Silent:
        return self

    def info(self, event: str, **fields: object) -> None:
        return None

    warning = exception = info


def synthetic_page(histogram_series: int = 40, other_series: int = 300) -> str:
    """A page with as many lines as vLLM 0.32's after some traffic: the known metrics, and others that nobody wants."""
    own = 'engine="0",model_name="bench"'
    lines = ["process_start_time_seconds 1000", *_known_lines(own)]
    bounds = [*(str(float(n)) for n in range(1, 13)), "+Inf"]
    for number in range(histogram_series):
        name = f"vllm:other_{number}_seconds"
        lines += [f"# HELP {name} Something.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{own},le="{bound}"}} 5.0' for bound in bounds]
        lines += [f"{name}_count{{{own}}} 5.0", f"{name}_sum{{{own}}} 1.5"]
    lines += [f'python_other_{number}_total{{generation="{number}"}} {number}.0' for number in range(other_series)]
    return "\n".join(lines) + "\n"


def _known_lines(own: str) -> list[str]:
    """Every metric of vLLM's table once, histograms with twenty buckets."""
    from tailkeeper_exporter.engines.vllm import VLLM

    lines: list[str] = []
    bounds = [*(repr(n / 10) for n in range(1, 21)), "+Inf"]
    for name, kind in {source.names[0].replace("vllm_", "vllm:", 1): source.metric.kind for source in VLLM.sources}.items():
        if kind is catalog.Kind.HISTOGRAM:
            lines += [f'{name}_bucket{{{own},le="{bound}"}} 7.0' for bound in bounds]
            lines += [f"{name}_count{{{own}}} 7.0", f"{name}_sum{{{own}}} 0.5"]
        else:
            lines.append(f'{name}{{{own},finished_reason="stop",status="2xx",handler="/v1/completions"}} 0.0')
    return lines
