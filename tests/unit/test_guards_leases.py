"""Who counts as out: by a lease of ours, by a write that may still come, by what a gateway says, whoever wanted that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.guards import GuardContext, acted_on_by, cap_of, holds_up, is_drain, judge, takes_out
from tailkeeper_watchdog.model import (
    DRAIN,
    SERVE,
    Backend,
    BackendObservation,
    DesiredState,
    FleetSnapshot,
    Knob,
    KnobValue,
    Lease,
    Mode,
    Refusal,
    Target,
    Verdict,
)
from tailkeeper_watchdog.settings import GuardsSettings

NAMES = ("a", "b", "c", "d")
NORMAL = ServerState({Knob.ADMISSION: SERVE, Knob.WEIGHT: 10.0}, normal_weight=10.0)


def at(name: str, gateway: str = "edge") -> Target:
    return Target(gateway, name, "llm")


def leased(name: str, knob: Knob, prior: KnobValue, written: KnobValue, **more: Any) -> Lease:
    given = {"confirmed": True, **more}
    return Lease(1, name, at(name), knob, "p", prior, written, "why", 0.0, 1_060.0, **given)


def wish(name: str, knob: Knob = Knob.ADMISSION, value: KnobValue = DRAIN, *signals: str, reason: str = "why") -> DesiredState:
    return DesiredState("p", name, knob, value, reason, Mode.ENFORCE, signals or ("x", "y"), 0.0)


def context(
    *leases: Lease, told: Mapping[str, ServerState | None] | None = None, settings: GuardsSettings | None = None, **more: Any
) -> GuardContext:
    """Four backends, of which "b" is hung; ``told`` is what the gateway says of some, None for nothing at all."""
    backends = tuple(Backend(n, "m", (at(n),)) for n in NAMES)
    seen = {n: BackendObservation(n, State.HUNG if n == "b" else State.SERVING, 0.0) for n in NAMES}
    servers = {at(n): state for n in NAMES if (state := (told or {}).get(n, NORMAL)) is not None}
    snapshot = FleetSnapshot(1, 100.0, 1_000.0, backends, seen)
    support = {(n, knob): Support(True) for n in (*NAMES, "gone") for knob in Knob}
    given = {"leases": leases, "servers": servers, "support": support, **more}
    return GuardContext(snapshot, settings or GuardsSettings(), 3.0, **given)


def refusal(of: GuardContext, wished: DesiredState | None = None) -> Refusal | None:
    """Of a drain of "b"; one other backend that counts as out is one too many."""
    (verdict,) = judge((wished or wish("b"),), of)
    return verdict.refusal


@pytest.mark.parametrize(
    ("lease", "counts"),
    [
        (leased("a", Knob.ADMISSION, SERVE, DRAIN), True),
        (leased("a", Knob.ADMISSION, DRAIN, SERVE), False),
        (leased("a", Knob.WEIGHT, 10.0, 4.9), True),
        (leased("a", Knob.WEIGHT, 10.0, 5.0), False),
        (leased("a", Knob.WEIGHT, 0.4, 0.3), False),
        (leased("a", Knob.CONCURRENCY_LIMIT, 8.0, 1.0), False),
        (leased("a", Knob.CACHE_MODE, "off", DRAIN), False),
        (leased("b", Knob.WEIGHT, 10.0, 1.0), False),
    ],
)
@pytest.mark.parametrize(
    "told", [{"a": None, "b": None}, {}], ids=["the gateway says nothing", "the gateway says that all is normal"]
)
def test_a_lease_counts_whatever_the_gateway_says_of_it(lease: Lease, counts: bool, told: dict[str, ServerState | None]) -> None:
    assert acted_on_by(lease) is (counts or lease.backend == "b")
    assert (refusal(context(lease, told=told)) is Refusal.CAP) == counts


def server(weight: float | None = 10.0, normal: float | None = 10.0, admission: str | None = SERVE, **more: Any) -> ServerState:
    told: dict[Knob, KnobValue] = {}
    if weight is not None:
        told[Knob.WEIGHT] = weight
    if admission is not None:
        told[Knob.ADMISSION] = admission
    return ServerState(told, normal_weight=normal, **more)


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        (server(5.0), False),
        (server(4.9), True),
        (server(0.4, normal=0.6), False),
        (server(4.9, normal=None), False),
        (server(None, normal=10.0), False),
        (server(0.0, normal=None), True),
        (server(0.0), True),
        (server(admission=DRAIN), True),
        (server(None, admission=DRAIN), True),
        (server(in_service=False), True),
        (server(lowest={Knob.WEIGHT: 2.0}), True),
        (server(lowest={Knob.ADMISSION: DRAIN}), True),
    ],
)
def test_whoever_gets_less_than_half_at_some_replica_counts_whoever_wanted_that(state: ServerState, counts: bool) -> None:
    assert (refusal(context(told={"a": state})) is Refusal.CAP) == counts


@pytest.mark.parametrize(
    ("value", "counts"), [(DRAIN, True), (SERVE, False)], ids=["a drain may still come", "what may come lets it in"]
)
def test_a_write_that_may_still_come_counts(value: str, counts: bool) -> None:
    lease = leased("a", Knob.ADMISSION, SERVE, SERVE)
    assert (refusal(context(lease, pending={lease.place: {value: 1_010.0}})) is Refusal.CAP) == counts


def test_what_is_pending_elsewhere_says_nothing_of_a_lease_that_counts_by_itself() -> None:
    lease = leased("a", Knob.ADMISSION, SERVE, DRAIN)
    assert refusal(context(lease, pending={("edge", "z", Knob.WEIGHT): {1.0: 1_010.0}})) is Refusal.CAP


# What is no new action


@pytest.mark.parametrize(
    ("lease", "told", "wished", "allowed"),
    [
        (leased("b", Knob.ADMISSION, SERVE, DRAIN), None, wish("b"), True),
        (leased("b", Knob.ADMISSION, SERVE, DRAIN), server(admission=None), wish("b"), True),
        (leased("b", Knob.ADMISSION, SERVE, DRAIN), NORMAL, wish("b"), False),
        (leased("b", Knob.WEIGHT, 10.0, 1.0), None, wish("b", Knob.WEIGHT, 0.2), True),
        (leased("b", Knob.WEIGHT, 10.0, 1.0), None, wish("b"), False),
        (leased("b", Knob.ADMISSION, SERVE, DRAIN), None, wish("b", Knob.WEIGHT, 0.2), True),
    ],
    ids=[
        "out by our lease",
        "where the gateway tells something else",
        "let in by a foreign hand",
        "lighter already",
        "lighter, and to be drained",
        "drained, and to be lighter",
    ],
)
def test_whoever_is_out_already_is_taken_out_by_nothing_more(
    lease: Lease, told: ServerState | None, wished: DesiredState, allowed: bool
) -> None:
    """One other is out, so that a new action would be one too many: refused, or had in part."""
    (verdict,) = judge((wished,), context(lease, told={"a": server(admission=DRAIN), "b": told}))
    assert (verdict.refusal is None and verdict.desired == wished) == allowed


@pytest.mark.parametrize("state", [server(4.9), server(admission=DRAIN)], ids=["lighter", "drained"])
def test_a_lower_weight_for_whom_the_gateway_has_low_already_is_no_new_action(state: ServerState) -> None:
    wished = wish("b", Knob.WEIGHT, 0.2)
    (verdict,) = judge((wished,), context(told={"a": server(admission=DRAIN), "b": state}))
    assert verdict == Verdict(wished)


def test_of_two_that_could_be_taken_out_the_dead_one_is_and_a_weight_after_its_drain_needs_no_room() -> None:
    wishes = (wish("a"), wish("b", Knob.WEIGHT, 0.2), wish("b"))
    verdicts = judge(wishes, context())
    assert [(v.desired.backend, v.desired.knob, v.refusal) for v in verdicts] == [
        ("b", Knob.ADMISSION, None),
        ("b", Knob.WEIGHT, None),
        ("a", Knob.ADMISSION, Refusal.CAP),
    ]


def test_a_weight_of_half_and_more_takes_no_place() -> None:
    verdicts = judge((wish("a", Knob.WEIGHT, 0.5), wish("c", Knob.WEIGHT, 0.2)), context())
    assert [v.desired.value for v in verdicts] == [0.5, 0.2]


def test_a_wish_for_whom_the_fleet_does_not_have_is_judged_by_itself() -> None:
    assert refusal(context(), wish("gone", Knob.WEIGHT, 0.2)) is None
    assert judge((), context()) == ()


def test_gateways_of_which_none_answers_make_nobody_silent() -> None:
    assert refusal(context(told=dict.fromkeys(NAMES))) is None


def test_a_gateway_that_does_not_know_a_server_does_not_speak_for_the_others_that_do() -> None:
    """The first of its gateways is not there; at the second it is drained."""
    of = context()
    backends = tuple(replace(b, targets=(at(b.name, "mute"), *b.targets)) for b in of.snapshot.backends)
    servers = {**of.servers, at("a"): server(admission=DRAIN)}
    of = replace(of, snapshot=replace(of.snapshot, backends=backends), servers=servers)
    assert refusal(of) is Refusal.CAP


def large(out: int, size: int = 40, elsewhere: int = 0) -> Verdict:
    """A drain of hung "b00" in a pool of ``size`` of which ``out`` are out; beside it is a pool in which nothing is well."""
    names = [f"b{n:02}" for n in range(size)]
    others = [f"z{n}" for n in range(elsewhere)]
    backends = (*(Backend(n, "m", (at(n),)) for n in names), *(Backend(n, "m", (at(n, "west"),)) for n in others))
    seen = {n: BackendObservation(n, State.SERVING, 0.0) for n in names[1:]} | {
        names[0]: BackendObservation(names[0], State.HUNG, 0.0)
    }
    seen |= {n: BackendObservation(n, State.DOWN, 0.0) for n in others}
    told = {at(n): server(admission=DRAIN if 0 < place <= out else SERVE) for place, n in enumerate(names)}
    told |= {at(n, "west"): server(admission=DRAIN) for n in others}
    of = GuardContext(
        FleetSnapshot(1, 100.0, 1_000.0, backends, seen), GuardsSettings(max_fraction=0.1), 3.0, servers=told,
        support={("b00", Knob.ADMISSION): Support(True)},
    )  # fmt: skip
    return judge((wish("b00"),), of)[0]


def test_a_decision_names_five_and_counts_the_rest() -> None:
    assert large(4).detail == "4 of 40 out already (b01, b02, b03, b04), cap 4"
    assert large(5).detail == "5 of 40 out already (b01, b02, b03, b04, b05), cap 4"
    assert large(12).detail == "12 of 40 out already (b01, b02, b03, b04, b05 and 7 more), cap 4"


def test_what_is_out_or_bad_in_one_pool_counts_in_no_other() -> None:
    assert large(3, elsewhere=30) == Verdict(wish("b00"))


def test_whoever_serves_in_another_pool_is_nobody_to_rely_on_in_this_one() -> None:
    of = context(settings=GuardsSettings(min_healthy=4))
    west = tuple(Backend(n, "m", (at(n, "west"),)) for n in "vwxyz")
    seen = {**of.snapshot.observations, **{b.name: BackendObservation(b.name, State.SERVING, 0.0) for b in west}}
    of = replace(of, snapshot=replace(of.snapshot, backends=(*of.snapshot.backends, *west), observations=seen))
    assert refusal(of) is Refusal.MIN_HEALTHY


# Words that others go by


@pytest.mark.parametrize(
    ("knob", "value", "drains", "takes"),
    [
        (Knob.ADMISSION, DRAIN, True, True),
        (Knob.ADMISSION, SERVE, False, False),
        (Knob.CACHE_MODE, DRAIN, False, False),
        (Knob.WEIGHT, 0.49, False, True),
        (Knob.WEIGHT, 0.5, False, False),
        (Knob.BATCH_WINDOW_S, 0.01, False, False),
    ],
)
def test_only_a_drain_drains_and_a_weight_below_half_takes_out_too(
    knob: Knob, value: KnobValue, drains: bool, takes: bool
) -> None:
    assert is_drain(knob, value) is drains
    assert takes_out(wish("a", knob, value)) is takes


@pytest.mark.parametrize("refused", [None, *Refusal])
@pytest.mark.parametrize(("knob", "value"), [(Knob.ADMISSION, DRAIN), (Knob.WEIGHT, 0.2)])
def test_a_drain_without_evidence_holds_up_nobodys_return_and_all_else_that_is_refused_does(
    refused: Refusal | None, knob: Knob, value: KnobValue
) -> None:
    dismissed = refused in (Refusal.SIGNALS, Refusal.PANIC) and knob is Knob.ADMISSION
    assert holds_up(Verdict(wish("a", knob, value), refused)) == (refused is not None and not dismissed)


@pytest.mark.parametrize(
    ("size", "fraction", "most", "cap"),
    [
        (1, 0.3, None, 1),
        (3, 0.3, None, 1),
        (10, 0.3, None, 3),
        (9, 0.3, None, 2),
        (10, 0.3, 2, 2),
        (10, 0.3, 5, 3),
        (10, 1.0, None, 10),
        (100, 0.29, None, 29),  # 28.999999999999996
    ],
)
def test_the_cap_is_a_share_of_the_pool_but_at_least_one_and_at_most_so_many(
    size: int, fraction: float, most: int | None, cap: int
) -> None:
    assert cap_of(size, GuardsSettings(max_fraction=fraction, max_backends=most)) == cap


def test_a_refusal_tells_its_numbers() -> None:
    (capped,) = judge((wish("b"),), context(told={"a": server(admission=DRAIN)}))
    assert capped.detail == "1 of 4 out already (a), cap 1"
    (few,) = judge((wish("b"),), context(settings=GuardsSettings(min_healthy=4)))
    assert (few.refusal, few.detail) == (Refusal.MIN_HEALTHY, "3 of 4 would be left serving, at least 4")
    (panic,) = judge((wish("b"),), context(settings=GuardsSettings(panic_fraction=0.2)))
    assert (panic.refusal, panic.detail) == (Refusal.PANIC, "1 of 4 in edge:llm bad or unobservable")
    (cut,) = judge((wish("c", Knob.WEIGHT, 0.18, reason="slow"),), context(told={"a": server(admission=DRAIN)}))
    assert cut.desired.reason == (
        "slow; cut back from 18% to 60%: cap: as many backends of the pool as allowed are acted on already"
        " (1 of 4 out already (a), cap 1)"
    )


@pytest.mark.parametrize(
    ("changed", "released", "detail"),
    [
        (99.0, None, "changed 1 s ago, 30 s must pass"),
        (None, 95.0, "released by hand 5 s ago, 30 s must pass"),
        (99.0, 95.0, "released by hand 5 s ago, 30 s must pass"),
    ],
)
def test_a_wait_tells_since_when_and_how_long(changed: float | None, released: float | None, detail: str) -> None:
    more: dict[str, Any] = {
        "changed_at": {} if changed is None else {("a", Knob.WEIGHT): changed},
        "released_at": {} if released is None else {"a": released},
    }
    (verdict,) = judge((wish("a", Knob.WEIGHT, 0.7),), context(**more))
    assert (verdict.refusal, verdict.detail) == (Refusal.COOLDOWN, detail)


# In force


UNDER_WAY = {"confirmed": False, "before": 8.0}


@pytest.mark.parametrize(
    ("lease", "told", "in_force"),
    [
        (leased("a", Knob.WEIGHT, 10.0, 7.0), NORMAL, True),
        (leased("a", Knob.WEIGHT, 10.0, 7.0000001), NORMAL, False),
        (leased("a", Knob.WEIGHT, 10.0, 6.0), NORMAL, True),
        (leased("a", Knob.WEIGHT, 10.0, 6.0, **UNDER_WAY), server(8.0), False),
        (leased("a", Knob.WEIGHT, 10.0, 6.0, **UNDER_WAY), server(9.0), True),
        (leased("a", Knob.WEIGHT, 10.0, 6.0, **UNDER_WAY), None, True),
        (leased("a", Knob.WEIGHT, 10.0, 6.0, **UNDER_WAY), server(None), True),
        (leased("a", Knob.WEIGHT, 10.0, 6.0, confirmed=False), server(10.0), False),
        (leased("a", Knob.WEIGHT, 10.0, 6.0, confirmed=True, before=10.0), server(10.0), True),
        (leased("a", Knob.WEIGHT, 10.0, 8.0, confirmed=False, before=8.0), server(8.0), False),
        (leased("a", Knob.WEIGHT, 10.0, 7.0, confirmed=False, before=7.0), server(7.0), True),
        (leased("a", Knob.ADMISSION, SERVE, DRAIN), NORMAL, False),
        (leased("c", Knob.WEIGHT, 10.0, 6.0), NORMAL, False),
    ],
)
def test_a_weight_of_seven_tenths_is_in_force_where_a_lease_that_has_arrived_restricts_as_much(
    lease: Lease, told: ServerState | None, in_force: bool
) -> None:
    """What is in force needs no cooldown."""
    of = context(lease, told={"a": told}, changed_at={("a", Knob.WEIGHT): 99.0})
    assert (refusal(of, wish("a", Knob.WEIGHT, 0.7)) is None) == in_force


def test_a_share_that_a_computer_cannot_write_exactly_is_in_force_all_the_same() -> None:
    assert 0.29 * 100.0 < 29.0
    of = context(
        leased("a", Knob.WEIGHT, 100.0, 29.0), changed_at={("a", Knob.WEIGHT): 99.0}, settings=GuardsSettings(max_fraction=1)
    )
    assert refusal(of, wish("a", Knob.WEIGHT, 0.29)) is not Refusal.COOLDOWN


def test_of_two_leases_on_a_knob_one_that_has_arrived_is_enough() -> None:
    late = leased("a", Knob.WEIGHT, 10.0, 6.0, confirmed=False)
    there = replace(leased("a", Knob.WEIGHT, 10.0, 6.0), target=at("a", "west"))
    of = context(late, there, changed_at={("a", Knob.WEIGHT): 99.0})
    assert refusal(of, wish("a", Knob.WEIGHT, 0.7)) is None
    assert of.leases_on("a", Knob.WEIGHT) == [late, there]
    assert of.leases_on("a", Knob.ADMISSION) == ()


@pytest.mark.parametrize(("written", "in_force"), [("local", True), ("off", False)])
def test_any_other_knob_is_in_force_where_its_value_is(written: str, in_force: bool) -> None:
    of = context(leased("a", Knob.CACHE_MODE, "off", written), changed_at={("a", Knob.CACHE_MODE): 99.0})
    assert (refusal(of, wish("a", Knob.CACHE_MODE, "local")) is None) == in_force


# Pools


def test_a_backend_in_two_pools_needs_room_in_both_and_the_first_of_the_fleet_that_has_none_is_named() -> None:
    west, east = {n: at(n, "west") for n in "abcd"}, {n: at(n, "east") for n in "bcde"}
    backends = tuple(Backend(n, "m", tuple(t for t in (east.get(n), west.get(n)) if t)) for n in "abcde")
    seen = {n: BackendObservation(n, State.HUNG if n == "b" else State.SERVING, 0.0) for n in "abcde"}

    def judged(*out: Target) -> tuple[Refusal | None, str]:
        told = {t: server(admission=DRAIN) if t in out else NORMAL for t in (*west.values(), *east.values())}
        of = GuardContext(
            FleetSnapshot(1, 100.0, 1_000.0, backends, seen), GuardsSettings(), 3.0, servers=told,
            support={("b", Knob.ADMISSION): Support(True)},
        )  # fmt: skip
        (verdict,) = judge((wish("b"),), of)
        return verdict.refusal, verdict.detail

    assert judged() == (None, "")
    assert judged(west["a"]) == (Refusal.CAP, "1 of 4 out already (a), cap 1")
    assert judged(east["e"]) == (Refusal.CAP, "1 of 4 out already (e), cap 1")
    assert judged(west["a"], east["e"]) == (Refusal.CAP, "1 of 4 out already (a), cap 1")


@pytest.mark.parametrize(
    ("zones", "refused"),
    [
        (("x", "x", "y", "y"), False),
        (("y", "x", "y", "y"), True),
        (("x", "x", "x", "x"), False),
        (("x", "", "y", "y"), False),
        (("x", "y", "x", "z"), True),
    ],
)
def test_the_last_of_a_zone_stays_where_there_are_others(zones: tuple[str, ...], refused: bool) -> None:
    backends = tuple(Backend(n, "m", (at(n),), {"az": zone} if zone else {}) for n, zone in zip(NAMES, zones, strict=True))
    of = context()
    of = replace(of, snapshot=replace(of.snapshot, backends=backends))
    (verdict,) = judge((wish("b"),), of)
    assert (verdict.refusal is Refusal.ZONE) == refused
    assert verdict.detail == (f"zone {zones[1]}" if refused else "")


@pytest.mark.parametrize(("ages", "panics"), [((3.0, 3.0), False), ((3.0, 3.1), False), ((3.1, 3.1), True), ((None, None), True)])
def test_whoever_is_not_heard_of_looks_bad_and_whoever_is_as_old_as_allowed_does_not(
    ages: tuple[float | None, float | None], panics: bool
) -> None:
    """ "b" is hung; with two others of four it is more than half. None: there is no observation at all."""
    of = context()
    seen = dict(of.snapshot.observations)
    for name, age_s in zip("cd", ages, strict=True):
        seen[name] = BackendObservation(name, State.SERVING, age_s or 0.0)
        if age_s is None:
            del seen[name]
    verdict = refusal(replace(of, snapshot=replace(of.snapshot, observations=seen)))
    assert (verdict is Refusal.PANIC) == panics
