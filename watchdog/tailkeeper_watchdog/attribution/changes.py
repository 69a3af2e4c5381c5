"""What changed at a backend shortly before: labels, model, restarts, new values in its traffic, our own actions. Pure.

Time alone proves little: a change is a candidate, and how much it may claim falls with its age.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

from tailkeeper_watchdog.knob_words import shown
from tailkeeper_watchdog.model import DRAIN, Backend, Decision, Outcome

MAX_CHANGES = 16
"""Remembered per backend."""
RECENT_S = 900.0
"""Older changes are no candidates."""
FADES_S = 300.0
MAX_CLAIM = 0.4
"""Of what nothing else explains; below one half, so that a coincidence is never named before the stage that was measured."""
AFTER_S = 5.0
"""A finding is told after the fact, so a change this long after its onset may still have come first. Our own actions are told
at once, and must be this much older: what we do as a finding opens is the answer to it."""
_OURS = frozenset({Outcome.APPLIED, Outcome.RELEASED, Outcome.EXPIRED})


@dataclass(frozen=True, slots=True)
class Change:
    """``kind`` is deploy, config, restart, traffic or action; ``at`` is monotonic."""

    kind: str
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """``age_s`` before the onset; ``claim`` in [0, MAX_CLAIM]."""

    kind: str
    text: str
    age_s: float
    claim: float


_DEPLOYS = ("canary_revision", "version", "revision", "image", "model_version")


def configured(before: Backend, after: Backend, now: float) -> tuple[Change, ...]:
    """What differs between two configurations of one backend."""
    found = [Change("deploy", f"model {after.model or 'none'}", now)] if before.model != after.model else []
    for label in sorted({*before.labels, *after.labels}):
        value = after.labels.get(label, "none")
        if before.labels.get(label, "none") != value:
            found.append(Change("deploy" if label in _DEPLOYS else "config", f"{label} {value}"[:80], now))
    return tuple(found[:MAX_CHANGES])


def of_decision(decision: Decision, now: float) -> Change | None:
    """A change that we made ourselves and that can have brought a backend more to do.

    What was only wanted changed nothing, and taking traffic away is our answer to trouble, not its cause.
    """
    if decision.verdict not in _OURS or _relieves(decision):
        return None
    return Change(
        "action", f"{decision.knob.value} {shown(decision.to_value)} ({decision.policy}, {decision.verdict.value})"[:80], now
    )


def _relieves(decision: Decision) -> bool:
    before, after = decision.from_value, decision.to_value
    return after == DRAIN or (isinstance(before, float) and isinstance(after, float) and after <= before)


def kept(changes: tuple[Change, ...], new: Iterable[Change], now: float) -> tuple[Change, ...]:
    """With the new ones, without those that are too old for any later finding."""
    return tuple(c for c in (*changes, *new) if now - c.at <= 2 * RECENT_S)[-MAX_CHANGES:]


def candidates(changes: tuple[Change, ...], onset: float) -> tuple[Candidate, ...]:
    """Changes shortly before ``onset``, monotonic, latest first."""
    found = []
    for change in reversed(changes):
        age = onset - change.at
        least = AFTER_S if change.kind == "action" else -AFTER_S
        if least <= age <= RECENT_S:
            found.append(Candidate(change.kind, change.text, max(0.0, age), MAX_CLAIM * exp(-max(0.0, age) / FADES_S)))
    return tuple(found)
