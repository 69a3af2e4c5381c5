"""A fleet in memory for the benchmark of ticks: what its exporters say, a gateway, and what was learned of it before.

It stands in for sockets and nothing else: what a tick does with a page once it is read is done here too.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping
from math import ceil, inf

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Reading, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.collect.base import Collected, LastWord
from tailkeeper_watchdog.drift import BLOCK_E, BucketBaseline
from tailkeeper_watchdog.drift.bucket_blocks import BucketBlock
from tailkeeper_watchdog.drift.bucket_e import bucket_baseline
from tailkeeper_watchdog.drift.design import MIN_BASELINE_BLOCKS
from tailkeeper_watchdog.model import SERVE, BackendObservation, GpuObservation, Knob, KnobValue, RequestRecord

MODEL = "m"
SICK_SHARE = 0.01
"""Hung throughout; beside them one more backend falls ill and one recovers at every tick."""
TELLING_SHARE = 0.02
"""Backends that tell of single requests, as those behind a tap or with spans do; of the others there are buckets alone."""
REQUESTS_PER_S = (1.0, 3.0)
"""Of one backend, which stays at its own rate: at one rate for all, everything that counts requests would fall due at once."""
MEANS_S = {
    catalog.TTFT.name: 0.2,
    catalog.ITL.name: 0.02,
    catalog.LATENCY.name: 4.0,
    catalog.QUEUE_TIME.name: 0.01,
    catalog.PREFILL_TIME.name: 0.19,
    catalog.DECODE_TIME.name: 3.8,
}
"""The histograms that vLLM publishes."""
_BOUNDS = tuple(sorted((*catalog.LATENCY_BUCKETS, inf)))
_MODELS = frozenset({MODEL})


class SyntheticSource:
    """A fleet that serves, of which a few are hung; every counter and histogram moves at each tick, and some tell of requests."""

    def __init__(self, names: tuple[str, ...], seed: int, stale_after_s: float) -> None:
        self._random = random.Random(seed)  # noqa: S311  synthetic load, not a secret
        self._names = names
        self._sick = frozenset(self._random.sample(names, int(SICK_SHARE * len(names))))
        self._telling = tuple(self._random.sample(names, ceil(TELLING_SHARE * len(names))))
        self._passing = names[0]
        # Evenly spread about their mean, and so within the default SLO: nearly all of a fleet is well.
        self._shares = np.array([[min(1.0, b / (2 * mean_s)) for b in _BOUNDS] for mean_s in MEANS_S.values()])
        self._rates = {name: self._random.uniform(*REQUESTS_PER_S) for name in names}
        self._elapsed_s = 0.0
        self._last = LastWord(names, stale_after_s)
        self._records: tuple[RequestRecord, ...] = ()

    def prepare(self, monotonic: Callable[[], float], wall: float, elapsed_s: float) -> None:
        """What the exporters' pages say now: making up a fleet is not part of a tick, and neither is reading its pages."""
        now = monotonic()
        self._elapsed_s += elapsed_s
        self._passing = self._random.choice(self._names)
        done = [float(int(self._rates[name] * self._elapsed_s)) for name in self._names]
        observations = {name: self._one(name, now, finished) for name, finished in zip(self._names, done, strict=True)}
        self._records = tuple(
            self._request(name, wall) for name in self._telling for _ in range(int(self._rates[name] * elapsed_s))
        )
        # Making this up takes seconds on a busy machine, which the evidence must not have aged by.
        self._last.hear(observations, dict.fromkeys(self._names, monotonic()))

    async def collect(self, now: float, deadline_s: float) -> Collected:
        return Collected(self._last.tell(now, {}, ""), self._records)

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        self._names = backends
        self._last.follow(backends, new, now)

    def _one(self, name: str, now: float, done: float) -> BackendObservation:
        sick = name in self._sick or name == self._passing
        values = {
            f"{catalog.REQUESTS.name}{{ok}}": done,
            f"{catalog.REQUESTS.name}{{error}}": 0.0,
            catalog.PROMPT_TOKENS.name: 800 * done,
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
        counted = np.floor(done * self._shares).tolist()  # whole requests, as engines count them
        histograms = {
            metric: Histogram(_BOUNDS, array("d", counts), mean_s * done)
            for (metric, mean_s), counts in zip(MEANS_S.items(), counted, strict=True)
        }
        state = State.HUNG if sick else State.SERVING
        return BackendObservation(name, state, 0.0, None, readings, histograms, (_gpu(name, now),), (), _MODELS)

    def _request(self, name: str, wall: float) -> RequestRecord:
        ttft_s = self._random.uniform(0.0, 2 * MEANS_S[catalog.TTFT.name])
        return RequestRecord(
            name, "ok", ttft_s, 0.02, ttft_s + 4.0, wall - 5.0 - ttft_s, 0.01, ttft_s - 0.01, 800, 700, 200, 8, 1, 4_000, MODEL
        )

    async def close(self) -> None:
        return None


def _gpu(backend: str, now: float) -> GpuObservation:
    return GpuObservation(
        f"GPU-{backend}",
        sample_age_s=present(0.5, now),
        utilization_ratio=present(0.7, now),
        memory_used_bytes=present(70e9, now),
        memory_total_bytes=present(141e9, now),
        fragmentation_ratio=present(0.1, now),
        pcie_ratio=present(0.2, now),
        nvlink_ratio=present(0.2, now),
        temperature_celsius=present(60.0, now),
        sm_clock_hz=present(1.9e9, now),
    )


def drift_baseline(seed: int) -> BucketBaseline:
    """A baseline of the synthetic fleet's model over buckets, so that every backend's test is at work."""
    chance = random.Random(seed)  # noqa: S311  synthetic load, not a secret
    requests, blocks = float(BLOCK_E.block_rows), []
    for _ in range(2 * MIN_BASELINE_BLOCKS):
        mean_s = chance.uniform(0.19, 0.21)
        histogram = Histogram(_BOUNDS, tuple(requests * min(1.0, b / (2 * mean_s)) for b in _BOUNDS), requests * mean_s)
        blocks.append(BucketBlock(histogram, (chance.uniform(1, 16), chance.uniform(0, 4), chance.uniform(100.0, 1000.0))))
    return bucket_baseline(blocks, model_id=MODEL, created_at_s=0.0)


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
