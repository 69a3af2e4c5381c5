"""A fleet as the detectors see it, without a loop: what its backends did is said, time is turned, symptoms come back.

Counters and buckets rise as an exporter's would; request records are told only where a test asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Reading, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.core import Memory, Rules, score_fleet
from tailkeeper_watchdog.detectors import Detector, Symptom
from tailkeeper_watchdog.model import Backend, BackendObservation, FleetSnapshot, Knob, RequestRecord, Situation, Slo, Target
from tailkeeper_watchdog.samples import OUTCOME_SLOT

BOUNDS = tuple(sorted((*catalog.LATENCY_BUCKETS, inf)))
WALL_S = 1.7e9


@dataclass
class Seen:
    """The counters of one backend so far."""

    ok: float = 0.0
    errors: float = 0.0
    rejected: float | None = None
    tokens: float = 0.0
    counts: list[float] = field(default_factory=lambda: [0.0] * len(BOUNDS))
    sum_s: float = 0.0
    state: State = State.SERVING
    silent: bool = False
    models: frozenset[str] = frozenset({"m"})


class WatchedFleet:
    """``did`` what happened, then ``look``."""

    def __init__(self, detector: Detector, names: Sequence[str] = ("a",), slo: Slo | None = None, pool: str = "llm") -> None:
        self.detector, self.pool = detector, pool
        self.seen = {name: Seen() for name in names}
        self.now = 1_000.0
        self.memory = Memory()
        self.state: Any = detector.new_memory()
        self.rules = Rules(slo or Slo(), {"latency": 0.35, "error_rate": 0.4, "cpu_usage": 0.15, "uptime": 0.1}, {}, 15.0)
        self.ordered: set[tuple[str, Knob]] = set()
        """What changes of ours are in force."""
        self._records: list[RequestRecord] = []

    def did(self, name: str = "a", ttft_s: Iterable[float] = (), errors: int = 0, tokens: int = 100, rejected: int = 0) -> None:
        """Finished requests with these first tokens, failed ones, and refused ones."""
        seen = self.seen[name]
        for value in ttft_s:
            seen.ok += 1
            seen.tokens += tokens
            seen.sum_s += value
            for index, bound in enumerate(BOUNDS):
                seen.counts[index] += value <= bound
        seen.errors += errors
        if rejected or seen.rejected is not None:
            seen.rejected = (seen.rejected or 0.0) + rejected

    def told(self, *records: RequestRecord) -> None:
        self._records.extend(records)

    def look(self, after_s: float = 5.0) -> tuple[Symptom, ...]:
        """One tick, ``after_s`` later."""
        self.state, symptoms = self.detector.detect(self.situation(after_s), self.state)
        return symptoms

    def situation(self, after_s: float) -> Situation:
        """What the detectors would see, ``after_s`` later."""
        self.now += after_s
        backends = tuple(Backend(name, "m", (Target("edge", name, self.pool),)) for name in self.seen)
        observations = {name: self._observation(name, seen) for name, seen in self.seen.items()}
        snapshot = FleetSnapshot(1, self.now, WALL_S + self.now, backends, observations)
        self.memory, situation = score_fleet(snapshot, tuple(self._records), self.memory, self.rules)
        self._records = []
        targets = {backend.name: backend.targets[0] for backend in backends}
        return replace(situation, prior={(targets[name], knob): 0.0 for name, knob in self.ordered})

    def forget(self, name: str) -> None:
        del self.seen[name]
        self.state = self.detector.forget(self.state, frozenset({name}))

    def _observation(self, name: str, seen: Seen) -> BackendObservation:
        if seen.silent:
            return BackendObservation(name, State.UNKNOWN, None, "silent")
        values = {
            OUTCOME_SLOT["ok"]: seen.ok,
            OUTCOME_SLOT["error"]: seen.errors,
            catalog.GENERATED_TOKENS.name: seen.tokens,
            catalog.RUNNING.name: 3.0,
            catalog.WAITING.name: 0.0,
        }
        if seen.rejected is not None:
            values[OUTCOME_SLOT["rejected"]] = seen.rejected
        readings: dict[str, Reading[float]] = {key: present(value, self.now) for key, value in values.items()}
        histograms = {catalog.TTFT.name: Histogram(BOUNDS, tuple(seen.counts), seen.sum_s)}
        return BackendObservation(name, seen.state, 0.0, None, readings, histograms, models=seen.models)


def record(ttft_s: float | None, name: str = "a", outcome: str = "ok", **more: Any) -> RequestRecord:
    return RequestRecord(name, outcome, ttft_s, more.pop("itl_s", None), more.pop("e2e_s", None), **more)
