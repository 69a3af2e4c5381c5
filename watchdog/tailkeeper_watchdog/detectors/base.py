"""What a detector is: a pure function from a situation and its own memory to what is wrong now. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailkeeper_watchdog.forgetting import forget
from tailkeeper_watchdog.model import EMPTY, FindingKind, Severity, Situation


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something wrong at this tick. Two symptoms with the same (kind, backend, signal) are the same finding."""

    kind: FindingKind
    backend: str
    severity: Severity
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    signal: str = ""

    @property
    def key(self) -> tuple[FindingKind, str, str]:
        return (self.kind, self.backend, self.signal)


Forget = Callable[[Any, frozenset[str]], Any]
Detect = Callable[[Situation, Any], tuple[Any, tuple[Symptom, ...]]]


@dataclass(frozen=True, slots=True)
class Detector:
    """``detect(situation, memory)`` returns the new memory and the symptoms of this tick."""

    name: str
    kinds: tuple[FindingKind, ...]
    new_memory: Callable[[], Any]
    detect: Detect
    close_after_s: float
    """How long a symptom must be gone, with fresh evidence, before its finding closes."""
    forget: Forget = forget
    """The memory without the backends that are gone."""
