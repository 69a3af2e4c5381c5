"""Machines and memory of one backend: its usual values, and what is unusual now against itself and its pool. Pure.

One line of values a minute for an hour and backend: 4 kB, 8 MB for 2,000 backends. Robust z: distance from the median in
median absolute deviations (× 1.4826), never finer than a floor below which a difference says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Reading
from tailkeeper_watchdog.attribution.shapley import Floats
from tailkeeper_watchdog.attribution.stages import DECODE, NETWORK, PREFILL, QUEUE
from tailkeeper_watchdog.model import BackendObservation, GpuObservation
from tailkeeper_watchdog.window import Window

SPACING_S = 60.0
LINES = 60
MIN_LINES = 5
"""With fewer lines a backend has no usual value."""
MIN_PEERS = 2
USUAL_Z = 3.0
HOT_CELSIUS = 75.0
PREPROCESS = "preprocess_time"
CPU = "cpu"


def _largest(pick: Callable[[GpuObservation], Reading[float]], better: Callable[..., float] = max) -> _Read:
    def read(seen: BackendObservation, window: Window | None) -> float | None:
        known = [value for gpu in seen.gpus if (value := pick(gpu).value) is not None]
        return better(known) if known else None

    return read


_Read = Callable[[BackendObservation, Window | None], float | None]


def _throttled(seen: BackendObservation, window: Window | None) -> float | None:
    return float(any(gpu.throttle_reasons for gpu in seen.gpus)) if seen.gpus else None


def _preemptions(seen: BackendObservation, window: Window | None) -> float | None:
    return window.rate(catalog.PREEMPTIONS.name) if window else None


def _mean(name: str) -> _Read:
    return lambda seen, window: window.mean_s(name) if window else None


@dataclass(frozen=True, slots=True)
class Resource:
    """One row of the table. ``worse`` is +1 where more is worse. ``weight`` below 1: it is as often a consequence."""

    name: str
    unit: str
    group: str
    """Resources of one group are signs of one thing; the strongest is named."""
    stages: frozenset[str]
    floor: float
    read: _Read
    worse: int = 1
    weight: float = 1.0
    relative_floor: float = 0.0


_COMPUTE = frozenset({PREFILL, DECODE})
_CPU = frozenset({NETWORK, PREFILL, QUEUE})
RESOURCES: tuple[Resource, ...] = (
    Resource("gpu_throttled", "reasons", "clocks", _COMPUTE, 0.04, _throttled),
    Resource("gpu_sm_clock", "Hz", "clocks", _COMPUTE, 1e7, _largest(lambda g: g.sm_clock_hz, min), -1, 1.0, 0.03),
    Resource("gpu_temperature", "°C", "clocks", _COMPUTE, 2.0, _largest(lambda g: g.temperature_celsius), 1, 0.5),
    Resource(PREPROCESS, "s", CPU, _CPU, 0.005, _mean(catalog.PREPROCESS_TIME.name), 1, 1.0, 0.1),
    Resource("cpu_usage", "ratio", CPU, _CPU, 0.05, lambda seen, window: seen.value(catalog.CPU_USAGE.name)),
    Resource("pcie", "ratio", "link", _COMPUTE, 0.05, _largest(lambda g: g.pcie_ratio)),
    Resource("nvlink", "ratio", "link", _COMPUTE, 0.05, _largest(lambda g: g.nvlink_ratio)),
    Resource("preemptions", "per s", "memory", frozenset({QUEUE, DECODE}), 0.05, _preemptions),
    Resource(
        "kv_usage", "ratio", "memory", frozenset({QUEUE, DECODE}), 0.05, lambda s, w: s.value(catalog.KV_USAGE.name), 1, 0.7
    ),
    Resource("gpu_utilization", "ratio", "load", _COMPUTE | {QUEUE}, 0.05, _largest(lambda g: g.utilization_ratio), 1, 0.5),
)
STAGE_MEANS: Mapping[str, str] = {
    QUEUE: catalog.QUEUE_TIME.name,
    PREFILL: catalog.PREFILL_TIME.name,
    DECODE: catalog.DECODE_TIME.name,
}
"""Where there are no request records, the means of these histograms tell in which stage the time went."""
_COLUMNS: tuple[_Read, ...] = (*(r.read for r in RESOURCES), *(_mean(name) for name in STAGE_MEANS.values()))


def line_of(seen: BackendObservation, window: Window | None) -> Floats:
    """The values of one backend now, NaN where unknown: the resources, then the stages' means."""
    values = [read(seen, window) for read in _COLUMNS]
    return np.array([nan if value is None else value for value in values])


class ResourceLog:
    """Lines of one backend, at most ``LINES``, oldest first; ``at`` monotonic."""

    __slots__ = ("_at", "_lines")

    def __init__(self) -> None:
        self._at: list[float] = []
        self._lines = np.empty((0, len(_COLUMNS)), np.float32)

    @property
    def last_at(self) -> float:
        return self._at[-1] if self._at else float("-inf")

    def add(self, line: Floats, now: float) -> None:
        self._at = [*self._at[-(LINES - 1) :], now]
        self._lines = np.concatenate([self._lines[-(LINES - 1) :], line[None, :].astype(np.float32)])

    def before(self, end: float) -> Floats:
        return self._lines[: int(np.searchsorted(self._at, end))].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One resource that is unusual. ``strength`` in [0, 1] is how far it can be behind a slower stage."""

    name: str
    unit: str
    group: str
    stages: frozenset[str]
    now: float
    usual: float | None
    peers: float | None
    own_z: float | None
    peers_z: float | None
    strength: float


Against = tuple[float | None, float | None]
"""A median, and the robust z of what is now; None where there is too little to compare with."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One backend's resources now, against its own past and against its pool."""

    line: Floats
    own: tuple[Against, ...]
    pool: tuple[Against, ...]


def compared(line: Floats, usual: Floats, peers: Sequence[Floats]) -> Compared:
    """``usual`` are the backend's lines from before, ``peers`` the pool's others now."""
    others = np.stack(peers) if len(peers) else np.empty((0, line.size))
    return Compared(
        line,
        tuple([_against(resource, line[i], usual[:, i], MIN_LINES) for i, resource in enumerate(RESOURCES)]),
        tuple([_against(resource, line[i], others[:, i], MIN_PEERS) for i, resource in enumerate(RESOURCES)]),
    )


def rank(found: Compared) -> tuple[Evidence, ...]:
    """What is unusual, strongest first."""
    of_each = zip(RESOURCES, found.line.tolist(), found.own, found.pool, strict=False)
    evidence = [e for resource, now, own, pool in of_each if (e := _evidence(resource, now, own, pool)) is not None]
    return tuple(sorted(evidence, key=lambda e: -e.strength))


def as_it_should_be(found: Compared) -> tuple[str, ...]:
    """What was compared with its own past or with its pool, and is as it should be."""
    names = []
    for resource, own, pool in zip(RESOURCES, found.own, found.pool, strict=True):
        told = [z for _, z in (own, pool) if z is not None and isfinite(z)]
        if told and max(told) <= USUAL_Z:
            names.append(resource.name)
    return tuple(names)


def _evidence(resource: Resource, now: float, of_own: Against, of_pool: Against) -> Evidence | None:
    if not isfinite(now):
        return None
    (own, own_z), (pool, peers_z) = of_own, of_pool
    strength = _strength(own_z, peers_z) * resource.weight
    if resource.name == "gpu_temperature" and now > HOT_CELSIUS:
        strength /= resource.weight
    if strength <= 0:
        return None
    return Evidence(resource.name, resource.unit, resource.group, resource.stages, now, own, pool, own_z, peers_z, strength)


def _against(resource: Resource, now: float, others: Floats, least: int) -> Against:
    """Median of the others and the robust z of ``now``, positive where it is worse."""
    known = others[np.isfinite(others)]
    if known.size < least:
        return None, None
    median = _median(known)
    scale = max(1.4826 * _median(np.abs(known - median)), resource.floor, resource.relative_floor * abs(median))
    return median, resource.worse * (now - median) / scale


def _median(known: Floats) -> float:
    """As ``np.median``, which takes eight times as long to get ready; sixty are asked for each finding. Finite numbers only."""
    ordered, half = np.sort(known), known.size // 2
    return float(ordered[half]) if known.size % 2 else float((ordered[half - 1] + ordered[half]) / 2)


def _strength(own_z: float | None, peers_z: float | None) -> float:
    """A change against itself counts, and fully where the pool does not show it too. Only unlike the pool: half at most."""
    if own_z is None:
        return 0.0 if peers_z is None else 0.5 * _unusual(peers_z)
    return _unusual(own_z) * (0.75 if peers_z is None else 0.5 + 0.5 * _unusual(peers_z))


def _unusual(z: float) -> float:
    return 0.0 if z <= USUAL_Z else 1.0 - USUAL_Z / z


def stage_rises(line: Floats, usual: Floats) -> dict[str, float]:
    """Seconds by which the mean of each stage rose beyond its usual scatter."""
    found: dict[str, float] = {}
    for i, stage in enumerate(STAGE_MEANS, start=len(RESOURCES)):
        known = usual[:, i][np.isfinite(usual[:, i])]
        if known.size >= MIN_LINES and np.isfinite(line[i]):
            median = _median(known)
            scatter = max(1.4826 * _median(np.abs(known - median)), 0.02 * median, 1e-4)
            if line[i] - median > USUAL_Z * scatter:
                found[stage] = float(line[i] - median)
    return found
