"""``make scale``: what a backend is in series, bytes and CPU, for the plan in docs/scale.md; into docs/results/scale.json.

    python -m tools.results.scale

Captured pages of real engines are read by a real exporter, one after the other. The page that it makes of vLLM's is then served
as that of hundreds of backends, and read by the watchdog's own code: from such exporters, and from a real Prometheus and a real
VictoriaMetrics that scrape them. CPU is this process's own, or from /proc that of the store. Under five minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tailkeeper_exporter.exposition import PageParser
from tailkeeper_watchdog.collect.observe import WANTED, observe
from tailkeeper_watchdog.collect.prometheus import PrometheusSource, series_query
from tailkeeper_watchdog.collect.prometheus_client import PrometheusClient
from tailkeeper_watchdog.settings import PrometheusSource as PrometheusSourceSettings
from tests.e2e.exporter_process import exporter_process, get
from tests.e2e.real_programs import HttpProgram, prometheus, victoria_metrics, wait_until
from tests.e2e.tiny_servers import answer, serving
from tools.results import page as pages
from tools.results.envelope import write

SCRAPES = Path(__file__).parents[2] / "tests" / "fixtures" / "scrapes"
CAPTURED = ("vllm-0.32.0", "sglang-0.5-from-docs", "tgi-3-from-docs", "trtllm-1.3-from-docs", "llamacpp-b11669-busy")
GPU = {
    "index": 0,
    "uuid": "GPU-0",
    "name": "H200",
    "utilization_ratio": 0.7,
    "memory_total_bytes": 1e11,
    "memory_used_bytes": 5e10,
    "memory_copy_utilization_ratio": 0.3,
    "temperature_celsius": 60,
    "power_watts": 400,
    "sm_clock_hz": 1.9e9,
    "throttle_reasons": [],
    "ecc_single_bit_total": 0,
    "ecc_double_bit_total": 0,
    "retired_pages": 0,
    "xid_events": [],
}
NAME = "BACKEND"
BACKENDS = 400
"""Some 75,000 series: what a store of the size of these needs a second for."""
EXPORTERS = 8
READS = 5
SCRAPE_S = 5.0
HERTZ = os.sysconf("SC_CLK_TCK")


def lines_of(page: str) -> list[str]:
    return [line for line in page.splitlines() if line and not line.startswith("#")]


def is_read(line: str) -> bool:
    """Whether the watchdog asks a Prometheus for it: everything but the counts of histograms."""
    return re.split(r"[{ ]", line)[0].removesuffix("_bucket").removesuffix("_sum") in WANTED


@contextmanager
def exporter_page(folder: Path, captured: str) -> Iterator[list[str]]:
    """The lines that a real exporter has about one backend with this page and one GPU, after enough scrapes for all of them."""
    text = (SCRAPES / f"{captured}.prom").read_bytes()
    file = folder / "gpu.json"
    file.write_text(json.dumps({"driver": "550", "gpus": [GPU]}))

    def engine(request: BaseHTTPRequestHandler) -> None:
        body = text if request.path.endswith("metrics") else b"{}"
        answer(request, 200, body, Content_Type="text/plain; version=0.0.4")

    with serving(engine) as port:
        backend: dict[str, Any] = {
            "name": NAME,
            "engine": captured.partition("-")[0],
            "url": f"http://127.0.0.1:{port}",
            "gpus": ["0"],
        }
        backend |= {"metrics_url": f"http://127.0.0.1:{port}/metrics", "probe": {"enabled": False}}
        with exporter_process([backend], gpu={"source": "file", "file": str(file)}) as exporter:
            time.sleep(3.0)
            yield [line for line in lines_of(get(f"{exporter.url}/metrics")[2]) if f'backend="{NAME}"' in line]


def series_of(folder: Path, captured: str) -> dict[str, Any]:
    with exporter_page(folder, captured) as lines:
        return {
            "page": captured,
            "native": len(lines_of((SCRAPES / f"{captured}.prom").read_text())),
            "ours": len(lines),
            "read": sum(map(is_read, lines)),
            "page_bytes": sum(len(line) + 1 for line in lines),
        }


def fleet_pages(lines: list[str]) -> list[bytes]:
    """The pages of ``EXPORTERS`` exporters of ``BACKENDS`` together."""
    each = BACKENDS // EXPORTERS
    names = [[f"backend-{number:05d}" for number in range(first, first + each)] for first in range(0, BACKENDS, each)]
    return ["".join(line.replace(NAME, name) + "\n" for name in some for line in lines).encode() for some in names]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Medians of wall and of this process's CPU over ``READS``; seconds."""
    took = []
    for _ in range(READS):
        wall, cpu = time.monotonic(), time.process_time()
        work()
        took.append((time.monotonic() - wall, time.process_time() - cpu))
    return statistics.median(t[0] for t in took), statistics.median(t[1] for t in took)


def direct(fleet: list[bytes]) -> dict[str, Any]:
    """Pages of exporters into observations, without the network."""
    parsers = [PageParser(WANTED) for _ in fleet]

    def read() -> None:
        for parser, body in zip(parsers, fleet, strict=True):
            observe(parser.parse(body).samples, 0.0, {})

    read()  # the first reading of a page is slower: later ones know its lines
    return {"cpu_ms_per_backend": 1_000 * timed(read)[1] / BACKENDS}


def cpu_of(process: int) -> float:
    """User and system time of a process until now, seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def rss_of(process: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.M)
    return 0 if found is None else 1024 * int(found[1])


def through(store: HttpProgram) -> dict[str, Any]:
    """Reading the whole fleet from a store, as one watchdog for all and as one shard of many."""
    names = tuple(f"backend-{number:05d}" for number in range(BACKENDS))
    settings = PrometheusSourceSettings(kind="prometheus", url=store.url, interval_s=SCRAPE_S)
    found: dict[str, Any] = {}
    for key, by_name in (("all", False), ("by_name", True)):
        source = PrometheusSource(PrometheusClient(settings), store.url, names, 3 * SCRAPE_S, by_name=by_name)
        seen = 0

        def read(source: PrometheusSource = source) -> None:
            nonlocal seen
            collected = asyncio.run(source.collect(0.0, 120.0))
            seen = sum(one.age_s is not None for one in collected.observations.values())

        before = cpu_of(store.process.pid)
        wall, cpu = timed(read)
        asyncio.run(source.close())
        store_cpu = (cpu_of(store.process.pid) - before) / READS
        assert seen == BACKENDS
        found[key] = {"wall_s": wall, "cpu_ms_per_backend": 1_000 * cpu / BACKENDS, "store_cpu_s": store_cpu}
    answered = store.get("/api/v1/query", query=series_query(), nocache="1")
    found["bytes_per_backend"] = len(json.dumps(answered, separators=(",", ":"))) / BACKENDS
    found["rss_bytes"] = rss_of(store.process.pid)
    return found


def stores(folder: Path, fleet: list[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    def exporters(request: BaseHTTPRequestHandler) -> None:
        answer(request, 200, fleet[int(request.path.rpartition("/")[2])], Content_Type="text/plain; version=0.0.4")

    with serving(exporters) as port:
        target = [f"127.0.0.1:{port}"]
        jobs = [{"targets": target, "labels": {"__metrics_path__": f"/{n}", "instance": str(n)}} for n in range(EXPORTERS)]
        config: Mapping[str, Any] = {
            "global": {"scrape_interval": f"{SCRAPE_S:g}s", "scrape_timeout": f"{SCRAPE_S:g}s"},
            "scrape_configs": [{"job_name": "tailkeeper", "static_configs": jobs}],
        }
        begun: dict[str, Callable[[], AbstractContextManager[HttpProgram]]] = {
            "prometheus": lambda: prometheus(config, {}, folder),
            "victoria_metrics": lambda: victoria_metrics(config, folder),
        }
        for name, start in begun.items():
            print(f"{name}: {BACKENDS} backends", file=sys.stderr, flush=True)
            with start() as store:
                wait_until(lambda store=store: _has_all(store), "all scraped", 60.0)  # type: ignore[misc]
                yield name, through(store)


def _has_all(store: HttpProgram) -> bool:
    rows = store.get("/api/v1/query", query="sum(llm_backend_state)", nocache="1")["data"]["result"]
    return bool(rows) and float(rows[0]["value"][1]) == BACKENDS


def figures() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        series = [series_of(folder, captured) for captured in CAPTURED]
        with exporter_page(folder, CAPTURED[0]) as lines:
            fleet = fleet_pages(list(lines))
        return {"series": series, "backends": BACKENDS, "direct": direct(fleet), "stores": dict(stores(folder, fleet))}


if __name__ == "__main__":
    print(write("scale", "make scale", figures()))
    sys.exit(pages.main([]))
