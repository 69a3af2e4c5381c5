"""``tailkeeper bench``: the project's own benchmarks. They print figures and never decide a test.

``tick`` and ``loop`` run the real loop with the real ledger; ``loop`` uses a real HAProxy where there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tailkeeper.bench_fleet import MODEL, MemoryGateway, SyntheticSource, drift_baseline
from tailkeeper_watchdog.actuators.contract import Actuator
from tailkeeper_watchdog.alerting import Context, Links, alerts_for, lately_closed
from tailkeeper_watchdog.api.page import TickDurations
from tailkeeper_watchdog.baseline_set import BaselineSet, Form
from tailkeeper_watchdog.collect.base import Source
from tailkeeper_watchdog.core import Memory, PolicySetting, Rules
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.detectors import block_e
from tailkeeper_watchdog.happenings.teller import Teller
from tailkeeper_watchdog.insights import Insights
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.loop import Loop, Parts
from tailkeeper_watchdog.model import Backend, Knob, Mode, Slo, Target, TickRecord
from tailkeeper_watchdog.notify import Notifier
from tailkeeper_watchdog.policies import context_length_routing
from tailkeeper_watchdog.reconcile import Reconciler
from tailkeeper_watchdog.records.file import Recorder
from tailkeeper_watchdog.records.in_force import written_down
from tailkeeper_watchdog.settings import GuardsSettings, PoliciesSettings, Weights
from tailkeeper_watchdog.slo.tiers import tiers_of
from tailkeeper_watchdog.switches import Switches
from tailkeeper_watchdog.tidying import Tidying, few_collections
from tailkeeper_watchdog.weighing import Weighing

POOL_SIZE = 20
"""Backends of one pool in the synthetic fleet: one model on one gateway, as fleets are cut in practice."""
TICK_S = 5.0
WARM_UP_S = (*[30.0] * 12, *[TICK_S] * 15)
"""Time between the ticks before the clock runs: six minutes in a hurry, until every detector has something to compare with,
and one at the pace of the ticks, until histories are full. From then on a tick costs what it always costs."""

RECORDED_AHEAD = 3
"""Ticks before the clock runs that are recorded too: the first is written as a whole, and of the others nothing is asked."""

STALE_AFTER_S = 3.0
LEASE_S = 60.0
"""A fifth of the default: leases are renewed five times as often as in life."""
RECORDS_BYTES = 64 * 1024 * 1024
"""The default of ``watchdog.records.max_bytes``."""
CONSOLE = "http://127.0.0.1:1"
"""Nobody listens there, and nothing is sent: the sender is not started."""


@dataclass(frozen=True, slots=True)
class Clocks:
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


REAL_CLOCKS = Clocks()


@dataclass(slots=True)
class Passed:
    """Time that is said to have passed between two ticks, so that windows fill and leases run as they do in life.

    Only within a tick the clock runs. While pages are made up it stands: that takes longer than a fleet of thousands has between
    two ticks, and everything that is due every ten seconds would be due at each.
    """

    seconds: float = 0.0
    _running_since: float | None = None

    def clocks(self) -> Clocks:
        monotonic, wall = time.monotonic(), time.time()
        return Clocks(lambda: monotonic + self._now(), lambda: wall + self._now())

    def _now(self) -> float:
        return self.seconds + (0.0 if self._running_since is None else time.monotonic() - self._running_since)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While within, time passes as it does; afterwards it is again what it was said to be."""
        self._running_since = time.monotonic()
        try:
            yield
        finally:
            self._running_since = None


def summary(seconds: list[float]) -> dict[str, float]:
    """p50, p99 (lower rank) and max of durations in seconds."""
    ordered = sorted(seconds)
    return {"p50": ordered[(len(ordered) - 1) // 2], "p99": ordered[int(0.99 * (len(ordered) - 1))], "max": ordered[-1]}


def rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def build_loop(
    backends: tuple[Backend, ...],
    source: Source,
    actuators: Mapping[str, Actuator],
    ledger: Ledger,
    tick_s: float,
    clocks: Clocks = REAL_CLOCKS,
    drift: BaselineSet | None = None,
    on_tick: Callable[[TickRecord], None] | None = None,
    teller: Teller | None = None,
) -> Loop:
    """A loop as ``tailkeeper watchdog`` builds it, with the gate enforced and short times; insights hear of its ticks."""
    log = DecisionLog(ledger, clocks.wall, (teller or Teller()).hear)
    guards, slo = GuardsSettings(cooldown_s=1, return_ramp_s=0, lease_s=LEASE_S), Slo()
    return Loop(
        Parts(
            fleet=lambda: backends,
            source=source,
            reconciler=Reconciler(actuators, ledger, log, guards.lease_s, clocks.wall),
            ledger=ledger,
            decisions=log,
            switches=Switches(ledger, None, clocks.wall),
            rules=Rules(
                slo,
                Weights().model_dump(),
                {name: PolicySetting(Mode.ENFORCE, s.params) for name, s in PoliciesSettings()},
                STALE_AFTER_S,
            ),
            weighing=Weighing(ledger, Weights().model_dump(), clocks.wall),
            guards=guards,
            tick_s=tick_s,
            monotonic=clocks.monotonic,
            wall=clocks.wall,
            memory=Memory(detectors={block_e.DETECTOR.name: block_e.Memory(given=drift or BaselineSet())}),
        ),
        on_tick or Insights(tiers_of((), slo), slo.objective).note,
    )


class Listeners:
    """All that hears of a tick in a watchdog: the histogram of its duration, the records, the notifications, what happened, the
    insights. ``teller`` hears the decisions of ``loop``."""

    def __init__(self, loop: Loop, folder: Path, teller: Teller) -> None:
        self._loop, self._teller = loop, teller
        self._durations = TickDurations()
        parts, slo = loop.parts, loop.parts.rules.slo
        configuration = written_down(parts.rules, parts.guards, parts.tick_s)
        self.recorder = Recorder(folder / "ledger.records", RECORDS_BYTES, configuration, "bench")
        self._notifier = Notifier(CONSOLE)
        self._insights = Insights(tiers_of((), slo), slo.objective)
        self.recording = False

    def note(self, record: TickRecord) -> None:
        loop, book = self._loop, self._loop.memory.book
        self._durations.observe(record.duration_s)
        findings = (*book.open_findings, *self._notifier.owed(lately_closed(book, record.time_unix_s)))
        context = Context.of(record, loop.fleet.backends, loop.parts.ledger.leases, Links(CONSOLE), {})
        self._notifier.offer(alerts_for(findings, context), loop.fleet.names)
        self._teller.tell(record, book.closed)
        self._insights.note(record)
        if self.recording:
            self.recorder.offer(record, loop.inputs)

    async def close(self) -> None:
        await self._notifier.close()
        self.recorder.close()


Say = Callable[[str], None]


def tick_bench(backends: int, ticks: int, seed: int, say: Say = lambda text: None) -> dict[str, Any]:
    """Whole ticks, ledger and all, over a fleet in memory. One percent of the backends is hung at any tick. ``say`` is told how
    far it is."""
    few_collections()
    return asyncio.run(_tick_bench(backends, ticks, seed, say))


async def _tick_bench(count: int, ticks: int, seed: int, say: Say) -> dict[str, Any]:
    names = tuple(f"backend-{i:05d}" for i in range(count))
    fleet = tuple(Backend(n, MODEL, (Target("edge", n, f"pool-{i // POOL_SIZE}"),)) for i, n in enumerate(names))
    source, passed = SyntheticSource(names, seed, STALE_AFTER_S), Passed()
    drift = BaselineSet(models={(MODEL, Form.BUCKETS): drift_baseline(seed)})
    seconds: list[float] = []
    cpu: list[float] = []
    recording: list[float] = []
    tidying: list[float] = []
    tidy = Tidying()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = Ledger(folder / "ledger.db")
        gateway = MemoryGateway()
        clocks, teller = passed.clocks(), Teller()
        await hold_all(fleet, gateway, ledger, clocks.wall())
        loop = build_loop(
            fleet, source, {"edge": gateway}, ledger, TICK_S, clocks, drift, lambda record: listeners.note(record), teller
        )
        listeners = Listeners(loop, folder, teller)
        for number, elapsed_s in enumerate((*WARM_UP_S, *[TICK_S] * ticks)):
            say(f"{count:,} backends, tick {number + 1} of {len(WARM_UP_S)} to warm up and {ticks} to measure")
            listeners.recording = number >= len(WARM_UP_S) - RECORDED_AHEAD
            passed.seconds += elapsed_s
            source.prepare(loop.parts.monotonic, loop.parts.wall(), elapsed_s)
            with passed.running():
                began = time.thread_time()
                seconds.append(await _timed_tick(loop))
                cpu.append(time.thread_time() - began)
            started = time.perf_counter()
            tidy()
            tidying.append(time.perf_counter() - started)
            started = time.perf_counter()
            listeners.recorder.settle()  # in life it has until the next tick, and a core of its own
            recording.append(time.perf_counter() - started)
        lost = listeners.recorder.lost
        await listeners.close()
        ledger.close()
    if lost:
        raise RuntimeError(f"{lost} ticks were not recorded: what was timed is less than a tick")
    gc.collect()
    parts = {"tick_seconds": seconds, "tick_cpu_seconds": cpu, "tidying_seconds": tidying, "recording_seconds": recording}
    measured = {name: summary(of_part[-ticks:]) for name, of_part in parts.items()}
    return {"backends": count, "ticks": ticks, **measured, "rss_bytes": rss_bytes()}


async def hold_all(fleet: tuple[Backend, ...], gateway: MemoryGateway, ledger: Ledger, wall: float) -> None:
    """Each backend's weight as a watchdog has it that runs for a day: changed long ago, to be renewed by turns.

    By the few changes of each tick a fleet of thousands would be there after a quarter of an hour.
    """
    reason, half_s = "KV cache 50% in use", LEASE_S / 2
    with ledger.together():
        for number, backend in enumerate(fleet):
            expires, target = wall + half_s * (1 + number / len(fleet)), backend.targets[0]
            held = ledger.intend(backend.name, target, Knob.WEIGHT, context_length_routing.NAME, 1.0, 0.5, reason, wall, expires)
            ledger.confirm(held.id, 0.5)
    await gateway.read(tuple(b.targets[0].server for b in fleet), 1.0)
    for backend in fleet:
        await gateway.write(backend.targets[0].server, {Knob.WEIGHT: 0.5}, 1.0)


async def _timed_tick(loop: Loop) -> float:
    started = time.perf_counter()
    record = await loop.tick()
    elapsed_s = time.perf_counter() - started
    if record.error is not None:
        raise RuntimeError(record.error)
    return elapsed_s


def exporter_bench(seconds: float) -> dict[str, Any]:
    """Parsing against ``prometheus_client`` in one run, and CPU per backend at one read a second."""
    from tailkeeper_exporter.bench import bench_parse
    from tailkeeper_exporter.bench_loop import bench_exporter

    page = (resources.files("tailkeeper") / "bench_page.prom").read_bytes()
    return {"parse": bench_parse(page, 20), "loop": bench_exporter(4, seconds)}


def loop_bench(trials: int, tick_s: float, seed: int, peers: bool = False) -> dict[str, Any]:
    """Fault to weight, GPU fault to weight, broken promise to shedding; with ``peers`` beside gateways' own ways to notice."""
    from tailkeeper.bench_reaction import run

    return asyncio.run(run(trials, tick_s, seed, peers))
