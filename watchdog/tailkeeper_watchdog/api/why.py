"""One sentence per backend: what was done and why, or why nothing was done. Pure.

The first thing that is true is said: a guard's refusal, what is in force, what no gateway here can do, what is only written
down, what is wrong with the evidence, and last what keeps the watchdog from acting here at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailkeeper_watchdog.actuators.contract import Support
from tailkeeper_watchdog.model import (
    DRAIN,
    BackendObservation,
    DesiredState,
    Enforceability,
    Knob,
    KnobValue,
    Lease,
    Mode,
    Refusal,
    Verdict,
)
from tailkeeper_watchdog.policies import POLICIES

NOTHING_WANTED = "nothing to do: no policy wants a change"
NOT_ENFORCING = "no policy is in mode enforce"
WHY_LIMIT_CHARS = 400
"""A guard may name every backend that is out already; the decision log has all of it."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known of one backend's case. ``unable`` says why nothing can be enforced here, empty where it can."""

    seen: BackendObservation | None
    desired: tuple[DesiredState, ...]
    verdicts: tuple[Verdict, ...]
    leases: tuple[Lease, ...]
    unable: str


def actuation_of(name: str, support: Mapping[tuple[str, Knob], Support], mode: Mode) -> tuple[Enforceability, str]:
    """How far anything goes at this backend, and why not further (empty where everything goes)."""
    answers = [a for policy in POLICIES for knob in policy.knobs if (a := support.get((name, knob))) is not None]
    if not any(a.enforceable for a in answers):
        return Enforceability.NOT_ENFORCEABLE, answers[0].why_not if answers else "no gateway is configured for this backend"
    return (Enforceability.ENFORCED, "") if mode is Mode.ENFORCE else (Enforceability.OBSERVED, NOT_ENFORCING)


def why_of(case: Circumstances) -> str:
    """The sentence of the contract's field ``why``."""
    possible = tuple(v for v in case.verdicts if v.refusal is not Refusal.NOT_ENFORCEABLE)
    said = _refused(possible) or _in_force(case.leases) or _refused(case.verdicts)
    why = said or _only_written_down(case.desired) or _at_rest(case)
    return why if len(why) <= WHY_LIMIT_CHARS else f"{why[: WHY_LIMIT_CHARS - 1]}…"


def _refused(verdicts: tuple[Verdict, ...]) -> str:
    for verdict in verdicts:
        if verdict.refusal is not None:
            detail = f" ({verdict.detail})" if verdict.detail else ""
            return f"{verdict.refusal.value}{detail}; wanted because {verdict.desired.reason}"
    return ""


def _in_force(leases: tuple[Lease, ...]) -> str:
    done = {f"{_done(lease.knob, lease.written)}: {lease.reason}": None for lease in leases}
    return "; ".join(done)


def _only_written_down(desired: tuple[DesiredState, ...]) -> str:
    """Policies in mode observe or advise. Enforced wishes are told by their verdict or their lease."""
    for wish in desired:
        if wish.mode is not Mode.ENFORCE:
            return f"would be {_done(wish.knob, wish.value)} ({wish.mode.value} only): {wish.reason}"
    return ""


def _done(knob: Knob, value: KnobValue) -> str:
    if knob is Knob.ADMISSION:
        return "drained" if value == DRAIN else f"admission {value}"
    if knob is Knob.WEIGHT and isinstance(value, (int, float)):
        return f"weight {value:.0%}"
    return f"{knob.value} {value:g}" if isinstance(value, float) else f"{knob.value} {value}"


def _at_rest(case: Circumstances) -> str:
    seen = case.seen
    evidence = "nothing is known of it yet" if seen is None else seen.error or "; ".join(seen.reasons)
    return "; ".join(part for part in (evidence, case.unable) if part) or NOTHING_WANTED
