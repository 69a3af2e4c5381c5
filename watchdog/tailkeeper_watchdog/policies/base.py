"""What a policy is: a pure function from a situation and its own memory to desired states. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailkeeper_watchdog.forgetting import forget
from tailkeeper_watchdog.model import DesiredState, Knob, Mode, Situation

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
