"""Two signals take a backend out; one keeps it out, because without traffic it has nothing left to show the other with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.guards import GuardContext, judge
from tailkeeper_watchdog.model import (
    DRAIN,
    SERVE,
    Backend,
    BackendObservation,
    DesiredState,
    FleetSnapshot,
    Knob,
    Lease,
    Mode,
    Refusal,
    Target,
)
from tailkeeper_watchdog.settings import GuardsSettings

TARGET = Target("edge", "a", "llm")
OURS = Lease(1, "a", TARGET, Knob.ADMISSION, "p", SERVE, DRAIN, "why", 0.0, 1_060.0, confirmed=True)
UNANSWERED = replace(OURS, confirmed=False, before=SERVE)


@pytest.mark.parametrize(
    ("signals", "leases", "refusal"),
    [
        (("pressure",), (), Refusal.SIGNALS),
        (("pressure", "preemptions"), (), None),
        (("pressure",), (OURS,), None),
        (("pressure",), (UNANSWERED,), Refusal.SIGNALS),
    ],
    ids=["one takes nobody out", "two do", "one keeps out", "nobody is out by a write that has not arrived"],
)
def test_how_many_signals_a_drain_needs(signals: tuple[str, ...], leases: tuple[Lease, ...], refusal: Refusal | None) -> None:
    backends = (Backend("a", "m", (TARGET,)), *(Backend(n, "m", (Target("edge", n, "llm"),)) for n in "bcd"))
    seen = {b.name: BackendObservation(b.name, State.SERVING, 0.0) for b in backends}
    context = GuardContext(
        FleetSnapshot(1, 100.0, 1_000.0, backends, seen),
        GuardsSettings(),
        3.0,
        leases=leases,
        servers={b.targets[0]: ServerState({Knob.ADMISSION: SERVE}) for b in backends},
        support={("a", Knob.ADMISSION): Support(True)},
    )
    (verdict,) = judge((DesiredState("p", "a", Knob.ADMISSION, DRAIN, "full", Mode.ENFORCE, signals, 0.0),), context)
    assert verdict.refusal is refusal
