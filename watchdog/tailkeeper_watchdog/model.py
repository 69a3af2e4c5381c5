"""The values that flow through a tick, in the order in which they appear. Frozen, no I/O, no clock.

``Backend`` → ``BackendObservation`` → ``FleetSnapshot`` → ``HealthScore`` → ``Finding`` → ``DesiredState`` →
``Verdict`` → ``Decision`` → ``TickRecord``. Times ending in ``_s`` named ``now`` or ``at`` are monotonic seconds;
``time_unix_s`` is wall clock and stands only in records that people read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Quantile, Reading, absent
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.window import Window

EMPTY: Mapping[Any, Any] = MappingProxyType({})
T = TypeVar("T")


class Knob(StrEnum):
    WEIGHT = "weight"
    ADMISSION = "admission"
    CONCURRENCY_LIMIT = "concurrency_limit"
    BATCH_WINDOW_S = "batch_window_s"
    CACHE_MODE = "cache_mode"
    DEGRADE_LEVEL = "degrade_level"
    REPLICAS = "replicas"
    TAINT = "taint"
    ANNOTATION = "annotation"

    __hash__ = str.__hash__  # an enumeration's own is written in Python, and knobs are in the keys of most look-ups


SERVE = "serve"
DRAIN = "drain"

KnobValue = float | str
Pool = tuple[str, str]
"""Gateway and pool."""
Place = tuple[str, str, Knob]
"""Gateway, server, knob: what the ledger tells leases apart by, because pools and backends are renamed."""
Pending = Mapping[Place, Mapping[KnobValue, float]]
"""Values that we have sent and that may still come to be in force, and until when, in epoch seconds."""


class Mode(StrEnum):
    """How far a policy may go: write it down, tell people, or do it."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


class Severity(StrEnum):
    PAGE = "page"
    TICKET = "ticket"
    INFO = "info"


class FindingKind(StrEnum):
    GROWTH = "growth"
    DISTORTION = "distortion"
    ZSCORE = "zscore"
    BLOCK_E = "block_e"
    SLO_BURN = "slo_burn"
    IMPROVED_BUT_BROKEN = "improved_but_broken"
    TELEMETRY_LOST = "telemetry_lost"
    HUNG = "hung"
    DOWN = "down"
    MEMORY_PRESSURE = "memory_pressure"
    COMMON_CAUSE = "common_cause"
    CONTENDED = "contended"
    ADVICE = "advice"


class Enforceability(StrEnum):
    ENFORCED = "enforced"
    OBSERVED = "observed"
    NOT_ENFORCEABLE = "not_enforceable"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one backend is switched: the gateway by name, the server as that gateway calls it, and its pool."""

    gateway: str
    server: str
    pool: str

    def __hash__(self) -> int:
        """By what differs most: a target is looked up dozens of times a tick for each backend."""
        return hash(self.server)


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend as configured. ``zone`` is its availability zone label, empty where none is given."""

    name: str
    model: str = ""
    targets: tuple[Target, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    url: str = ""
    """Where it listens; only to tell a backend from another one that got its name."""
    kv_bytes_per_token: float | None = None
    """Bytes of the keys and values of one token, where the shape of its model is configured."""
    quantization: str = ""
    """Precision as configured."""

    @property
    def zone(self) -> str:
        return self.labels.get("az", "")

    @property
    def pool(self) -> Pool:
        """That of the first of its gateways; two empty names where it has none."""
        return (self.targets[0].gateway, self.targets[0].pool) if self.targets else ("", "")

    @property
    def identity(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """What makes it the same backend beside its name: its address, and its servers by gateway."""
        return self.url, frozenset((t.gateway, t.server) for t in self.targets)


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


@dataclass(slots=True)
class Factor:
    """One part of a score. Nobody changes it; four are made for each backend at each tick, and a frozen one takes thrice as long.

    ``value`` in ``unit`` is what was measured, ``goodness`` in [0, 1], 1 is best."""

    name: str
    goodness: float
    weight: float
    value: float
    unit: str

    @property
    def loss(self) -> float:
        return self.weight * (1.0 - self.goodness)


@dataclass(slots=True)
class HealthScore:
    """A backend's HScore in [0, 1], or None when every factor is unknown. Not frozen, as a factor is not."""

    backend: str
    hscore: float | None
    factors: tuple[Factor, ...] = ()
    unknown_factors: tuple[str, ...] = ()
    veto: State | None = None
    confidence: float = 0.0
    """How much the score rests on, in [0, 1]: the share of the weight that is known, less where samples are few."""

    @property
    def dominant_factor(self) -> str | None:
        """The factor that costs most; the state where a veto sets the score to 0; None where nothing costs anything."""
        if self.veto is not None:
            return self.veto.value
        worst = max(self.factors, key=lambda f: f.loss, default=None)
        return worst.name if worst is not None and worst.loss > 0 else None


@dataclass(frozen=True, slots=True)
class Slo:
    """What users were promised. Seconds; ``objective`` is the share of requests that must keep it."""

    ttft_p99_s: float = 1.2
    itl_p99_s: float = 0.2
    e2e_p99_s: float = 30.0
    objective: float = 0.995


_FIRST_EPOCH = Epoch()
_OF_GATEWAYS = frozenset({"drained", "knobs"})
"""What a situation works out of what the gateways have in force."""


@dataclass(frozen=True, slots=True)
class KnobState:
    """One knob as a gateway has it: ``actual`` now, ``prior`` before anything of ours; the same where nothing of ours is."""

    actual: KnobValue
    prior: KnobValue


@dataclass(frozen=True, slots=True)
class Situation:
    """What policies and detectors may look at: one snapshot and what was computed from it."""

    snapshot: FleetSnapshot
    windows: Mapping[str, Window]
    recent: Mapping[str, Window]
    scores: Mapping[str, HealthScore]
    slo: Slo
    stale_after_s: float
    exact: Mapping[tuple[str, str], Quantile] = field(default_factory=lambda: EMPTY)
    """P99 by (backend, signal) from request records, where there are any: seconds, a value really observed."""
    records: Mapping[str, tuple[RequestRecord, ...]] = field(default_factory=lambda: EMPTY)
    """The requests that were heard of at this tick, by backend, in the order in which they were told."""
    epochs: Mapping[str, Epoch] = field(default_factory=lambda: EMPTY)
    actual: Mapping[Target, Mapping[Knob, KnobValue]] = field(default_factory=lambda: EMPTY)
    """What the gateways reported at this tick, in their own values."""
    prior: Mapping[tuple[Target, Knob], KnobValue] = field(default_factory=lambda: EMPTY)
    """What was there before our changes in force."""
    _worked_out: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What follows from the fields alone and everybody asks, worked out once; a situation made by replace() begins anew."""

    def worked_out(self, what: str, work: Callable[[Situation], T]) -> T:
        """What ``work`` makes of the fields, made once: for whoever knows more of numbers than this file does."""
        if what not in self._worked_out:
            self._worked_out[what] = work(self)
        found: T = self._worked_out[what]
        return found

    def knowing(self, **at_hand: Any) -> Situation:
        """This one, with what its maker has at hand and ``worked_out`` would make of its fields."""
        self._worked_out.update(at_hand)
        return self

    def with_scores(self, scores: Mapping[str, HealthScore]) -> Situation:
        """The same with scores; nothing that was worked out of it rests on those."""
        situation = replace(self, scores=scores)
        situation._worked_out.update(self._worked_out)
        return situation

    def at_gateways(
        self, actual: Mapping[Target, Mapping[Knob, KnobValue]], prior: Mapping[tuple[Target, Knob], KnobValue]
    ) -> Situation:
        """The same with what the gateways have in force. What rests on that is worked out anew, all else is taken along."""
        situation = replace(self, actual=actual, prior=prior)
        situation._worked_out.update({what: found for what, found in self._worked_out.items() if what not in _OF_GATEWAYS})
        return situation

    @property
    def heard(self) -> Mapping[str, BackendObservation]:
        """The observations whose evidence is fresh enough to act on, by backend."""
        found: Mapping[str, BackendObservation] | None = self._worked_out.get("heard")
        if found is None:
            oldest_s, unknown = self.stale_after_s, State.UNKNOWN
            found = self._worked_out["heard"] = {
                name: seen
                for name, seen in self.snapshot.observations.items()
                if (age_s := seen.age_s) is not None and not age_s > oldest_s and seen.state is not unknown
            }
        return found

    @property
    def drained(self) -> frozenset[str]:
        """Backends of the fleet from which the first of their gateways that tells keeps new requests, whoever wanted that."""
        found: frozenset[str] | None = self._worked_out.get("drained")
        if found is None:
            servers = {target.server for target, values in self.actual.items() if values.get(Knob.ADMISSION) == DRAIN}
            at_one = (
                [b for b in self.snapshot.backends if any(target.server in servers for target in b.targets)] if servers else []
            )
            found = self._worked_out["drained"] = frozenset(backend.name for backend in at_one if self.is_drained(backend))
        return found

    @property
    def knobs_told(self) -> frozenset[Knob]:
        """Knobs that some gateway tells of some server: of all others nothing need be asked."""
        found: frozenset[Knob] | None = self._worked_out.get("knobs")
        if found is None:
            found = self._worked_out["knobs"] = frozenset().union(*{frozenset(values) for values in self.actual.values()})
        return found

    def knob(self, backend: Backend, knob: Knob) -> KnobState | None:
        """A knob of a backend at the first of its gateways that tells it; None where none does."""
        if knob not in self.knobs_told:
            return None
        for target in backend.targets:
            value = self.actual.get(target, EMPTY).get(knob)
            if value is not None:
                return KnobState(value, self.prior.get((target, knob), value))
        return None

    def is_drained(self, backend: Backend) -> bool:
        """Whether the first of its gateways that tells keeps new requests away from it, whoever wanted that."""
        for target in backend.targets:
            admission = self.actual.get(target, EMPTY).get(Knob.ADMISSION)
            if admission is not None:
                return bool(admission == DRAIN)
        return False

    def requests(self, backend: str) -> tuple[RequestRecord, ...]:
        """What was heard of a backend's requests at this tick; empty where nothing was."""
        return self.records.get(backend, ())

    def epoch(self, backend: str) -> Epoch:
        return self.epochs.get(backend, _FIRST_EPOCH)

    def p99(self, backend: str, signal: str) -> Quantile | None:
        """The best known P99: from request records, else from the buckets of the last minute."""
        exact = self.exact.get((backend, signal))
        if exact is not None:
            return exact
        window = self.windows.get(backend)
        return window.quantile(signal, 0.99) if window else None

    def fresh(self, backend: str) -> BackendObservation | None:
        """The observation of a backend when its evidence is fresh enough to act on, else None."""
        return self.heard.get(backend)


@dataclass(frozen=True, slots=True)
class Share:
    dimension: str
    value: str
    share: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, with the evidence a person can check. ``id`` is stable while it stays open."""

    id: str
    kind: FindingKind
    backend: str
    severity: Severity
    since_unix_s: float
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    until_unix_s: float | None = None
    shares: tuple[Share, ...] = ()
    signal: str = ""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What one policy wants of one knob of one backend. A weight is a share of the backend's prior weight."""

    policy: str
    backend: str
    knob: Knob
    value: KnobValue
    reason: str
    mode: Mode
    signals: tuple[str, ...] = ()
    """Independent signals behind it; a drain needs two."""
    evidence_age_s: float | None = None


class Refusal(StrEnum):
    """Why a guard said no, each with the sentence that people read."""

    PAUSED = "paused: the kill switch is on"
    STALE = "stale: the evidence is older than the limit"
    HELD = "held: an operator's hold is on this backend"
    NOT_ENFORCEABLE = "not enforceable: no gateway of this backend can do it"
    POOL_OF_ONE = "pool of one: its only backend is never taken out"
    CAP = "cap: as many backends of the pool as allowed are acted on already"
    MIN_HEALTHY = "min healthy: too few backends of the pool would be left serving"
    PANIC = "panic: too much of the pool is bad or unobservable, so the cause is likely common"
    ZONE = "zone: the last serving backend of its availability zone stays"
    SIGNALS = "signals: a drain needs two independent signals"
    COOLDOWN = "cooldown: this backend was changed a moment ago"
    CONTENDED = "contended: someone else changes this knob too"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A guard's answer to one desired state. ``refusal`` None means allowed; ``detail`` has the numbers."""

    desired: DesiredState
    refusal: Refusal | None = None
    detail: str = ""

    @property
    def allowed(self) -> bool:
        return self.refusal is None


class Outcome(StrEnum):
    """How a decision ended, as the API and the ledger name it."""

    APPLIED = "applied"
    ALREADY = "already"
    OBSERVED = "observed"
    ADVISED = "advised"
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    RELEASED = "released"
    CONTENDED = "contended"


@dataclass(frozen=True, slots=True)
class Decision:
    """One line of the decision log."""

    id: int
    time_unix_s: float
    tick: int
    policy: str
    backend: str
    knob: Knob
    from_value: KnobValue | None
    to_value: KnobValue
    verdict: Outcome
    reason: str
    lease_expires_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class WeightsChange:
    """One change of the HScore's weights, by factor. ``by`` is who did it, ``file`` for the configuration file."""

    time_unix_s: float
    by: str
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Lease:
    """One change of ours that is in force, or was intended. Values are the gateway's own (weight 1.0 = configured).

    ``prior`` is what was there before us, ``written`` what we last wrote. ``confirmed`` says that it was read back.
    """

    id: int
    backend: str
    target: Target
    knob: Knob
    policy: str
    prior: KnobValue
    written: KnobValue
    reason: str
    created_unix_s: float
    expires_unix_s: float
    confirmed: bool = False
    reverts: int = 0
    """How often a foreign hand undid it since."""
    before: KnobValue | None = None
    """What was in force when ``written`` was intended: while unconfirmed, the write may not have arrived, and this is ours."""

    @property
    def place(self) -> Place:
        return self.target.gateway, self.target.server, self.knob


@dataclass(frozen=True, slots=True)
class TickRecord:
    """All of one tick, as it is kept for the API and for replay."""

    tick: int
    time_unix_s: float
    duration_s: float
    situation: Situation
    findings: tuple[Finding, ...]
    desired: tuple[DesiredState, ...]
    verdicts: tuple[Verdict, ...]
    decisions: tuple[Decision, ...]
    error: str | None = None
