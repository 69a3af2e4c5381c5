"""A PostgreSQL server that is frozen, killed, read-only or not for us: the watchdog goes on, changes nothing, and says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tailkeeper.doctor.findings import Mistake
from tailkeeper.doctor.ledger import check_ledger
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.ledger import LedgerError
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob
from tailkeeper_watchdog.postgres.leadership import PATIENCE_S, PostgresLeadership
from tailkeeper_watchdog.settings import LedgerSettings
from tests.contract.postgres_world import led, secret_file, settings_for
from tests.contract.test_postgres_leader import asking_always, note_a_line, reasons, until_it_leads
from tests.contract.tls_world import certificates
from tests.e2e.postgres_server import PASSWORD, ROLE, PostgresServer, postgres_server
from tests.e2e.real_programs import free_port, wait_until
from tests.scenario.world import World
from tests.unit.ledger_cases import B

MARGIN_S = 2.0
"""For a machine that others load as well."""


@dataclass
class Watched:
    """A whole watchdog over simulated backends, whose ledger is on the server."""

    world: World
    leadership: PostgresLeadership
    slowest_s: float = field(default=0.0)

    async def ticks(self, number: int) -> None:
        for _ in range(number):
            self.world.clock.now += 1.0
            began = time.monotonic()
            record = await self.world.loop.tick()
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            assert record.error is None, record.error

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(300):
            if holds():
                return
            await self.ticks(1)
            await asyncio.sleep(0.03)
        raise AssertionError(f"did not come to hold; paused: {self.world.switches.paused()}")


@pytest.fixture
async def watched(postgres: PostgresServer, tmp_path: Path) -> Any:
    leadership = await led(settings_for(postgres))
    world = World(":memory:")
    world.leadership = leadership
    world.ledger_of = lambda: leadership.ledger
    world.start()
    yield Watched(world, leadership)
    await leadership.step_down()


async def test_while_the_server_is_frozen_ticks_go_on_and_nothing_is_changed(postgres: PostgresServer, watched: Watched) -> None:
    await watched.ticks(3)
    postgres.freeze()
    try:
        watched.world.sick["b"].state = State.HUNG
        await asyncio.sleep(1.0)  # the leader's consent is a second old by then
        await watched.ticks(1)
        assert watched.slowest_s < PATIENCE_S + MARGIN_S
        watched.slowest_s = 0.0
        await watched.ticks(40)
        assert watched.slowest_s < MARGIN_S
        assert watched.world.admission("b") == SERVE
        paused = watched.world.switches.paused()
        assert paused is not None
        assert "nothing can be written down, so nothing is changed: the ledger at postgresql://" in paused
        assert PASSWORD not in paused
        (finding,) = [f for f in watched.world.loop.findings() if f.backend == "ledger"]
        assert (finding.kind, finding.severity) == ("advice", "page")
        assert finding.summary.startswith("nothing is changed at any gateway, and nothing given back")
    finally:
        postgres.thaw()
    await watched.until(lambda: watched.world.admission("b") == DRAIN)
    await watched.until(lambda: not [f for f in watched.world.loop.findings() if f.backend == "ledger"])
    schema = watched.leadership._settings.in_schema
    assert postgres.run(f"SELECT backend, knob, confirmed FROM {schema}.leases") == [("b", "admission", 1)]


async def test_a_server_that_freezes_between_two_ticks_of_a_leader_lets_no_change_through(
    postgres: PostgresServer, watched: Watched
) -> None:
    """The consent is fresh, and the intent cannot be written: so nothing is done."""
    await watched.ticks(2)
    await watched.leadership.settle()
    watched.world.sick["b"].state = State.HUNG
    postgres.freeze()
    try:
        watched.world.clock.now += 1.0
        began = time.monotonic()
        record = await watched.world.loop.tick()
        assert time.monotonic() - began < PATIENCE_S + MARGIN_S
        assert record.error is None or "no answer within 2 s" in record.error
        assert watched.world.admission("b") == SERVE
    finally:
        postgres.thaw()
    await watched.until(lambda: watched.world.admission("b") == DRAIN)


async def test_a_killed_server_that_is_started_again_has_every_line(postgres: PostgresServer) -> None:
    settings = settings_for(postgres)
    leadership = await led(settings)
    note_a_line(leadership.ledger, "before")
    await leadership.settle()
    note_a_line(leadership.ledger, "under way")
    try:
        postgres.kill()
        with pytest.raises(LedgerError):
            await leadership.settle()
        note_a_line(leadership.ledger, "meanwhile")
        said = await leadership.try_lead()
        assert said is not None
        assert "nothing is changed" in said
    finally:
        postgres.start()
    assert await until_it_leads(leadership)
    await leadership.settle()
    assert reasons(postgres, settings) == ["before", "under way", "meanwhile"]
    await leadership.step_down()


async def test_a_server_that_takes_no_writes_any_more_is_left_alone_until_it_does(postgres: PostgresServer) -> None:
    """As a primary that was made a replica."""
    settings = settings_for(postgres)
    leadership = await led(settings)
    note_a_line(leadership.ledger, "before")
    await leadership.settle()
    read_only = "ALTER SYSTEM SET default_transaction_read_only = {}"
    postgres.run(read_only.format("on"), "SELECT pg_reload_conf()")
    try:
        note_a_line(leadership.ledger, "meanwhile")
        await until_it_says(leadership, "read-only")
        said = await PostgresLeadership(settings, "other").try_lead()
        assert said is not None
        assert "session is read-only; name the primary in watchdog.ledger.url" in said
        assert [finding.mistake for finding in await check_ledger(settings)] == [Mistake.LEDGER_READ_ONLY]
    finally:
        postgres.run("SET default_transaction_read_only = off", read_only.format("off"), "SELECT pg_reload_conf()")
    assert await until_it_leads(leadership)
    await leadership.settle()
    assert reasons(postgres, settings) == ["before", "meanwhile"]
    await leadership.step_down()


async def until_it_says(leadership: PostgresLeadership, words: str) -> None:
    said: str | None = None
    for _ in range(300):
        said = await leadership.try_lead()
        if said is not None and words in said:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{words!r} not said, but {said!r}")


@pytest.fixture
def no_rights(postgres: PostgresServer) -> Iterator[None]:
    postgres.run(f"ALTER DATABASE tailkeeper OWNER TO admin; REVOKE CREATE ON DATABASE tailkeeper FROM {ROLE}")
    yield
    postgres.run(f"ALTER DATABASE tailkeeper OWNER TO {ROLE}")


async def said_to(settings: LedgerSettings) -> str:
    leadership = PostgresLeadership(settings, "a", clock=asking_always())
    said = await leadership.try_lead()
    await leadership.step_down()
    assert said is not None
    assert PASSWORD not in said
    return said


async def test_a_role_without_the_right_to_make_a_schema_is_told_what_to_ask_for(
    postgres: PostgresServer, no_rights: None
) -> None:
    settings = settings_for(postgres)
    said = await said_to(settings)
    assert "permission denied for database tailkeeper" in said
    assert f"CREATE SCHEMA IF NOT EXISTS {settings.in_schema} AUTHORIZATION {ROLE}" in said
    assert [finding.mistake for finding in await check_ledger(settings)] == [Mistake.LEDGER_NO_RIGHTS]
    postgres.run(f"CREATE SCHEMA IF NOT EXISTS {settings.in_schema} AUTHORIZATION {ROLE}")
    assert await check_ledger(settings) == []
    await (await led(settings)).step_down()


async def test_tables_of_another_role_are_told_as_missing_rights(postgres: PostgresServer) -> None:
    settings = settings_for(postgres)
    await (await led(settings)).step_down()
    postgres.run(f"REVOKE ALL ON SCHEMA {settings.in_schema} FROM {ROLE}; ALTER SCHEMA {settings.in_schema} OWNER TO admin")
    assert f"AUTHORIZATION {ROLE}" in await said_to(settings)
    assert [finding.mistake for finding in await check_ledger(settings)] == [Mistake.LEDGER_NO_RIGHTS]
    postgres.run(
        f"GRANT USAGE ON SCHEMA {settings.in_schema} TO {ROLE}; ALTER TABLE {settings.in_schema}.leases OWNER TO admin",
    )
    (finding,) = await check_ledger(settings)
    assert "it may not read and write leases" in finding.what


async def test_what_keeps_us_out_is_told_with_what_to_do(postgres: PostgresServer, tmp_path: Path) -> None:
    wrong = secret_file(tmp_path, "not-the-password")
    nobody = f"postgresql://{ROLE}@127.0.0.1:{free_port()}/tailkeeper"
    refused = Mistake.LEDGER_REFUSED
    cases: list[tuple[dict[str, Any], Mistake, str, str]] = [
        ({"password_file": wrong}, refused, f'password authentication failed for user "{ROLE}"', "password_file"),
        ({"password_file": None}, refused, "no password supplied", "password_file"),
        ({"url": f"{postgres.url}nowhere"}, refused, 'database "tailkeepernowhere" does not exist', "check user and database"),
        ({"url": nobody}, Mistake.LEDGER_UNREACHABLE, "Connection refused", "is it running"),
        ({"sslmode": "require"}, Mistake.LEDGER_TLS, "server does not support SSL", "sslmode"),
        ({"password_file": tmp_path / "gone"}, refused, "cannot be read: No such file or directory", "password_file"),
    ]
    for given, mistake, what, do in cases:
        settings = settings_for(postgres, **given)
        (finding,) = await check_ledger(settings)
        assert finding.mistake is mistake
        for said in (await said_to(settings), f"{finding.what}; {finding.do}"):
            assert what in said, said
            assert do in said, said
            assert "not-the-password" not in said


async def test_a_ledger_of_a_newer_version_is_left_alone(postgres: PostgresServer) -> None:
    settings = settings_for(postgres)
    await (await led(settings)).step_down()
    postgres.run(f"UPDATE {settings.in_schema}.meta SET value = '99' WHERE key = 'schema_version'")
    said = await said_to(settings)
    assert "made by a newer version (schema 99, known 3)" in said
    assert "upgrade this program" in said
    assert [finding.mistake for finding in await check_ledger(settings)] == [Mistake.LEDGER_NEWER]


async def test_a_server_that_has_no_tables_yet_is_well_and_doctor_makes_none(postgres: PostgresServer) -> None:
    settings = settings_for(postgres)
    assert await check_ledger(settings) == []
    assert postgres.run(f"SELECT to_regnamespace('{settings.in_schema}')") == [(None,)]


async def test_a_server_is_reached_by_its_socket_too(postgres: PostgresServer) -> None:
    await (await led(settings_for(postgres, url=postgres.socket_url))).step_down()


async def test_a_password_that_is_changed_while_it_runs_is_read_anew(postgres: PostgresServer, tmp_path: Path) -> None:
    secret = secret_file(tmp_path, PASSWORD)
    settings = settings_for(postgres, password_file=secret)
    leadership = await led(settings)
    try:
        postgres.run(f"ALTER ROLE {ROLE} PASSWORD 'the-next-one'")
        secret.write_text("the-next-one\n")
        postgres.run(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '{ROLE}'")
        assert await until_it_leads(leadership)
        await leadership.settle()
    finally:
        postgres.run(f"ALTER ROLE {ROLE} PASSWORD '{PASSWORD}'")
    await leadership.step_down()


async def test_the_servers_certificate_is_verified_to_the_name(postgres: PostgresServer, tmp_path: Path) -> None:
    made = certificates(tmp_path / "tls")
    postgres.stop()
    postgres.start_with_tls(made.server.cert, made.server.key)
    try:
        await (await led(settings_for(postgres, sslmode="verify-full", ca_file=made.ours.file))).step_down()
        said = await said_to(settings_for(postgres, sslmode="verify-full", ca_file=made.foreign.file))
        assert "certificate verify failed" in said
        assert "check watchdog.ledger.sslmode and ca_file" in said
        postgres.stop()
        postgres.start_with_tls(made.misnamed_server.cert, made.misnamed_server.key)
        said = await said_to(settings_for(postgres, sslmode="verify-full", ca_file=made.ours.file))
        assert 'server certificate for "other.example"' in said
        assert 'does not match host name "127.0.0.1"' in said
    finally:
        postgres.stop()
        postgres.start()


async def test_a_replica_that_takes_the_primarys_place_gets_what_it_had_not_been_told() -> None:
    """A real failover: the primary is killed with writes that never reached the replica, and the replica is promoted."""
    with postgres_server() as primary, postgres_server(primary) as replica:
        both = f"postgresql://{ROLE}@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/tailkeeper"
        settings = settings_for(primary, url=both)
        leadership = await led(settings)
        note_a_line(leadership.ledger, "on both")
        await leadership.settle()
        wait_until(lambda: reasons(replica, settings) == ["on both"], "the replica has it")
        replica.kill()
        note_a_line(leadership.ledger, "on the primary alone")
        leadership.ledger.intend("b", B, Knob.ADMISSION, "p", SERVE, DRAIN, "hung", 10.0, 310.0)
        await leadership.settle()
        primary.kill()
        replica.start()
        said = await PostgresLeadership(settings, "other").try_lead()
        assert said is not None
        assert "session is read-only" in said or "hot standby" in said
        note_a_line(leadership.ledger, "meanwhile")
        replica.promote()
        assert await until_it_leads(leadership, 500)
        await leadership.settle()
        assert reasons(replica, settings) == ["on both", "on the primary alone", "meanwhile"]
        assert reasons(replica, settings, "leases") == ["hung"]
        await leadership.step_down()
