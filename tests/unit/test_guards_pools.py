"""The guards count in each pool for itself: what is out in one says nothing about another."""

from __future__ import annotations

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.guards import GuardContext, judge
from tailkeeper_watchdog.model import (
    DRAIN,
    EMPTY,
    SERVE,
    Backend,
    BackendObservation,
    DesiredState,
    FleetSnapshot,
    Knob,
    Lease,
    Mode,
    Pending,
    Refusal,
    Target,
)
from tailkeeper_watchdog.settings import GuardsSettings

NAMES = ("a", "b", "c", "d")
EAST, WEST = ({n: Target(gateway, n, "llm") for n in NAMES} for gateway in ("east", "west"))


def judged(drained: set[Target], leases: tuple[Lease, ...] = (), pending: Pending = EMPTY) -> Refusal | None:
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
        pending=pending,
    )
    wish = DesiredState("p", "b", Knob.ADMISSION, DRAIN, "hung", Mode.ENFORCE, ("x", "y"), 0.0)
    return judge((wish,), context)[0].refusal


def test_a_drain_at_one_gateway_is_no_leave_to_break_the_cap_at_another() -> None:
    assert judged({EAST["b"], WEST["a"]}) is Refusal.CAP


def test_a_drain_in_force_at_every_gateway_is_a_renewal() -> None:
    assert judged({EAST["b"], WEST["b"], WEST["a"]}) is None


def test_a_drain_in_force_at_one_gateway_may_be_completed_at_the_other_within_the_cap() -> None:
    assert judged({EAST["b"]}) is None


def test_whoever_may_yet_be_taken_out_by_a_write_from_before_counts_for_the_cap() -> None:
    lease = Lease(1, "a", WEST["a"], Knob.WEIGHT, "p", 1.0, 0.7, "why", 0.0, 300.0, confirmed=True)
    assert judged(set(), (lease,), {lease.place: {0.6: 1_010.0}}) is None
    assert judged(set(), (lease,), {lease.place: {0.6: 1_010.0, 0.25: 1_010.0}}) is Refusal.CAP


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


def judged_beside(beside: dict[str, ServerState]) -> tuple[Refusal | None, str]:
    """The verdict on a drain of hung "b" at the gateway "east", where a gateway without doors says ``beside`` of backends."""
    backends = tuple(Backend(n, "m", (EAST[n], *([Target("engines", n, "all")] if n in beside else []))) for n in NAMES)
    seen = {n: BackendObservation(n, State.HUNG if n == "b" else State.SERVING, 0.0) for n in NAMES}
    known = ServerState({Knob.ADMISSION: SERVE, Knob.WEIGHT: 1.0}, normal_weight=1.0)
    context = GuardContext(
        FleetSnapshot(1, 100.0, 1_000.0, backends, seen),
        GuardsSettings(),
        3.0,
        servers=dict.fromkeys(EAST.values(), known) | {Target("engines", n, "all"): state for n, state in beside.items()},
        support={("b", Knob.ADMISSION): Support(True)},
        without_doors=frozenset({"engines"}),
    )
    wish = DesiredState("p", "b", Knob.ADMISSION, DRAIN, "hung", Mode.ENFORCE, ("x", "y"), 0.0)
    verdict = judge((wish,), context)[0]
    return verdict.refusal, verdict.detail


def test_a_gateway_that_carries_no_traffic_is_no_pool_of_one() -> None:
    assert judged_beside({"b": ServerState({Knob.BATCH_WINDOW_S: 0.05})}) == (None, "")


def test_a_gateway_that_only_looks_makes_nobody_unobservable() -> None:
    assert judged_beside({n: ServerState({}) for n in NAMES}) == (None, "")


def test_an_engine_that_somebody_paused_counts_against_the_cap_of_its_pool() -> None:
    paused = ServerState({}, in_service=False, doubt="somebody has it paused")
    refusal, detail = judged_beside({"a": paused, "b": ServerState({}), "c": ServerState({})})

    assert refusal is Refusal.CAP
    assert "1 of 4 out already (a)" in detail
