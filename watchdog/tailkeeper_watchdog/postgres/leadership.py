"""Which of several watchdogs leads, by a row in PostgreSQL, and when what the leader has noted is written there.

One exchange at a time: it takes the row and reads the ledger, or writes what is unwritten and renews the row, all in one
transaction. Each has a deadline (`line`), and what it comes to is kept here; whoever asks gets the answer that is known by then.
So a server that is slow, frozen or gone costs the first tick ``PATIENCE_S``, and later ones nothing: they go on, and nothing is
changed at any gateway. Tried again by itself, ever less often, up to every ``MAX_WAIT_S``.

A leader that cannot renew stops acting by its own monotonic clock, well before its row runs out by the server's: so before
another one may begin. Should a clock jump all the same, the database refuses what the older of two leaders writes (`work`), and
each change at a gateway waits for such a write before it is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from functools import partial

import psycopg
import structlog

from tailkeeper_watchdog.leader_lease import leads_for_s
from tailkeeper_watchdog.ledger import LedgerError
from tailkeeper_watchdog.postgres import work
from tailkeeper_watchdog.postgres.ledger import PostgresLedger
from tailkeeper_watchdog.postgres.line import Line
from tailkeeper_watchdog.postgres.server import connect, user_of, where
from tailkeeper_watchdog.postgres.words import NewerSchemaError, NoAnswerError, sentence
from tailkeeper_watchdog.postgres.work import FollowedError, LostWritesError, Statement, Taken, Term
from tailkeeper_watchdog.settings import LedgerSettings

log = structlog.get_logger("tailkeeper.ledger")

WRITE_S = 2.0
"""For one write, from its first byte to the answer to its commit: what a tick may wait for, once."""
TAKE_S = 15.0
"""For taking over and reading everything: nobody waits for it but the one who takes over."""
PATIENCE_S = 2.5
"""How long a question waits for an exchange under way; less than the loop waits for the answer."""
RENEW_EVERY_S = ASK_EVERY_S = 1.0
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 5.0
MAX_BATCH = 1_000
"""Statements in one transaction: some tens of milliseconds."""
FIRST_SENTENCE = "standing by: it is not known yet who leads"
EXPECTED = (psycopg.Error, OSError, NoAnswerError, NewerSchemaError, LostWritesError)
"""What using a server may raise; anything else is a mistake of ours."""


def holder_words(listen: str) -> str:
    """Who we are, for people, and unlike anybody else."""
    return f"process {os.getpid()} on {socket.gethostname()} at {listen}, run {uuid.uuid4().hex[:8]}"


class PostgresLeadership:
    """Satisfies ``Leadership``; ``ledger`` is for whoever leads by it. ``clock`` gives monotonic seconds."""

    def __init__(
        self, settings: LedgerSettings, holder: str, clock: Callable[[], float] = time.monotonic, line: Line | None = None
    ) -> None:
        self._settings, self._holder, self._clock = settings, holder, clock
        self._line = line or Line(partial(connect, settings))
        self.ledger = PostgresLedger(where(settings))
        self.ledger.settle = self.settle
        self._turn = asyncio.Lock()
        self._under_way: asyncio.Task[None] | None = None
        self._term: Term | None = None
        self._said = FIRST_SENTENCE
        """Who leads, as far as it is known, while we do not."""
        self._batch: tuple[Statement, ...] | None = None
        """What was sent and may be done or not: it is sent again as it is, until that is known."""
        self._renewed_at = self._asked_at = float("-inf")
        """When the last write that succeeded, and the last exchange, was begun."""
        self._failures = 0

    @property
    def term(self) -> Term | None:
        """None while we do not lead."""
        return self._term

    async def try_lead(self) -> str | None:
        if self._is_due():
            if self._under_way is None or self._under_way.done():
                self._under_way = asyncio.create_task(self._exchange())
            # In trouble nobody waits: what comes of it is known at the next question.
            await asyncio.wait({self._under_way}, timeout=0 if self._failures else PATIENCE_S)
        return self._why_not()

    def _is_due(self) -> bool:
        since_s = self._clock() - self._asked_at
        if self._failures:
            return since_s >= min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._failures - 1, 10))
        return since_s >= (ASK_EVERY_S if self._term is None else RENEW_EVERY_S)

    def _why_not(self) -> str | None:
        if self._term is None:
            return self._said
        if self.ledger.trouble is not None:
            return f"nothing can be written down, so nothing is changed: {self.ledger.trouble}"
        silent_s = self._clock() - self._renewed_at
        if silent_s >= leads_for_s(self._settings.lease_s):
            return f"standing by: our leadership could not be renewed for {silent_s:.0f} s at {where(self._settings)}"
        return None

    async def settle(self) -> None:
        """Returns once what was noted until now is in the database, written while we lead. Raises LedgerError.

        Waits ``WRITE_S`` for each exchange: the one under way, and its own; a failure ends the wait of all.
        """
        began, goal = self._clock(), self.ledger.noted
        while True:
            why_not = self._why_not()
            if why_not is not None:
                raise LedgerError(why_not)
            if self._renewed_at >= began and self.ledger.confirmed >= goal:
                return
            async with self._turn:
                if self._renewed_at < began or self.ledger.confirmed < goal:  # another one's exchange may have done it
                    await self._once()

    async def step_down(self) -> None:
        if self._term is None and self._under_way is not None:
            self._under_way.cancel()  # nobody waits for a server in order not to lead
        if self.ledger.confirmed < self.ledger.noted:
            with contextlib.suppress(LedgerError):
                await self.settle()
        async with self._turn:
            term, self._term = self._term, None
            if term is not None:
                await self._try(partial(work.resign, term=term))
            await self._line.close()

    async def ask_to_pause(self, why: str) -> None:
        """The kill switch of one that does not lead: the leader reads it with its next write. Never raises."""
        async with self._turn:
            await self._try(partial(work.pause, schema=self._settings.in_schema, why=why))

    async def _try(self, piece: Callable[[psycopg.Connection[tuple[object, ...]]], None]) -> None:
        try:
            await self._line.use(piece, WRITE_S)
        except EXPECTED as error:
            log.warning("the ledger's server was not told", error=self._in_words(error))

    # Exchanges: one at a time, and none of them raises

    async def _exchange(self) -> None:
        async with self._turn:
            await self._once()

    async def _once(self) -> None:
        self._asked_at = self._clock()
        try:
            await (self._take() if self._term is None else self._write())
        except Exception as error:  # a mistake of ours: it is a trouble like any other, and the next exchange may be better
            log.exception("the ledger's exchange failed")
            self._failed(error)

    async def _take(self) -> None:
        began = self._clock()
        piece = partial(work.take, schema=self._settings.in_schema, holder=self._holder, lease_s=self._settings.lease_s)
        try:
            taken = await self._line.use(piece, TAKE_S)
        except EXPECTED as error:
            self._said = f"standing by: {self._in_words(error)}"
            self._failed(error)
            return
        self._failures, self.ledger.trouble = 0, None
        if isinstance(taken, Taken):
            self._term, self._renewed_at, self._batch, self._asked_at = taken.term, began, None, float("-inf")
            self.ledger.take_up(taken.image)
        else:
            self._said = f"standing by: {taken}"

    async def _write(self) -> None:
        """Whatever is unwritten, the oldest first, and in any case the sign that we still lead."""
        assert self._term is not None
        again = self._batch is not None
        batch = self._batch = self._batch if self._batch is not None else self.ledger.unwritten(MAX_BATCH)
        began, lease_s = self._clock(), self._settings.lease_s
        try:
            if self.ledger.must_be_anew:
                raise LostWritesError("more was noted than could be kept")
            piece = partial(work.write, term=self._term, statements=batch, again=again, lease_s=lease_s)
            written = await self._line.use(piece, WRITE_S)
        except LostWritesError as error:
            log.warning("everything is written anew", ledger=where(self._settings), why=str(error))
            await self._write_anew()
        except FollowedError as error:
            self._followed(error)
        except EXPECTED as error:
            self._failed(error)
        else:
            self._batch = None
            self.ledger.written(len(batch))
            self._renewed(written, began)

    async def _write_anew(self) -> None:
        assert self._term is not None
        self._batch = None
        began, noted, content = self._clock(), self.ledger.noted, self.ledger.everything()
        piece = partial(work.write_anew, term=self._term, content=content, lease_s=self._settings.lease_s)
        try:
            written = await self._line.use(piece, TAKE_S)
        except FollowedError as error:
            self._followed(error)
        except EXPECTED as error:
            self.ledger.must_be_anew = True
            self._failed(error)
        else:
            self.ledger.written_anew(noted)
            self._renewed(written, began)

    def _renewed(self, written: work.Written, began: float) -> None:
        self._term, self._renewed_at = written.term, began
        if self._failures:
            log.warning("the ledger can be written again", ledger=where(self._settings))
        self._failures, self.ledger.trouble = 0, None
        self.ledger.hear_pause(written.paused)

    def _followed(self, error: FollowedError) -> None:
        """Another one has led since: what we noted after that is void."""
        self._term, self._batch, self._failures, self.ledger.trouble = None, None, 0, None
        self._said = f"standing by: {error}"
        log.warning("another watchdog leads now", leader=str(error), void_statements=self.ledger.let_go())

    def _failed(self, error: BaseException) -> None:
        words = self._in_words(error)
        if words != self.ledger.trouble:
            log.warning("the ledger cannot be used", error=words)
        self._failures, self.ledger.trouble = self._failures + 1, words

    def _in_words(self, error: BaseException) -> str:
        return sentence(error, where(self._settings), user_of(self._settings), self._settings.in_schema)
