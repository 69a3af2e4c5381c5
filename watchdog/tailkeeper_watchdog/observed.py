"""What is read of the fleet: GPUs, backends, finished requests, and one snapshot of all of it for a tick.

Frozen values, no I/O, no clock. Whoever uses them imports them from ``model``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from operator import attrgetter

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Reading, absent
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.named import EMPTY, Backend, Pool


@dataclass(frozen=True, slots=True)
class GpuObservation:
    """One GPU of a backend. Ratios in [0, 1], memory in bytes, temperature in degrees Celsius."""

    uuid: str
    sample_age_s: Reading[float]
    utilization_ratio: Reading[float]
    memory_used_bytes: Reading[float]
    memory_total_bytes: Reading[float]
    fragmentation_ratio: Reading[float]
    pcie_ratio: Reading[float]
    nvlink_ratio: Reading[float]
    temperature_celsius: Reading[float]
    throttle_reasons: tuple[str, ...] = ()
    sm_clock_hz: Reading[float] = field(default_factory=absent)
    memory_copy_ratio: Reading[float] = field(default_factory=absent)
    ecc_single_bit_total: Reading[float] = field(default_factory=absent)


WORST_OF_GPUS: Mapping[str, Callable[[GpuObservation], Reading[float]]] = {
    catalog.GPU_SAMPLE_AGE.name: attrgetter("sample_age_s"),
    catalog.GPU_FRAGMENTATION.name: attrgetter("fragmentation_ratio"),
    catalog.GPU_NVLINK.name: attrgetter("nvlink_ratio"),
    catalog.GPU_PCIE.name: attrgetter("pcie_ratio"),
}


def _values(readings: Mapping[str, Reading[float]], gpus: tuple[GpuObservation, ...]) -> Mapping[str, float]:
    values = {name: value for name, reading in readings.items() if (value := reading.value) is not None}
    for name, reading_of in WORST_OF_GPUS.items() if gpus else ():
        told = [value for gpu in gpus if (value := reading_of(gpu).value) is not None]
        if told:
            values[name] = max(told)
    return values


@dataclass(frozen=True, slots=True)
class BackendObservation:
    """Everything read about one backend at one tick. ``age_s`` is the age of the evidence for ``state``."""

    backend: str
    state: State
    age_s: float | None
    error: str | None = None
    readings: Mapping[str, Reading[float]] = field(default_factory=lambda: EMPTY)
    """Gauges and counters by catalogue name, one value a backend; requests by outcome as ``name{outcome}``."""
    histograms: Mapping[str, Histogram] = field(default_factory=lambda: EMPTY)
    gpus: tuple[GpuObservation, ...] = ()
    reasons: tuple[str, ...] = ()
    models: frozenset[str] = frozenset()
    """The models that its series name; empty where none does."""
    known: InitVar[Mapping[str, float] | None] = None
    """``values``, from whoever has just the same readings."""
    values: Mapping[str, float] = field(init=False, compare=False, repr=False)
    """The readings that are present, as numbers, and under the names of ``WORST_OF_GPUS`` the highest of its GPUs: what everybody
    asks, dozens of times a tick."""

    def __post_init__(self, known: Mapping[str, float] | None) -> None:
        object.__setattr__(self, "values", _values(self.readings, self.gpus) if known is None else known)

    def value(self, name: str) -> float | None:
        """A present value of a catalogue metric, or None."""
        return self.values.get(name)

    def at_age(self, age_s: float) -> BackendObservation:
        """The same with another age; spelt out, because every backend's ages at every tick and replace() takes thrice as long."""
        return BackendObservation(
            self.backend,
            self.state,
            age_s,
            self.error,
            self.readings,
            self.histograms,
            self.gpus,
            self.reasons,
            self.models,
            self.values,
        )


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request as the exporter recorded it. Seconds and tokens; None is unknown.

    ``running``, ``waiting`` and ``backlog_tokens`` are as seen at its admission, itself left out.
    """

    backend: str
    outcome: str | None
    ttft_s: float | None
    itl_s: float | None
    e2e_s: float | None
    start_unix_s: float | None = None
    """By the exporter's clock."""
    queue_s: float | None = None
    prefill_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    backlog_tokens: int | None = None
    model: str | None = None
    tenant: str | None = None
    modality: str | None = None
    canary_revision: str | None = None
    operation: str | None = None
    sensitivity: int | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """One life of an engine with one model: what was learned of it holds no longer than that.

    ``number`` counts from 0 for the life in which it was first seen; ``why`` says what began this one.
    """

    number: int = 0
    since: float | None = None
    """Monotonic; None while nothing was seen of it."""
    models: frozenset[str] = frozenset()
    """The models that its page names; empty while not known."""
    why: str = "first seen"
    ended: bool = False
    """It was down or starting since: what comes back is another engine process."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The whole fleet at one tick, immutable. ``source_error`` says that nothing could be read at all."""

    tick: int
    now: float
    time_unix_s: float
    backends: tuple[Backend, ...]
    observations: Mapping[str, BackendObservation]
    source_error: str | None = None

    def pool_of(self, pool: Pool) -> tuple[Backend, ...]:
        """The backends of a pool, given as (gateway, pool)."""
        return tuple(b for b in self.backends if any((t.gateway, t.pool) == pool for t in b.targets))
