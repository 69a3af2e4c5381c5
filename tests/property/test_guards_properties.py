"""Each guard both ways, over fleets that nobody thought of: it blocks what it must, and what it need not block it lets through.

What a fleet looks like after the allowed wishes is worked out here anew and plainly, without anything of the guards' own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.core import guard_all
from tailkeeper_watchdog.guards import CUT_BACK_WEIGHT, MAX_NAMES, GuardContext, holds_up, judge
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

NOW, STALE_AFTER_S, COOLDOWN_S = 1_000.0, 3.0, 30.0
NAMES = "abcdefghij"


@dataclass(frozen=True)
class Member:
    """One backend of the only pool: what is seen of it and what its gateway does with it."""

    state: State = State.SERVING
    age_s: float | None = 0.0
    zone: str = ""
    admission: str | None = SERVE
    """None: its gateway says nothing of it."""
    weight: float = 1.0
    in_service: bool = True

    @property
    def is_out(self) -> bool:
        return not self.in_service or self.is_lighter

    @property
    def is_lighter(self) -> bool:
        return self.is_drained or (self.admission is not None and self.weight < 0.5)

    @property
    def is_drained(self) -> bool:
        """By somebody; whom the gateway's own checks hold to be down is not."""
        return self.admission is not None and (self.admission == DRAIN or self.weight == 0)

    @property
    def is_bad(self) -> bool:
        blind = self.age_s is None or self.age_s > STALE_AFTER_S
        return blind or self.state not in (State.SERVING, State.BUSY, State.STARTING)

    @property
    def is_serving(self) -> bool:
        return not self.is_bad and self.state is not State.STARTING


GOOD_ONES = st.builds(Member, st.sampled_from([State.SERVING, State.BUSY]), zone=st.sampled_from(["", "x", "y"]))
ANY_ONES = st.builds(
    Member,
    st.sampled_from([*State, State.SERVING, State.SERVING, State.SERVING]),
    st.sampled_from([0.0, 0.0, 2.9, 3.1, None]),
    st.sampled_from(["", "x", "y"]),
    st.sampled_from([SERVE, SERVE, SERVE, DRAIN, None]),
    st.sampled_from([1.0, 1.0, 0.5, 0.4, 0.0]),
    st.sampled_from([True, True, True, False]),
)
POOLS = st.lists(st.one_of(GOOD_ONES, GOOD_ONES, ANY_ONES), min_size=1, max_size=len(NAMES))
SETTINGS = st.builds(
    GuardsSettings,
    max_fraction=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    max_backends=st.sampled_from([None, None, 1, 2]),
    min_healthy=st.integers(0, 4),
    panic_fraction=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
    cooldown_s=st.just(COOLDOWN_S),
)


@dataclass(frozen=True)
class World:
    members: tuple[Member, ...]
    settings: GuardsSettings = field(default_factory=lambda: GuardsSettings(cooldown_s=COOLDOWN_S))

    @property
    def named(self) -> dict[str, Member]:
        return dict(zip(NAMES, self.members, strict=False))

    def context(self, **more: object) -> GuardContext:
        backends = tuple(Backend(n, "m", (target(n),), {"az": m.zone} if m.zone else {}) for n, m in self.named.items())
        seen = {n: BackendObservation(n, m.state, m.age_s) for n, m in self.named.items()}
        servers = {
            target(n): ServerState({}, m.in_service)
            if m.admission is None
            else ServerState({Knob.ADMISSION: m.admission, Knob.WEIGHT: m.weight}, m.in_service, normal_weight=1.0)
            for n, m in self.named.items()
        }
        support = {(n, knob): Support(True) for n in self.named for knob in Knob}
        given = {"servers": servers, "support": support, **more}
        return GuardContext(FleetSnapshot(1, NOW, NOW, backends, seen), self.settings, STALE_AFTER_S, **given)  # type: ignore[arg-type]


def target(name: str) -> Target:
    return Target("edge", name, "llm")


def wish(
    name: str,
    knob: Knob = Knob.ADMISSION,
    value: KnobValue = DRAIN,
    signals: int = 2,
    age_s: float | None = 0.0,
    policy: str = "p",
) -> DesiredState:
    return DesiredState(policy, name, knob, value, "why", Mode.ENFORCE, ("x", "y", "z")[:signals], age_s)


def harmful(wished: DesiredState) -> bool:
    return wished.value == DRAIN if wished.knob is Knob.ADMISSION else float(wished.value) < 0.5


WISHES = st.lists(
    st.one_of(
        st.builds(wish, st.sampled_from(NAMES)),
        st.builds(wish, st.sampled_from(NAMES), st.just(Knob.WEIGHT), st.sampled_from([0.1, 0.4, 0.5, 0.6, 1.0])),
    ),
    max_size=8,
    unique_by=lambda w: (w.backend, w.knob),
).map(tuple)
WORLDS = st.builds(World, POOLS.map(tuple), SETTINGS)


def of_the_pool(world: World, wishes: tuple[DesiredState, ...]) -> tuple[DesiredState, ...]:
    return tuple(w for w in wishes if w.backend in world.named)


def newly_out(world: World, verdicts: tuple[Verdict, ...]) -> set[str]:
    """Who gets half of its share or less by what was allowed, and did not before."""
    return {v.desired.backend for v in verdicts if v.allowed and harmful(v.desired)} - out_before(world)


def out_before(world: World) -> set[str]:
    return {name for name, member in world.named.items() if member.is_out}


def judged(world: World, wishes: tuple[DesiredState, ...], **more: object) -> tuple[Verdict, ...]:
    return judge(of_the_pool(world, wishes), world.context(**more))


# The pool's sake: cap, absolute cap, pool of one, min healthy, zones, common cause


def cap(world: World) -> int:
    share = max(1, floor(world.settings.max_fraction * len(world.members)))
    return share if world.settings.max_backends is None else min(share, world.settings.max_backends)


@given(WORLDS, WISHES)
def test_after_all_that_is_allowed_no_more_are_out_than_the_caps_say_whoever_took_them_out(
    world: World, wishes: tuple[DesiredState, ...]
) -> None:
    new = newly_out(world, judged(world, wishes))
    assert not new or len(new | out_before(world)) <= cap(world)


@given(WORLDS, WISHES)
def test_a_pool_of_one_is_never_emptied_and_enough_are_left_serving(world: World, wishes: tuple[DesiredState, ...]) -> None:
    new = newly_out(world, judged(world, wishes))
    left = {n for n, m in world.named.items() if m.is_serving and not m.is_out and m.admission is not None} - new
    assert not new or (len(world.members) > 1 and len(left) >= max(1, world.settings.min_healthy))


@given(WORLDS, WISHES)
def test_of_every_zone_somebody_is_left_serving(world: World, wishes: tuple[DesiredState, ...]) -> None:
    new = newly_out(world, judged(world, wishes))
    zones = {m.zone for m in world.members}
    left = {m.zone for n, m in world.named.items() if m.is_serving and not m.is_out and m.admission is not None and n not in new}
    lost = {world.named[n].zone for n in new} - left - {""}
    assert not lost or len(zones) == 1


@given(WORLDS, WISHES)
def test_where_most_of_a_pool_is_bad_or_unseen_nobody_is_taken_out(world: World, wishes: tuple[DesiredState, ...]) -> None:
    wishes = of_the_pool(world, wishes)
    bad = {n for n, m in world.named.items() if m.is_bad} | {w.backend for w in wishes if w.knob is Knob.ADMISSION}
    if len(bad) > world.settings.panic_fraction * len(world.members):
        assert newly_out(world, judged(world, wishes)) == set()


def reasons_against(world: World, name: str) -> Iterator[Refusal]:
    """Why this one may not be drained now, in the order in which it is said."""
    size, others = len(world.members), {n: m for n, m in world.named.items() if n != name}
    if sum(m.is_bad or n == name for n, m in world.named.items()) > world.settings.panic_fraction * size:
        yield Refusal.PANIC
    if len(out_before(world) - {name}) + 1 > cap(world):
        yield Refusal.CAP
    left = [m for m in others.values() if m.is_serving and not m.is_out and m.admission is not None]
    if len(left) < max(1, world.settings.min_healthy):
        yield Refusal.MIN_HEALTHY
    zone = world.named[name].zone
    if zone and len({m.zone for m in world.members}) > 1 and zone not in {m.zone for m in left}:
        yield Refusal.ZONE


@given(WORLDS)
def test_a_drain_for_which_the_pool_has_room_is_let_through_and_any_other_refused_by_its_first_reason(world: World) -> None:
    for name, member in world.named.items():
        (verdict,) = judged(world, (wish(name),))
        if len(world.members) == 1:
            assert (verdict.refusal, verdict.detail) == (Refusal.POOL_OF_ONE, "pool edge:llm")
            return
        assert verdict.refusal is (None if member.is_drained else next(reasons_against(world, name), None)), name
        if verdict.refusal is Refusal.CAP:
            out = sorted(out_before(world) - {name})
            more = f" and {len(out) - MAX_NAMES} more" if len(out) > MAX_NAMES else ""
            told = f"{len(out)} of {len(world.members)} out already ({', '.join(out[:MAX_NAMES])}{more}), cap {cap(world)}"
            assert verdict.detail == told


@given(WORLDS)
def test_a_low_weight_is_let_through_cut_back_or_refused_where_a_drain_is(world: World) -> None:
    for name, member in world.named.items():
        (verdict,) = judged(world, (wish(name, Knob.WEIGHT, 0.18),))
        refusal = None if member.is_lighter else next(_of_a_weight(world, name), None)
        if len(world.members) == 1:
            assert verdict.refusal is Refusal.POOL_OF_ONE
        elif refusal in (Refusal.CAP, Refusal.MIN_HEALTHY, Refusal.ZONE):
            assert (verdict.allowed, verdict.desired.value) == (True, CUT_BACK_WEIGHT)
            assert f"cut back from 18% to {CUT_BACK_WEIGHT:.0%}: {refusal.value} (" in verdict.desired.reason
        else:
            assert (verdict.refusal, verdict.desired.value) == (refusal, 0.18)


def _of_a_weight(world: World, name: str) -> Iterator[Refusal]:
    """As of a drain, but that to wish for less is no bad mark yet."""
    bad = sum(m.is_bad for m in world.members)
    for reason in reasons_against(world, name):
        if reason is not Refusal.PANIC or bad > world.settings.panic_fraction * len(world.members):
            yield reason


@given(WORLDS, WISHES)
def test_the_order_of_judging_costs_nobody_a_place_that_stays_free(world: World, wishes: tuple[DesiredState, ...]) -> None:
    verdicts = judged(world, wishes)
    out = out_before(world) | newly_out(world, verdicts)
    for verdict in verdicts:
        if verdict.refusal is Refusal.CAP:
            assert len(out - {verdict.desired.backend}) + 1 > cap(world)


@given(WORLDS, WISHES)
def test_the_dead_are_judged_first_and_drains_before_weights(world: World, wishes: tuple[DesiredState, ...]) -> None:
    ranks = [
        (
            world.named[v.desired.backend].state not in (State.HUNG, State.DOWN),
            v.desired.knob is not Knob.ADMISSION,
            v.desired.backend,
        )
        for v in judged(world, wishes)
    ]
    assert ranks == sorted(ranks)
    assert len(ranks) == len(of_the_pool(world, wishes))


# Evidence: fresh data only, two signals


AGES = st.none() | st.floats(0, 10) | st.sampled_from([STALE_AFTER_S, 3.000001])
ROOM = World((Member(),) * 4)


@given(AGES, st.sampled_from([(Knob.ADMISSION, DRAIN), (Knob.WEIGHT, 0.2), (Knob.WEIGHT, 0.7), (Knob.CONCURRENCY_LIMIT, 8.0)]))
def test_only_fresh_evidence_changes_anything(age_s: float | None, wanted: tuple[Knob, KnobValue]) -> None:
    (verdict,) = judged(ROOM, (wish("a", *wanted, age_s=age_s),))
    fresh = age_s is not None and age_s <= STALE_AFTER_S
    assert verdict.refusal is (None if fresh else Refusal.STALE)
    if not fresh:
        assert verdict.detail == f"age {'unknown' if age_s is None else f'{age_s:.1f} s'}, limit 3 s"


@given(st.lists(st.sampled_from("xyz"), max_size=4).map(tuple), st.sampled_from([Knob.ADMISSION, Knob.WEIGHT]))
def test_a_drain_needs_two_independent_signals_and_a_weight_none(signals: tuple[str, ...], knob: Knob) -> None:
    wished = replace(wish("a", knob, DRAIN if knob is Knob.ADMISSION else 0.2), signals=signals)
    (verdict,) = judged(ROOM, (wished,))
    assert verdict.refusal is (Refusal.SIGNALS if knob is Knob.ADMISSION and len(set(signals)) < 2 else None)
    if verdict.refusal:
        assert verdict.detail == f"only {', '.join(signals) or 'none'}"


# Times: cooldown, and the longer of two deadlines


SINCE = st.none() | st.floats(0, 60) | st.sampled_from([COOLDOWN_S, 29.999])
WAITING = (Knob.WEIGHT, Knob.REPLICAS, Knob.CACHE_MODE, Knob.TAINT, Knob.ANNOTATION)
VALUES: dict[Knob, KnobValue] = {
    Knob.WEIGHT: 0.7,
    Knob.ADMISSION: DRAIN,
    Knob.CONCURRENCY_LIMIT: 8.0,
    Knob.BATCH_WINDOW_S: 0.05,
    Knob.CACHE_MODE: "local",
    Knob.DEGRADE_LEVEL: 1.0,
    Knob.REPLICAS: 3.0,
    Knob.TAINT: "a=b:NoSchedule",
    Knob.ANNOTATION: "a=b",
}


@given(st.sampled_from(list(Knob)), SINCE, SINCE, SINCE)
def test_of_two_waits_the_longer_one_counts(
    knob: Knob, changed: float | None, released: float | None, other: float | None
) -> None:
    """That of a person's release is for all knobs, that of a change for the knob alone, and a drain or a graded knob has none."""
    changed_at = {("a", knob): NOW - changed} if changed is not None else {}
    if other is not None:
        changed_at |= {("b", knob): NOW - other}
    released_at = {"a": NOW - released} if released is not None else {}
    (verdict,) = judged(ROOM, (wish("a", knob, VALUES[knob]),), changed_at=changed_at, released_at=released_at)
    waits = (released is not None and NOW - (NOW - released) < COOLDOWN_S) or (
        knob in WAITING and changed is not None and NOW - (NOW - changed) < COOLDOWN_S
    )
    assert verdict.refusal is (Refusal.COOLDOWN if waits else None)


# Switches: kill switch, holds, contention, what cannot be enforced, and modes


@given(WORLDS, WISHES, st.sampled_from(["people at work", "the pause file x is there"]))
def test_the_kill_switch_stops_everything_and_nothing_else_says_paused(
    world: World, wishes: tuple[DesiredState, ...], why: str
) -> None:
    assert {(v.refusal, v.detail) for v in judged(world, wishes, paused=why)} <= {(Refusal.PAUSED, why)}
    assert Refusal.PAUSED not in {v.refusal for v in judged(world, wishes)}


@given(WORLDS, WISHES, st.sets(st.sampled_from(NAMES)))
def test_a_hold_and_a_foreign_hand_stop_everything_there_and_nothing_elsewhere(
    world: World, wishes: tuple[DesiredState, ...], names: set[str]
) -> None:
    held = judged(world, wishes, holds=dict.fromkeys(names, "a drill"))
    assert all((v.refusal is Refusal.HELD) == (v.desired.backend in names) for v in held)
    contended = judged(world, wishes, contended=frozenset((n, Knob.WEIGHT) for n in names))
    assert all(
        (v.refusal is Refusal.CONTENDED) == (v.desired.backend in names and v.desired.knob is Knob.WEIGHT) for v in contended
    )


@given(st.sets(st.sampled_from(list(Knob))), st.sampled_from(list(Knob)), st.booleans())
def test_what_no_gateway_can_do_is_refused_with_its_words(can: set[Knob], knob: Knob, said: bool) -> None:
    support = {("a", k): Support(True) for k in can}
    if said:
        support |= {("a", k): Support(False, "a router has no such knob") for k in Knob if k not in can}
    (verdict,) = judged(ROOM, (wish("a", knob, VALUES[knob]),), support=support)
    why = "a router has no such knob" if said else "no gateway is configured for it"
    assert (verdict.refusal, verdict.detail) == ((None, "") if knob in can else (Refusal.NOT_ENFORCEABLE, why))


@given(WORLDS, WISHES, st.lists(st.sampled_from([Mode.OBSERVE, Mode.ADVISE]), min_size=1))
def test_what_is_only_observed_or_advised_is_never_judged_and_takes_nobodys_place(
    world: World, wishes: tuple[DesiredState, ...], modes: list[Mode]
) -> None:
    wishes = of_the_pool(world, wishes)
    watched = tuple(replace(wish(name), mode=mode) for name, mode in zip(world.named, modes, strict=False))
    assert guard_all((*wishes, *watched), world.context()) == judge(wishes, world.context())


# Recovery, and what is in force already


@given(WORLDS, st.sampled_from(NAMES), st.sampled_from([(Knob.WEIGHT, 0.5), (Knob.WEIGHT, 1.0), (Knob.ADMISSION, SERVE)]))
def test_a_pool_never_refuses_what_gives_somebody_more(world: World, name: str, more: tuple[Knob, KnobValue]) -> None:
    for verdict in judged(world, (wish(name, *more),)):
        assert verdict.refusal is None


@given(WORLDS, WISHES)
def test_a_refusal_for_want_of_evidence_keeps_nobody_out_and_one_for_want_of_room_does(
    world: World, wishes: tuple[DesiredState, ...]
) -> None:
    for verdict in judged(world, tuple(replace(w, signals=("x",) if n % 2 else w.signals) for n, w in enumerate(wishes))):
        dismissed = verdict.refusal in (Refusal.SIGNALS, Refusal.PANIC) and verdict.desired.knob is Knob.ADMISSION
        assert holds_up(verdict) == (not verdict.allowed and not dismissed)


@given(WORLDS, st.integers(0, 9), st.floats(0.05, 1.0), st.floats(0.05, 1.0), st.booleans())
def test_to_renew_what_is_in_force_is_no_new_action(
    world: World, place: int, written: float, wanted: float, arrived: bool
) -> None:
    """A weight that asks for no more than is in force needs no cooldown; one whose write never arrived is not in force."""
    name = NAMES[place % len(world.members)]
    member = world.named[name]
    lease = Lease(1, name, target(name), Knob.WEIGHT, "p", 1.0, written, "why", 0.0, NOW + 60, confirmed=arrived)
    changed = {("a", Knob.WEIGHT): NOW} | {(name, Knob.WEIGHT): NOW}
    (verdict,) = judged(world, (wish(name, Knob.WEIGHT, wanted),), leases=(lease,), changed_at=changed)
    shown = member.weight if member.admission is not None else None
    under_way = not arrived and shown == 1.0 != written
    in_force = written <= wanted + 1e-9 and not under_way
    assert (verdict.refusal is Refusal.COOLDOWN) == (not in_force)


@pytest.mark.parametrize("confirmed", [True, False])
@given(SETTINGS, st.integers(2, 10))
def test_one_sign_keeps_out_whom_two_took_out(confirmed: bool, settings: GuardsSettings, size: int) -> None:
    """Where the gateway shows the drain; where it shows that the write has not arrived, nobody is out yet."""
    world = World((Member(admission=DRAIN if confirmed else SERVE), *(Member(),) * (size - 1)), settings)
    lease = Lease(1, "a", target("a"), Knob.ADMISSION, "p", SERVE, DRAIN, "why", 0.0, NOW + 60, confirmed=confirmed)
    (verdict,) = judged(world, (wish("a", signals=1),), leases=(lease,))
    assert verdict.refusal is (None if confirmed else Refusal.SIGNALS)
