"""Who leads by a ledger on a real PostgreSQL server: one at a time, and what a stale one writes is refused by the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.leader_lease import leads_for_s
from tailkeeper_watchdog.leadership import Leadership
from tailkeeper_watchdog.ledger import LedgerError
from tailkeeper_watchdog.ledger_rows import TABLES
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, Outcome
from tailkeeper_watchdog.postgres import ledger as postgres_ledger
from tailkeeper_watchdog.postgres import server, tables
from tailkeeper_watchdog.postgres.layout import LayoutRow
from tailkeeper_watchdog.postgres.leadership import PostgresLeadership
from tailkeeper_watchdog.postgres.ledger import PostgresLedger
from tailkeeper_watchdog.postgres.line import Line
from tailkeeper_watchdog.postgres.server import Connection, connect
from tailkeeper_watchdog.postgres.words import NoAnswerError
from tailkeeper_watchdog.settings import LedgerSettings
from tests.contract.postgres_world import led, run_out, settings_for
from tests.e2e.postgres_server import PostgresServer
from tests.scenario.world import World
from tests.unit.ledger_cases import B


@pytest.fixture
def settings(postgres: PostgresServer) -> LedgerSettings:
    return settings_for(postgres)


def note_a_drain(ledger: PostgresLedger, reason: str = "hung") -> None:
    ledger.intend("b", B, Knob.ADMISSION, "p", SERVE, DRAIN, reason, 10.0, 310.0)


def note_a_line(ledger: PostgresLedger, reason: str) -> None:
    ledger.record(1.0, 1, "p", "b", Knob.WEIGHT, None, 0.5, Outcome.APPLIED, reason)


def reasons(postgres: PostgresServer, settings: LedgerSettings, table: str = "decisions") -> list[str]:
    return [str(row[0]) for row in postgres.run(f"SELECT reason FROM {settings.in_schema}.{table} ORDER BY id")]


async def test_the_second_stands_by_and_says_who_leads(settings: LedgerSettings) -> None:
    first, second = await led(settings, "process 1 on here at :8088"), PostgresLeadership(settings, "process 2")
    said = await second.try_lead()
    assert said is not None
    assert said.startswith("standing by: another watchdog leads: process 1 on here at :8088, since ")
    with pytest.raises(LedgerError, match="process 1 on here"):
        await second.settle()
    for leadership in (first, second):
        await leadership.step_down()


async def test_one_that_steps_down_lets_the_other_lead_at_once_with_everything_that_was_noted(settings: LedgerSettings) -> None:
    first = await led(settings, "first")
    note_a_drain(first.ledger)
    await first.step_down()
    second = await led(settings, "second")
    (lease,) = second.ledger.leases()
    assert (lease.backend, lease.confirmed) == ("b", False)
    await second.step_down()


async def test_a_leader_that_was_killed_is_followed_once_its_row_has_run_out(
    postgres: PostgresServer, settings: LedgerSettings
) -> None:
    first, second = await led(settings, "first"), PostgresLeadership(settings, "second", clock=asking_always())
    await first._line.close()
    assert await second.try_lead() is not None
    run_out(postgres, settings)
    assert await second.try_lead() is None
    await second.step_down()


def asking_always() -> Callable[[], float]:
    """A clock by which every question is due."""
    now = [0.0]

    def clock() -> float:
        now[0] += 2.0
        return now[0]

    return clock


async def test_what_a_stale_leader_writes_is_refused_and_it_stands_by(postgres: PostgresServer, settings: LedgerSettings) -> None:
    first = await led(settings, "first")
    note_a_line(first.ledger, "while it led")
    await first.settle()
    run_out(postgres, settings)  # as if its clock had stood still meanwhile
    second = await led(settings, "second")
    note_a_drain(first.ledger)
    with pytest.raises(LedgerError, match="another watchdog leads: second"):
        await first.settle()
    assert reasons(postgres, settings) == ["while it led"]
    assert reasons(postgres, settings, "leases") == []
    said = await first.try_lead()
    assert said is not None
    assert "another watchdog leads: second" in said
    for leadership in (first, second):
        await leadership.step_down()


async def test_an_epoch_that_is_given_twice_makes_no_two_leaders(postgres: PostgresServer, settings: LedgerSettings) -> None:
    """As after a failover to a replica that had not heard of the last leader: it counts from the one before."""
    first = await led(settings, "first")
    assert first.term is not None
    postgres.run(f"UPDATE {settings.in_schema}.leader SET epoch = {first.term.epoch - 1}, expires = clock_timestamp()")
    second = await led(settings, "second")
    assert second.term is not None
    assert second.term.epoch == first.term.epoch
    note_a_line(first.ledger, "of the first")
    with pytest.raises(LedgerError, match="another watchdog leads: second"):
        await first.settle()
    await first.step_down()
    note_a_line(second.ledger, "of the second")
    await second.step_down()
    assert reasons(postgres, settings) == ["of the second"]


async def test_one_that_leads_again_knows_what_the_other_one_did(postgres: PostgresServer, settings: LedgerSettings) -> None:
    first = PostgresLeadership(settings, "first", clock=asking_always())
    assert await first.try_lead() is None
    generation = first.ledger.generation
    run_out(postgres, settings)
    second = await led(settings, "second")
    note_a_drain(second.ledger, "by the second")
    assert await first.try_lead() is not None
    note_a_line(first.ledger, "of one that stands by")
    await second.step_down()
    assert await first.try_lead() is None
    assert [lease.reason for lease in first.ledger.leases()] == ["by the second"]
    assert first.ledger.generation == generation + 1
    await first.step_down()
    assert reasons(postgres, settings) == []


async def test_of_many_that_reach_for_it_at_once_one_leads(settings: LedgerSettings) -> None:
    """The tables are made meanwhile, too."""
    many = [PostgresLeadership(settings, f"number {n}") for n in range(6)]
    said = await asyncio.gather(*(leadership.try_lead() for leadership in many))
    assert said.count(None) == 1
    assert sum("another watchdog leads: number" in str(words) for words in said) == 5
    for leadership in many:
        await leadership.step_down()


async def test_a_leader_that_cannot_renew_stops_before_its_row_runs_out(settings: LedgerSettings) -> None:
    now = [100.0]
    leadership = PostgresLeadership(settings, "a", clock=lambda: now[0])
    assert await leadership.try_lead() is None
    leadership._is_due = lambda: False  # type: ignore[method-assign]  # as if every renewal were under way for ever
    now[0] += leads_for_s(settings.lease_s) - 0.01
    assert await leadership.try_lead() is None
    now[0] += 0.02
    said = await leadership.try_lead()
    assert said is not None
    assert "could not be renewed" in said
    assert leads_for_s(settings.lease_s) < settings.lease_s
    await leadership.step_down()


async def test_the_kill_switch_of_one_that_stands_by_reaches_the_leader(settings: LedgerSettings) -> None:
    leader, other = await led(settings, "leader"), PostgresLeadership(settings, "other")
    await other.ask_to_pause("paused by SIGUSR1")
    await leader.settle()
    assert leader.ledger.get_meta("paused") == "paused by SIGUSR1"
    leader.ledger.set_meta("paused", None)
    await leader.settle()
    assert leader.ledger.get_meta("paused") is None
    for leadership in (leader, other):
        await leadership.step_down()


class Forgetful(Line):
    """The work is done, and its answer is lost: what a connection that dies at the wrong moment does."""

    lose = False

    async def use(self, work: Callable[[Connection], Any], within_s: float) -> Any:
        done = await super().use(work, within_s)
        if self.lose:
            self.lose = False
            raise NoAnswerError("the answer was lost")
        return done


async def test_a_write_whose_answer_was_lost_is_done_once(postgres: PostgresServer, settings: LedgerSettings) -> None:
    line = Forgetful(partial(connect, settings))
    leadership = PostgresLeadership(settings, "a", clock=asking_always(), line=line)
    assert await leadership.try_lead() is None
    note_a_line(leadership.ledger, "first")
    line.lose = True
    with pytest.raises(LedgerError, match="the answer was lost"):
        await leadership.settle()
    note_a_line(leadership.ledger, "second")
    assert await until_it_leads(leadership)
    await leadership.settle()
    assert reasons(postgres, settings) == ["first", "second"]
    await leadership.step_down()


async def until_it_leads(leadership: PostgresLeadership, tries: int = 200) -> bool:
    for _ in range(tries):
        if await leadership.try_lead() is None:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_server_that_has_lost_writes_gets_them_again(postgres: PostgresServer, settings: LedgerSettings) -> None:
    """As after a failover to a replica that was behind: an older state, by an older revision."""
    leadership = await led(settings)
    ledger, schema = leadership.ledger, settings.in_schema
    note_a_line(ledger, "old")
    ended = ledger.intend("a", B, Knob.WEIGHT, "p", 1.0, 0.5, "over since", 10.0, 310.0)
    await leadership.settle()
    (before,) = postgres.run(f"SELECT revision FROM {schema}.leader")
    ledger.end(ended.id, Outcome.RELEASED, 20.0)
    note_a_drain(ledger, "in force")
    note_a_line(ledger, "new")
    ledger.count_attempt("b", 1.0)
    ledger.set_meta("holds", "{}")
    ledger.record_weights(1.0, "maria", {}, {"latency": 1.0})
    await leadership.settle()
    content = everything(postgres, schema)
    postgres.run(
        f"DELETE FROM {schema}.leases WHERE reason = 'in force'",
        f"UPDATE {schema}.leases SET ended = NULL, outcome = NULL",
        f"DELETE FROM {schema}.decisions WHERE reason = 'new'",
        f"DELETE FROM {schema}.attempts",
        f"DELETE FROM {schema}.weights",
        f"DELETE FROM {schema}.meta WHERE key = 'holds'",
        f"UPDATE {schema}.leader SET revision = {before[0]}",
    )
    note_a_line(ledger, "later")
    await leadership.settle()
    assert everything(postgres, schema) | {"decisions": content["decisions"]} == content
    assert reasons(postgres, settings) == ["old", "new", "later"]
    note_a_line(ledger, "and on")
    await leadership.step_down()
    assert reasons(postgres, settings)[-1] == "and on"


def everything(postgres: PostgresServer, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    """All that a leader reads."""
    return {table: sorted(postgres.run(f"SELECT * FROM {schema}.{table}{which}")) for table, which in TABLES.items()}


async def test_more_than_can_be_kept_meanwhile_is_written_anew(
    postgres: PostgresServer, settings: LedgerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_ledger, "MAX_UNWRITTEN", 10)
    leadership = await led(settings)
    for number in range(25):
        note_a_line(leadership.ledger, str(number))
    assert len(leadership.ledger.unwritten(100)) <= 10
    await leadership.settle()
    assert reasons(postgres, settings) == [str(number) for number in range(25)]
    await leadership.step_down()


async def test_a_leader_that_is_halted_in_the_middle_of_a_write_keeps_nobody_out_for_long(
    postgres: PostgresServer, settings: LedgerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_IN_TRANSACTION_S", 1.5)
    monkeypatch.setattr(server, "LOCK_S", 0.1)
    first, second = await led(settings, "first"), PostgresLeadership(settings, "second", clock=asking_always())
    assert await second.try_lead() is not None
    run_out(postgres, settings)
    halted = connect(settings)
    halted.execute("BEGIN")
    halted.execute("SELECT epoch FROM leader FOR UPDATE")
    said = await second.try_lead()
    assert said is not None
    assert "lock timeout" in said
    assert await until_it_leads(second)
    with pytest.raises(psycopg.Error, match="idle-in-transaction"):
        halted.execute("COMMIT")
    halted.close()
    for leadership in (second, first):
        await leadership.step_down()


async def test_texts_with_zero_bytes_cannot_stop_the_ledger(postgres: PostgresServer, settings: LedgerSettings) -> None:
    leadership = await led(settings)
    note_a_line(leadership.ledger, "an engine said \0 this")
    await leadership.settle()
    assert reasons(postgres, settings) == ["an engine said \ufffd this"]
    assert leadership.ledger.decisions()[0].reason == "an engine said \ufffd this"
    await leadership.step_down()


async def test_an_older_ledger_is_brought_up_to_date_and_keeps_what_it_has(
    postgres: PostgresServer, settings: LedgerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = await led(settings)
    note_a_drain(leadership.ledger)
    await leadership.step_down()
    with_colour = (*tables.MIGRATIONS, (4, "ALTER TABLE leader ADD COLUMN colour TEXT; CREATE TABLE colours (name TEXT)"))
    monkeypatch.setattr(tables, "MIGRATIONS", with_colour)
    monkeypatch.setattr(tables, "SCHEMA_VERSION", 4)
    again = await led(settings)
    assert [lease.reason for lease in again.ledger.leases()] == ["hung"]
    assert postgres.run(f"SELECT colour FROM {settings.in_schema}.leader") == [(None,)]
    await again.step_down()


async def test_a_migration_that_fails_leaves_everything_as_it_was(
    postgres: PostgresServer, settings: LedgerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await led(settings)).step_down()
    broken = (*tables.MIGRATIONS, (4, "CREATE TABLE colours (name TEXT); ALTER TABLE nowhere ADD COLUMN colour TEXT"))
    with monkeypatch.context() as patched:
        patched.setattr(tables, "MIGRATIONS", broken)
        patched.setattr(tables, "SCHEMA_VERSION", 4)
        said = await PostgresLeadership(settings, "newer").try_lead()
    assert said is not None
    assert 'relation "nowhere" does not exist' in said
    assert postgres.run(f"SELECT to_regclass('{settings.in_schema}.colours')") == [(None,)]
    await (await led(settings)).step_down()


async def test_of_two_layouts_of_one_fleet_only_one_acts_and_its_shards_together(postgres: PostgresServer) -> None:
    whole = settings_for(postgres)
    two = [LayoutRow(whole, 2, clock=asking_always()) for _ in range(2)]
    assert [await row.try_lead() for row in two] == [None, None]
    three, alone = LayoutRow(whole, 3, clock=asking_always()), PostgresLeadership(whole, "process 1", clock=asking_always())
    for said in (await three.try_lead(), await alone.try_lead()):
        assert said is not None
        assert "another watchdog leads: a layout of 2 shards" in said
    run_out(postgres, whole)
    assert await alone.try_lead() is None
    for row in two:
        said = await row.try_lead()
        assert said is not None
        assert "another watchdog leads: process 1" in said
    run_out(postgres, whole)
    assert await three.try_lead() is None
    note_a_line(alone.ledger, "late")
    with pytest.raises(LedgerError, match="a layout of 3 shards"):
        await alone.settle()
    rivals: tuple[Leadership, ...] = (*two, three, alone)
    for leadership in rivals:
        await leadership.step_down()


async def test_what_one_machine_has_drained_the_next_one_gives_back_at_its_time(
    postgres: PostgresServer, settings: LedgerSettings
) -> None:
    """The whole loop: two watchdogs, one gateway between them, and the first one dies with a change in force."""
    first = await led(settings, "first")
    world = world_with(first)
    await world.run(2)
    world.sick["b"].state = State.HUNG
    await world.run(3)
    assert world.admission("b") == DRAIN
    await first._line.close()
    run_out(postgres, settings)

    second = await led(settings, "second")
    inherited = world_with(second)
    inherited.gateway, inherited.clock.now = world.gateway, world.clock.now + 15.0
    inherited.actuators = {"edge": world.gateway}
    inherited.sick["b"].state = State.HUNG
    inherited.start()
    await inherited.run(3)
    assert inherited.admission("b") == DRAIN
    assert {d.verdict for d in second.ledger.decisions("b")} == {Outcome.APPLIED}, "made by the first, and renewed by the second"
    inherited.sick["b"].state = State.SERVING
    await inherited.run(25)
    assert (inherited.admission("b"), inherited.weight("b")) == (SERVE, 1.0)
    await second.step_down()
    schema = settings.in_schema
    assert postgres.run(f"SELECT outcome FROM {schema}.leases WHERE knob = 'admission'") == [("released",)]


def world_with(leadership: PostgresLeadership) -> World:
    world = World(":memory:")
    world.leadership, world.ledger_of = leadership, lambda: leadership.ledger
    world.start()
    return world
