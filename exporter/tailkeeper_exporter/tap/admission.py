"""Who may go to the backend now, who waits in the tap, and who is refused: decided here, enforced by the tap. No I/O, no clock.

A queue exists only while a concurrency limit is set. Its order:

* Streaming and batched requests have a lane each; while both wait, freed slots go 8 to streaming for 2 to batched.
* Inside a lane the lowest rank goes first: the time of arrival plus a handicap, of ``PRIORITY_STEP_S`` for each priority
  below high and of ``COST_MOST_S`` at most, less than a step, for the cost. So of those that came together the higher
  priority goes first, among equals the cheaper, and nobody is overtaken by one of its lane that came ``OVERTAKE_S`` or more
  after it.
* Nobody waits longer than ``WAIT_S``, and at most ``QUEUE_MOST`` wait.

What would be refused if it asked now (drained, shed) is refused while it waits, too: nothing of it has reached the backend,
so another one can still serve it. What was admitted is never touched.
"""

from __future__ import annotations

import heapq
import re
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum

from tailkeeper_exporter.tap.knobs import DRAIN, Knobs

STREAMING_WEIGHT, BATCHED_WEIGHT = 8, 2
QUEUE_MOST = 1_024
"""Each holds a connection and its body, 20 kB as a rule: some 20 MB. More would only time out: 34 of them start per second
where all are to start within ``WAIT_S``, which is more than a backend that needs a limit can do."""
WAIT_S = 30.0
"""Half of the minute after which common load balancers and clients give up, so that they get a reason instead."""
PRIORITY_STEP_S = 2.0
COST_MOST_S = 1.9
HALF_COST_TOKENS = 2_048.0
"""Of this cost the handicap is half of the most: a usual prompt lies about here, so usual ones are told apart best."""

_WORDS = {
    **dict.fromkeys(("low", "batch", "background", "bulk"), 0),
    **dict.fromkeys(("high", "critical", "interactive"), 2),
}
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


class Priority(IntEnum):
    """The class of a request, for shedding and for its place in the queue."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


OVERTAKE_S = PRIORITY_STEP_S * (Priority.HIGH - Priority.LOW) + COST_MOST_S
"""Nobody is overtaken, in its lane, by one that came so much later. Seconds."""


def priority_of(text: str | None) -> Priority:
    """What ``x-priority`` says: a word, or a whole number read as vLLM reads its `priority` (below 0 is earlier, so high;
    above 0 is later, so low). Anything else is normal."""
    word = (text or "").strip().lower()
    if _NUMBER.fullmatch(word):
        number = int(word)
        return Priority.HIGH if number < 0 else Priority.LOW if number > 0 else Priority.NORMAL
    return Priority(_WORDS.get(word, Priority.NORMAL))


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request that wants in. ``streaming`` None is unknown, and goes with the batched."""

    key: int
    priority: Priority
    streaming: bool | None
    cost_tokens: float
    """Tokens that it will hold in the KV cache, as estimated: the prompt and what it may generate."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served; ``reason`` is one word for headers and metrics."""

    reason: str
    retry_after_s: int
    status: int = 503


DRAINED = Refusal("drained", 30)
"""A drain lasts for a cool-down of 30 s at least."""
SHED = Refusal("shed", 10)
QUEUE_FULL = Refusal("queue_full", 5)
QUEUE_TIMEOUT = Refusal("queue_timeout", 5)


@dataclass(frozen=True, slots=True)
class _Waiter:
    ticket: Ticket
    since_s: float

    @property
    def rank_s(self) -> float:
        cost = self.ticket.cost_tokens
        # Negative and NaN are mistakes of the estimate; they gain nothing by it.
        share = 1.0 - HALF_COST_TOKENS / (HALF_COST_TOKENS + cost) if cost >= 0 else 1.0
        return self.since_s + PRIORITY_STEP_S * (Priority.HIGH - self.ticket.priority) + COST_MOST_S * share


class _Lane:
    """The waiters of one kind, lowest rank first. Those who gave up are skipped, and swept out when they are the most."""

    def __init__(self, weight: int) -> None:
        self._turn = 1.0 / weight
        self.next_turn = 0.0
        self._heap: list[tuple[float, int, _Waiter]] = []
        self._present: dict[int, _Waiter] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._present)

    def push(self, waiter: _Waiter, round_: float) -> None:
        """A lane that was empty gets no turns for the time in which it had nobody."""
        if not self._present:
            self.next_turn = max(self.next_turn, round_)
        if len(self._heap) > 2 * len(self._present) + 64:
            self._heap = [entry for entry in self._heap if self._is_present(entry[2])]
            heapq.heapify(self._heap)
        self._count += 1
        self._present[waiter.ticket.key] = waiter
        heapq.heappush(self._heap, (waiter.rank_s, self._count, waiter))

    def drop(self, waiter: _Waiter) -> None:
        del self._present[waiter.ticket.key]

    def pop(self) -> _Waiter:
        """The first waiter, and the lane's turn is over. Raises IndexError from an empty lane."""
        while not self._is_present(waiter := heapq.heappop(self._heap)[2]):
            pass
        self.drop(waiter)
        self.next_turn += self._turn
        return waiter

    def _is_present(self, waiter: _Waiter) -> bool:
        return self._present.get(waiter.ticket.key) is waiter


class Admission:
    """The door of one tap. ``now`` is monotonic seconds and never goes back. Every call is O(log n) in those that wait,
    but for ``change`` and those that it or ``expire`` hands out."""

    def __init__(self, knobs: Knobs, queue_most: int = QUEUE_MOST) -> None:
        self._knobs = knobs
        self._queue_most = queue_most
        self._admitted: set[int] = set()
        self._lanes = (_Lane(STREAMING_WEIGHT), _Lane(BATCHED_WEIGHT))
        self._round = 0.0
        """The turn that was taken last, on the lanes' common scale."""
        self._waiting: dict[Priority, OrderedDict[int, _Waiter]] = {priority: OrderedDict() for priority in Priority}
        """By arrival, which is by expiry too."""
        self._refused: OrderedDict[int, Refusal] = OrderedDict()
        """Refused while they waited, and not handed out by ``expire`` yet."""
        self._refused_s = 0.0

    @property
    def queued(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    @property
    def admitted(self) -> int:
        return len(self._admitted)

    @property
    def needs_body(self) -> bool:
        """Whether cost and streaming decide anything now, so that the body should be read before ``ask``."""
        return self._knobs.concurrency_limit is not None

    @property
    def next_expiry_s(self) -> float | None:
        """When ``expire`` has something to hand out, if nothing happens before; None where nobody waits."""
        if self._refused:
            return self._refused_s
        oldest = self._oldest()
        return None if oldest is None else oldest.since_s + WAIT_S

    def ask(self, ticket: Ticket, now: float) -> Refusal | bool:
        """True admitted, False queued. A full queue refuses the newest of the lowest priority, which is the asker unless one
        of a lower priority waits; ``expire`` hands that one out. Raises ValueError for a key that is here already."""
        if ticket.key in self._admitted or ticket.key in self._refused or self._waiter(ticket.key) is not None:
            raise ValueError(f"request {ticket.key} is here already")
        refusal = self._barred(ticket.priority)
        if refusal is not None:
            return refusal
        if self._has_room():
            self._admitted.add(ticket.key)
            return True
        if self.queued >= self._queue_most and not self._made_way(ticket.priority, now):
            return QUEUE_FULL
        waiter = _Waiter(ticket, now)
        self._waiting[ticket.priority][ticket.key] = waiter
        self._lane(waiter).push(waiter, self._round)
        return False

    def leave(self, key: int, now: float) -> tuple[int, ...]:
        """An admitted request has ended, or a queued one gave up: who is admitted because of it. An unknown key does nothing."""
        self._admitted.discard(key)
        self._refused.pop(key, None)
        waiter = self._waiter(key)
        if waiter is not None:
            self._forget(waiter)
        return self._fill()

    def expire(self, now: float) -> tuple[tuple[int, Refusal], ...]:
        """Who waited too long, was displaced, or may not wait any more since the last change; each is told once."""
        refused = list(self._refused.items())
        self._refused.clear()
        while (oldest := self._oldest()) is not None and oldest.since_s + WAIT_S <= now:
            self._forget(oldest)
            refused.append((oldest.ticket.key, QUEUE_TIMEOUT))
        return tuple(refused)

    def change(self, knobs: Knobs, now: float) -> tuple[int, ...]:
        """Turn the knobs: who is admitted because of it. Whom they bar is handed out by ``expire``, at once."""
        self._knobs = knobs
        for priority, waiting in self._waiting.items():
            refusal = self._barred(priority)
            if refusal is not None:
                for waiter in tuple(waiting.values()):
                    self._refuse(waiter, refusal, now)
        return self._fill()

    def _barred(self, priority: Priority) -> Refusal | None:
        if self._knobs.admission == DRAIN:
            return DRAINED
        return SHED if priority < self._knobs.degrade_level else None

    def _has_room(self) -> bool:
        limit = self._knobs.concurrency_limit
        return limit is None or len(self._admitted) < limit

    def _made_way(self, priority: Priority, now: float) -> bool:
        lowest = next(p for p in Priority if self._waiting[p])
        if lowest >= priority:
            return False
        self._refuse(next(reversed(self._waiting[lowest].values())), QUEUE_FULL, now)
        return True

    def _fill(self) -> tuple[int, ...]:
        """Admit those whose turn it is, until there is no room or nobody."""
        admitted = []
        while self._has_room() and self.queued:
            lane = min((lane for lane in self._lanes if lane), key=lambda lane: lane.next_turn)
            self._round = lane.next_turn
            ticket = lane.pop().ticket
            del self._waiting[ticket.priority][ticket.key]
            self._admitted.add(ticket.key)
            admitted.append(ticket.key)
        return tuple(admitted)

    def _refuse(self, waiter: _Waiter, refusal: Refusal, now: float) -> None:
        self._forget(waiter)
        self._refused[waiter.ticket.key] = refusal
        self._refused_s = now

    def _forget(self, waiter: _Waiter) -> None:
        del self._waiting[waiter.ticket.priority][waiter.ticket.key]
        self._lane(waiter).drop(waiter)

    def _lane(self, waiter: _Waiter) -> _Lane:
        return self._lanes[0 if waiter.ticket.streaming else 1]

    def _waiter(self, key: int) -> _Waiter | None:
        return next((waiting[key] for waiting in self._waiting.values() if key in waiting), None)

    def _oldest(self) -> _Waiter | None:
        firsts = (next(iter(waiting.values())) for waiting in self._waiting.values() if waiting)
        return min(firsts, key=lambda waiter: waiter.since_s, default=None)
