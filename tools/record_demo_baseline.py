"""Records the drift baseline that the demo ships with, from the demo's own engines.

    python tools/record_demo_baseline.py [--out demo/tailkeeper_demo/baselines.json]

The engines are those of the demo, with its driver, its trace and its rates; only their clock is simulated, so that hours pass
in a minute and the file is the same wherever it is made. Besides the demo's usual rate it records the higher ones that an
engine gets while its siblings are out, and the lower ones of an engine that gets half of its share: a load that a baseline
never saw is a load under which ``block_e`` abstains.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from tailkeeper_demo.engine import Engine
from tailkeeper_demo.engine_driver import EngineDriver
from tailkeeper_demo.engine_stats import FinishReason
from tailkeeper_demo.engine_types import Arrival, EngineParams
from tailkeeper_demo.faults import Fault
from tailkeeper_demo.stack import ENGINES, MODEL, REQUESTS_PER_S
from tailkeeper_demo.trace import arrivals, load_trace
from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.baseline_set import BaselineSet, Form
from tailkeeper_watchdog.drift import AS_WRITTEN, BucketReading, bucket_baseline
from tailkeeper_watchdog.drift.bucket_blocks import BucketBlock, BucketCutter

BLOCK_S = AS_WRITTEN.block_s
"""That design rather than the paced one: its evidence may grow faster, and a story lasts three minutes."""
SEED = 101
SHARES = ((1.0, 2 * 3_600.0), (1.35, 1_800.0), (0.5, 3_600.0), (2.0, 900.0), (3.0, 300.0))
"""How much of its usual rate an engine gets, and for how long (seconds)."""
CREATED_S = 1_767_225_600.0
"""A fixed date (2026-01-01), so that the file does not change with the day on which it is made."""
OUT = Path(__file__).parents[1] / "demo" / "tailkeeper_demo" / "baselines.json"


@dataclass(order=True)
class _Timer:
    at_s: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class SimulatedClock:
    """What a driver uses of an event loop, with time that passes only when nothing is left to do."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._now_s

    def call_at(self, when: float, callback: Callable[[], None], /) -> _Timer:
        timer = _Timer(max(when, self._now_s), next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, callback: Callable[[], None], /) -> _Timer:
        return self.call_at(self._now_s, callback)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> _Timer:
        return self.call_at(self._now_s + delay, callback)

    def run_until(self, end_s: float) -> None:
        while self._timers and self._timers[0].at_s <= end_s:
            timer = heapq.heappop(self._timers)
            self._now_s = timer.at_s
            if not timer.is_cancelled:
                timer.callback()
        self._now_s = end_s


class SimulatedEngine:
    """One engine under the trace at ``rate_per_s``, read as the exporter reads it."""

    def __init__(self, seed: int, rate_per_s: float, duration_s: float) -> None:
        self.clock = SimulatedClock()
        self.engine = Engine(EngineParams(), random.Random(seed))  # noqa: S311  simulated noise, not a secret
        self.driver = EngineDriver(self.engine, self.clock, lambda tokens: None, lambda: None)
        rows = arrivals(load_trace(), rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)
        for number, row in enumerate(rows):
            request = Arrival(str(number), row.prompt_tokens, row.output_tokens, FinishReason.STOP, row.at_s)
            self.clock.call_at(row.at_s, lambda request=request: self.driver.submit(request))  # type: ignore[misc]

    def read(self) -> BucketReading:
        stats, gauges = self.engine.stats, self.engine.gauges
        counts = tuple(float(count) for count in stats.ttft_s.cumulative())
        histogram = Histogram((*stats.ttft_s.bounds, inf), counts, stats.ttft_s.total)
        return BucketReading(self.clock.time(), histogram, gauges.running, gauges.waiting, float(stats.generation_tokens))

    def slow(self, fault: Fault | None) -> None:
        self.driver.set_fault(fault)


def record(seed: int, share: float, duration_s: float) -> list[BucketBlock]:
    """The blocks of the demo's engines for so long, at that share of their usual rate."""
    blocks: list[BucketBlock] = []
    for number in range(ENGINES):
        simulated = SimulatedEngine(seed + number, share * REQUESTS_PER_S / ENGINES, duration_s)
        cutter = BucketCutter(BLOCK_S, 1)
        for step in range(1, int(duration_s / BLOCK_S)):
            simulated.clock.run_until(step * BLOCK_S)
            block = cutter.add(simulated.read())
            if block is not None:
                blocks.append(block)
    return blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    out: Path = parser.parse_args().out
    blocks: list[BucketBlock] = []
    for number, (share, duration_s) in enumerate(SHARES):
        blocks.extend(record(SEED + 10 * number, share, duration_s))
    baseline = bucket_baseline(blocks, model_id=MODEL, created_at_s=CREATED_S, design=AS_WRITTEN)
    document = BaselineSet({}, {(MODEL, Form.BUCKETS): baseline}).document()
    out.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{out}: {len(blocks)} blocks, {baseline.requests} requests, limits {baseline.limits_s} s, fit {baseline.fit_ratio}")


if __name__ == "__main__":
    main()
