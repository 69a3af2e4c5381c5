"""Two parts of ``bench loop`` with a real exporter in them: a fault that a GPU shows, and the guardian's first step at a tap.

* ``gpu``: from the moment at which a GPU's memory is full in the file that stands for the driver (``gpu.source: file``), which is
  sampled every 0.1 s, to the lower weight at the gateway. Sampling, the engine's page, the exporter and the tick are all in it.
  The engines are the demo's.
* ``shedding``: from the first page on which the P99 of a pool's first tokens is broken to the degrade level that the exporter of
  the tap reports. A page server says so; the tap, its process and the exporter before it are real. Every trial has a pool of its
  own, because a pool that has shed restores for half a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import httpx

from tailkeeper.bench import summary
from tailkeeper.bench_gateways import Started, program, ready, until
from tailkeeper.bench_reaction import REST_S, PageServer, at_gateway, give_back, watching
from tailkeeper_exporter.catalog import BACKEND_STATE, TTFT
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.gateways import TapGateway
from tailkeeper_watchdog.model import Backend, Target

SAMPLED_EVERY_S = 0.1
FULL_RATIO = 0.999
"""Of a GPU's memory: next to nothing is left of what was free when the engine was warm."""
ENGINES = 4
MAX_SHEDDING_TRIALS = 12
"""Each is a tap of its own, in one process."""
QUICK_S, LATE_S = 0.1, 3.0
AT_A_TIME = 50
"""Requests that a page tells more than the last one."""
TAP_EVERY_S = 0.02
"""The eye asks the exporter over HTTP, as the watchdog does: oftener, and it would be what keeps the watchdog waiting."""
WARM_UP_S = 1.5
"""Several ticks, so that there is a page to compare with."""


async def gpu_born(started: Started, trials: int, tick_s: float, folder: Path, phases: random.Random) -> dict[str, Any]:
    """Seconds from the full memory to the lower weight. Raises TimeoutError where it never came."""
    from tailkeeper_demo import gpu_file
    from tailkeeper_demo.json_file import write_json

    names = started.names
    path, listening = folder / "gpus.json", folder / "fleet.json"
    gpus = [gpu_file.GpuState(i, gpu_file.gpu_uuid(i), memory_used_ratio=gpu_file.PREALLOCATED_RATIO) for i in range(ENGINES)]

    def full(victim: int | None) -> None:
        used = [replace(gpu, memory_used_ratio=FULL_RATIO) if gpu.index == victim else gpu for gpu in gpus]
        write_json(path, gpu_file.document(used))

    full(None)
    fleet = [sys.executable, "-m", "tailkeeper_demo.fleet", "--engines", str(ENGINES), "--ready-file", str(listening)]
    async with program(fleet, folder, listening.exists):
        engines = json.loads(listening.read_text())["engines"]
        exporter = {
            "scrape_interval_s": SAMPLED_EVERY_S,
            "gpu": {"source": "file", "file": str(path), "interval_s": SAMPLED_EVERY_S},
        }
        backends = [
            {"name": n, "engine": "vllm", "url": e["url"], "gpus": [g.uuid]} for n, e, g in zip(names, engines, gpus, strict=True)
        ]
        async with an_exporter(folder, backends, exporter) as url:
            await ready(lambda: _warm(url), "the warm baseline of every GPU")
            actuators = {"edge": build_actuator(started.gateway)}
            async with watching(url, at_gateway(names, started.prefix), actuators, folder, tick_s) as loop:
                seconds = []
                for number in range(trials):
                    victim = number % ENGINES
                    await asyncio.sleep(REST_S + phases.uniform(0.0, max(tick_s, SAMPLED_EVERY_S)))
                    begun = time.monotonic()
                    full(victim)
                    await until(started.touched, names[victim], True)
                    seconds.append(time.monotonic() - begun)
                    full(None)
                    await give_back(loop, names[victim], started)
    return {"trials": trials, "sampled_every_s": SAMPLED_EVERY_S, "fault_to_weight_seconds": summary(seconds)}


async def _warm(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as client:
        document = (await client.get(f"{url}/healthz")).json()
    checks = [backend["checks"].get("gpu_memory") for backend in document["backends"]]
    return all(check is not None and check["value"] is not None for check in checks)


@contextlib.asynccontextmanager
async def an_exporter(folder: Path, backends: list[dict[str, Any]], settings: Mapping[str, Any]) -> AsyncIterator[str]:
    """``tailkeeper exporter`` over ``backends``, in a process of its own: its URL."""
    from tailkeeper_demo.processes import free_port

    address = f"127.0.0.1:{free_port()}"
    config = folder / f"exporter-{address.rpartition(':')[2]}.yaml"
    config.write_text(json.dumps({"backends": backends, "exporter": {**settings, "listen": address}}))
    command = [sys.executable, "-m", "tailkeeper.cli", "exporter", "-c", str(config)]
    async with program(command, folder, lambda: True):
        await ready(lambda: answers(f"http://{address}/readyz"), "the exporter's start")
        yield f"http://{address}"


async def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=1.0) as client:
            return (await client.get(url)).status_code == 200
    except httpx.HTTPError:
        return False


class LatencyPages(PageServer):
    """Pages on which every backend answers quickly, and one late from a known moment on. Each page tells of new requests."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.late: str | None = None
        self._counts = {name: {QUICK_S: 0, LATE_S: 0, inf: 0} for name in names}

    def page(self) -> str:
        lines = []
        for name, counts in self._counts.items():
            for bound in counts:
                if bound >= (LATE_S if name == self.late else QUICK_S):
                    counts[bound] += AT_A_TIME
            lines += _lines(name, counts)
        return "\n".join([*lines, ""])


def _lines(name: str, counts: Mapping[float, int]) -> list[str]:
    labels = f'backend="{name}",model="m"'
    buckets = [f'{TTFT.name}_bucket{{{labels},le="{"+Inf" if b == inf else b}"}} {n}' for b, n in counts.items()]
    total = counts[QUICK_S] * QUICK_S + (counts[inf] - counts[QUICK_S]) * LATE_S
    states = [f'{BACKEND_STATE.name}{{backend="{name}",state="{s}"}} {int(s == State.SERVING)}' for s in State]
    return [*states, *buckets, f"{TTFT.name}_sum{{{labels}}} {total}", f"{TTFT.name}_count{{{labels}}} {counts[inf]}"]


async def shedding(trials: int, tick_s: float, folder: Path, phases: random.Random) -> dict[str, Any]:
    """Seconds from the broken page to the tap's new level. Raises TimeoutError where it never came."""
    from tailkeeper_demo.processes import free_port

    trials = min(trials, MAX_SHEDDING_TRIALS)
    names = tuple(f"pool-{number:02d}" for number in range(trials))
    taps = [
        {"name": n, "engine": "generic", "url": "http://127.0.0.1:1", "tap": {"listen": f"127.0.0.1:{free_port()}"}}
        for n in names
    ]
    pages, seconds = LatencyPages(names), []
    async with (
        an_exporter(folder, taps, {"gpu": {"source": "none"}}) as url,
        httpx.AsyncClient(trust_env=False) as client,
        await asyncio.start_server(pages.answer, "127.0.0.1", 0) as server,
    ):

        async def shed(name: str) -> bool:
            document = json.loads((await client.get(f"{url}/api/v1/taps/{name}")).content)
            return float(document["degrade_level"]) > 0

        backends = tuple(Backend(n, "m", (Target("tap", n, n),)) for n in names)
        actuators = {"tap": build_actuator(TapGateway(name="tap", kind="tap", urls=(url,)))}
        page_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with watching(page_url, backends, actuators, folder, tick_s):
            await asyncio.sleep(WARM_UP_S)
            for name in names:
                await asyncio.sleep(phases.uniform(0.0, tick_s))
                begun = time.monotonic()
                pages.late = name
                await until(shed, name, True, TAP_EVERY_S)
                seconds.append(time.monotonic() - begun)
    return {"trials": trials, "broken_page_to_level_seconds": summary(seconds)}
