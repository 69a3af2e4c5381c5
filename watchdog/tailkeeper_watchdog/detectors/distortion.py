"""Distortion flag: the standard deviation of TTFT is above 0.8 of its mean, over about the last 1,000 requests. Pure.

On healthy traffic behind a queue it is almost always on: 29 to 97 false alarms in 100,000 requests without any drift (the
drift measurements). So it is a word about the shape of the latencies, for the board: severity info, never a page, never an
action. It needs request records; buckets do not say how far their samples lie from the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from tailkeeper_watchdog.detectors.base import Detector, Symptom, first_tokens_s
from tailkeeper_watchdog.model import EMPTY, FindingKind, Severity, Situation

LIMIT_RATIO = 0.8
WINDOW_SAMPLES = 1_000
CHUNK_SAMPLES = 100
"""The window moves by a chunk, so a backend costs eleven sums and not a thousand values."""
MIN_SAMPLES = 200
"""Fewer say little about a spread that a handful of long waits makes."""
FRESH_S = 60.0
"""A window that nothing was added to for longer describes the past."""
SIGNAL = "ttft"


@dataclass(frozen=True, slots=True)
class Sums:
    """Of some samples: how many, their mean in seconds, and the sum of their squared distances from it (seconds²)."""

    count: int = 0
    mean_s: float = 0.0
    squares_s2: float = 0.0

    def plus(self, other: Sums) -> Sums:
        """Both together, without the cancellation that a sum of squares suffers (Chan, Golub and LeVeque)."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        step = other.mean_s - self.mean_s
        squares = self.squares_s2 + other.squares_s2 + step * step * self.count * other.count / count
        return Sums(count, self.mean_s + step * other.count / count, squares)

    @property
    def deviation_s(self) -> float:
        return sqrt(self.squares_s2 / self.count) if self.count else 0.0


def sums_of(values_s: Sequence[float]) -> Sums:
    if not values_s:
        return Sums()
    mean = sum(values_s) / len(values_s)
    return Sums(len(values_s), mean, sum((value - mean) ** 2 for value in values_s))


@dataclass(frozen=True, slots=True)
class Shape:
    """The chunks of one backend's last samples, oldest first, and when the newest sample came (monotonic)."""

    chunks: tuple[Sums, ...] = ()
    at: float = float("-inf")

    def add(self, values_s: Sequence[float], now: float) -> Shape:
        chunks, values = list(self.chunks), values_s[-WINDOW_SAMPLES:]
        while values:
            if not chunks or chunks[-1].count >= CHUNK_SAMPLES:
                chunks.append(Sums())
            room = CHUNK_SAMPLES - chunks[-1].count
            chunks[-1] = chunks[-1].plus(sums_of(values[:room]))
            values = values[room:]
        return Shape(tuple(chunks[-(WINDOW_SAMPLES // CHUNK_SAMPLES + 1) :]), now)

    def whole(self) -> Sums:
        whole = Sums()
        for chunk in self.chunks:
            whole = whole.plus(chunk)
        return whole


@dataclass(frozen=True, slots=True)
class Memory:
    shapes: Mapping[str, Shape] = field(default_factory=lambda: EMPTY)


def detect(situation: Situation, memory: Memory) -> tuple[Memory, tuple[Symptom, ...]]:
    now = situation.snapshot.now
    shapes = dict(memory.shapes)
    for name, records in situation.records.items():
        values = first_tokens_s(records)
        if values:
            shapes[name] = shapes.get(name, Shape()).add(values, now)
    symptoms = (_symptom(name, shape.whole()) for name, shape in shapes.items() if now - shape.at <= FRESH_S)
    return Memory(shapes), tuple(s for s in symptoms if s is not None)


def _symptom(name: str, whole: Sums) -> Symptom | None:
    if whole.count < MIN_SAMPLES or whole.deviation_s <= LIMIT_RATIO * whole.mean_s:
        return None
    ratio = whole.deviation_s / whole.mean_s if whole.mean_s > 0 else None
    evidence = {
        "mean_s": whole.mean_s,
        "deviation_s": whole.deviation_s,
        "ratio": ratio,
        "limit_ratio": LIMIT_RATIO,
        "samples": whole.count,
    }
    summary = f"{name}: times to the first token are spread wide ({whole.deviation_s:.3g} s about {whole.mean_s:.3g} s)"
    return Symptom(FindingKind.DISTORTION, name, Severity.INFO, summary, evidence, SIGNAL)


DETECTOR = Detector("distortion", (FindingKind.DISTORTION,), Memory, detect, close_after_s=60.0)
