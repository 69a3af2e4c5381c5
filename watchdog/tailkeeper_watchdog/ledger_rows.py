"""What a ledger holds, as tables and rows: its schema, its statements, and what a row means. No connection, no clock.

Every statement is written so that SQLite and PostgreSQL understand it alike: a ledger that is kept in both (`postgres`) is
written by the same words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tailkeeper_watchdog.model import Decision, Knob, Lease, Outcome, Target

SCHEMA_VERSION = 3
"""2 added what was in force before a lease, 3 the changes of the HScore's weights."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  backend TEXT NOT NULL, gateway TEXT NOT NULL, server TEXT NOT NULL, pool TEXT NOT NULL, knob TEXT NOT NULL,
  policy TEXT NOT NULL, prior TEXT NOT NULL, written TEXT NOT NULL, reason TEXT NOT NULL,
  created REAL NOT NULL, expires REAL NOT NULL, confirmed INTEGER NOT NULL DEFAULT 0, reverts INTEGER NOT NULL DEFAULT 0,
  ended REAL, outcome TEXT, before TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS one_lease_in_force ON leases (gateway, server, knob) WHERE ended IS NULL;
CREATE TABLE IF NOT EXISTS decisions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  time REAL NOT NULL, tick INTEGER NOT NULL, policy TEXT NOT NULL, backend TEXT NOT NULL, knob TEXT NOT NULL,
  from_value TEXT, to_value TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, lease_expires REAL
);
CREATE INDEX IF NOT EXISTS decisions_by_backend ON decisions (backend, id);
CREATE TABLE IF NOT EXISTS attempts (backend TEXT PRIMARY KEY, count INTEGER NOT NULL, last REAL NOT NULL);
CREATE TABLE IF NOT EXISTS weights (
  id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, by TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

TABLES: Mapping[str, str] = {
    "leases": " WHERE ended IS NULL",
    "decisions": "",
    "attempts": "",
    "weights": "",
    "meta": "",
}
"""The ledger's content, and which rows of it are read: nobody asks for leases that ended."""
NUMBERED = ("leases", "decisions", "weights")
"""Tables whose rows have numbers, which are given once."""

INTEND = """\
INSERT INTO leases (id, backend, gateway, server, pool, knob, policy, prior, written, reason, created, expires, before)
VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)
ON CONFLICT (gateway, server, knob) WHERE ended IS NULL DO UPDATE SET policy=excluded.policy, written=excluded.written,
  reason=excluded.reason, expires=excluded.expires, confirmed=0, before=excluded.before
RETURNING *
"""
"""The number comes first, as in every statement that adds a row: NULL lets SQLite find the next one."""
RECORD = """\
INSERT INTO decisions (id, time, tick, policy, backend, knob, from_value, to_value, verdict, reason, lease_expires)
VALUES (?,?,?,?,?,?,?,?,?,?,?) RETURNING id
"""
RECORD_WEIGHTS = "INSERT INTO weights (id, time, by, before, after) VALUES (?,?,?,?,?) RETURNING id"
COUNT_ATTEMPT = """\
INSERT INTO attempts (backend, count, last) VALUES (?,?,?)
ON CONFLICT (backend) DO UPDATE SET count=excluded.count, last=excluded.last
"""
SET_META = "INSERT INTO meta (key, value) VALUES (?,?) ON CONFLICT (key) DO UPDATE SET value=excluded.value"


def lease_of(row: tuple[Any, ...], known: Target | None) -> Lease:
    """``known`` is the target that it probably is: where everybody has the same object, nobody has to compare names."""
    (
        number, backend, gateway, server, pool, knob, policy, prior, written, reason, created, expires, confirmed, reverts,
        _ended, _outcome, before,
    ) = row  # fmt: skip
    target = Target(gateway, server, pool)
    return Lease(
        id=number,
        backend=backend,
        target=known if known is not None and known == target else target,
        knob=Knob(knob),
        policy=policy,
        prior=json.loads(prior),
        written=json.loads(written),
        reason=reason,
        created_unix_s=created,
        expires_unix_s=expires,
        confirmed=bool(confirmed),
        reverts=reverts,
        before=None if before is None else json.loads(before),
    )


def decision_of(row: tuple[Any, ...]) -> Decision:
    (number, time, tick, policy, backend, knob, from_value, to_value, verdict, reason, expires) = row
    return Decision(
        number,
        time,
        tick,
        policy,
        backend,
        Knob(knob),
        json.loads(from_value),
        json.loads(to_value),
        Outcome(verdict),
        reason,
        expires,
    )
