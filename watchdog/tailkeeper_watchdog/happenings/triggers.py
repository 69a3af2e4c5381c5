"""Which trigger and which phase a decision has. Pure tables; a test holds that none of them misses a policy or a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.happenings.names import Phase, Step, Trigger
from tailkeeper_watchdog.model import DesiredState, FindingKind, Outcome
from tailkeeper_watchdog.plan import RETURN_POLICY

PHASES: Final[Mapping[Outcome, Phase]] = {
    Outcome.APPLIED: Phase.APPLIED,
    Outcome.RELEASED: Phase.RESOLVED,
    Outcome.EXPIRED: Phase.RESOLVED,
    Outcome.ALREADY: Phase.TRIGGERED,
    Outcome.OBSERVED: Phase.TRIGGERED,
    Outcome.ADVISED: Phase.TRIGGERED,
    Outcome.REFUSED: Phase.TRIGGERED,
    Outcome.FAILED: Phase.TRIGGERED,
    Outcome.CONTENDED: Phase.TRIGGERED,
}
"""What was wanted and did not come to pass is still triggered; the verdict, an attribute of its own, says why."""

STEPS: Final[Mapping[Outcome, Step]] = {
    Outcome.OBSERVED: Step.DECIDE,
    Outcome.ADVISED: Step.DECIDE,
    Outcome.REFUSED: Step.GUARD,
}
"""The step in which a decision was made; all others are of ``act``."""

_BY_SIGNAL: Final[Mapping[str, Trigger]] = {
    "errors": Trigger.ERRORS,
    "memory_pressure": Trigger.MEMORY_PRESSURE,
    "gpu_lost": Trigger.GPU_LOST,
    "gpu": Trigger.SLOW,
}
"""By the first signal of a wish, which is the one it rests on."""
_DEAD_SIGNAL = "no_progress"

BY_POLICY: Final[Mapping[str, Trigger]] = {
    "adaptive_batch_window": Trigger.ARRIVALS,
    "memory_breaker": Trigger.MEMORY_PRESSURE,
    "context_length_routing": Trigger.LONG_CONTEXTS,
    "token_rate_weighting": Trigger.SPEED,
    "gpu_health_gate": Trigger.ERRORS,
    "cache_offload": Trigger.MEMORY_PRESSURE,
    "slo_guardian": Trigger.SLO_BURN,
    RETURN_POLICY: Trigger.RECOVERED,
}
"""What a policy looks at where its wish names no signal. Of the gate that is a breaker on trial."""


def of_finding(kind: FindingKind) -> Trigger:
    return Trigger(kind.value)


def of_wish(wish: DesiredState, state: State | None) -> Trigger:
    """``state`` is the backend's: which of the two ways of being dead it is."""
    first = wish.signals[0] if wish.signals else ""
    if first == _DEAD_SIGNAL:
        return Trigger.HUNG if state is State.HUNG else Trigger.DOWN
    return _BY_SIGNAL.get(first) or of_policy(wish.policy)


def of_policy(policy: str) -> Trigger:
    return BY_POLICY.get(policy, Trigger.UNKNOWN)
