"""The ledger: intent before, outcome after, and nothing lost to a crash at any line."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_watchdog.ledger import ATTEMPT_MEMORY_S, MAX_WEIGHTS_CHANGES, Ledger, LedgerError
from tailkeeper_watchdog.ledger_rows import SCHEMA_VERSION
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, WeightsChange
from tests.unit.ledger_cases import CASES, B, Opened, in_words

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.mark.parametrize("case", CASES, ids=in_words)
def test_a_file_is_a_ledger(case: Callable[[Opened], None], path: Path) -> None:
    case(lambda: Ledger(path))


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


async def test_a_trouble_that_is_over_is_known_to_be_over_although_nothing_was_to_be_written(path: Path) -> None:
    ledger = Ledger(path)
    ledger._db.execute("PRAGMA query_only=ON")
    with pytest.raises(LedgerError):
        ledger.set_meta("a", "b")
    assert ledger.trouble is not None
    assert "readonly" in ledger.trouble
    with pytest.raises(LedgerError):
        await ledger.settled()
    ledger._db.execute("PRAGMA query_only=OFF")
    await ledger.settled()
    assert ledger.trouble is None
    assert ledger.get_meta("schema_version") == str(SCHEMA_VERSION)
