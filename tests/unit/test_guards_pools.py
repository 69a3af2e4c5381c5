"""The guards count in each pool for itself: what is out in one says nothing about another."""

from __future__ import annotations

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

NAMES = ("a", "b", "c", "d")
EAST, WEST = ({n: Target(gateway, n, "llm") for n in NAMES} for gateway in ("east", "west"))


def judged(drained: set[Target], leases: tuple[Lease, ...] = ()) -> Refusal | None:
    """The verdict on a drain of hung "b", which both gateways serve, where ``drained`` are out already."""
    backends = tuple(Backend(n, "m", (EAST[n], WEST[n])) for n in NAMES)
    seen = {n: BackendObservation(n, State.HUNG if n == "b" else State.SERVING, 0.0) for n in NAMES}
    servers = {
        t: ServerState({Knob.ADMISSION: DRAIN if t in drained else SERVE, Knob.WEIGHT: 1.0}, normal_weight=1.0)
        for t in (*EAST.values(), *WEST.values())
    }
    context = GuardContext(
        FleetSnapshot(1, 100.0, 1_000.0, backends, seen),
        GuardsSettings(),
        3.0,
        leases=leases,
        servers=servers,
        support={("b", Knob.ADMISSION): Support(True)},
    )
    wish = DesiredState("p", "b", Knob.ADMISSION, DRAIN, "hung", Mode.ENFORCE, ("x", "y"), 0.0)
    return judge((wish,), context)[0].refusal


def test_a_drain_at_one_gateway_is_no_leave_to_break_the_cap_at_another() -> None:
    assert judged({EAST["b"], WEST["a"]}) is Refusal.CAP


def test_a_drain_in_force_at_every_gateway_is_a_renewal() -> None:
    assert judged({EAST["b"], WEST["b"], WEST["a"]}) is None


def test_a_drain_in_force_at_one_gateway_may_be_completed_at_the_other_within_the_cap() -> None:
    assert judged({EAST["b"]}) is None


def test_a_server_whose_gateway_does_not_say_is_not_counted_as_left_serving() -> None:
    backends = tuple(Backend(n, "m", (EAST[n],)) for n in NAMES)
    seen = {n: BackendObservation(n, State.HUNG if n == "b" else State.SERVING, 0.0) for n in NAMES}
    silent = ServerState({}, doubt="its document could not be had")
    known = ServerState({Knob.ADMISSION: SERVE, Knob.WEIGHT: 1.0}, normal_weight=1.0)
    context = GuardContext(
        FleetSnapshot(1, 100.0, 1_000.0, backends, seen),
        GuardsSettings(),
        3.0,
        servers={EAST[n]: known if n == "b" else silent for n in NAMES},
        support={("b", Knob.ADMISSION): Support(True)},
    )
    wish = DesiredState("p", "b", Knob.ADMISSION, DRAIN, "hung", Mode.ENFORCE, ("x", "y"), 0.0)
    assert judge((wish,), context)[0].refusal is Refusal.MIN_HEALTHY
