"""Merge what the policies want: for one knob of one backend the most restrictive wish wins. Pure.

Only wishes of enforcing policies compete; a policy that merely observes or advises never changes what is enforced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from tailkeeper_watchdog.model import DRAIN, DesiredState, Knob, KnobValue, Mode


def _smallest(value: KnobValue) -> float:
    return float(value)


def _smallest_limit(value: KnobValue) -> float:
    """0 is no limit at all, which is the least restrictive one."""
    return float(value) or inf


def _drain_first(value: KnobValue) -> float:
    return float(value != DRAIN)


def _largest(value: KnobValue) -> float:
    return -float(value)


def _any(_: KnobValue) -> float:
    return 0.0


RESTRICTION: dict[Knob, Callable[[KnobValue], float]] = {
    Knob.WEIGHT: _smallest,
    Knob.ADMISSION: _drain_first,
    Knob.CONCURRENCY_LIMIT: _smallest_limit,
    Knob.BATCH_WINDOW_S: _smallest,
    Knob.DEGRADE_LEVEL: _largest,
    Knob.REPLICAS: _largest,
    Knob.CACHE_MODE: _any,
    Knob.TAINT: _any,
    Knob.ANNOTATION: _any,
}
"""Key of each knob: the smallest key is the most restrictive value."""


def resolve(desired: tuple[DesiredState, ...]) -> tuple[DesiredState, ...]:
    """One wish per (backend, knob) among the enforced ones, then all others as they came.

    Between equal wishes the one with more independent signals stays; a guard may ask for them.
    """
    best: dict[tuple[str, Knob], DesiredState] = {}
    for wish in desired:
        if wish.mode is not Mode.ENFORCE:
            continue
        key = (wish.backend, wish.knob)
        if key not in best:
            best[key] = wish
        elif wish.knob is Knob.ANNOTATION:
            best[key] = _both(best[key], wish)
        elif _rank(wish) < _rank(best[key]):
            best[key] = wish
    return (*best.values(), *(w for w in desired if w.mode is not Mode.ENFORCE))


def strictest(wishes: Iterable[DesiredState]) -> Iterable[DesiredState]:
    """Of several wishes of one policy for one knob of one backend only the most restrictive: it is the one that would count."""
    kept: dict[tuple[str, str, Knob], DesiredState] = {}
    for wish in wishes:
        key = (wish.policy, wish.backend, wish.knob)
        if key not in kept or _rank(wish) < _rank(kept[key]):
            kept[key] = wish
    return kept.values()


def _both(first: DesiredState, second: DesiredState) -> DesiredState:
    """Two notes on one backend, each ``KEY=VALUE`` and more of them with commas between: one note with all keys, sorted."""
    notes = {**_notes(second.value), **_notes(first.value)}
    value = ",".join(f"{key}={text}" for key, text in sorted(notes.items()))
    return replace(first, value=value, reason=f"{first.reason}; {second.reason}")


def _notes(value: KnobValue) -> dict[str, str]:
    return {key: text for part in str(value).split(",") if part for key, _, text in [part.partition("=")]}


def _rank(wish: DesiredState) -> tuple[float, int]:
    return (RESTRICTION[wish.knob](wish.value), -len(wish.signals))
