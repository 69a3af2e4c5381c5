"""The ledger: intent before, outcome after, and nothing lost to a crash at any line."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_watchdog.ledger import ATTEMPT_MEMORY_S, MAX_WEIGHTS_CHANGES, Ledger, LedgerError
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, Outcome, Pending, Target, WeightsChange

SCHEMA_2 = """
CREATE TABLE leases (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  backend TEXT NOT NULL, gateway TEXT NOT NULL, server TEXT NOT NULL, pool TEXT NOT NULL, knob TEXT NOT NULL,
  policy TEXT NOT NULL, prior TEXT NOT NULL, written TEXT NOT NULL, reason TEXT NOT NULL,
  created REAL NOT NULL, expires REAL NOT NULL, confirmed INTEGER NOT NULL DEFAULT 0, reverts INTEGER NOT NULL DEFAULT 0,
  ended REAL, outcome TEXT, before TEXT
);
CREATE UNIQUE INDEX one_lease_in_force ON leases (gateway, server, knob) WHERE ended IS NULL;
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  time REAL NOT NULL, tick INTEGER NOT NULL, policy TEXT NOT NULL, backend TEXT NOT NULL, knob TEXT NOT NULL,
  from_value TEXT, to_value TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, lease_expires REAL
);
CREATE INDEX decisions_by_backend ON decisions (backend, id);
CREATE TABLE attempts (backend TEXT PRIMARY KEY, count INTEGER NOT NULL, last REAL NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO meta VALUES ('schema_version', '2'), ('paused', 'by hand');
"""
B = Target("edge", "llm/b", "llm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_an_intent_is_there_after_a_restart_and_not_confirmed(path: Path) -> None:
    Ledger(path).intend("b", B, Knob.ADMISSION, "p", SERVE, DRAIN, "hung", 10.0, 310.0)
    (lease,) = Ledger(path).leases()
    assert (lease.prior, lease.written, lease.confirmed, lease.expires_unix_s) == (SERVE, DRAIN, False, 310.0)


def test_a_second_change_of_the_same_knob_keeps_the_first_prior_value(path: Path) -> None:
    ledger = Ledger(path)
    first = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    ledger.confirm(first.id, 0.5)
    second = ledger.intend("b", B, Knob.WEIGHT, "p", 0.5, 0.1, "slower", 20.0, 320.0)
    assert (second.id, second.prior, second.written, second.confirmed) == (first.id, 1.0, 0.1, False)


def test_a_lease_that_has_run_out_is_as_if_its_write_had_not_come_yet(path: Path) -> None:
    ledger = Ledger(path)
    lease = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.25, "slow", 10.0, 310.0, before=0.5)
    ledger.confirm(lease.id, 0.25)
    ledger.run_out(lease.id, 20.0)
    (found,) = ledger.leases()
    assert (found.expires_unix_s, found.confirmed, found.written, found.before) == (20.0, False, 0.25, 1.0)


def test_what_is_pending_is_there_after_a_restart(path: Path) -> None:
    pending: Pending = {("edge", "b", Knob.WEIGHT): {0.5: 1_010.0, 1.0: 1_011.5}, ("edge", "b", Knob.ADMISSION): {DRAIN: 1_012.0}}
    Ledger(path).note_pending(pending)
    again = Ledger(path)
    assert again.pending() == pending
    again.note_pending({})
    assert again.pending() == {}


def test_an_ended_lease_makes_room_for_a_new_one(path: Path) -> None:
    ledger = Ledger(path)
    first = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    ledger.end(first.id, Outcome.RELEASED, 20.0)
    assert ledger.leases() == ()
    assert ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 30.0, 330.0).id != first.id


def test_decisions_come_newest_first_and_can_be_filtered(path: Path) -> None:
    ledger = Ledger(path)
    for time, backend in [(1.0, "a"), (2.0, "b"), (3.0, "a")]:
        ledger.record(time, 1, "p", backend, Knob.WEIGHT, None, 0.5, Outcome.OBSERVED, "r")
    assert [d.time_unix_s for d in ledger.decisions()] == [3.0, 2.0, 1.0]
    assert [d.time_unix_s for d in ledger.decisions(backend="a", since=2.0)] == [3.0]
    assert len(ledger.decisions(limit=2)) == 2


def test_attempts_are_remembered_across_restarts_and_forgotten_after_an_hour(path: Path) -> None:
    Ledger(path).count_attempt("b", 100.0)
    ledger = Ledger(path)
    assert ledger.count_attempt("b", 200.0) == 2
    assert ledger.attempts(200.0 + ATTEMPT_MEMORY_S + 1) == {}


def test_attempts_of_names_that_come_and_go_are_not_kept_for_ever(path: Path) -> None:
    ledger = Ledger(path)
    for number in range(100):
        ledger.count_attempt(f"pod-{number}", number * ATTEMPT_MEMORY_S / 2)
    assert ledger._run("SELECT count(*) FROM attempts") == [(2,)]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is the folder there"):
        Ledger(tmp_path / "nowhere" / "ledger.db")


def test_a_file_that_is_no_database_is_said_and_left_alone(path: Path) -> None:
    path.write_text("not a database, but long enough to look like one" * 100)
    with pytest.raises(LedgerError):
        Ledger(path)
    assert path.read_text().startswith("not a database")


def test_a_ledger_of_a_newer_version_is_refused(path: Path) -> None:
    Ledger(path).set_meta("schema_version", "99")
    with pytest.raises(LedgerError, match="newer version"):
        Ledger(path)


def test_a_locked_ledger_raises_and_does_not_hang(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailkeeper_watchdog.ledger.LOCK_WAIT_S", 0.1)
    ledger = Ledger(path)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="locked"):
            ledger.set_meta("a", "b")
        other.execute("ROLLBACK")
    other.close()


def test_a_ledger_of_the_first_version_is_taken_over_with_its_leases(path: Path) -> None:
    ledger = Ledger(path)
    ledger.intend("b", B, Knob.ADMISSION, "p", SERVE, DRAIN, "hung", 10.0, 310.0)
    ledger._db.execute("ALTER TABLE leases DROP COLUMN before")
    ledger.set_meta("schema_version", "1")
    ledger.close()
    (lease,) = Ledger(path).leases()
    assert (lease.prior, lease.written, lease.before) == (SERVE, DRAIN, None)
    (lease,) = Ledger(path).leases()
    assert lease.backend == "b"


def test_a_ledger_of_the_second_version_is_taken_over_and_takes_changes_of_weights(path: Path) -> None:
    """Made by the statements of that version, not by taking this one's apart."""
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.executescript(SCHEMA_2)
        old.execute(
            "INSERT INTO leases (backend, gateway, server, pool, knob, policy, prior, written, reason, created, expires, before)"
            " VALUES ('b', 'edge', 'llm/b', 'llm', 'admission', 'p', '\"serve\"', '\"drain\"', 'hung', 10, 310, '\"serve\"')"
        )
    ledger = Ledger(path)
    assert [lease.backend for lease in ledger.leases()] == ["b"]
    assert (ledger.get_meta("schema_version"), ledger.get_meta("paused")) == ("3", "by hand")
    ledger.record_weights(20.0, "maria", {"latency": 1.0}, {"latency": 0.5})
    ledger.close()
    assert Ledger(path).weights_changes(10) == (WeightsChange(20.0, "maria", {"latency": 1.0}, {"latency": 0.5}),)


def test_changes_of_weights_come_newest_first_and_are_bounded(path: Path) -> None:
    ledger = Ledger(path)
    ledger._db.execute("PRAGMA synchronous=OFF")
    for number in range(MAX_WEIGHTS_CHANGES + 5):
        ledger.record_weights(float(number), "script", {}, {"latency": float(number)})
    assert [change.time_unix_s for change in ledger.weights_changes(2)] == [1_004.0, 1_003.0]
    assert len(ledger.weights_changes(10_000)) == MAX_WEIGHTS_CHANGES


def test_an_intent_remembers_what_was_in_force_before_it(path: Path) -> None:
    ledger = Ledger(path)
    first = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.25, "returning", 10.0, 310.0)
    ledger.confirm(first.id, 0.25)
    second = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "returning", 20.0, 320.0, 0.25)
    assert (first.before, second.before, second.prior) == (1.0, 0.25, 1.0)


def test_leases_in_force_are_found_without_reading_those_that_ended(path: Path) -> None:
    ledger = Ledger(path)
    statements: list[str] = []
    ledger._db.set_trace_callback(statements.append)
    ledger.leases()
    ledger._db.set_trace_callback(None)
    (select,) = [told for told in statements if told.startswith("SELECT")]
    (plan,) = ledger._db.execute(f"EXPLAIN QUERY PLAN {select}").fetchall()[:1]
    assert "one_lease_in_force" in plan[3], "ended leases are kept by the hundred thousand"


def test_a_disk_that_is_full_when_the_intent_is_committed_is_said_as_any_other_trouble(path: Path) -> None:
    ledger = Ledger(path)
    kept = ledger.intend("a", replace(B, server="llm/a"), Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("ledger.db-wal").stat().st_size, most))
    try:
        with pytest.raises(LedgerError, match=r"ledger\.db: "):
            ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))
    assert ledger.leases() == Ledger(path).leases() == (kept,)


def test_leases_are_read_again_only_where_somebody_else_wrote(path: Path) -> None:
    ledger, other = Ledger(path), Ledger(path)
    statements: list[str] = []
    lease = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 10.0, 310.0)
    ledger.leases()
    ledger._db.set_trace_callback(statements.append)
    ledger.renew(lease.id, 320.0)
    assert [held.expires_unix_s for held in ledger.leases()] == [320.0]
    assert not [told for told in statements if told.startswith("SELECT")], "the loop asks at every tick, and thousands are held"
    other.renew(lease.id, 330.0)
    assert [held.expires_unix_s for held in ledger.leases()] == [330.0]


def test_a_reader_in_another_thread_never_makes_an_older_lease_the_one_that_is_held(path: Path) -> None:
    ledger, rounds = Ledger(path), 40
    lease = ledger.intend("b", B, Knob.WEIGHT, "p", 1.0, 0.5, "slow", 0.0, 60.0)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            ledger.leases()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(rounds):
            with contextlib.suppress(RuntimeError), ledger.together():
                ledger.renew(lease.id, -1.0)
                raise RuntimeError("torn, so that everybody reads the file anew")
            with ledger.together():
                ledger.renew(lease.id, float(number))
            assert [held.expires_unix_s for held in ledger.leases()] == [float(number)]
    finally:
        stop.set()
        for reader in readers:
            reader.join()
        ledger.close()
