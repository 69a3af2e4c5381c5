"""The tables of a ledger in PostgreSQL, and how they come to be the newest ones. One transaction, or nothing.

The columns are those of `ledger_rows`, in the same order; the types are PostgreSQL's. ``leader`` is its own: one row that says
who leads (``epoch`` counts the leaders), how many times it was written (``revision``), and until when it leads, by this server's
clock.
"""

from __future__ import annotations

from psycopg import sql

from tailkeeper_watchdog.ledger_rows import SCHEMA_VERSION, TABLES
from tailkeeper_watchdog.postgres.server import Connection
from tailkeeper_watchdog.postgres.words import NewerSchemaError, Said, Trouble

_VERSION_3 = """
CREATE TABLE leases (
  id BIGINT PRIMARY KEY,
  backend TEXT NOT NULL, gateway TEXT NOT NULL, server TEXT NOT NULL, pool TEXT NOT NULL, knob TEXT NOT NULL,
  policy TEXT NOT NULL, prior TEXT NOT NULL, written TEXT NOT NULL, reason TEXT NOT NULL,
  created DOUBLE PRECISION NOT NULL, expires DOUBLE PRECISION NOT NULL,
  confirmed INTEGER NOT NULL DEFAULT 0, reverts INTEGER NOT NULL DEFAULT 0,
  ended DOUBLE PRECISION, outcome TEXT, before TEXT
);
CREATE UNIQUE INDEX one_lease_in_force ON leases (gateway, server, knob) WHERE ended IS NULL;
CREATE TABLE decisions (
  id BIGINT PRIMARY KEY,
  time DOUBLE PRECISION NOT NULL, tick BIGINT NOT NULL, policy TEXT NOT NULL, backend TEXT NOT NULL, knob TEXT NOT NULL,
  from_value TEXT, to_value TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, lease_expires DOUBLE PRECISION
);
CREATE TABLE attempts (backend TEXT PRIMARY KEY, count INTEGER NOT NULL, last DOUBLE PRECISION NOT NULL);
CREATE TABLE weights (
  id BIGINT PRIMARY KEY, time DOUBLE PRECISION NOT NULL, by TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL
);
CREATE TABLE leader (
  name TEXT PRIMARY KEY, epoch BIGINT NOT NULL, revision BIGINT NOT NULL,
  holder TEXT NOT NULL, since TIMESTAMPTZ NOT NULL, expires TIMESTAMPTZ NOT NULL
);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
MIGRATIONS: tuple[tuple[int, str], ...] = ((3, _VERSION_3),)
"""Each takes the tables from the version before to its own. There was none in PostgreSQL before 3."""
assert MIGRATIONS[-1][0] == SCHEMA_VERSION

_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('tailkeeper ledger'), hashtext(%s))"
_NOTE_VERSION = (
    "INSERT INTO meta (key, value) VALUES ('schema_version', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


def version(connection: Connection) -> int:
    """Of the tables that are there; 0 where there are none. Raises psycopg.Error."""
    (there,) = connection.execute("SELECT to_regclass('meta')").fetchone() or (None,)
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone() if there is not None else None
    return 0 if row is None else int(row[0])


def bring_up(connection: Connection, schema: str) -> None:
    """Make the tables, or bring them up to date. Raises psycopg.Error, and NewerSchemaError where this program is too old."""
    found = version(connection)
    if found < SCHEMA_VERSION:
        with connection.transaction():
            connection.execute(_ONE_AT_A_TIME, (schema,))  # a lock that the transaction's end frees, however it ends
            _make_schema(connection, schema)
            _migrate(connection, found := version(connection))
    if found > SCHEMA_VERSION:
        raise NewerSchemaError(_newer(found))


def _newer(found: int) -> str:
    return f"its tables were made by a newer version (schema {found}, known {SCHEMA_VERSION})"


def _make_schema(connection: Connection, schema: str) -> None:
    """Whoever has a schema of his own needs no right to make one: so it is looked for first."""
    (there,) = connection.execute("SELECT to_regnamespace(%s)", (f'"{schema}"',)).fetchone() or (None,)
    if there is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))


def _migrate(connection: Connection, found: int) -> None:
    for number, statements in MIGRATIONS:
        if number > found:
            connection.execute(statements.encode())
            connection.execute(_NOTE_VERSION, (str(number),))


def obstacle(connection: Connection, schema: str) -> Said | None:
    """What would keep a watchdog from using the ledger, found without changing anything. Raises psycopg.Error."""
    found = version(connection)
    if found > SCHEMA_VERSION:
        return Said(Trouble.NEWER, _newer(found))
    lacking = _rights_lacking(connection) if found else _right_to_make_lacking(connection, schema)
    return Said(Trouble.NO_RIGHTS, lacking) if lacking else None


def _rights_lacking(connection: Connection) -> str:
    rows = connection.execute(
        "SELECT t FROM unnest(%s::text[]) AS t WHERE NOT (has_table_privilege(t, 'SELECT') AND has_table_privilege(t, 'INSERT')"
        " AND has_table_privilege(t, 'UPDATE') AND has_table_privilege(t, 'DELETE'))",
        ([*TABLES, "leader"],),
    ).fetchall()
    return f"it may not read and write {', '.join(name for (name,) in rows)}" if rows else ""


def _right_to_make_lacking(connection: Connection, schema: str) -> str:
    (may,) = connection.execute(
        "SELECT CASE WHEN to_regnamespace(%(s)s) IS NULL THEN has_database_privilege(current_database(), 'CREATE')"
        " ELSE has_schema_privilege(to_regnamespace(%(s)s)::oid, 'CREATE') AND has_schema_privilege(to_regnamespace(%(s)s)::oid,"
        " 'USAGE') END",
        {"s": f'"{schema}"'},
    ).fetchone() or (False,)
    return "" if may else "there are no tables yet, and it may not make any"
