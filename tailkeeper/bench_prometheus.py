"""``bench prometheus``: reading fleets of 10 to 10,000 backends through a real Prometheus server, which scrapes pages of ours.

Counted is what the server says that it was asked (``prometheus_http_requests_total``), not what we believe. Reading is from the
question to the observations of all backends, by the watchdog's own source; its time has the server's in it, which has its own CPU
figure. The size may be reduced by ``--backends``: 10,000 backends are 2.3 million series, for which the server needs memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tailkeeper.bench import rss_bytes
from tailkeeper.bench_gateways import LOG_TAIL_BYTES, find
from tailkeeper.bench_processes import cpu_s, peak_rss_bytes
from tailkeeper.bench_prometheus_pages import A_PAGE, name_of
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.native_pages import NativePages
from tailkeeper_watchdog.collect.prometheus import PrometheusSource
from tailkeeper_watchdog.collect.prometheus_client import PrometheusClient
from tailkeeper_watchdog.settings import PrometheusSource as Settings
from tailkeeper_watchdog.settings import WatchedBackend

MAX_BACKENDS = 100_000
"""What their names have room for."""
INTERVAL_S = 15
"""Prometheus' own default is a minute, the compose file's five seconds; what is asked does not depend on it."""
READY_WITHIN_S = 240.0
"""Two million new series and the first scrapes of all of them, on a busy machine."""
READ_WITHIN_S = 240.0
GIB = 1024**3
BYTES_A_SERIES = 8_000
"""Measured: 6,000 of Prometheus with the answer in its memory, 1,500 of ours. A size for which that is not free is left out."""
GO = {"GOGC": "75"}
"""What Prometheus 3 sets by itself, and 2 does not: garbage is collected before the heap has doubled."""
_ASKED = re.compile(r'^prometheus_http_requests_total\{code="200",handler="/api/v1/query"\} (\S+)$', re.M)


class _NotReadError(Exception):
    """This machine and this server do not carry a fleet of this size; that is a result, too."""


@dataclass(frozen=True, slots=True)
class _Server:
    url: str
    pid: int


async def prometheus_bench(sizes: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Figures of each size, each with a fresh server; ``left_out`` says why there are none. Raises RuntimeError without one."""
    binary = find("prometheus")
    if binary is None:
        raise RuntimeError("prometheus is not on the PATH: apt-get install prometheus")
    return {"scrape_interval_s": INTERVAL_S, "sizes": [await _size(binary, size, rounds) for size in sizes]}


def sizes_of(text: str) -> tuple[int, ...]:
    """Sizes with commas between them. Raises ValueError that says what is allowed."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= MAX_BACKENDS for part in parts):
        raise ValueError(f"{text!r} is refused; allowed are numbers from 1 to {MAX_BACKENDS}, with commas between them")
    return tuple(sorted({int(part) for part in parts}))


async def _size(binary: str, backends: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tk-") as name:
        async with _pages(backends) as (port, series_each):
            size = {"backends": backends, "series": backends * series_each}
            needed, free = size["series"] * BYTES_A_SERIES, _free_bytes()
            if needed > free:
                return {**size, "left_out": f"needs about {needed / GIB:.0f} GiB of memory, and {free / GIB:.0f} GiB are free"}
            try:
                async with _prometheus(binary, Path(name), port, backends) as server:
                    return {**size, **await _read(server, backends, rounds), "server_rss_peak_bytes": peak_rss_bytes(server.pid)}
            except _NotReadError as error:
                return {**size, "left_out": str(error)}


def _free_bytes() -> int:
    """Memory that can be had without anybody's being swapped out."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024


@contextlib.asynccontextmanager
async def _pages(backends: int) -> AsyncIterator[tuple[int, int]]:
    """The port of the pages, and how many series each backend has."""
    command = (sys.executable, "-m", "tailkeeper.bench_prometheus_pages", str(backends))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        told = json.loads(await process.stdout.readline())
        yield told["port"], told["series_a_backend"]
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def _prometheus(binary: str, folder: Path, pages: int, backends: int) -> AsyncIterator[_Server]:
    """A server that has scraped all backends. Raises RuntimeError with the end of its log where it does not come to that."""
    from tailkeeper_demo.processes import free_port

    port, config, log = free_port(), folder / "prometheus.yml", folder / "prometheus.log"
    config.write_text(json.dumps(_configuration(pages, backends)))
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    environment = {**os.environ, **GO}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            binary, *arguments, stdout=output, stderr=output, cwd=folder, env=environment
        )
    url = f"http://127.0.0.1:{port}"
    try:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await _until_scraped(process, url, backends)
        except TimeoutError:
            raise _NotReadError(f"the server had not scraped them within {READY_WITHIN_S:g} s") from None
        except EOFError:
            raise RuntimeError(f"prometheus ended: {log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors='replace')}") from None
        yield _Server(url, process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_scraped(process: asyncio.subprocess.Process, url: str, backends: int) -> None:
    """Raises EOFError where the server ends before."""
    async with httpx.AsyncClient(trust_env=False, timeout=READY_WITHIN_S) as client:
        while await _scraped(client, url) < backends:
            if process.returncode is not None:
                raise EOFError
            await asyncio.sleep(0.5)


def _configuration(port: int, backends: int) -> dict[str, Any]:
    """As JSON, which is YAML."""
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{number}", "exporter": f"exporter-{number}"}}
        for number in range(-(-backends // A_PAGE))
    ]
    job = {"job_name": "tailkeeper", "static_configs": targets}
    return {"global": {"scrape_interval": f"{INTERVAL_S}s", "scrape_timeout": f"{INTERVAL_S}s"}, "scrape_configs": [job]}


async def _scraped(client: httpx.AsyncClient, url: str) -> int:
    """Backends that the server knows; none while it does not answer."""
    try:
        answer = await client.get(f"{url}/api/v1/query", params={"query": "count(llm_backend_up)"})
        found = answer.json()["data"]["result"]
    except (httpx.HTTPError, ValueError, KeyError):
        return 0
    return int(found[0]["value"][1]) if found else 0


async def _read(server: _Server, backends: int, rounds: int) -> dict[str, Any]:
    names = tuple(name_of(number) for number in range(backends))
    fleet = tuple(WatchedBackend(name=name, engine="vllm", url=f"http://127.0.0.1:{1 + i}") for i, name in enumerate(names))
    settings = Settings(kind="prometheus", url=server.url, interval_s=INTERVAL_S)
    native = NativePages(lambda: fleet, INTERVAL_S)
    source = PrometheusSource(PrometheusClient(settings), server.url, names, READ_WITHIN_S, native)
    rows = []
    try:
        for _ in range(rounds):
            rows.append(await _one_round(source, server, backends))
    finally:
        await source.close()
    quickest = min(rows, key=lambda row: float(row["seconds"]))
    return {**quickest, "queries": [row["queries"] for row in rows], "reader_rss_peak_bytes": rss_bytes()}


async def _one_round(source: PrometheusSource, server: _Server, backends: int) -> dict[str, Any]:
    asked, theirs_s = await _asked(server.url), cpu_s(server.pid)
    started, ours_s = time.monotonic(), _own_cpu_s()
    collected = await source.collect(time.monotonic(), READ_WITHIN_S)
    took_s, ours_s = time.monotonic() - started, _own_cpu_s() - ours_s
    serving = sum(seen.state is State.SERVING for seen in collected.observations.values())
    if collected.error or serving != backends:
        why = "" if collected.error is None else collected.error.removeprefix(f"{server.url}: ")
        raise _NotReadError(f"{serving:,} of them were read ({why})")
    return {
        "seconds": round(took_s, 3),
        "reader_cpu_s": round(ours_s, 3),
        "server_cpu_s": round(cpu_s(server.pid) - theirs_s, 3),
        "queries": await _asked(server.url) - asked,
    }


async def _asked(url: str) -> int:
    """Instant queries that the server has answered, by its own count."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        found = _ASKED.search((await client.get(f"{url}/metrics")).text)
    return int(float(found[1])) if found else 0


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
