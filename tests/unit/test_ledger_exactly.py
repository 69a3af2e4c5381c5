"""Every fact of the ledger to the last column: what is written is what is read, now and by the next process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tailkeeper_watchdog import ledger as ledger_module
from tailkeeper_watchdog.ledger import ATTEMPT_MEMORY_S, LOCK_WAIT_S, Ledger, LedgerError
from tailkeeper_watchdog.ledger_rows import NUMBERED, SCHEMA_VERSION, TABLES, lease_of
from tailkeeper_watchdog.model import DRAIN, SERVE, Decision, Knob, KnobValue, Lease, Outcome, Target

B = Target("edge", "llm/b", "llm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(path)


def in_force(ledger: Ledger, path: Path) -> tuple[Lease, ...]:
    """The leases as this process knows them, which must be as the next one would read them."""
    with closing(Ledger(path)) as other:
        assert other.leases() == ledger.leases()
    return ledger.leases()


def intended(ledger: Ledger, knob: Knob = Knob.WEIGHT, target: Target = B, value: KnobValue = 0.5) -> Lease:
    prior: KnobValue = SERVE if knob is Knob.ADMISSION else 1.0
    return ledger.intend("b", target, knob, "slow_policy", prior, value, "slow", 10.0, 310.0)


# Leases


def test_an_intent_has_all_that_was_said_of_it(ledger: Ledger, path: Path) -> None:
    ledger.leases()
    made = ledger.intend("b", B, Knob.WEIGHT, "slow_policy", 1.0, 0.5, "slow", 10.0, 310.0, before=0.75)
    assert made == Lease(1, "b", B, Knob.WEIGHT, "slow_policy", 1.0, 0.5, "slow", 10.0, 310.0, False, 0, 0.75)
    assert in_force(ledger, path) == (made,)
    assert intended(ledger, Knob.ADMISSION, value=DRAIN).before == SERVE


def test_a_second_intent_changes_what_is_wanted_and_keeps_what_was_there(ledger: Ledger, path: Path) -> None:
    first = intended(ledger)
    ledger.note_reverts(first.id, 1)
    ledger.confirm(first.id, 0.5)
    ledger.leases()
    second = ledger.intend("other", B, Knob.WEIGHT, "policy_2", 0.9, 0.25, "slower", 20.0, 320.0, before=0.5)
    assert second == replace(first, policy="policy_2", written=0.25, reason="slower", expires_unix_s=320.0, reverts=1, before=0.5)
    assert in_force(ledger, path) == (second,)


@pytest.mark.parametrize(
    ("knob", "target"),
    [(Knob.ADMISSION, B), (Knob.WEIGHT, replace(B, server="llm/c")), (Knob.WEIGHT, replace(B, gateway="west"))],
    ids=["another knob", "another server", "another gateway"],
)
def test_a_lease_is_of_one_knob_of_one_server_at_one_gateway(ledger: Ledger, path: Path, knob: Knob, target: Target) -> None:
    first = intended(ledger)
    second = intended(ledger, knob, target, DRAIN if knob is Knob.ADMISSION else 0.5)
    assert in_force(ledger, path) == (first, second)
    assert second.target == target


def test_a_pool_that_is_renamed_is_no_other_place(ledger: Ledger, path: Path) -> None:
    first = intended(ledger)
    again = intended(ledger, target=replace(B, pool="renamed"))
    assert again.id == first.id
    assert [lease.id for lease in in_force(ledger, path)] == [first.id]


@pytest.mark.parametrize("held", [True, False], ids=["known already", "to be read"])
def test_each_step_of_a_lease_is_kept_as_it_was_told(ledger: Ledger, path: Path, held: bool) -> None:
    other = intended(ledger, target=replace(B, server="llm/c"))
    lease = intended(ledger)
    if held:
        ledger.leases()
    ledger.confirm(lease.id, 0.5078125)
    lease = replace(lease, confirmed=True, written=0.5078125)
    assert in_force(ledger, path) == (other, lease)
    ledger.note_reverts(lease.id, 2)
    ledger.renew(lease.id, 600.0)
    lease = replace(lease, reverts=2, expires_unix_s=600.0)
    assert in_force(ledger, path) == (other, lease)
    ledger.run_out(lease.id, 601.0)
    lease = replace(lease, confirmed=False, expires_unix_s=601.0, before=1.0)
    assert in_force(ledger, path) == (other, lease)
    ledger.renew(lease.id, 900.0)
    assert in_force(ledger, path) == (other, replace(lease, confirmed=True, expires_unix_s=900.0))
    ledger.end(lease.id, Outcome.EXPIRED, 902.0)
    assert in_force(ledger, path) == (other,)
    assert ledger._db.execute("SELECT ended, outcome FROM leases ORDER BY id").fetchall() == [(None, None), (902.0, "expired")]


def test_what_is_told_of_a_lease_that_is_over_changes_nothing_in_force(ledger: Ledger, path: Path) -> None:
    lease = intended(ledger)
    ledger.leases()
    ledger.end(lease.id, Outcome.RELEASED, 20.0)
    for tell in (ledger.run_out, ledger.renew):
        tell(lease.id, 30.0)
    ledger.confirm(lease.id, 0.7)
    ledger.end(lease.id, Outcome.RELEASED, 40.0)
    assert in_force(ledger, path) == ()


def test_leases_come_oldest_first_whatever_order_the_file_has_them_in(ledger: Ledger, path: Path) -> None:
    servers = ["z", "a", "m", "b"]
    made = [intended(ledger, target=Target("edge", server, "llm")) for server in servers]
    assert [lease.target.server for lease in in_force(ledger, path)] == servers
    assert [lease.id for lease in made] == sorted(lease.id for lease in made)


def test_a_number_is_never_given_twice(ledger: Ledger, path: Path) -> None:
    """Whoever has kept a number of a lease that is pruned must not find another one under it."""
    first = intended(ledger)
    ledger.end(first.id, Outcome.RELEASED, 20.0)
    ledger._db.execute("DELETE FROM leases")
    assert intended(ledger).id > first.id


def test_a_server_that_is_read_anew_is_the_same_object_and_need_not_be_compared(ledger: Ledger, path: Path) -> None:
    lease = intended(ledger)
    (known,) = ledger.leases()
    with closing(Ledger(path)) as other:
        other.renew(lease.id, 400.0)
    (again,) = ledger.leases()
    assert again == replace(known, expires_unix_s=400.0, confirmed=True)
    assert again.target is known.target
    assert intended(ledger).target is B


# Together


def torn(ledger: Ledger, lease: Lease) -> None:
    with ledger.together():
        ledger.renew(lease.id, 500.0)
        raise RuntimeError("torn")


def test_lines_that_are_written_together_are_there_together_or_not_at_all(ledger: Ledger, path: Path) -> None:
    lease = intended(ledger)
    with ledger.together():
        ledger.renew(lease.id, 400.0)
        with closing(Ledger(path)) as other:
            assert other.leases()[0].expires_unix_s == 310.0
    assert in_force(ledger, path)[0].expires_unix_s == 400.0
    with pytest.raises(RuntimeError, match="torn"):
        torn(ledger, lease)
    assert in_force(ledger, path)[0].expires_unix_s == 400.0
    with ledger.together():
        ledger.renew(lease.id, 600.0)
    assert in_force(ledger, path)[0].expires_unix_s == 600.0


def test_a_statement_that_fails_is_a_ledger_error_with_the_files_name_and_what_was_known_is_read_anew(
    ledger: Ledger, path: Path
) -> None:
    intended(ledger)
    ledger.leases()
    with pytest.raises(LedgerError, match=r"ledger\.db: no such table"):
        ledger._run("SELECT * FROM nowhere")
    assert len(in_force(ledger, path)) == 1
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.leases()


def test_what_is_noted_is_on_the_disk_before_anything_is_done(ledger: Ledger) -> None:
    assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,), "FULL: a commit that the power takes away was none"


# Decisions


def decided(ledger: Ledger, time: float, backend: str = "b") -> Decision:
    return ledger.record(time, 7, "p", backend, Knob.WEIGHT, 1.0, 0.5, Outcome.APPLIED, "slow", 310.0)


def test_a_decision_is_read_back_as_it_was_told(ledger: Ledger, path: Path) -> None:
    first = decided(ledger, 1.0)
    second = ledger.record(2.0, 8, "q", "c", Knob.ADMISSION, None, DRAIN, Outcome.REFUSED, "cap")
    assert first == Decision(1, 1.0, 7, "p", "b", Knob.WEIGHT, 1.0, 0.5, Outcome.APPLIED, "slow", 310.0)
    assert second == Decision(2, 2.0, 8, "q", "c", Knob.ADMISSION, None, DRAIN, Outcome.REFUSED, "cap", None)
    with closing(Ledger(path)) as other:
        assert other.decisions() == ledger.decisions() == (second, first)


def test_decisions_are_told_from_a_moment_on_of_one_backend_and_a_hundred_unless_said(ledger: Ledger) -> None:
    made = [decided(ledger, float(n), "ab"[n % 2]) for n in range(102)]
    newest_first = tuple(reversed(made))
    assert ledger.decisions() == newest_first[:100]
    assert ledger.decisions(limit=3) == newest_first[:3]
    assert ledger.decisions(since=100.0) == newest_first[:2]
    assert ledger.decisions("a", since=100.0) == (made[100],)
    assert ledger.decisions("b", limit=1) == (made[101],)
    assert ledger.decisions("nobody") == ()


def test_the_log_is_bounded_and_only_what_is_oldest_and_over_is_dropped(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_DECISIONS", 3)
    monkeypatch.setattr(ledger_module, "PRUNE_EVERY", 4)
    kept = intended(ledger)
    for number in range(6):
        lease = intended(ledger, target=Target("edge", f"s{number}", "llm"))
        ledger.end(lease.id, Outcome.RELEASED, 20.0)
    for number in range(7):
        decided(ledger, float(number))
    assert [d.time_unix_s for d in ledger.decisions()] == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    decided(ledger, 7.0)
    assert [d.time_unix_s for d in ledger.decisions()] == [7.0, 6.0, 5.0]
    assert ledger._db.execute("SELECT id FROM leases ORDER BY id").fetchall() == [(kept.id,), (5,), (6,), (7,)]


def test_how_much_is_kept_is_months_of_a_busy_fleet() -> None:
    assert (ledger_module.MAX_DECISIONS, ledger_module.PRUNE_EVERY, ledger_module.MAX_WEIGHTS_CHANGES) == (100_000, 1_000, 1_000)


# Attempts


def test_attempts_end_an_hour_after_the_last_one_and_not_before(ledger: Ledger) -> None:
    assert ATTEMPT_MEMORY_S == 3_600.0
    assert [ledger.count_attempt("b", at) for at in (0.0, 3_599.0, 7_198.0)] == [1, 2, 3]
    assert ledger.attempts(7_198.0 + 3_599.0) == {"b": 3}
    assert ledger.attempts(7_198.0 + 3_600.0) == {}
    assert ledger.count_attempt("b", 7_198.0 + 3_600.0) == 1


def test_only_those_are_forgotten_whom_a_person_has_looked_at(ledger: Ledger) -> None:
    for name in "abc":
        ledger.count_attempt(name, 10.0)
    ledger.forget_attempts(["a", "c", "nobody"])
    assert ledger.attempts(20.0) == {"b": 1}


# Small facts, and the file itself


def test_a_fact_is_what_was_said_last_and_none_where_it_was_taken_back(ledger: Ledger, path: Path) -> None:
    assert ledger.get_meta("paused") is None
    ledger.set_meta("paused", "people at work")
    ledger.set_meta("paused", "a drill")
    ledger.set_meta("other", "stays")
    with closing(Ledger(path)) as other:
        assert other.get_meta("paused") == "a drill"
    ledger.set_meta("paused", None)
    assert (ledger.get_meta("paused"), ledger.get_meta("other")) == (None, "stays")


def test_a_ledger_of_this_version_says_so_and_one_of_this_version_is_left_as_it_is(ledger: Ledger, path: Path) -> None:
    assert ledger.get_meta("schema_version") == str(SCHEMA_VERSION) == "3"
    with closing(Ledger(path)) as other:
        assert other.get_meta("schema_version") == "3"
    ledger.set_meta("schema_version", "4")
    with pytest.raises(LedgerError, match=r"written by a newer version \(schema 4, known 3\); upgrade"):
        Ledger(path)


def test_a_folder_that_is_not_there_is_told_with_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"nowhere/ledger\.db: unable to open .*; is the folder there, writable and not full\?"):
        Ledger(tmp_path / "nowhere" / "ledger.db")


def test_nobody_waits_for_another_ones_write_longer_than_a_part_of_a_tick() -> None:
    assert ledger_module.LOCK_WAIT_S == 2.0


# The file


def test_a_commit_waits_for_the_disk_and_for_another_writer_and_any_thread_may_write(ledger: Ledger) -> None:
    assert ledger._run("PRAGMA synchronous") == [(2,)], "FULL: what a power cut must not take"
    assert ledger._run("PRAGMA journal_mode") == [("wal",)]
    assert ledger._run("PRAGMA busy_timeout") == [(LOCK_WAIT_S * 1_000,)]
    with ThreadPoolExecutor(1) as other:
        other.submit(ledger.set_meta, "by", "another thread").result()
    assert ledger.get_meta("by") == "another thread"


@pytest.mark.parametrize(
    "write",
    [
        lambda ledger: intended(ledger),
        lambda ledger: ledger.record(1.0, 1, "p", "b", Knob.WEIGHT, 1.0, 0.5, Outcome.APPLIED, "why"),
        lambda ledger: ledger.set_meta("a", "b"),
    ],
    ids=["an intent", "a line of the log", "a fact"],
)
def test_any_write_that_succeeds_ends_the_trouble(ledger: Ledger, write: Callable[[Ledger], object]) -> None:
    ledger.trouble = "the disk was full"
    write(ledger)
    assert ledger.trouble is None


async def test_what_is_written_to_see_whether_it_can_be_leaves_nothing_behind(ledger: Ledger) -> None:
    before = ledger._run("SELECT * FROM meta")
    ledger.trouble = "the disk was full"
    await ledger.settled()
    assert ledger._run("SELECT * FROM meta") == before
    assert ledger.trouble is None


def test_a_lease_that_has_run_out_has_its_prior_value_in_force(ledger: Ledger, path: Path) -> None:
    lease = ledger.intend("b", B, Knob.WEIGHT, "slow_policy", 1.0, 0.5, "slow", 10.0, 310.0, before=0.75)
    ledger.leases()
    ledger.run_out(lease.id, 20.0)
    assert in_force(ledger, path) == (replace(lease, confirmed=False, expires_unix_s=20.0, before=1.0),)


def test_where_nothing_may_come_any_more_nothing_is_kept_of_it(ledger: Ledger) -> None:
    ledger.note_pending({("edge", "llm/b", Knob.WEIGHT): {0.5: 20.0}})
    ledger.note_pending({})
    assert ledger.get_meta("pending") is None
    assert ledger.pending() == {}


def test_a_target_that_is_the_same_is_the_same_object_and_another_one_is_read(ledger: Ledger) -> None:
    intended(ledger)
    (row,) = ledger._run("SELECT * FROM leases")
    same, other = replace(B), replace(B, pool="renamed")
    assert lease_of(row, same).target is same
    assert lease_of(row, other).target == B
    assert lease_of(row, None).target == B


def test_a_ledger_that_is_kept_elsewhere_too_has_every_table_of_this_one_and_the_leases_in_force(ledger: Ledger) -> None:
    there = dict(ledger._run("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"))
    assert set(TABLES) == set(there)
    assert set(NUMBERED) == {name for name, sql in there.items() if "AUTOINCREMENT" in sql}
    ended, kept = intended(ledger), intended(ledger, Knob.ADMISSION, value=DRAIN)
    ledger.end(ended.id, Outcome.RELEASED, 20.0)
    ledger.record(1.0, 1, "p", "b", Knob.WEIGHT, 1.0, 0.5, Outcome.APPLIED, "why")
    read = {name: ledger._run(f"SELECT * FROM {name}{which}") for name, which in TABLES.items()}
    assert [row[0] for row in read["leases"]] == [kept.id]
    assert {name: len(rows) for name, rows in read.items()} == {
        "leases": 1,
        "decisions": 1,
        "attempts": 0,
        "weights": 0,
        "meta": 1,
    }
