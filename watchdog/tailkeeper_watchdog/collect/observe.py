"""Samples of the exporter's metrics, wherever they were read, into one observation per backend. Pure.

Series of one backend (several models) are merged by the catalogue's rule. What is not there stays unknown.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import BY_NAME, Kind, Merge
from tailkeeper_exporter.exposition import Part, SeriesKey
from tailkeeper_exporter.readings import Histogram, Reading, absent, invalid, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import BackendObservation, GpuObservation

_GPU_METRICS = tuple(m for m in catalog.CATALOG if catalog.GPU in m.labels)
_GPU_NAMES = frozenset(m.name for m in _GPU_METRICS)
WANTED: Mapping[str, Kind] = {
    m.name: m.kind for m in catalog.CATALOG if m.name.startswith("llm_") or m.name == catalog.SCRAPE_AGE.name
}
"""What is read of the exporter's page: the backends, and of the exporter's own affairs how old the engine's page is."""
MAX_BOUNDS = 256
"""Remembered. A fleet has a handful for each of its engines."""
_STATES = {state.value: state for state in State}


@dataclass(slots=True)
class _Parts:
    """What was found of one backend so far."""

    state: State = State.UNKNOWN
    values: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    gpus: dict[str, dict[str, float]] = field(default_factory=dict)
    throttled: dict[str, set[str]] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)


def observe(
    samples: Iterable[tuple[SeriesKey, float]], taken_at: float, reasons: Mapping[str, tuple[str, ...]]
) -> dict[str, BackendObservation]:
    """One observation per backend label found. ``taken_at`` is the monotonic time of the evidence."""
    found: dict[str, _Parts] = {}
    for key, value in samples:
        backend = key.label("backend")
        if backend:
            parts = found.get(backend)
            if parts is None:
                parts = found[backend] = _Parts()
            _take(parts, key, value)
    return {name: _observation(name, parts, taken_at, reasons.get(name, ())) for name, parts in found.items()}


def _take(parts: _Parts, key: SeriesKey, value: float) -> None:
    name = key.name
    if key.part is Part.BUCKET:
        bounds = parts.buckets.setdefault(name, {})
        bound = inf if key.le is None else key.le
        bounds[bound] = bounds.get(bound, 0.0) + value
    elif key.part is Part.SUM:
        parts.sums[name] = parts.sums.get(name, 0.0) + value
    elif key.part is Part.COUNT:
        return
    elif name == catalog.BACKEND_STATE.name:
        if value == 1:
            parts.state = _STATES.get(key.label("state"), State.UNKNOWN)
    elif name in _GPU_NAMES:
        _take_gpu(parts, key, value)
    elif name == catalog.SCRAPE_AGE.name and key.label("source") != "engine":
        return
    else:
        slot = f"{name}{{{key.label('outcome')}}}" if name == catalog.REQUESTS.name else name
        _merge(parts.values, slot, value, BY_NAME[name].merge)
        if name == catalog.RUNNING.name and key.label("model"):
            parts.models.add(key.label("model"))


def _take_gpu(parts: _Parts, key: SeriesKey, value: float) -> None:
    uuid = key.label("gpu")
    if key.name == catalog.GPU_THROTTLED.name:
        if value == 1:
            parts.throttled.setdefault(uuid, set()).add(key.label("reason"))
        return
    slot = f"{key.name}{{{key.label('kind')}}}" if key.name == catalog.GPU_ECC_ERRORS.name else key.name
    parts.gpus.setdefault(uuid, {})[slot] = value


def _merge(values: dict[str, float], slot: str, value: float, rule: Merge) -> None:
    known = values.get(slot)
    if known is None:
        values[slot] = value
    elif rule is Merge.MAX:
        values[slot] = max(known, value)
    else:
        values[slot] = known + value


def _observation(name: str, parts: _Parts, taken_at: float, reasons: tuple[str, ...]) -> BackendObservation:
    readings = {slot: _whole(value, taken_at) for slot, value in parts.values.items()}
    histograms = {n: h for n, b in parts.buckets.items() if (h := _histogram(b, parts.sums.get(n))) is not None}
    gpus = tuple(_gpu(uuid, values, parts.throttled.get(uuid, set()), taken_at) for uuid, values in sorted(parts.gpus.items()))
    return BackendObservation(name, parts.state, 0.0, None, readings, histograms, gpus, reasons, frozenset(parts.models))


def _whole(value: float, taken_at: float) -> Reading[float]:
    """Each number of a page is finite; those of several models may leave the range of a double together."""
    return present(value, taken_at) if isfinite(value) else invalid("too large a number", taken_at)


def _histogram(buckets: dict[float, float], total: float | None) -> Histogram | None:
    if inf not in buckets or total is None:
        return None
    bounds = tuple(sorted(buckets))
    counts = array("d", [buckets[bound] for bound in bounds])
    return Histogram(_shared(bounds), counts, total) if isfinite(sum(counts) + total) else None


@lru_cache(maxsize=MAX_BOUNDS)
def _shared(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """One object for all that have the same: there are six of each backend at every page, and one object is quickly compared."""
    return bounds


def _gpu(uuid: str, values: dict[str, float], throttled: set[str], taken_at: float) -> GpuObservation:
    def reading(slot: str) -> Reading[float]:
        value = values.get(slot)
        return absent() if value is None else present(value, taken_at)

    return GpuObservation(
        uuid=uuid,
        sample_age_s=reading(catalog.GPU_SAMPLE_AGE.name),
        utilization_ratio=reading(catalog.GPU_UTILIZATION.name),
        memory_used_bytes=reading(catalog.GPU_MEMORY_USED.name),
        memory_total_bytes=reading(catalog.GPU_MEMORY_TOTAL.name),
        fragmentation_ratio=reading(catalog.GPU_FRAGMENTATION.name),
        pcie_ratio=reading(catalog.GPU_PCIE.name),
        nvlink_ratio=reading(catalog.GPU_NVLINK.name),
        temperature_celsius=reading(catalog.GPU_TEMPERATURE.name),
        throttle_reasons=tuple(sorted(throttled)),
        sm_clock_hz=reading(catalog.GPU_SM_CLOCK.name),
        memory_copy_ratio=reading(catalog.GPU_MEMORY_COPY.name),
        ecc_single_bit_total=reading(f"{catalog.GPU_ECC_ERRORS.name}{{single_bit}}"),
    )
