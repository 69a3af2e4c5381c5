"""Whose weights hold: a person's until the file's change, across restarts, and never what could not be written down."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.weighing import HISTORY_SHOWN, Weighing, Weights

FACTORS = ("latency", "error_rate", "cpu_usage", "uptime")


def weights(*shares: float) -> Weights:
    return dict(zip(FACTORS, shares, strict=True))


A = weights(0.35, 0.40, 0.15, 0.10)
B = weights(0.25, 0.25, 0.25, 0.25)
C = weights(1.0, 0.0, 0.0, 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def started(path: Path, file: Weights, at: float = 100.0) -> Weighing:
    """A watchdog that starts with ``file`` on whatever ledger is there."""
    return Weighing(Ledger(path), file, lambda: at)


def history(weighing: Weighing) -> list[tuple[str, Weights, Weights]]:
    return [(change.by, change.before, change.after) for change in weighing.history()]


def test_the_first_start_takes_the_files_weights_and_that_is_no_change(path: Path) -> None:
    weighing = started(path, A)
    assert (weighing.in_force, weighing.history()) == (A, ())


def test_a_change_is_in_force_at_once_and_says_who_when_and_what(path: Path) -> None:
    weighing = started(path, A, at=123.0)
    weighing.change(B, "maria")
    (made,) = weighing.history()
    assert weighing.in_force == B
    assert (made.time_unix_s, made.by, made.before, made.after) == (123.0, "maria", A, B)


def test_the_weights_of_a_tick_do_not_change_under_it(path: Path) -> None:
    weighing = started(path, A)
    held = weighing.in_force
    weighing.change(B, "maria")
    assert held == A


def test_the_same_weights_again_are_no_change(path: Path) -> None:
    weighing = started(path, A)
    weighing.change(dict(A), "maria")
    assert weighing.history() == ()


def test_a_change_holds_until_the_files_weights_change(path: Path) -> None:
    weighing = started(path, A)
    weighing.change(B, "maria")
    assert weighing.take_file(A) is False
    assert weighing.in_force == B
    assert weighing.take_file(C) is True
    assert weighing.in_force == C
    assert history(weighing) == [("file", B, C), ("maria", A, B)]


@pytest.mark.parametrize(
    ("file_then", "in_force", "by"),
    [(A, B, "maria"), (C, C, "file"), (B, B, "maria")],
    ids=["file as it was", "file has changed meanwhile", "file has what the person set"],
)
def test_after_a_restart_the_last_change_holds_if_the_file_is_as_it_was(
    path: Path, file_then: Weights, in_force: Weights, by: str
) -> None:
    started(path, A).change(B, "maria")
    weighing = started(path, file_then)
    assert (weighing.in_force, weighing.history()[0].by) == (in_force, by)


def test_a_file_that_came_to_agree_is_remembered(path: Path) -> None:
    """A, a person sets B, the file says B too, the file says A again: that is a change of the file, so it holds."""
    started(path, A).change(B, "maria")
    assert started(path, B).in_force == B
    weighing = started(path, A)
    assert weighing.in_force == A
    assert history(weighing)[0] == ("file", B, A)


def test_without_a_change_by_a_person_a_restart_with_another_file_is_a_change_by_the_file(path: Path) -> None:
    started(path, A)
    assert history(started(path, B)) == [("file", A, B)]


def test_a_crash_before_the_files_word_is_remembered_makes_no_second_change(path: Path) -> None:
    started(path, A).change(C, "file")  # all that is there when the process dies within ``take_file``
    weighing = started(path, C)
    assert weighing.in_force == C
    assert history(weighing) == [("file", A, C)]


@pytest.mark.parametrize("who", ["person", "file"])
def test_what_cannot_be_written_is_not_in_force(path: Path, who: str) -> None:
    weighing = started(path, A)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    weighing._ledger._db.execute("PRAGMA busy_timeout=1")
    with pytest.raises(LedgerError, match="locked"):
        weighing.take_file(B) if who == "file" else weighing.change(B, "maria")
    assert weighing.in_force == A
    other.execute("ROLLBACK")
    other.close()
    assert weighing.take_file(B) is True, "what could not be written is tried again"


def test_only_the_last_hundred_changes_are_shown(path: Path) -> None:
    weighing = started(path, A)
    weighing._ledger._db.execute("PRAGMA synchronous=OFF")
    for number in range(HISTORY_SHOWN + 1):
        weighing.change(B if number % 2 else C, f"person {number}")
    assert [c.by for c in weighing.history()] == [f"person {n}" for n in range(HISTORY_SHOWN, 0, -1)]
