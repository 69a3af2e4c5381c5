"""The ledger of a watchdog that leads by PostgreSQL: its own image of it in memory, and what of that is not in the database yet.

Whoever leads is the only one who writes, so what it reads is its own image: no reading waits for a server. What it writes is in
the image at once, and stands in line for the database until it is confirmed there; ``settled`` waits for that. Bounded: of more
than ``MAX_UNWRITTEN`` statements none is kept, and everything is written anew instead.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.ledger_rows import SET_META, TABLES
from tailkeeper_watchdog.postgres.work import Content, Statement

MAX_UNWRITTEN = 20_000
"""Some ten minutes of a large fleet's log while the server is away, about 10 MB."""
_PAUSE_KEY = "paused"


class PostgresLedger(Ledger):
    """Empty until it is taken up. ``settle`` waits until all is in the database, and is given by whoever writes it there."""

    def __init__(self, where: str) -> None:
        self._following = False
        """Whether what is written here is for the database. While nobody leads here it is not, and forgotten with the image."""
        super().__init__(":memory:")
        self._path = where
        self._unwritten: list[Statement] = []
        self.noted = 0
        """How many statements there were since the start."""
        self.confirmed = 0
        """How many of those the database has, or needs no more."""
        self.must_be_anew = False
        """Whether statements were dropped, so that only writing everything anew makes the database what this is."""
        self.settle: Callable[[], Awaitable[None]] = self._nobody_leads

    async def _nobody_leads(self) -> None:
        raise LedgerError(f"{self._path}: nobody leads here")

    async def settled(self) -> None:
        await self.settle()

    # What the database is to get

    def unwritten(self, limit: int) -> tuple[Statement, ...]:
        """The oldest ones."""
        with self._lock:
            return tuple(self._unwritten[:limit])

    def written(self, count: int) -> None:
        """The oldest ``count`` are in the database."""
        with self._lock:
            del self._unwritten[:count]
            self.confirmed += count

    def everything(self) -> Content:
        """All rows as of now, to be written anew: that replaces whatever is unwritten."""
        with self._lock:
            content = {table: self._run(f"SELECT * FROM {table}") for table in TABLES}  # noqa: S608  names of ours
            self._unwritten.clear()
            self.must_be_anew = False
            return content

    def written_anew(self, noted: int) -> None:
        """The database is what this was when so many had been noted."""
        with self._lock:
            self.confirmed = noted

    def _run(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return super()._run(sql, _storable(values))

    def _note(self, sql: str, values: tuple[Any, ...]) -> None:
        if not self._following:
            return
        self.noted += 1
        self._unwritten.append((sql, _storable(values)))
        if len(self._unwritten) > MAX_UNWRITTEN:
            self._unwritten.clear()
            self.must_be_anew = True

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._lock:
            mark, noted = len(self._unwritten), self.noted
            try:
                with super().together():
                    yield
            except BaseException:
                del self._unwritten[mark:]
                self.noted = noted
                raise

    # What the database says

    def take_up(self, image: sqlite3.Connection) -> None:
        """We lead from now on, and this is what there is."""
        with self._lock:
            self._db.close()
            self._db, self._held = image, None
            self._forget_unwritten()
            self._following = True
            self.generation += 1

    def let_go(self) -> int:
        """Another one leads: what is unwritten is void. Returns how many statements that are."""
        with self._lock:
            lost = len(self._unwritten)
            self._forget_unwritten()
            self._following = False
            return lost

    def _forget_unwritten(self) -> None:
        self._unwritten.clear()
        self.confirmed, self.must_be_anew = self.noted, False

    def hear_pause(self, why: str | None) -> None:
        """The kill switch as it stands in the database; a change of ours that is still on its way there is newer."""
        with self._lock:
            if any(_PAUSE_KEY in values for _, values in self._unwritten) or self.get_meta(_PAUSE_KEY) == why:
                return
            if why is None:
                self._run("DELETE FROM meta WHERE key=?", (_PAUSE_KEY,))
            else:
                self._run(SET_META, (_PAUSE_KEY, why))


def _storable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """PostgreSQL's texts have no zero bytes, and an engine's words may have some."""
    if any(isinstance(value, str) and "\0" in value for value in values):
        return tuple(value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values)
    return values
