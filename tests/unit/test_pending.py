"""A write of which nobody knows what becomes is ours where it is found, and no lease ends while it may still come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.model import EMPTY, Knob, KnobValue, Lease, Pending, Target
from tailkeeper_watchdog.pending import MAY_COME_S, PendingWrites, arrivals, as_noted, ends_too_early, may_end
from tailkeeper_watchdog.plan import Change, ChangeKind

B = Target("edge", "b", "llm")
PLACE = ("edge", "b", Knob.WEIGHT)
LEASE = Lease(1, "b", B, Knob.WEIGHT, "gate", 1.0, 0.5, "why", 0.0, 300.0, before=1.0)
CONFIRMED = replace(LEASE, confirmed=True)


class Wall:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def pending_of(*values: KnobValue) -> Pending:
    return {PLACE: dict.fromkeys(values, 1_010.0)} if values else EMPTY


def values(writes: PendingWrites) -> dict[object, list[KnobValue]]:
    return {place: list(found) for place, found in writes.everywhere().items()}


HERE = ("edge", "b")


def judged(wall: Wall, writes: PendingWrites) -> dict[object, list[KnobValue]]:
    """What is left of it after a reading, now, was judged."""
    writes.looked([HERE], wall.now)
    writes.forget()
    return values(writes)


def test_a_write_is_pending_until_its_time_is_over() -> None:
    wall = Wall()
    writes = PendingWrites(wall)
    assert writes.everywhere() == {}
    writes.note(PLACE, 0.5)
    wall.now += 4
    writes.note(PLACE, 0.25)
    assert judged(wall, writes) == {PLACE: [0.5, 0.25]}
    wall.now += MAY_COME_S - 4
    assert judged(wall, writes) == {PLACE: [0.25]}
    wall.now += 4
    assert judged(wall, writes) == {}
    assert writes.at(PLACE) == {}


@pytest.mark.parametrize("looked_before", [False, True])
def test_what_came_in_its_time_is_ours_although_nobody_looked_before_it_was_over(looked_before: bool) -> None:
    wall = Wall()
    writes = PendingWrites(wall)
    writes.note(PLACE, 0.5)
    if looked_before:
        wall.now += MAY_COME_S - 1
        assert judged(wall, writes) == {PLACE: [0.5]}
    wall.now += 30  # a slow tick
    assert values(writes) == {PLACE: [0.5]}, "nobody has looked since"
    writes.looked([HERE], wall.now)
    assert values(writes) == {PLACE: [0.5]}, "this reading may show it"
    writes.forget()
    assert (values(writes), writes.at(PLACE)) == ({}, {}), "and what came of it is noted"


def test_a_reading_that_began_before_its_end_does_not_judge_it() -> None:
    wall = Wall()
    writes = PendingWrites(wall)
    writes.note(PLACE, 0.5)
    wall.now += MAY_COME_S + 1
    writes.looked([HERE], wall.now - 2)
    writes.forget()
    assert values(writes) == {PLACE: [0.5]}


def test_while_its_gateway_is_away_it_is_remembered_but_not_for_ever() -> None:
    wall = Wall()
    writes = PendingWrites(wall)
    writes.note(PLACE, 0.5)
    for _ in range(10):
        wall.now += 60
        writes.looked([("edge", "another")], wall.now)
        assert values(writes) == {PLACE: [0.5]}
    wall.now += MAY_COME_S
    writes.forget()
    assert values(writes) == {}


def test_one_that_is_sent_once_more_is_pending_anew() -> None:
    wall = Wall()
    writes = PendingWrites(wall)
    writes.note(PLACE, 0.5)
    wall.now += MAY_COME_S - 1
    writes.note(PLACE, 0.5)
    wall.now += MAY_COME_S - 1
    assert judged(wall, writes) == {PLACE: [0.5]}


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0])
def test_a_wall_clock_that_is_set_changes_nothing(step_s: float) -> None:
    wall, monotonic = Wall(), Wall()
    writes = PendingWrites(wall, monotonic=monotonic)
    writes.note(PLACE, 0.5)
    wall.now += step_s
    monotonic.now += MAY_COME_S - 1
    assert judged(monotonic, writes) == {PLACE: [0.5]}
    assert writes.at(PLACE) == {0.5: wall.now + 1}, "as whoever starts after us has to know it"
    monotonic.now += 1
    assert judged(monotonic, writes) == {}


def test_what_was_told_stays_as_it_was() -> None:
    writes = PendingWrites(Wall())
    writes.note(PLACE, 0.5)
    told = writes.everywhere()
    writes.note(PLACE, 0.25)
    assert told == {PLACE: {0.5: 1_000.0 + MAY_COME_S}}


@pytest.mark.parametrize(
    ("noted", "lease", "found"),
    [
        (EMPTY, LEASE, {PLACE: [0.5]}),  # it died in the middle of this write
        (EMPTY, CONFIRMED, {}),
        (pending_of(0.7), CONFIRMED, {PLACE: [0.7]}),
        (pending_of(0.7, 0.5), LEASE, {PLACE: [0.7, 0.5]}),
        (pending_of(0.7), LEASE, {PLACE: [0.7, 0.5]}),  # it died in another write than the one that was pending
        ({PLACE: {0.7: 999.0}}, LEASE, {PLACE: [0.7, 0.5]}),  # it may have come while nobody was there to see it
        ({PLACE: {0.7: 300.0}}, LEASE, {PLACE: [0.5]}),  # long ago
    ],
)
def test_a_start_goes_on_with_what_was_pending(noted: Pending, lease: Lease, found: dict[object, list[KnobValue]]) -> None:
    assert values(PendingWrites(Wall(), noted, (lease,))) == found


def test_what_was_over_before_the_start_is_judged_by_the_first_reading_and_not_waited_for_anew() -> None:
    wall = Wall()
    writes = PendingWrites(wall, {PLACE: {0.5: 999.0}}, (LEASE,))
    assert judged(wall, writes) == {}


@pytest.mark.parametrize(("later_s", "is_noted"), [(0.1, True), (5.0, False)])
def test_what_is_pending_is_noted_again_only_where_it_is_another(later_s: float, is_noted: bool) -> None:
    noted = pending_of(0.5)
    assert as_noted({PLACE: {0.5: 1_010.0 + later_s}}, noted) is is_noted
    assert not as_noted(pending_of(0.5, 0.7), noted)
    assert not as_noted(EMPTY, noted)


@pytest.mark.parametrize(
    ("lease", "actual", "sent", "is_ours"),
    [
        (CONFIRMED, 0.7, (0.7,), True),
        (LEASE, 0.7, (0.7,), True),
        (CONFIRMED, 0.7, (0.25,), False),
        (CONFIRMED, 0.5, (0.5,), False),  # it is what we wrote last
        (CONFIRMED, 0.28, (0.3,), True),  # the gateway rounds
        (CONFIRMED, 1.0, (1.0,), True),
        (CONFIRMED, 0.95, (1.0,), False),  # to give back, nothing need be rounded
        (LEASE, 1.0, (1.0,), False),  # the last one has not come yet, and must stay known
        (CONFIRMED, None, (0.7,), False),
        (CONFIRMED, 0.7, (), False),
    ],
)
def test_what_is_found_where_it_was_pending_is_ours(
    lease: Lease, actual: float | None, sent: tuple[float, ...], is_ours: bool
) -> None:
    servers = {} if actual is None else {B: ServerState({Knob.WEIGHT: actual})}
    arrived = [(x.id, x.written, x.confirmed) for x in arrivals((lease,), servers, pending_of(*sent)).values()]
    assert arrived == ([(1, actual, True)] if is_ours else [])


def test_the_same_value_elsewhere_is_not_ours() -> None:
    servers = {B: ServerState({Knob.WEIGHT: 0.7})}
    elsewhere: Pending = {("other", "b", Knob.WEIGHT): {0.7: 1_010.0}, ("edge", "c", Knob.WEIGHT): {0.7: 1_010.0}}
    assert arrivals((CONFIRMED,), servers, elsewhere) == {}


def test_a_pool_that_is_renamed_is_the_same_place() -> None:
    assert replace(CONFIRMED, target=replace(B, pool="other")).place == PLACE


@pytest.mark.parametrize(("sent", "may"), [((), True), ((1.0,), True), ((0.5,), False), ((1.0, 0.5), False)])
def test_a_lease_ends_only_when_nothing_but_its_prior_value_may_come(sent: tuple[float, ...], may: bool) -> None:
    assert may_end(CONFIRMED, sent) is may


@pytest.mark.parametrize(
    ("kind", "actual", "sent", "waits"),
    [
        (ChangeKind.RELEASE, 1.0, (0.5,), True),  # "already back", and then it comes
        (ChangeKind.EXPIRE, 1.0, (0.5,), True),
        (ChangeKind.FORGET, 0.8, (0.5,), True),
        (ChangeKind.RELEASE, 0.5, (0.5,), False),  # it is given back at once, and kept
        (ChangeKind.RELEASE, None, (0.5,), False),
        (ChangeKind.RELEASE, 1.0, (1.0,), False),
        (ChangeKind.FORGET, 0.8, (1.0,), False),
        (ChangeKind.FORGET, 0.8, (), False),
        (ChangeKind.APPLY, 1.0, (0.5,), False),
        (ChangeKind.RENEW, 0.5, (0.25,), False),
        (ChangeKind.LOST, None, (0.5,), False),
    ],
)
def test_only_what_would_end_a_lease_too_early_waits(
    kind: ChangeKind, actual: float | None, sent: tuple[float, ...], waits: bool
) -> None:
    change = Change(kind, "b", B, Knob.WEIGHT, 1.0, 1.0, "gate", "why", CONFIRMED, actual=actual)
    assert ends_too_early(change, pending_of(*sent)) is waits
    assert not ends_too_early(replace(change, lease=None), pending_of(*sent))
