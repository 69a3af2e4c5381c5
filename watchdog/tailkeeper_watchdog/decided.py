"""What is concluded and done: findings and their causes, wishes, verdicts of the guards, decisions, and the leases in force.

Frozen values, no I/O, no clock. Whoever uses them imports them from ``model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tailkeeper_watchdog.named import EMPTY, FindingKind, Knob, KnobValue, Mode, Place, Severity, Target


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
