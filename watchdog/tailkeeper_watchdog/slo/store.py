"""Keeps the counts of compliance in the ledger's file, in a table of their own, so that a month survives a restart.

It opens a connection of its own for each call: its transactions must never hold a lease's. Blocks; call it in a thread.
A lost minute of counts is no danger to anybody, so its failures are the caller's to log and to try again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailkeeper_watchdog.slo.bins import Row
from tailkeeper_watchdog.slo.tiers import Counts

COUNTED_UNTIL = "slo_counted_until"
"""Beside the other small facts of the ledger: how far the counts go, epoch seconds."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS slo_bins (
  tier TEXT NOT NULL, span TEXT NOT NULL, number INTEGER NOT NULL,
  requests REAL NOT NULL, good REAL NOT NULL, worth REAL NOT NULL,
  PRIMARY KEY (tier, span, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Kept:
    rows: tuple[Row, ...]
    counted_until_unix_s: float | None


class SloStore:
    """Every method raises sqlite3.Error where the file cannot be read or written."""

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=2.0)) as db:
            db.executescript(_SCHEMA)
            with db:
                yield db

    def load(self) -> Kept:
        with self._open() as db:
            rows = db.execute("SELECT tier, span, number, requests, good, worth FROM slo_bins").fetchall()
            until = db.execute("SELECT value FROM meta WHERE key=?", (COUNTED_UNTIL,)).fetchone()
        kept = tuple(Row(t, s, int(n), Counts(float(r), float(g), float(w))) for t, s, n, r, g, w in rows)
        return Kept(kept, None if until is None else float(until[0]))

    def save(self, rows: tuple[Row, ...], counted_until_unix_s: float, oldest: Mapping[str, int]) -> None:
        """Write these bins and drop those before ``oldest`` of each span, all or nothing."""
        with self._open() as db:
            db.executemany(
                "INSERT OR REPLACE INTO slo_bins VALUES (?,?,?,?,?,?)",
                [(r.key, r.span, r.number, r.counts.requests, r.counts.good, r.counts.worth) for r in rows],
            )
            db.executemany("DELETE FROM slo_bins WHERE span=? AND number<?", list(oldest.items()))
            db.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (COUNTED_UNTIL, repr(counted_until_unix_s)))
