"""What policies in mode ``advise`` would do, as findings that notify. Pure.

A policy that sets weights all the time is told of only where it would take most of a backend's traffic: a weight of 88 % is no
news, and neither is what the gateway has in force already. Of one tick the first ``MAX_ADVICE`` are told, drains first, so that
a bad hour of a large fleet is no flood.
"""

from __future__ import annotations

from tailkeeper_watchdog.detectors.base import Symptom
from tailkeeper_watchdog.guards import is_drain, takes_out
from tailkeeper_watchdog.knob_words import setting
from tailkeeper_watchdog.model import Backend, DesiredState, FindingKind, Knob, Mode, Severity, Situation

MAX_ADVICE = 50


def advised(desired: tuple[DesiredState, ...], situation: Situation) -> tuple[Symptom, ...]:
    """One symptom for each advised change that a person would want to hear of."""
    wishes = [wish for wish in desired if wish.mode is Mode.ADVISE and (wish.knob is not Knob.WEIGHT or takes_out(wish))]
    backends = {b.name: b for b in situation.snapshot.backends} if wishes else {}
    wishes = [wish for wish in wishes if not _is_so(wish, backends.get(wish.backend), situation)]
    wishes.sort(key=lambda wish: not is_drain(wish.knob, wish.value))
    return tuple(_symptom(wish) for wish in wishes[:MAX_ADVICE])


def _is_so(wish: DesiredState, backend: Backend | None, situation: Situation) -> bool:
    known = None if backend is None or wish.knob is Knob.WEIGHT else situation.knob(backend, wish.knob)
    return known is not None and known.actual == wish.value


def _symptom(wish: DesiredState) -> Symptom:
    return Symptom(
        FindingKind.ADVICE,
        wish.backend,
        Severity.TICKET,
        f"{wish.backend}: {wish.policy} advises {setting(wish.knob, wish.value)}: {wish.reason}",
        {"policy": wish.policy, "knob": wish.knob.value, "value": wish.value, "reason": wish.reason},
        signal=f"{wish.policy}:{wish.knob.value}",
    )
