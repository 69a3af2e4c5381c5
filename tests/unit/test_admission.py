"""Who is admitted at a tap, who waits, and who is refused, by example."""

from __future__ import annotations

import pytest

from tailkeeper_exporter.tap.admission import (
    DRAINED,
    OVERTAKE_S,
    QUEUE_FULL,
    QUEUE_MOST,
    QUEUE_TIMEOUT,
    SHED,
    WAIT_S,
    Admission,
    Priority,
    Ticket,
    priority_of,
)
from tailkeeper_exporter.tap.knobs import DRAIN, Degrade, Knobs

LOW, NORMAL, HIGH = Priority


def ticket(key: int, priority: Priority = NORMAL, *, streaming: bool | None = True, cost: float = 100) -> Ticket:
    return Ticket(key, priority, streaming, cost)


def limited(limit: int, *waiting: Ticket) -> Admission:
    """A tap whose slots are all taken, by the keys from 100,000 up, with ``waiting`` come one after the other at 0 s."""
    admission = Admission(Knobs(concurrency_limit=limit))
    assert [admission.ask(ticket(100_000 + n), 0.0) for n in range(limit)] == [True] * limit
    assert [admission.ask(waiter, 0.0) for waiter in waiting] == [False] * len(waiting)
    return admission


def order(admission: Admission, now: float = 1.0) -> list[int]:
    """The order in which those that wait are admitted, each when the one before it ends."""
    admitted, ending = [], 100_000
    while admission.queued:
        (ending,) = admission.leave(ending, now)
        admitted.append(ending)
    return admitted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[(word, LOW) for word in ("low", "batch", "background", "bulk", " Low ", "BULK", "1", "+7")],
        *[(word, HIGH) for word in ("high", "critical", "interactive", "High", "-1", "-100")],
        *[(word, NORMAL) for word in (None, "", "normal", "0", "-0", "urgent", "1.5", "--1", "9" * 5_000, "١", "low, high")],
    ],
)
def test_the_priority_header_is_read_and_what_it_does_not_say_is_normal(text: str | None, expected: Priority) -> None:
    assert priority_of(text) is expected


def test_without_a_limit_everyone_is_admitted_at_once_and_no_body_is_needed() -> None:
    admission = Admission(Knobs())

    assert all(admission.ask(ticket(n), 0.0) is True for n in range(5_000))
    assert (admission.admitted, admission.queued, admission.next_expiry_s) == (5_000, 0, None)
    assert not admission.needs_body


def test_beyond_the_limit_a_request_waits_until_one_ends() -> None:
    admission = limited(2, ticket(1))

    assert (admission.admitted, admission.queued, admission.needs_body) == (2, 1, True)
    assert admission.leave(100_000, 1.0) == (1,)
    assert admission.leave(100_001, 1.0) == ()
    assert (admission.admitted, admission.queued) == (1, 0)


@pytest.mark.parametrize(
    ("why", "waiting", "expected"),
    [
        ("cheap first", [ticket(1, cost=9_000), ticket(2, cost=10), ticket(3, cost=500)], [2, 3, 1]),
        ("priority before cost", [ticket(1, LOW, cost=1), ticket(2, NORMAL, cost=2), ticket(3, HIGH, cost=1e9)], [3, 2, 1]),
        ("as they came", [ticket(1), ticket(2), ticket(3)], [1, 2, 3]),
        ("an unknown cost is the highest", [ticket(1, cost=float("nan")), ticket(2, cost=-5), ticket(3, cost=1e9)], [3, 1, 2]),
        ("endless is no mistake", [ticket(1, cost=float("inf")), ticket(2, cost=5)], [2, 1]),
    ],
)
def test_those_that_came_together_are_admitted_in_order(why: str, waiting: list[Ticket], expected: list[int]) -> None:
    assert order(limited(1, *waiting)) == expected, why


def test_nobody_is_overtaken_by_one_that_came_later_than_the_bound() -> None:
    admission = limited(1, ticket(1, LOW, cost=1e9))
    admission.ask(ticket(2, HIGH, cost=1), OVERTAKE_S)
    admission.ask(ticket(3, HIGH, cost=1), OVERTAKE_S - 0.1)

    assert order(admission, OVERTAKE_S) == [3, 1, 2]


def test_of_ten_slots_eight_go_to_streaming_and_two_to_batched() -> None:
    waiting = [ticket(n, streaming=True) for n in range(40)] + [ticket(n, streaming=n % 2 == 0 and None) for n in range(40, 80)]

    first = order(limited(1, *waiting))[:40]

    assert sum(key < 40 for key in first) == 32


def test_a_lane_that_had_nobody_has_saved_no_turns() -> None:
    admission = limited(1, *(ticket(n) for n in range(200)))
    ending = 100_000
    for _ in range(100):
        (ending,) = admission.leave(ending, 1.0)
    for n in range(200, 300):
        admission.ask(ticket(n, streaming=False), 1.0)
    admitted = []
    for _ in range(10):
        (ending,) = admission.leave(ending, 1.0)
        admitted.append(ending)

    assert sum(key >= 200 for key in admitted) == 2


def test_one_that_waited_too_long_is_refused_once_and_gets_no_slot() -> None:
    admission = limited(1, ticket(1), ticket(2))
    admission.ask(ticket(3), 5.0)
    assert admission.next_expiry_s == WAIT_S

    assert admission.expire(WAIT_S - 0.001) == ()
    assert admission.expire(WAIT_S) == ((1, QUEUE_TIMEOUT), (2, QUEUE_TIMEOUT))
    assert admission.expire(WAIT_S) == ()
    assert admission.next_expiry_s == 5.0 + WAIT_S
    assert admission.leave(100_000, WAIT_S) == (3,)


def test_one_that_gave_up_gets_no_slot_and_unknown_keys_are_harmless() -> None:
    admission = limited(1, ticket(1), ticket(2))

    assert admission.leave(1, 1.0) == admission.leave(1, 1.0) == admission.leave(77, 1.0) == ()
    assert admission.leave(100_000, 1.0) == (2,)


@pytest.mark.parametrize("priority", [LOW, NORMAL])
def test_a_full_queue_refuses_the_asker_where_nobody_of_a_lower_priority_waits(priority: Priority) -> None:
    admission = limited(1, *(ticket(n) for n in range(QUEUE_MOST - 1)), ticket(QUEUE_MOST))

    assert admission.ask(ticket(5_000, priority), 1.0) == QUEUE_FULL
    assert admission.queued == QUEUE_MOST
    assert admission.expire(1.0) == ()


def test_a_full_queue_refuses_the_newest_of_the_lowest_priority_for_a_higher_one() -> None:
    admission = limited(1, ticket(7_000, LOW), ticket(7_001, LOW), *(ticket(n) for n in range(QUEUE_MOST - 2)))

    assert admission.ask(ticket(5_000), 1.0) is False
    assert admission.next_expiry_s == 1.0
    assert admission.expire(1.0) == ((7_001, QUEUE_FULL),)
    assert admission.queued == QUEUE_MOST


@pytest.mark.parametrize(
    ("level", "served"),
    [(Degrade.NOTHING, {LOW, NORMAL, HIGH}), (Degrade.LOW, {NORMAL, HIGH}), (Degrade.NORMAL, {HIGH}), (Degrade.ALL, set())],
)
def test_a_degrade_level_sheds_the_classes_below_it(level: Degrade, served: set[Priority]) -> None:
    admission = Admission(Knobs(degrade_level=level))

    answers = {priority: admission.ask(ticket(priority, priority), 0.0) for priority in Priority}

    assert {priority for priority, answer in answers.items() if answer is True} == served
    assert {answer for answer in answers.values() if answer is not True} <= {SHED}
    assert SHED.status == 503
    assert SHED.retry_after_s > 0


def test_a_drain_refuses_new_ones_and_those_that_wait_but_cuts_nobody() -> None:
    admission = limited(2, ticket(1), ticket(2))

    assert admission.change(Knobs(DRAIN, 2), 3.0) == ()
    due_s = admission.next_expiry_s
    assert due_s == 3.0
    assert admission.ask(ticket(3, HIGH), 3.0) == DRAINED
    assert admission.expire(3.0) == ((1, DRAINED), (2, DRAINED))
    assert (admission.admitted, admission.queued, admission.next_expiry_s) == (2, 0, None)
    assert admission.leave(100_000, 4.0) == ()


def test_those_of_a_class_that_is_shed_now_do_not_go_on_waiting() -> None:
    admission = limited(1, ticket(1, LOW), ticket(2, HIGH))

    admission.change(Knobs(concurrency_limit=1, degrade_level=Degrade.NORMAL), 1.0)

    assert admission.expire(1.0) == ((1, SHED),)
    assert admission.leave(100_000, 2.0) == (2,)


def test_one_that_gave_up_before_its_refusal_was_told_is_not_told() -> None:
    admission = limited(1, ticket(1))
    admission.change(Knobs(DRAIN, 1), 1.0)

    admission.leave(1, 1.0)

    assert admission.expire(1.0) == ()


@pytest.mark.parametrize(("limit", "admitted"), [(3, (1,)), (4, (1, 2)), (None, (1, 2, 3)), (2, ()), (1, ())])
def test_a_new_limit_admits_at_once_and_never_cuts_a_running_one(limit: int | None, admitted: tuple[int, ...]) -> None:
    admission = limited(2, ticket(1), ticket(2), ticket(3))

    assert admission.change(Knobs(concurrency_limit=limit), 1.0) == admitted
    assert admission.admitted == 2 + len(admitted)


def test_a_lowered_limit_lets_the_running_ones_end_before_the_next_begins() -> None:
    admission = limited(3, ticket(1))
    admission.change(Knobs(concurrency_limit=1), 1.0)

    assert [admission.leave(key, 2.0) for key in (100_000, 100_001, 100_002)] == [(), (), (1,)]


def test_a_key_cannot_ask_twice() -> None:
    admission = limited(1, ticket(1))

    for key in (1, 100_000):
        with pytest.raises(ValueError, match=f"request {key} is here already"):
            admission.ask(ticket(key), 0.0)


def test_a_hung_backend_with_impatient_callers_costs_no_memory() -> None:
    """Nobody is admitted, so nothing is popped: those that gave up must be swept out all the same."""
    admission = limited(1)
    for n in range(20_000):
        admission.ask(ticket(n), 0.0)
        admission.leave(n, 0.0)

    assert sum(len(lane._heap) for lane in admission._lanes) < 200
