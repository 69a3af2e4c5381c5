"""Growth rule: three consecutive P99 readings of TTFT, each at least 15 % above the last. Pure.

Readings are five seconds apart, so that three of them are three facts and not one seen three times; a reading with
fewer than 20 samples says nothing. Cheap and nearly blind behind a queue (0 to 12 % of real drifts found, see the
drift measurements), hence severity info: it is shown and never acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan

import numpy as np

from tailkeeper_watchdog.columns import columns, p99
from tailkeeper_watchdog.detectors.base import Detector, Symptom
from tailkeeper_watchdog.model import FindingKind, Severity, Situation
from tailkeeper_watchdog.table import Table

GROWTH = 1.15
READINGS = 3
SPACING_S = 5.0
MIN_SAMPLES = 20
SIGNAL = "ttft"


_NO_READINGS = (*(nan,) * (READINGS + 1), -inf, 0.0)
"""The last P99 readings of one backend in seconds, oldest first, one more than the rises that it takes; when the newest was
taken, and whether it was saturated."""
_TAKEN_AT, _SATURATED = READINGS + 1, READINGS + 2


@dataclass(frozen=True, slots=True)
class Memory:
    readings: Table = field(default_factory=Table)
    """Lines as ``_NO_READINGS`` is one."""


def detect(situation: Situation, memory: Memory) -> tuple[Memory, tuple[Symptom, ...]]:
    fleet, now, quantile = columns(situation), situation.snapshot.now, p99(situation, SIGNAL)
    lines = memory.readings.of(fleet.names, _NO_READINGS)
    due = (now - lines[:, _TAKEN_AT] >= SPACING_S) & (quantile.samples >= MIN_SAMPLES)
    lines[due, :READINGS] = lines[due, 1 : READINGS + 1]
    lines[due, READINGS], lines[due, _TAKEN_AT] = quantile.value[due], now
    lines[due, _SATURATED] = quantile.saturated[due]
    earlier, later = lines[:, :READINGS], lines[:, 1 : READINGS + 1]
    grows = ((later >= GROWTH * earlier) & (earlier > 0)).all(axis=1)
    symptoms = [_symptom(fleet.names[place], lines[place].tolist()) for place in np.flatnonzero(grows)]
    return Memory(Table(fleet.names, lines)), tuple(symptoms)


def _symptom(name: str, line: list[float]) -> Symptom:
    p99_s = line[: READINGS + 1]
    steps = " → ".join(f"{value:.3g}" for value in p99_s)
    evidence = {
        "p99_s": p99_s,
        "rule": f"each ≥ {GROWTH - 1:.0%} over the last",
        "saturated": bool(line[_SATURATED]),
    }
    return Symptom(FindingKind.GROWTH, name, Severity.INFO, f"{name}: P99 of the first token grows, {steps} s", evidence, SIGNAL)


DETECTOR = Detector("growth", (FindingKind.GROWTH,), Memory, detect, close_after_s=30.0)
