"""``tailkeeper bench``: the project's own benchmarks. They print figures and never decide a test.

``tick`` and ``loop`` run the real loop with the real ledger; ``loop`` uses a real HAProxy where there is one.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping
from importlib import resources
from math import inf
from pathlib import Path
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Reading, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import Actuator, ServerState, Support
from tailkeeper_watchdog.app import few_collections
from tailkeeper_watchdog.collect.base import Collected, Source
from tailkeeper_watchdog.core import PolicySetting, Rules
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.insights import Insights
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.loop import Loop, Parts
from tailkeeper_watchdog.model import SERVE, Backend, BackendObservation, Knob, KnobValue, Mode, Slo, Target
from tailkeeper_watchdog.policies.gpu_health_gate import GpuHealthGateParams
from tailkeeper_watchdog.reconcile import Reconciler
from tailkeeper_watchdog.settings import GuardsSettings, Weights
from tailkeeper_watchdog.slo.tiers import tiers_of
from tailkeeper_watchdog.switches import Switches
from tailkeeper_watchdog.weighing import Weighing

POOL_SIZE = 20
"""Backends of one pool in the synthetic fleet: one model on one gateway, as fleets are cut in practice."""
SICK_SHARE = 0.01
"""Hung throughout; beside them one more backend falls ill and one recovers at every tick."""
WARM_UP_TICKS = 15
"""Ticks before the clock runs: until histories are full, so that a tick costs what it always costs."""


def summary(seconds: list[float]) -> dict[str, float]:
    """p50, p99 (lower rank) and max of durations in seconds."""
    ordered = sorted(seconds)
    return {"p50": ordered[(len(ordered) - 1) // 2], "p99": ordered[int(0.99 * (len(ordered) - 1))], "max": ordered[-1]}


def rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class SyntheticSource:
    """Observations of a fleet that serves, of which a few are hung; every counter and histogram moves at each tick."""

    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  synthetic load, not a secret
        self._names = names
        self._sick = frozenset(self._random.sample(names, int(SICK_SHARE * len(names))))
        self._passing = names[0]
        self._bounds = tuple(sorted((*catalog.LATENCY_BUCKETS, inf)))
        means = {catalog.TTFT: 0.2, catalog.ITL: 0.02, catalog.LATENCY: 4.0}
        # Evenly spread about their mean, and so within the default SLO: nearly all of a fleet is well.
        self._shapes = [(m.name, mean_s, [min(1.0, b / (2 * mean_s)) for b in self._bounds]) for m, mean_s in means.items()]
        self._ticks = 0
        self._next = Collected()

    def prepare(self, now: float) -> None:
        """Make the next round: making up a fleet is not part of a tick."""
        self._ticks += 1
        self._passing = self._random.choice(self._names)
        self._next = Collected({name: self._one(name, now) for name in self._names})

    async def collect(self, now: float, deadline_s: float) -> Collected:
        return self._next

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        self._names = backends

    def _one(self, name: str, now: float) -> BackendObservation:
        sick = name in self._sick or name == self._passing
        done = 10.0 * self._ticks
        values = {
            f"{catalog.REQUESTS.name}{{ok}}": done,
            f"{catalog.REQUESTS.name}{{error}}": 0.0,
            catalog.GENERATED_TOKENS.name: 200 * done,
            catalog.PREEMPTIONS.name: 0.0,
            catalog.KV_QUERIES.name: 100 * done,
            catalog.KV_HITS.name: 90 * done,
            catalog.RUNNING.name: 8.0,
            catalog.WAITING.name: 1.0,
            catalog.KV_USAGE.name: 0.5,
            catalog.VRAM_PRESSURE.name: 0.5,
            catalog.CPU_USAGE.name: 0.3,
        }
        readings: dict[str, Reading[float]] = {key: present(value, now) for key, value in values.items()}
        histograms = {
            name: Histogram(self._bounds, tuple(done * s for s in shape), mean_s * done) for name, mean_s, shape in self._shapes
        }
        return BackendObservation(name, State.HUNG if sick else State.SERVING, 0.0, None, readings, histograms)

    async def close(self) -> None:
        return None


class MemoryGateway:
    """A gateway in memory, so that the tick is timed and not the network."""

    name = "edge"
    kind = "memory"

    def __init__(self) -> None:
        self._values: dict[str, dict[Knob, KnobValue]] = {}

    def supports(self, knob: Knob) -> Support:
        return Support(knob in (Knob.WEIGHT, Knob.ADMISSION), "")

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        for server in servers:
            self._values.setdefault(server, {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE})
        return {server: ServerState(self._values[server]) for server in servers}

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        self._values[server] = {**self._values[server], **values}

    async def close(self) -> None:
        return None


def build_loop(
    backends: tuple[Backend, ...], source: Source, actuators: Mapping[str, Actuator], ledger: Ledger, tick_s: float
) -> Loop:
    """A loop as ``tailkeeper watchdog`` builds it, with the gate enforced and short times, and all that hears of its ticks."""
    log = DecisionLog(ledger, time.time)
    slo = Slo()
    insights = Insights(tiers_of((), slo), slo.objective)
    guards = GuardsSettings(cooldown_s=1, return_ramp_s=0, lease_s=60)
    return Loop(
        Parts(
            fleet=lambda: backends,
            source=source,
            reconciler=Reconciler(actuators, ledger, log, guards.lease_s, time.time),
            ledger=ledger,
            decisions=log,
            switches=Switches(ledger, None, time.time),
            rules=Rules(
                slo, Weights().model_dump(), {"gpu_health_gate": PolicySetting(Mode.ENFORCE, GpuHealthGateParams())}, 3.0
            ),
            weighing=Weighing(ledger, Weights().model_dump(), time.time),
            guards=guards,
            tick_s=tick_s,
        ),
        insights.note,
    )


def tick_bench(backends: int, ticks: int, seed: int) -> dict[str, Any]:
    """Whole ticks, ledger and all, over a fleet in memory. One percent of the backends is hung at any tick."""
    few_collections()
    return asyncio.run(_tick_bench(backends, ticks, seed))


async def _tick_bench(count: int, ticks: int, seed: int) -> dict[str, Any]:
    names = tuple(f"backend-{i:05d}" for i in range(count))
    fleet = tuple(Backend(n, "m", (Target("edge", n, f"pool-{i // POOL_SIZE}"),)) for i, n in enumerate(names))
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.db")
        source = SyntheticSource(names, seed)
        loop = build_loop(fleet, source, {"edge": MemoryGateway()}, ledger, 5.0)
        shift = 0.0
        loop.parts = _with_clock(loop.parts, lambda: time.monotonic() + shift)
        seconds: list[float] = []
        for number in range(WARM_UP_TICKS + ticks):
            shift += 5.0  # five seconds pass between ticks, so that windows fill as they do in life
            source.prepare(loop.parts.monotonic())
            started = time.perf_counter()
            record = await loop.tick()
            elapsed = time.perf_counter() - started
            if record.error is not None:
                raise RuntimeError(record.error)
            if number >= WARM_UP_TICKS:
                seconds.append(elapsed)
        ledger.close()
    gc.collect()
    return {"backends": count, "ticks": ticks, "tick_seconds": summary(seconds), "rss_bytes": rss_bytes()}


def _with_clock(parts: Parts, monotonic: Any) -> Parts:
    from dataclasses import replace

    return replace(parts, monotonic=monotonic)


def exporter_bench(seconds: float) -> dict[str, Any]:
    """Parsing against ``prometheus_client`` in one run, and CPU per backend at one read a second."""
    from tailkeeper_exporter.bench import bench_parse
    from tailkeeper_exporter.bench_loop import bench_exporter

    page = (resources.files("tailkeeper") / "bench_page.prom").read_bytes()
    return {"parse": bench_parse(page, 20), "loop": bench_exporter(4, seconds)}


def loop_bench(trials: int, tick_s: float, seed: int) -> dict[str, Any]:
    """Fault to weight: from the page that says hung to the drain read at the gateway by an independent eye."""
    from tailkeeper.bench_reaction import run

    haproxy = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    return asyncio.run(run(trials, tick_s, seed, haproxy))
