"""One hour of each backend in minutes: idle time, GPU use, requests, memory. Pure, and bounded: 60 minutes a backend.

``note`` is called at each tick and is cheap. Who asks takes a ``view``, which is cheap too, and computes from it in a thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median, pstdev

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.capacity.fit import Coupling, coupling
from tailkeeper_watchdog.model import BackendObservation, GpuObservation, Situation
from tailkeeper_watchdog.samples import OUTCOME_SLOT

MINUTES = 60
MINUTE_S = 60.0
LONGEST_STEP_S = 30.0
"""A longer time between two samples was not watched."""
LONGEST_MINUTE_S = 150.0
"""Counters further apart than this are not compared: a rate over a gap is nobody's rate."""
CONSOLIDATE_BELOW = 0.20
"""GPU use below which a backend is named as one whose work others could do."""
ENOUGH_S = 1_800.0
"""Half of the hour must have been seen before anybody is named so."""
FREE_SAMPLES = 6
"""Free memory of a device is a median over a minute of samples."""
SAMPLE_EVERY_S = 10.0
"""Often enough for an hour; a sample costs 3 µs a backend."""
MAX_DEVICES = 64
"""Of one backend; the catalogue's bound."""
_FINISHED = tuple(OUTCOME_SLOT[outcome] for outcome in ("ok", "error", "rejected"))
_RUNNING, _ITL = catalog.RUNNING.name, catalog.ITL.name


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one backend at monotonic ``at``. None is not known."""

    at: float
    requests: float | None
    gap_count: float | None
    gap_sum_s: float | None
    queries: float | None
    hits: float | None


@dataclass(slots=True)
class Minute:
    """What one minute showed. Seconds; ``known_s`` is the part of it in which it was seen whether anything ran."""

    known_s: float = 0.0
    idle_s: float = 0.0
    gpu_known_s: float = 0.0
    gpu_used_s: float = 0.0
    gpus: int = 0
    seconds: float = 0.0
    requests: float | None = None
    tpot_s: float | None = None
    queries: float = 0.0
    hits: float = 0.0


@dataclass(slots=True)
class _Hour:
    """The book's page of one backend. ``running`` is the minute that is not over yet."""

    minutes: deque[Minute] = field(default_factory=lambda: deque(maxlen=MINUTES))
    running: Minute = field(default_factory=Minute)
    began: Counters | None = None
    free: dict[str, deque[float]] = field(default_factory=dict)
    turned: int = 0
    fitted: tuple[int, Coupling | None] = (-1, None)
    """The line through the minutes as of so many turns: it changes once a minute and costs 0.1 ms."""

    def coupling(self, minutes: tuple[Minute, ...]) -> Coupling | None:
        if self.fitted[0] != self.turned:
            points = [(m.requests / m.seconds, m.tpot_s) for m in minutes if m.requests is not None and m.tpot_s is not None]
            self.fitted = (self.turned, coupling(points))
        return self.fitted[1]


@dataclass(frozen=True, slots=True)
class _Page:
    """What the book says of one backend at a moment."""

    name: str
    node: str
    seen: BackendObservation | None
    minutes: tuple[Minute, ...]
    free: Mapping[str, tuple[float, ...]]
    hour: _Hour


View = tuple[_Page, ...]
"""The whole book at a moment, in the order of the fleet."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is known of one backend over the last hour; None where it is not."""

    backend: str
    observed_s: float
    token_efficiency: float | None
    coupling: Coupling | None
    kv_hit_ratio: float | None
    idle_ratio: float | None
    gpu_use_ratio: float | None
    gpus: int | None
    requests: float | None
    gpu_seconds_per_request: float | None
    consolidate: bool | None


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free memory by node in bytes (mean over its devices of each one's median), and its spread over nodes."""

    by_node: Mapping[str, float]

    @property
    def spread_bytes(self) -> float | None:
        """Standard deviation over the nodes; None with fewer than two."""
        return pstdev(self.by_node.values()) if len(self.by_node) > 1 else None


def counters(seen: BackendObservation, at: float) -> Counters:
    finished = [value for slot in _FINISHED if (value := seen.value(slot)) is not None]
    gaps = seen.histograms.get(_ITL)
    return Counters(
        at=at,
        requests=sum(finished) if finished else None,
        gap_count=None if gaps is None else gaps.count,
        gap_sum_s=None if gaps is None else gaps.sum,
        queries=seen.value(catalog.KV_QUERIES.name),
        hits=seen.value(catalog.KV_HITS.name),
    )


class CapacityBook:
    """All backends' hours. One task writes; whoever reads gets values."""

    def __init__(self) -> None:
        self._hours: dict[str, _Hour] = {}
        self._last_at: float | None = None
        self._minute_at = float("-inf")

    def note(self, situation: Situation) -> None:
        """Account for one tick, where it is time for a sample."""
        now = situation.snapshot.now
        if self._last_at is not None and 0.0 <= now - self._last_at < SAMPLE_EVERY_S:
            return
        step = 0.0 if self._last_at is None else now - self._last_at
        self._last_at = now
        step = step if 0.0 < step <= LONGEST_STEP_S else 0.0
        ends = now - self._minute_at >= MINUTE_S
        if ends:
            self._minute_at = now
        heard = situation.heard
        for backend in situation.snapshot.backends:
            hour = self._hours.get(backend.name)
            if hour is None:
                hour = self._hours[backend.name] = _Hour()
            seen = heard.get(backend.name)
            if seen is not None:
                _live(hour, seen, step)
            if ends or hour.began is None:
                _turn(hour, seen, now, ends)

    def forget(self, gone: frozenset[str]) -> None:
        for name in gone:
            self._hours.pop(name, None)

    def view(self, situation: Situation) -> View:
        return tuple(
            _Page(
                b.name,
                b.labels.get("node") or b.name,
                situation.fresh(b.name),
                (*hour.minutes, hour.running),
                {uuid: tuple(samples) for uuid, samples in hour.free.items()},
                hour,
            )
            for b in situation.snapshot.backends
            if (hour := self._hours.get(b.name)) is not None
        )


def capacities(view: View) -> tuple[Capacity, ...]:
    return tuple(_capacity(page) for page in view)


def free_memory(view: View) -> FreeMemory:
    """A node is what the label ``node`` says, else the backend itself. A device that two backends share counts once."""
    nodes: dict[str, dict[str, float]] = {}
    for page in view:
        nodes.setdefault(page.node, {}).update({uuid: median(samples) for uuid, samples in page.free.items() if samples})
    return FreeMemory({node: sum(of_one.values()) / len(of_one) for node, of_one in nodes.items() if of_one})


def _live(hour: _Hour, seen: BackendObservation, step: float) -> None:
    """What can only be seen while it lasts: whether anything runs, and how busy the devices are."""
    minute, running = hour.running, seen.value(_RUNNING)
    if running is not None:
        minute.known_s += step
        if running == 0:
            minute.idle_s += step
    if seen.gpus:
        use = [value for gpu in seen.gpus if (value := gpu.utilization_ratio.value) is not None]
        if use:
            minute.gpu_known_s += step
            minute.gpu_used_s += step * sum(use) / len(use)
        minute.gpus = max(minute.gpus, len(seen.gpus))
        _free(hour, seen.gpus)


def _free(hour: _Hour, gpus: tuple[GpuObservation, ...]) -> None:
    found = {}
    for gpu in gpus[:MAX_DEVICES]:
        total, used = gpu.memory_total_bytes.value, gpu.memory_used_bytes.value
        if total is not None and used is not None:
            samples = hour.free.get(gpu.uuid) or deque(maxlen=FREE_SAMPLES)
            samples.append(total - used)
            found[gpu.uuid] = samples
    hour.free = found  # a device that is lost has no free memory


def _turn(hour: _Hour, seen: BackendObservation | None, now: float, ends: bool) -> None:
    """A minute is over: what its counters say is added, and the next one begins."""
    after = None if seen is None or seen.age_s is None else counters(seen, now - seen.age_s)
    if hour.began is not None and after is not None:
        _compare(hour.running, hour.began, after)
    hour.began = after
    if ends:
        hour.turned += 1
        hour.minutes.append(hour.running)
        hour.running = Minute(gpus=len(seen.gpus) if seen else 0)


def _compare(minute: Minute, before: Counters, after: Counters) -> None:
    seconds, requests = after.at - before.at, _rise(before.requests, after.requests)
    if not 0.0 < seconds <= LONGEST_MINUTE_S or requests is None:
        return
    minute.seconds, minute.requests = seconds, requests
    count, total = _rise(before.gap_count, after.gap_count), _rise(before.gap_sum_s, after.gap_sum_s)
    minute.tpot_s = total / count if count and total is not None else None
    queries, hits = _rise(before.queries, after.queries), _rise(before.hits, after.hits)
    if queries is not None and hits is not None:
        minute.queries, minute.hits = queries, hits


def _rise(before: float | None, after: float | None) -> float | None:
    """None where it is not known, or where a counter fell: an engine that restarted."""
    return None if before is None or after is None or after < before else after - before


def _capacity(page: _Page) -> Capacity:
    minutes, seen = page.minutes, page.seen
    known, gpu_known = sum(m.known_s for m in minutes), sum(m.gpu_known_s for m in minutes)
    counted = [m for m in minutes if m.requests is not None]
    requests = sum(m.requests or 0.0 for m in counted) if counted else None
    queries = sum(m.queries for m in counted)
    use = sum(m.gpu_used_s for m in minutes) / gpu_known if gpu_known > 0 else None
    gpu_s = sum(m.gpus * m.seconds for m in counted)
    return Capacity(
        backend=page.name,
        observed_s=known,
        token_efficiency=None if seen is None else seen.value(catalog.TOKEN_EFFICIENCY.name),
        coupling=page.hour.coupling(minutes),
        kv_hit_ratio=min(1.0, sum(m.hits for m in counted) / queries) if queries > 0 else None,
        idle_ratio=sum(m.idle_s for m in minutes) / known if known > 0 else None,
        gpu_use_ratio=use,
        gpus=max((m.gpus for m in minutes), default=0) or None,
        requests=requests,
        gpu_seconds_per_request=gpu_s / requests if requests and gpu_s > 0 else None,
        consolidate=use < CONSOLIDATE_BELOW if use is not None and gpu_known >= ENOUGH_S else None,
    )
