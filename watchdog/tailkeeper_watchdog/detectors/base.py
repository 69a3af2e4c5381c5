"""What a detector is: a pure function from a situation and its own memory to what is wrong now. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from tailkeeper_watchdog.forgetting import forget
from tailkeeper_watchdog.model import EMPTY, FindingKind, RequestRecord, Severity, Situation

MAX_LATENCY_S = 1e5
"""More than a day for a first token is a broken clock."""


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
    signals: tuple[str, ...] = ("ttft",)
    """Which latencies it looks at; an empty one is none of them, but whether requests are answered at all."""


def first_tokens_s(records: Iterable[RequestRecord]) -> list[float]:
    """Times to the first token that can be true, of requests that ended well: a failed request is no fast one."""
    return [
        record.ttft_s for record in records if record.outcome == "ok" and record.ttft_s is not None and is_latency(record.ttft_s)
    ]


def is_latency(value_s: float) -> bool:
    return isfinite(value_s) and 0.0 <= value_s < MAX_LATENCY_S
