"""Growth rule: three consecutive P99 readings of TTFT, each at least 15 % above the last. Pure.

Readings are five seconds apart, so that three of them are three facts and not one seen three times; a reading with
fewer than 20 samples says nothing. Cheap and nearly blind behind a queue (0 to 12 % of real drifts found, see the
drift measurements), hence severity info: it is shown and never acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailkeeper_exporter.readings import Quantile
from tailkeeper_watchdog.detectors.base import Detector, Symptom
from tailkeeper_watchdog.model import EMPTY, FindingKind, Severity, Situation

GROWTH = 1.15
READINGS = 3
SPACING_S = 5.0
MIN_SAMPLES = 20
SIGNAL = "ttft"


@dataclass(frozen=True, slots=True)
class Readings:
    """The last P99 readings of one backend in seconds, oldest first, with when the newest was taken."""

    p99_s: tuple[float, ...] = ()
    taken_at: float = float("-inf")
    was_saturated: bool = False

    def add(self, quantile: Quantile, now: float) -> Readings:
        return Readings((*self.p99_s, quantile.value)[-(READINGS + 1) :], now, quantile.saturated)

    @property
    def grows(self) -> bool:
        """READINGS rises in a row, which takes one more reading than that to see."""
        p99_s = self.p99_s
        if len(p99_s) <= READINGS:
            return False
        # The newest first: of nearly all backends it has not risen.
        return all(p99_s[-place] >= GROWTH * p99_s[-place - 1] > 0 for place in range(1, READINGS + 1))


@dataclass(frozen=True, slots=True)
class Memory:
    readings: Mapping[str, Readings] = field(default_factory=lambda: EMPTY)


def detect(situation: Situation, memory: Memory) -> tuple[Memory, tuple[Symptom, ...]]:
    now = situation.snapshot.now
    kept: dict[str, Readings] = {}
    none_yet = Readings()
    symptoms: list[Symptom] = []
    before = memory.readings
    for backend in situation.snapshot.backends:
        readings = before.get(backend.name, none_yet)
        quantile = situation.p99(backend.name, SIGNAL) if now - readings.taken_at >= SPACING_S else None
        if quantile is not None and quantile.samples >= MIN_SAMPLES:
            readings = readings.add(quantile, now)
        kept[backend.name] = readings
        if len(readings.p99_s) > READINGS and readings.grows:
            symptoms.append(_symptom(backend.name, readings))
    return Memory(kept), tuple(symptoms)


def _symptom(name: str, readings: Readings) -> Symptom:
    steps = " → ".join(f"{value:.3g}" for value in readings.p99_s)
    evidence = {
        "p99_s": list(readings.p99_s),
        "rule": f"each ≥ {GROWTH - 1:.0%} over the last",
        "saturated": readings.was_saturated,
    }
    return Symptom(FindingKind.GROWTH, name, Severity.INFO, f"{name}: P99 of the first token grows, {steps} s", evidence, SIGNAL)


DETECTOR = Detector("growth", (FindingKind.GROWTH,), Memory, detect, close_after_s=30.0)
