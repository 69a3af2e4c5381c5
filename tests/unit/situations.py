"""Situations for the tests of policies, as small as each test needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import (
    Backend,
    BackendObservation,
    DesiredState,
    FleetSnapshot,
    Knob,
    KnobValue,
    Mode,
    RequestRecord,
    Situation,
    Slo,
    Target,
)
from tailkeeper_watchdog.policies import Policy
from tailkeeper_watchdog.samples import OUTCOME_SLOT, sample_of
from tailkeeper_watchdog.window import Window

BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5.0, inf)


def backend(name: str, pool: str = "llm", model: str = "m", quantization: str = "fp16") -> Backend:
    return Backend(name, model, (Target("edge", name, pool),), quantization=quantization)


def seen(name: str, state: State = State.SERVING, age_s: float = 0.0, **values: float) -> BackendObservation:
    """``values`` by the catalogue's constants in small letters: ``kv_usage=0.82``."""
    readings = {getattr(catalog, key.upper()).name: present(value, 0.0) for key, value in values.items()}
    return BackendObservation(name, state, age_s, readings=readings)


def spread(values: Mapping[float, float]) -> Histogram:
    """A histogram of so many observations (value) of so many seconds (key)."""
    counts = tuple(sum(n for at, n in values.items() if at <= bound) for bound in BOUNDS)
    return Histogram(BOUNDS, counts, sum(at * n for at, n in values.items()))


def window(
    seconds: float = 60.0, *, ok: float | None = None, errors: float | None = 0.0, rejected: float | None = None, **parts: Any
) -> Window:
    """What happened in so many seconds: counters as increases, histograms as mappings from seconds to observations."""
    told = {"ok": ok, "error": None if ok is None else errors, "rejected": rejected}
    counters = {OUTCOME_SLOT[outcome]: count for outcome, count in told.items() if count is not None}
    histograms: dict[str, Histogram] = {}
    for key, value in parts.items():
        name = getattr(catalog, key.upper()).name
        if isinstance(value, Mapping):
            histograms[name] = spread(value)
        else:
            counters[name] = value
    nothing = {name: Histogram(h.bounds, (0.0,) * len(h.bounds), 0.0) for name, h in histograms.items()}
    return Window(sample_of(0.0, dict.fromkeys(counters, 0.0), nothing), sample_of(seconds, counters, histograms))


def situation(
    *observations: BackendObservation,
    now: float = 1_000.0,
    backends: Iterable[Backend] = (),
    windows: Mapping[str, Window] | None = None,
    recent: Mapping[str, Window] | None = None,
    records: Mapping[str, tuple[RequestRecord, ...]] | None = None,
    knobs: Mapping[tuple[str, Knob], KnobValue] | None = None,
    prior: Mapping[tuple[str, Knob], KnobValue] | None = None,
) -> Situation:
    """The backends are those observed unless given. ``knobs`` is what the gateways have in force by backend."""
    fleet = tuple(backends) or tuple(backend(o.backend) for o in observations)
    targets = {b.name: b.targets[0] for b in fleet}
    actual: dict[Target, dict[Knob, KnobValue]] = {}
    for (name, knob), value in (knobs or {}).items():
        actual.setdefault(targets[name], {})[knob] = value
    before = {(targets[name], knob): value for (name, knob), value in (prior or {}).items()}
    snapshot = FleetSnapshot(1, now, now, fleet, {o.backend: o for o in observations})
    return Situation(
        snapshot, windows or {}, recent or {}, {}, Slo(), 3.0, records=records or {}, actual=actual, prior=before
    )  # fmt: skip


class Run:
    """One policy over one situation after another. ``wants`` are the values of the latest tick, by backend and knob."""

    def __init__(self, policy: Policy, params: Any) -> None:
        self.policy, self.params, self.memory = policy, params, policy.new_memory()
        self.desired: tuple[DesiredState, ...] = ()

    def tick(self, given: Situation) -> dict[tuple[str, Knob], KnobValue]:
        self.memory, self.desired = self.policy.decide(given, self.params, Mode.ENFORCE, self.memory)
        return {(wish.backend, wish.knob): wish.value for wish in self.desired}
