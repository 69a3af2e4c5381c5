"""The ledger: every change is written here before it is made and again after it was read back. SQLite, one file.

What is not in the ledger was not done by us. It survives ``kill -9`` at any line: an intent without a confirmation
means that the effect is unknown and must be read at the gateway. Wall-clock times, because they must outlive the
process. One writer: the watchdog's loop; readers open their own connection. This class is all that the rest of the watchdog knows
of a ledger; `postgres` extends it for one that several machines share.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from tailkeeper_watchdog.ledger_rows import (
    COUNT_ATTEMPT,
    INTEND,
    RECORD,
    RECORD_WEIGHTS,
    SCHEMA,
    SCHEMA_VERSION,
    SET_META,
    decision_of,
    lease_of,
)
from tailkeeper_watchdog.model import Decision, Knob, KnobValue, Lease, Outcome, Pending, Target, WeightsChange

MAX_DECISIONS = 100_000
"""Oldest decisions beyond this are dropped: months of a busy fleet, about 30 MB."""
PRUNE_EVERY = 1_000
LOCK_WAIT_S = 2.0
"""For somebody else's write to end; it is part of a tick."""
MAX_WEIGHTS_CHANGES = 1_000
"""Oldest ones beyond this are dropped; people change weights a few times a year."""
ATTEMPT_MEMORY_S = 3_600.0
"""A backend earns its trust back: an hour after its last removal its attempts count from one again."""


class LedgerError(Exception):
    """The ledger cannot be opened or written. Nothing is done at a gateway then: what cannot be noted is not done."""


class Ledger:
    """Open with ``Ledger(path)``; every method commits before it returns. Raises LedgerError."""

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)
        self._since_prune = 0
        self.generation = 0
        """Another number says that somebody else has led meanwhile, and that everything was read anew."""
        self.trouble: str | None = None
        """Why the last write failed, in words; None where it did not."""
        self._lock = threading.RLock()
        """The API answers from worker threads: nobody may take what was in the file for what is, while another one writes."""
        self._held: dict[int, Lease] | None = None
        """The leases in force by number, as the file has them; None where they are to be read. Each tick asks for all of them."""
        self._held_as_of = -1
        """SQLite's ``data_version`` when they were read: another one says that somebody else has written since."""
        try:
            self._db = sqlite3.connect(self._path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
            self._check_version()
        except sqlite3.Error as error:
            raise LedgerError(f"{self._path}: {error}; is the folder there, writable and not full?") from error

    def _check_version(self) -> None:
        found = self.get_meta("schema_version")
        if found is None:
            self.set_meta("schema_version", str(SCHEMA_VERSION))
        elif int(found) > SCHEMA_VERSION:
            raise LedgerError(f"{self._path}: written by a newer version (schema {found}, known {SCHEMA_VERSION}); upgrade")
        elif int(found) < SCHEMA_VERSION:
            if "before" not in {row[1] for row in self._run("PRAGMA table_info(leases)")}:
                self._run("ALTER TABLE leases ADD COLUMN before TEXT")
            self.set_meta("schema_version", str(SCHEMA_VERSION))

    def close(self) -> None:
        self._db.close()

    def _run(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """The whole answer, fetched here: SQLite commits, and finds that it cannot, only with the last row of it."""
        with self._lock:
            try:
                return self._db.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                self._held = None
                self.trouble = f"{self._path}: {error}"
                raise LedgerError(self.trouble) from error

    def _write(self, sql: str, values: tuple[Any, ...]) -> None:
        with self._lock:
            self._run(sql, values)
            self._note(sql, values)

    def _add(self, sql: str, values: tuple[Any, ...]) -> int:
        """The number of the new row."""
        with self._lock:
            ((number,),) = self._run(sql, (None, *values))
            self._note(sql, (number, *values))
            return int(number)

    def _note(self, sql: str, values: tuple[Any, ...]) -> None:
        """Called with each statement that has changed something, in their order: for a ledger that is kept elsewhere as well."""
        self.trouble = None

    async def settled(self) -> None:
        """Returns once what was written until now outlives this process, and we still lead: in a file, at once.

        Whoever is to change something at a gateway waits for it first. Raises LedgerError: then nothing may be changed. Where
        the last write failed it tries one, so that a trouble that is over is known to be over.
        """
        if self.trouble is not None:
            self._write(SET_META, ("schema_version", str(SCHEMA_VERSION)))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is written within is committed once, at the end: for lines of the log, never for what must be there before a call.

        Raises LedgerError.
        """
        with self._lock:
            self._run("BEGIN")
            try:
                yield
                self._run("COMMIT")
            except BaseException:
                self._held = None
                with contextlib.suppress(sqlite3.Error):  # SQLite may have done so itself; what counts is the first error
                    self._db.execute("ROLLBACK")
                raise

    # Leases

    def intend(
        self,
        backend: str,
        target: Target,
        knob: Knob,
        policy: str,
        prior: KnobValue,
        value: KnobValue,
        reason: str,
        now: float,
        expires: float,
        before: KnobValue | None = None,
    ) -> Lease:
        """Write down a change before it is made. A lease in force on the same knob is updated; its prior value stays.

        ``before`` is what is in force now, the prior value unless given.
        """
        values = (
            backend, target.gateway, target.server, target.pool, knob.value, policy,
            json.dumps(prior), json.dumps(value), reason, now, expires,
            json.dumps(prior if before is None else before),
        )  # fmt: skip
        with self._lock:
            (row,) = self._run(INTEND, (None, *values))
            lease = lease_of(row, target)
            self._note(INTEND, (lease.id, *values))
            if self._held is not None:
                self._held[lease.id] = lease
            return lease

    def confirm(self, lease_id: int, actual: KnobValue) -> None:
        """The effect was read back; ``actual`` is how the gateway says it (a whole number of its own, for instance)."""
        with self._lock:
            self._write("UPDATE leases SET confirmed=1, written=? WHERE id=?", (json.dumps(actual), lease_id))
            self._keep_true(lease_id, confirmed=True, written=actual)

    def renew(self, lease_id: int, expires: float) -> None:
        with self._lock:
            self._write("UPDATE leases SET expires=?, confirmed=1 WHERE id=?", (expires, lease_id))
            self._keep_true(lease_id, confirmed=True, expires_unix_s=expires)

    def run_out(self, lease_id: int, now: float) -> None:
        """Its prior value is in force, and what we wrote may still come: it is known as ours then, and given back at once."""
        with self._lock:
            self._write("UPDATE leases SET expires=?, confirmed=0, before=prior WHERE id=?", (now, lease_id))
            if self._held is not None and lease_id in self._held:
                self._keep_true(lease_id, expires_unix_s=now, confirmed=False, before=self._held[lease_id].prior)

    def note_reverts(self, lease_id: int, reverts: int) -> None:
        with self._lock:
            self._write("UPDATE leases SET reverts=? WHERE id=?", (reverts, lease_id))
            self._keep_true(lease_id, reverts=reverts)

    def end(self, lease_id: int, outcome: Outcome, now: float) -> None:
        """The lease is over: released, expired, contended or failed."""
        with self._lock:
            self._write("UPDATE leases SET ended=?, outcome=? WHERE id=?", (now, outcome.value, lease_id))
            if self._held is not None:
                self._held.pop(lease_id, None)

    def _keep_true(self, lease_id: int, **changed: Any) -> None:
        """What is held, as it was just written."""
        if self._held is not None and lease_id in self._held:
            self._held[lease_id] = replace(self._held[lease_id], **changed)

    def leases(self) -> tuple[Lease, ...]:
        """Leases in force or intended, oldest first. From the file only where somebody else has written in it since."""
        with self._lock:
            version = self._run("PRAGMA data_version")[0][0]
            held = self._held
            if held is None or version != self._held_as_of:
                held = self._held = self._read_leases(held or {})
                self._held_as_of = version
            return tuple(held.values())

    def _read_leases(self, before: Mapping[int, Lease]) -> dict[int, Lease]:
        rows = self._run("SELECT * FROM leases INDEXED BY one_lease_in_force WHERE ended IS NULL")
        rows.sort(key=itemgetter(0))  # thousands of wide rows: quicker here than in SQLite
        return {row[0]: lease_of(row, before[row[0]].target if row[0] in before else None) for row in rows}

    # Decisions

    def record(
        self, time: float, tick: int, policy: str, backend: str, knob: Knob, from_value: KnobValue | None, to_value: KnobValue,
        verdict: Outcome, reason: str, lease_expires: float | None = None,
    ) -> Decision:  # fmt: skip
        """Append one line to the decision log."""
        values = (json.dumps(from_value), json.dumps(to_value), verdict.value, reason, lease_expires)
        number = self._add(RECORD, (time, tick, policy, backend, knob.value, *values))
        self._prune()
        return Decision(number, time, tick, policy, backend, knob, from_value, to_value, verdict, reason, lease_expires)

    def _prune(self) -> None:
        self._since_prune += 1
        if self._since_prune >= PRUNE_EVERY:
            self._since_prune = 0
            self._write("DELETE FROM decisions WHERE id <= (SELECT max(id) FROM decisions) - ?", (MAX_DECISIONS,))
            self._write("DELETE FROM leases WHERE ended IS NOT NULL AND id <= (SELECT max(id) FROM leases) - ?", (MAX_DECISIONS,))

    def decisions(self, backend: str | None = None, since: float | None = None, limit: int = 100) -> tuple[Decision, ...]:
        """Newest first; ``since`` in epoch seconds."""
        rows = self._run(
            "SELECT * FROM decisions WHERE (?1 IS NULL OR backend = ?1) AND (?2 IS NULL OR time >= ?2) ORDER BY id DESC LIMIT ?3",
            (backend, since, limit),
        )
        return tuple(decision_of(row) for row in rows)

    # Weights of the HScore

    def record_weights(self, time: float, by: str, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Append one change of the weights. ``time`` in epoch seconds."""
        self._add(RECORD_WEIGHTS, (time, by, json.dumps(dict(before)), json.dumps(dict(after))))
        self._write("DELETE FROM weights WHERE id <= (SELECT max(id) FROM weights) - ?", (MAX_WEIGHTS_CHANGES,))

    def weights_changes(self, limit: int) -> tuple[WeightsChange, ...]:
        """Newest first."""
        rows = self._run("SELECT time, by, before, after FROM weights ORDER BY id DESC LIMIT ?", (limit,))
        return tuple(WeightsChange(time, by, json.loads(before), json.loads(after)) for time, by, before, after in rows)

    # Attempts

    def count_attempt(self, backend: str, now: float) -> int:
        """One more removal of this backend; returns how many within the memory."""
        count = self.attempts(now).get(backend, 0) + 1
        # Names come and go with the fleet: those whose memory is over go with it.
        self._write("DELETE FROM attempts WHERE last <= ?", (now - ATTEMPT_MEMORY_S,))
        self._write(COUNT_ATTEMPT, (backend, count, now))
        return count

    def attempts(self, now: float) -> dict[str, int]:
        rows = self._run("SELECT backend, count FROM attempts WHERE last > ?", (now - ATTEMPT_MEMORY_S,))
        return {str(name): int(count) for name, count in rows}

    def forget_attempts(self, backends: Iterable[str]) -> None:
        """A person has looked at these: they count from one again."""
        for name in backends:
            self._write("DELETE FROM attempts WHERE backend = ?", (name,))

    # Writes that may still come to be in force

    def pending(self) -> Pending:
        """As it was last noted, what is over included."""
        rows = json.loads(self.get_meta("pending") or "[]")
        return {(gateway, server, Knob(knob)): dict(values) for gateway, server, knob, values in rows}

    def note_pending(self, pending: Pending) -> None:
        rows = [[*place, list(values.items())] for place, values in pending.items()]
        self.set_meta("pending", json.dumps(rows) if rows else None)

    # Small facts that must survive a restart: paused, holds

    def get_meta(self, key: str) -> str | None:
        rows = self._run("SELECT value FROM meta WHERE key=?", (key,))
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str | None) -> None:
        if value is None:
            self._write("DELETE FROM meta WHERE key=?", (key,))
        else:
            self._write(SET_META, (key, value))
