"""``bench replay``: how much faster than life ``tailkeeper replay --records`` computes a recorded fleet again.

The records are made here, by the loop that a watchdog runs over the synthetic fleet of ``bench tick``; then the command itself is
run on them, as a user runs it, in a process of its own. All of it must come out the same, or the run fails. Without drift
baselines, which are not in a record.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailkeeper.bench import POOL_SIZE, RECORDS_BYTES, STALE_AFTER_S, TICK_S, Passed, build_loop
from tailkeeper.bench_fleet import MODEL, MemoryGateway, SyntheticSource
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Backend, Target
from tailkeeper_watchdog.records.file import Recorder
from tailkeeper_watchdog.records.in_force import written_down

LIMIT_S = 600.0
"""Of one replay."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A history to be replayed. Ticks are 5 s apart, the default."""

    backends: int
    ticks: int


SIZES = (Recorded(1, 1), Recorded(20, 360), Recorded(200, 60), Recorded(1_000, 20))
"""One tick, which says what the start of the command costs; half an hour, five minutes, and somewhat less than two."""


def replay_bench(seed: int, sizes: tuple[Recorded, ...] = SIZES) -> dict[str, Any]:
    """Figures of each size, rates by CPU time. Raises RuntimeError where a replay fails or does not come out the same."""
    return {"tick_s": TICK_S, "sizes": [_size(size, seed) for size in sizes]}


def _size(size: Recorded, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tk-") as name:
        file = Path(name) / "bench.records"
        asyncio.run(_record(size, seed, file))
        wall_s, cpu_s, report = _replayed(file)
        compared = report["compared"]
        if compared["same"] != size.ticks or compared["differences"]:
            raise RuntimeError(f"{compared['same']} of {size.ticks} ticks came out the same: {compared['differences'][:1]}")
        simulated_s = TICK_S * size.ticks
        return {
            "backends": size.backends,
            "ticks": size.ticks,
            "simulated_s": simulated_s,
            "records_bytes": file.stat().st_size,
            "wall_s": round(wall_s, 2),
            "cpu_s": round(cpu_s, 2),
            "times_real_time": round(simulated_s / cpu_s, 1),
            "backend_ticks_per_second": round(size.backends * size.ticks / cpu_s),
        }


async def _record(size: Recorded, seed: int, file: Path) -> None:
    """The records of a watchdog over so many ticks. Raises RuntimeError where one failed or was not kept."""
    names = tuple(f"backend-{i:05d}" for i in range(size.backends))
    fleet = tuple(Backend(n, MODEL, (Target("edge", n, f"pool-{i // POOL_SIZE}"),)) for i, n in enumerate(names))
    source, passed, ledger = SyntheticSource(names, seed, STALE_AFTER_S), Passed(), Ledger(":memory:")
    loop = build_loop(fleet, source, {"edge": MemoryGateway()}, ledger, TICK_S, passed.clocks())
    configuration = written_down(loop.parts.rules, loop.parts.guards, TICK_S)
    recorder = Recorder(file, RECORDS_BYTES, configuration, "bench", loop.parts.monotonic)
    for _ in range(size.ticks):
        passed.seconds += TICK_S
        source.prepare(loop.parts.monotonic, loop.parts.wall(), TICK_S)
        with passed.running():
            record = await loop.tick()
        if record.error is not None:
            raise RuntimeError(record.error)
        recorder.offer(record, loop.inputs)
        recorder.settle()
    recorder.close()
    ledger.close()
    if recorder.lost:
        raise RuntimeError(f"{recorder.lost} ticks were not recorded")


def _replayed(file: Path) -> tuple[float, float, dict[str, Any]]:
    """Wall and CPU seconds of the command, its start included, and what it printed. Raises RuntimeError."""
    command = [sys.executable, "-m", "tailkeeper.cli", "replay", "--records", str(file), "--json"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)  # noqa: S603  our own program
    took_s, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"replay ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s, cpu_s, json.loads(done.stdout)
