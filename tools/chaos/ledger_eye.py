"""The ledger as somebody else reads it: SQLite, read only, sharing no code with whoever writes it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from typing import Any

WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease. ``server`` as HAProxy has it; ``expires`` by the watchdog's wall clock; ``before`` is what was in force."""

    id: int
    server: str
    knob: str
    prior: Any
    written: Any
    before: Any
    expires: float
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Book:
    """What the ledger says at one moment. ``pending`` are values that may still come, by server and knob."""

    leases: tuple[LeaseRow, ...]
    pending: dict[tuple[str, str], tuple[Any, ...]]
    attempts: int
    """The most removals of one backend that are remembered."""


_LEASES = "SELECT id, server, knob, prior, written, before, expires, confirmed FROM leases WHERE ended IS NULL ORDER BY id"


def read_open(path: str) -> tuple[LeaseRow, ...]:
    """Leases in force. Raises sqlite3.Error."""
    with contextlib.closing(_open(path)) as db:
        return tuple(_row(row) for row in db.execute(_LEASES))


def read_book(path: str) -> Book:
    """Raises sqlite3.Error, and ValueError for what is no JSON."""
    with contextlib.closing(_open(path)) as db:
        leases = tuple(_row(row) for row in db.execute(_LEASES))
        noted = db.execute("SELECT value FROM meta WHERE key = 'pending'").fetchone()
        attempts = db.execute("SELECT max(count) FROM attempts").fetchone()[0]
    rows = json.loads(noted[0]) if noted else []
    pending = {(server, knob): tuple(value for value, _ in values) for _, server, knob, values in rows}
    return Book(leases, pending, attempts or 0)


def _open(path: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=WAIT_S)


def _row(row: tuple[Any, ...]) -> LeaseRow:
    number, server, knob, prior, written, before, expires, confirmed = row
    known = None if before is None else json.loads(before)
    return LeaseRow(number, server, knob, json.loads(prior), json.loads(written), known, expires, bool(confirmed))
