"""What a policy is: a pure function from a situation and its own memory to desired states. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailkeeper_watchdog.forgetting import forget
from tailkeeper_watchdog.model import DesiredState, Knob, Mode, Situation
from tailkeeper_watchdog.window import Window

Forget = Callable[[Any, frozenset[str]], Any]
Decide = Callable[[Situation, Any, Mode, Any], tuple[Any, tuple[DesiredState, ...]]]


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: ``decide(situation, params, mode, memory)`` returns the new memory and what it wants.

    ``knobs`` are what it may turn, for the support table.
    """

    name: str
    summary: str
    knobs: tuple[Knob, ...]
    new_memory: Callable[[], Any]
    decide: Decide
    forget: Forget = forget
    """The memory without the backends that are gone."""


def last_drained(before: Mapping[str, float], situation: Situation) -> dict[str, float]:
    """When each backend was last seen drained, with those that are now; monotonic seconds."""
    return {**before, **dict.fromkeys(situation.drained, situation.snapshot.now)}


def has_a_drain(window: Window | None, drained_at: float | None, now: float) -> bool:
    """Whether it is drained, or its window reaches back into the time when it was: what was stuck in it says nothing of it."""
    ago_s = None if drained_at is None else now - drained_at
    return ago_s is not None and (ago_s <= 0 or (window is not None and window.seconds > ago_s))
