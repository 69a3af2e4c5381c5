"""One backend's tap: its door, its connections to the backend, and its counts. The turns of its clients go through here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tailkeeper_exporter.tap.admission import Admission, Refusal, Ticket
from tailkeeper_exporter.tap.book import Book
from tailkeeper_exporter.tap.cache import LocalCache
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.ids import RandomHex
from tailkeeper_exporter.tap.knobs import CACHE_LOCAL, Knobs
from tailkeeper_exporter.tap.status import TapStatus
from tailkeeper_exporter.tap.turn import Turn
from tailkeeper_exporter.tap.upstream import Pool


class Connection(Protocol):
    """A client's connection, as the tap looks after it."""

    def sweep(self, now: float) -> None:
        """Close what has been idle, half said or half closed for too long."""
        ...

    def close_idle(self) -> None:
        """Close once there is no request on it, and take no new one."""
        ...

    def cut_short(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Means:
    """What comes from outside: clocks in seconds, randomness, and where finished exchanges go."""

    clock: Callable[[], float]
    unix_clock: Callable[[], float]
    random_hex: RandomHex
    emit: Callable[[Exchange], None]


class Tap:
    """The tap of one backend. All in one event loop."""

    def __init__(self, name: str, pool: Pool, door: Admission, cache: LocalCache, means: Means) -> None:
        self.name, self.pool, self._door, self._cache = name, pool, door, cache
        self.clock, self.unix_clock, self.random_hex = means.clock, means.unix_clock, means.random_hex
        self._emit = means.emit
        self.book = Book()
        self.knobs = Knobs()
        self.connections: set[Connection] = set()
        self.closing = False
        self._turns: dict[int, Turn] = {}
        """Those at the door or beyond it."""
        self._keys = itertools.count()

    def next_key(self) -> int:
        return next(self._keys)

    @property
    def needs_body(self) -> bool:
        """Whether the body decides anything before the backend is asked."""
        return self._door.needs_body or self.cache is not None

    @property
    def cache(self) -> LocalCache | None:
        """None while it is off."""
        return self._cache if self.knobs.cache_mode == CACHE_LOCAL else None

    @property
    def in_flight(self) -> int:
        return self.book.held + self.book.waiting + self.book.running

    def ask(self, turn: Turn, ticket: Ticket) -> Refusal | bool:
        """Whether the turn may go to the backend now; False: it is told later."""
        now = self.clock()
        verdict = self._door.ask(ticket, now)
        if not isinstance(verdict, Refusal):
            self._turns[turn.key] = turn
        self._expire(now)
        return verdict

    def done(self, turn: Turn, exchange: Exchange) -> None:
        """A turn has ended; who waited for its place goes on."""
        if self._turns.pop(turn.key, None) is not None:
            self._admit(self._door.leave(turn.key, self.clock()))
        self._emit(exchange)

    def apply(self, knobs: Knobs) -> None:
        """Turn the knobs, from now on."""
        if knobs.cache_mode != self.knobs.cache_mode:
            self._cache.clear()
        self.knobs = knobs
        now = self.clock()
        self._admit(self._door.change(knobs, now))
        self._expire(now)

    def status(self) -> TapStatus:
        book = self.book
        return TapStatus(
            self.clock(), book.running, book.waiting, self._door.queued, book.progress_s, book.answered_s, self.knobs
        )

    def sweep(self) -> None:
        """Whatever has taken too long ends. To be called several times a second."""
        now = self.clock()
        self._expire(now)
        self.pool.sweep(now)
        for connection in list(self.connections):
            connection.sweep(now)

    def close(self) -> None:
        """Take no new requests on the connections that there are; those in flight go on."""
        self.closing = True
        for connection in list(self.connections):
            connection.close_idle()

    def cut(self) -> int:
        """End what is still in flight. Returns how many requests that were."""
        count = self.in_flight
        for connection in list(self.connections):
            connection.cut_short()
        self.pool.close()
        return count

    def _admit(self, keys: tuple[int, ...]) -> None:
        for key in keys:
            if key in self._turns:
                self._turns[key].admitted()

    def _expire(self, now: float) -> None:
        for key, refusal in self._door.expire(now):
            turn = self._turns.pop(key, None)
            if turn is not None:
                turn.refused(refusal)
