"""`watchdog.ledger`: what may stand there, and that no password ever does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailkeeper.config import ConfigError, credential_places, effective, parse
from tailkeeper.credential_checks import warnings
from tailkeeper.sharding import sharded
from tailkeeper_watchdog.settings import LedgerSettings
from tailkeeper_watchdog.shard import Shard

CA = Path("/etc/ca.pem")


@pytest.mark.parametrize(
    ("url", "sslmode"),
    [
        ("postgresql://tailkeeper@db.example/tailkeeper", "verify-full"),
        ("postgresql://tailkeeper@127.0.0.1:5432/tailkeeper", "prefer"),
        ("postgresql://tailkeeper@localhost/tailkeeper", "prefer"),
        ("postgresql://tailkeeper@[::1]:5432/tailkeeper", "prefer"),
        ("postgresql:///tailkeeper?host=/run/postgresql", "prefer"),
        ("postgres://tailkeeper@/tailkeeper?host=%2Frun%2Fpostgresql&port=5433", "prefer"),
        ("postgresql://tailkeeper@127.0.0.1,db.example/tailkeeper", "verify-full"),
        ("postgresql:///tailkeeper?host=/run/postgresql,db.example", "verify-full"),
    ],
)
def test_a_server_on_another_machine_is_verified_unless_it_is_said_otherwise(url: str, sslmode: str) -> None:
    assert LedgerSettings(url=url, ca_file=CA).tls == sslmode
    assert LedgerSettings(url=url, sslmode="require").tls == "require"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "postgresql://tailkeeper:s3cret@db/tailkeeper"}, "must carry no password"),
        ({"url": "postgresql://db/tailkeeper?password=s3cret"}, "must carry no password"),
        ({"url": "postgresql://db/tailkeeper?sslpassword=s3cret"}, "must carry no password"),
        ({"url": "postgresql://db/tailkeeper?options=-csearch_path%3Dother"}, "no other option"),
        ({"url": "postgresql://db/tailkeeper?other"}, "must be a URL such as postgresql://"),
        ({"url": "mysql://s3cret@db/tailkeeper"}, "must be a URL such as postgresql://"),
        ({"url": "./ledger.db"}, "must be a URL such as postgresql://"),
        ({"url": "postgresql://db/x"}, "ca_file is missing: with sslmode verify-full"),
        ({"url": "postgresql://127.0.0.1/x", "sslmode": "verify-ca"}, "ca_file is missing: with sslmode verify-ca"),
        ({"url": "postgresql://127.0.0.1/x", "key_file": "/k"}, "key_file needs cert_file"),
        ({"url": "postgresql://127.0.0.1/x", "in_schema": 'a"; DROP'}, "in_schema"),
        ({"url": "postgresql://127.0.0.1/x", "lease_s": 5}, "greater than or equal to 10"),
    ],
)
def test_what_cannot_be_is_refused_and_no_secret_is_repeated(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LedgerSettings(**given)
    assert said in str(caught.value)
    with pytest.raises(ConfigError) as told:
        parse({"watchdog": {"ledger": given}})
    assert "watchdog.ledger" in str(told.value)
    assert "s3cret" not in str(told.value)


def test_a_text_is_the_url_alone() -> None:
    config = parse({"watchdog": {"ledger": "postgresql://tailkeeper@127.0.0.1/tailkeeper"}})
    assert config.watchdog.ledger == LedgerSettings(url="postgresql://tailkeeper@127.0.0.1/tailkeeper")
    assert "in_schema: tailkeeper" in effective(config)


def test_a_lease_of_kubernetes_beside_it_is_refused() -> None:
    both = {"ledger": "postgresql://127.0.0.1/tailkeeper", "leader": {"namespace": "llm"}}
    with pytest.raises(ConfigError, match="leader and ledger exclude each other"):
        parse({"watchdog": both})


def test_files_that_are_not_there_are_told_at_the_start(tmp_path: Path) -> None:
    from tailkeeper.config import load

    file = tmp_path / "t.yaml"
    file.write_text(
        f"watchdog:\n  state: {tmp_path}/t.db\n"
        f"  ledger: {{url: postgresql://127.0.0.1/x, password_file: {tmp_path}/gone, ca_file: {tmp_path}/none}}\n"
    )
    with pytest.raises(ConfigError) as told:
        load(file)
    assert f"watchdog.ledger.password_file: {tmp_path}/gone cannot be read: No such file" in str(told.value)
    assert "watchdog.ledger.ca_file" in str(told.value)


def test_each_shard_has_a_schema_of_its_own_and_knows_that_of_all() -> None:
    config = parse({"watchdog": {"ledger": "postgresql://127.0.0.1/tailkeeper"}})
    part = sharded(config, Shard(2, 3))
    assert part.config.watchdog.ledger is not None
    assert part.whole_ledger is not None
    assert (part.config.watchdog.ledger.in_schema, part.whole_ledger.in_schema) == ("tailkeeper_2", "tailkeeper")


def test_a_password_file_that_all_users_can_read_is_warned_of(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    config = parse({"watchdog": {"ledger": {"url": "postgresql://127.0.0.1/x", "password_file": str(secret)}}})
    (warning,) = warnings(credential_places(config))
    assert warning.startswith(f"watchdog.ledger.password_file: {secret} can be read by every user of this machine")
    secret.chmod(0o600)
    assert list(warnings(credential_places(config))) == []
