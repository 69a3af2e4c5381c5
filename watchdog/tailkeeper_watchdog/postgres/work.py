"""What is done in the database within one connection, each in one transaction. Blocks; run it on a `line`. Decides nothing.

Whoever leads is in one row (``leader``). Taking it over counts its epoch, and every later write begins by naming the epoch that
it is made under, and by whom: of a leader that another one has followed no row is found, and nothing of what it sent is done. The
row stays locked until the end of the transaction, so there is no moment between the two. Its revision counts the writes: after a
connection that was lost in the middle it says whether the last one was done, and after a failover whether the new server has all
of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tailkeeper_watchdog.ledger_rows import NUMBERED, SCHEMA, SET_META, TABLES
from tailkeeper_watchdog.postgres.server import Connection
from tailkeeper_watchdog.postgres.tables import bring_up

Statement = tuple[str, tuple[Any, ...]]
"""In SQLite's words, which are PostgreSQL's but for the marks of values."""
Row = tuple[Any, ...]
Content = Mapping[str, list[Row]]
"""All rows by table."""
LOAD_STATEMENT_S = 8.0
NAME = "leader"

_TAKE = """
INSERT INTO leader (name, epoch, revision, holder, since, expires)
VALUES (%(name)s, 1, 0, %(holder)s, clock_timestamp(), clock_timestamp() + make_interval(secs => %(lease_s)s))
ON CONFLICT (name) DO UPDATE SET epoch = leader.epoch + 1, holder = excluded.holder,
  since = clock_timestamp(), expires = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE leader.expires <= clock_timestamp() RETURNING epoch, revision
"""
_HOLD = """
INSERT INTO leader (name, epoch, revision, holder, since, expires)
VALUES (%(name)s, 1, 0, %(holder)s, clock_timestamp(), clock_timestamp() + make_interval(secs => %(lease_s)s))
ON CONFLICT (name) DO UPDATE SET epoch = leader.epoch + CASE WHEN leader.holder = excluded.holder THEN 0 ELSE 1 END,
  since = CASE WHEN leader.holder = excluded.holder THEN leader.since ELSE clock_timestamp() END,
  holder = excluded.holder, expires = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE leader.expires <= clock_timestamp() OR leader.holder = excluded.holder RETURNING epoch
"""
_WHO = "SELECT holder, extract(epoch FROM since)::float8 FROM leader WHERE name = %s"
_FENCE = """
UPDATE leader SET revision = revision + 1, expires = clock_timestamp() + make_interval(secs => %s)
WHERE name = %s AND epoch = %s AND holder = %s RETURNING revision
"""
_RESIGN = "UPDATE leader SET expires = clock_timestamp() WHERE name = %s AND epoch = %s AND holder = %s"


@dataclass(frozen=True, slots=True)
class Term:
    """Under which epoch we lead and as whom, and how many writes the database has as far as we know.

    The epoch alone is not enough: a server that has lost the last change of leaders gives its number once more.
    """

    epoch: int
    holder: str
    revision: int

    def at(self, revision: int) -> Term:
        return replace(self, revision=revision)


@dataclass(frozen=True, slots=True)
class Taken:
    """We lead. ``image`` is the ledger's content, in memory."""

    term: Term
    image: sqlite3.Connection


@dataclass(frozen=True, slots=True)
class Written:
    """Done. ``paused`` is the kill switch as it stands in the database, where a watchdog that stands by may have set it."""

    term: Term
    paused: str | None


class FollowedError(Exception):
    """Another one has led since: nothing was written. The message is a sentence that says who."""


class LostWritesError(Exception):
    """The database has not what it once confirmed, as after a failover to a server that was behind. Nothing was written."""


def take(connection: Connection, schema: str, holder: str, lease_s: float) -> Taken | str:
    """Lead, and read everything; or a sentence that says who leads. Raises psycopg.Error, NewerSchemaError."""
    bring_up(connection, schema)
    with connection.transaction():
        _take_longer(connection)
        asked = {"name": NAME, "holder": holder, "lease_s": lease_s}
        row = connection.execute(_TAKE, asked).fetchone()
        return _who_leads(connection) if row is None else Taken(Term(row[0], holder, row[1]), _image_of(connection))


def _who_leads(connection: Connection) -> str:
    holder, since_unix_s = connection.execute(_WHO, (NAME,)).fetchone() or ("unknown", 0.0)
    since = datetime.fromtimestamp(since_unix_s, UTC).isoformat(timespec="seconds")
    return f"another watchdog leads: {holder}, since {since} (by the leader's row)"


def _image_of(connection: Connection) -> sqlite3.Connection:
    """Numbers that were given are not given again, whatever became of their rows."""
    image = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    image.executescript(SCHEMA)
    image.execute("BEGIN")
    for table, which in TABLES.items():
        with connection.cursor(binary=True) as cursor:
            cursor.execute(f"SELECT * FROM {table}{which}".encode())  # noqa: S608  names of ours
            image.executemany(_insert(table, len(cursor.description or ())), cursor)
    for table in NUMBERED:
        (last,) = connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}".encode()).fetchone() or (0,)  # noqa: S608
        image.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        image.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, last))
    image.execute("COMMIT")
    return image


def _insert(table: str, columns: int) -> str:
    marks = ",".join("?" * columns)
    return f"INSERT INTO {table} VALUES ({marks})"  # noqa: S608  names of ours


def write(connection: Connection, term: Term, statements: tuple[Statement, ...], again: bool, lease_s: float) -> Written:
    """Do all of ``statements`` as the leader of ``term``, which goes on leading; nothing where it leads no more.

    ``again``: they were sent before, and nobody knows what became of them. Raises psycopg.Error, FollowedError, LostWritesError.
    """
    with connection.transaction():
        revision = _fenced(connection, term, lease_s)
        if revision == term.revision + 2 and again:
            statements = ()  # they had been done after all
        elif revision != term.revision + 1:
            raise LostWritesError(f"its revision is {revision - 1}, and {term.revision} was confirmed")
        _run(connection, statements)
        return Written(term.at(revision), _paused(connection))


def _fenced(connection: Connection, term: Term, lease_s: float) -> int:
    """The revision of this write. Raises FollowedError where no row of our epoch is there."""
    row = connection.execute(_FENCE, (lease_s, NAME, term.epoch, term.holder)).fetchone()
    if row is None:
        raise FollowedError(_who_leads(connection))
    return int(row[0])


def _run(connection: Connection, statements: Iterable[Statement]) -> None:
    with connection.pipeline():
        for words, values in statements:
            connection.execute(words.replace("?", "%s").encode(), values)


def write_anew(connection: Connection, term: Term, content: Content, lease_s: float) -> Written:
    """Make the database what ``content`` is, as the leader of ``term``: for a server that has lost some of it.

    The kill switch stays where it is on there: somebody else may have set it. Raises psycopg.Error, FollowedError.
    """
    with connection.transaction():
        _take_longer(connection)
        revision = _fenced(connection, term, lease_s)
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM decisions").fetchone() or (0,)
        connection.execute("DELETE FROM leases WHERE ended IS NULL")
        connection.execute("DELETE FROM attempts")
        connection.execute("DELETE FROM meta WHERE key NOT IN ('schema_version', 'paused')")
        for table in ("leases", "attempts", "weights"):
            _run(connection, _replacing(table, content[table]))
        _run(connection, _replacing("decisions", (row for row in content["decisions"] if row[0] > last)))
        _run(connection, ((SET_META, row) for row in content["meta"] if row[0] != "schema_version"))
        return Written(term.at(revision), _paused(connection))


def _replacing(table: str, rows: Iterable[Row]) -> Iterable[Statement]:
    """Whatever has the same key there goes first: a lease that ended there is in force here, or a change is the same."""
    key = "backend" if table == "attempts" else "id"
    delete = f"DELETE FROM {table} WHERE {key} = ?"  # noqa: S608  names of ours
    for row in rows:
        yield delete, (row[0],)
        yield _insert(table, len(row)), row


def _take_longer(connection: Connection) -> None:
    """Until the end of this transaction: to read or write everything is more than one tick's work."""
    connection.execute("SELECT set_config('statement_timeout', %s, true)", (f"{1e3 * LOAD_STATEMENT_S:.0f}ms",))


def _paused(connection: Connection) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = 'paused'").fetchone()
    return None if row is None else str(row[0])


def hold(connection: Connection, schema: str, holder: str, lease_s: float) -> str | None:
    """Hold the row together with all who call themselves the same; else a sentence that says who has it. Raises psycopg.Error,
    NewerSchemaError."""
    bring_up(connection, schema)
    row = connection.execute(_HOLD, {"name": NAME, "holder": holder, "lease_s": lease_s}).fetchone()
    return _who_leads(connection) if row is None else None


def resign(connection: Connection, term: Term) -> None:
    """Let another one lead at once. Raises psycopg.Error."""
    connection.execute(_RESIGN, (NAME, term.epoch, term.holder))


def pause(connection: Connection, schema: str, why: str) -> None:
    """The kill switch, by whoever does not lead: the one write that asks for no epoch. Raises psycopg.Error, NewerSchemaError."""
    bring_up(connection, schema)
    connection.execute(SET_META.replace("?", "%s").encode(), ("paused", why))
