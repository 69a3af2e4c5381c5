"""Whatever comes, in whatever order: nobody is lost, admitted twice or starved, and the limit holds."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tailkeeper_exporter.tap.admission import OVERTAKE_S, WAIT_S, Admission, Priority, Refusal, Ticket
from tailkeeper_exporter.tap.knobs import DRAIN, SERVE, Degrade, Knobs

LIMITS = st.one_of(st.none(), st.integers(1, 4))
QUEUE_MOST = 5
PRIORITIES = st.sampled_from(Priority)
COSTS = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, -1.0, math.inf, math.nan]))
PAUSES = st.sampled_from([0.0, 0.1, 1.0, OVERTAKE_S, WAIT_S / 2])


class AtTheDoor(RuleBasedStateMachine):
    """Keeps its own books of who is inside, who waits and who has been answered."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.next_key = 0.0, 0
        self.knobs = Knobs(concurrency_limit=2)
        self.door = Admission(self.knobs, QUEUE_MOST)
        self.inside: set[int] = set()
        self.waiting: dict[int, tuple[float, Priority]] = {}
        self.answered: set[int] = set()

    def _admit(self, keys: tuple[int, ...]) -> None:
        for key in keys:
            del self.waiting[key]
            assert key not in self.inside | self.answered
            self.inside.add(key)
        limit = self.knobs.concurrency_limit
        assert not keys or limit is None or len(self.inside) <= limit

    @rule(priority=PRIORITIES, streaming=st.sampled_from([True, False, None]), cost=COSTS)
    def ask(self, priority: Priority, streaming: bool | None, cost: float) -> None:
        key, self.next_key = self.next_key, self.next_key + 1
        limit = self.knobs.concurrency_limit
        room = limit is None or len(self.inside) < limit
        answer = self.door.ask(Ticket(key, priority, streaming, cost), self.now)
        barred = self.knobs.admission == DRAIN or priority < self.knobs.degrade_level
        if isinstance(answer, Refusal):
            nobody_gives_way = all(waiting >= priority for _, waiting in self.waiting.values())
            assert barred or (len(self.waiting) >= QUEUE_MOST and nobody_gives_way)
            self.answered.add(key)
            return
        assert not barred
        assert answer is room
        self.waiting[key] = (self.now, priority)
        if answer:
            self._admit((key,))
        self.everyone_is_answered_in_time()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([*sorted(self.inside | set(self.waiting)), -1]))
        self.inside.discard(key)
        self.waiting.pop(key, None)
        self.answered.add(key)
        self._admit(self.door.leave(key, self.now))

    @rule(pause=PAUSES)
    def wait(self, pause: float) -> None:
        self.now += pause

    @rule(admission=st.sampled_from([SERVE, SERVE, DRAIN]), limit=LIMITS, level=st.sampled_from(Degrade))
    def turn(self, admission: str, limit: int | None, level: Degrade) -> None:
        self.knobs = Knobs(admission, limit, degrade_level=level)
        running = len(self.inside)
        self._admit(self.door.change(self.knobs, self.now))
        assert len(self.inside) >= running

    @invariant()
    def everyone_is_answered_in_time(self) -> None:
        due = self.door.next_expiry_s
        refused = self.door.expire(self.now)
        assert not refused or (due is not None and due <= self.now)
        for key, refusal in refused:
            since, priority = self.waiting.pop(key)
            assert key not in self.answered | self.inside
            late = since + WAIT_S <= self.now  # the same sum as at the door: another one may round otherwise
            assert {"queue_timeout": late, "drained": True, "shed": True, "queue_full": True}[refusal.reason]
            self.answered.add(key)
        for since, priority in self.waiting.values():
            assert since + WAIT_S > self.now
            assert self.knobs.admission != DRAIN
            assert priority >= self.knobs.degrade_level

    @invariant()
    def the_books_agree_and_no_slot_is_idle_while_somebody_waits(self) -> None:
        assert self.door.admitted == len(self.inside)
        assert self.door.queued == len(self.waiting) <= QUEUE_MOST
        limit = self.knobs.concurrency_limit
        assert not self.waiting or (limit is not None and len(self.inside) >= limit)
        assert (self.door.next_expiry_s is None) == (not self.waiting)


AtTheDoor.TestCase.settings = examples(max_examples=60, stateful_step_count=40, deadline=None)
TestAtTheDoor = AtTheDoor.TestCase


ARRIVALS = st.lists(st.tuples(PAUSES, PRIORITIES, st.booleans(), st.integers(0, 1_000_000)), min_size=2, max_size=40)


@examples(max_examples=150, deadline=None)
@given(ARRIVALS)
def test_a_request_is_overtaken_in_its_lane_only_by_one_that_came_within_the_bound(
    arrivals: list[tuple[float, Priority, bool, int]],
) -> None:
    door, now, came, tickets = Admission(Knobs(concurrency_limit=1)), 0.0, {}, {}
    door.ask(Ticket(-1, Priority.NORMAL, True, 1), now)
    for key, (pause, priority, streaming, cost) in enumerate(arrivals):
        now += pause if now + pause < WAIT_S else 0.0
        tickets[key], came[key] = Ticket(key, priority, streaming, cost), now
        assert door.ask(tickets[key], now) is False
    order, ending = [], -1
    while door.queued:
        (ending,) = door.leave(ending, now)
        order.append(ending)

    assert sorted(order) == sorted(came)
    for place, key in enumerate(order):
        for other in (other for other in order[place + 1 :] if tickets[other].streaming == tickets[key].streaming):
            assert came[key] - came[other] < OVERTAKE_S
            together = came[key] == came[other]
            assert not together or tickets[key].priority >= tickets[other].priority
            if together and tickets[key].priority == tickets[other].priority:
                assert tickets[key].cost_tokens <= tickets[other].cost_tokens


@examples(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=20, max_size=300), st.integers(1, 5), st.integers(0, 50))
def test_while_both_lanes_have_somebody_eight_of_ten_slots_go_to_streaming(kinds: list[bool], limit: int, ahead: int) -> None:
    """Counted over every stretch of admissions in which neither lane is empty, whatever was admitted before."""
    door = Admission(Knobs(concurrency_limit=limit))
    for key in range(-limit, 0):
        door.ask(Ticket(key, Priority.NORMAL, True, 1), 0.0)
    kind = dict(enumerate([True] * ahead + kinds))
    left = {True: 0, False: 0}
    for key, streaming in kind.items():
        assert door.ask(Ticket(key, Priority.NORMAL, streaming, 1), 0.0) is False
        left[streaming] += 1
    ending, contended = -1, []
    while min(left.values()):
        (ending,) = door.leave(ending, 0.0)
        contended.append(kind[ending])
        left[kind[ending]] -= 1

    for length in range(1, len(contended) + 1):
        assert abs(sum(contended[:length]) - 0.8 * length) <= 1.0
