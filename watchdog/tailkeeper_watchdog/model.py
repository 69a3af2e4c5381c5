"""The values that flow through a tick, in the order in which they appear. Frozen, no I/O, no clock.

``Backend`` → ``BackendObservation`` → ``FleetSnapshot`` → ``HealthScore`` → ``Finding`` → ``DesiredState`` →
``Verdict`` → ``Decision`` → ``TickRecord``. Times ending in ``_s`` named ``now`` or ``at`` are monotonic seconds;
``time_unix_s`` is wall clock and stands only in records that people read.
They are kept by what they are of: ``named``, ``observed``, ``decided``; everybody has them from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tailkeeper_exporter.readings import Quantile
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.decided import (
    Decision as Decision,
)
from tailkeeper_watchdog.decided import (
    DesiredState as DesiredState,
)
from tailkeeper_watchdog.decided import (
    Finding as Finding,
)
from tailkeeper_watchdog.decided import (
    Lease as Lease,
)
from tailkeeper_watchdog.decided import (
    Outcome as Outcome,
)
from tailkeeper_watchdog.decided import (
    Refusal as Refusal,
)
from tailkeeper_watchdog.decided import (
    Share as Share,
)
from tailkeeper_watchdog.decided import (
    Verdict as Verdict,
)
from tailkeeper_watchdog.decided import (
    WeightsChange as WeightsChange,
)
from tailkeeper_watchdog.named import (
    DRAIN as DRAIN,
)
from tailkeeper_watchdog.named import (
    EMPTY as EMPTY,
)
from tailkeeper_watchdog.named import (
    SERVE as SERVE,
)
from tailkeeper_watchdog.named import (
    Backend as Backend,
)
from tailkeeper_watchdog.named import (
    Enforceability as Enforceability,
)
from tailkeeper_watchdog.named import (
    FindingKind as FindingKind,
)
from tailkeeper_watchdog.named import (
    Knob as Knob,
)
from tailkeeper_watchdog.named import (
    KnobValue as KnobValue,
)
from tailkeeper_watchdog.named import (
    Mode as Mode,
)
from tailkeeper_watchdog.named import (
    Pending as Pending,
)
from tailkeeper_watchdog.named import (
    Place as Place,
)
from tailkeeper_watchdog.named import (
    Pool as Pool,
)
from tailkeeper_watchdog.named import (
    Severity as Severity,
)
from tailkeeper_watchdog.named import (
    Target as Target,
)
from tailkeeper_watchdog.observed import (
    WORST_OF_GPUS as WORST_OF_GPUS,
)
from tailkeeper_watchdog.observed import (
    BackendObservation as BackendObservation,
)
from tailkeeper_watchdog.observed import (
    Epoch as Epoch,
)
from tailkeeper_watchdog.observed import (
    FleetSnapshot as FleetSnapshot,
)
from tailkeeper_watchdog.observed import (
    GpuObservation as GpuObservation,
)
from tailkeeper_watchdog.observed import (
    RequestRecord as RequestRecord,
)
from tailkeeper_watchdog.window import Window

T = TypeVar("T")


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
