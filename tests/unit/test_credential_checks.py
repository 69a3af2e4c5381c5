"""Credentials in a configuration: what cannot be used is refused with its key, what is unwise is told, and no secret is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import ConfigError, load, parse

TLS = Path(__file__).parents[1] / "fixtures" / "tls"
SECRET = "s3cret-value"
BACKEND = {"name": "a", "engine": "vllm", "url": "https://engine.example:8000"}


@pytest.fixture
def token(tmp_path: Path) -> str:
    return written(tmp_path / "token", SECRET)


def written(file: Path, content: str, mode: int = 0o600) -> str:
    file.write_text(content)
    file.chmod(mode)
    return str(file)


def checked(tmp_path: Path, document: dict[str, Any]) -> Any:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(document))
    return CliRunner().invoke(app, ["check-config", "-c", str(file)])


@pytest.mark.parametrize(
    ("where", "document"),
    [
        ("backends.0", lambda auth: {"backends": [{**BACKEND, "auth": auth}]}),
        ("watchdog.source", lambda auth: {"watchdog": {"source": {"kind": "prometheus", "url": "https://p", "auth": auth}}}),
        ("watchdog.alertmanager", lambda auth: {"watchdog": {"alertmanager": {"url": "https://a", "auth": auth}}}),
        ("gateways.0", lambda auth: {"gateways": [{"name": "g", "kind": "webhook", "url": "https://g", "auth": auth}]}),
        ("discovery.0", lambda auth: {"discovery": [{"kind": "prometheus", "url": "https://p", "auth": auth}]}),
        ("defaults", lambda auth: {"discovery": [{"kind": "dns", "name": "n", "port": 1}], "defaults": {"auth": auth}}),
    ],
)
def test_a_file_that_holds_no_credential_ends_with_exit_2_and_the_key(where: str, document: Any, tmp_path: Path) -> None:
    result = checked(tmp_path, document({"bearer_file": written(tmp_path / "empty", "\n")}))
    assert result.exit_code == 2
    assert f"{where}.auth.bearer_file: {tmp_path / 'empty'} is empty; write the credential into it" in result.output


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        ({"bearer_file": "token", "basic_file": "token"}, "bearer_file and basic_file are both for the header Authorization"),
        ({"cert_file": "token"}, "cert_file, backends.0.auth.key_file: "),
        ({"key_file": "token"}, "key_file needs cert_file"),
        ({"ca_file": "token"}, "ca_file: "),
        ({"basic_file": "token"}, "must hold user:password on one line"),
        ({"headers_file": "token"}, "line 1 is not `Name: value`"),
        ({"ca_file": "nowhere"}, "nowhere cannot be used: No such file or directory"),
        ({"bearer_file": "nowhere"}, "nowhere cannot be read: No such file or directory"),
    ],
)
def test_files_that_cannot_be_used_are_told_before_anything_starts(
    auth: dict[str, str], words: str, tmp_path: Path, token: str
) -> None:
    files = {name: str(tmp_path / file) for name, file in auth.items()}
    result = checked(tmp_path, {"backends": [{**BACKEND, "auth": files}]})
    assert result.exit_code == 2
    assert "backends.0.auth" in result.output
    assert words in result.output
    assert SECRET not in result.output


def test_a_key_for_the_engine_and_a_token_are_one_header_too_many(tmp_path: Path, token: str) -> None:
    result = checked(tmp_path, {"backends": [{**BACKEND, "api_key_file": token, "auth": {"bearer_file": token}}]})
    assert result.exit_code == 2
    assert "backends.0: api_key_file and auth are both for the header Authorization; leave one out" in result.output


def test_the_same_wrong_file_of_a_whole_fleet_is_one_complaint(tmp_path: Path) -> None:
    auth = {"bearer_file": written(tmp_path / "empty", "")}
    backends = [{**BACKEND, "name": f"b{n}", "auth": auth} for n in range(100)]
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({"backends": backends}))
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert len(caught.value.problems) == 1


def test_right_credentials_raise_no_warning(tmp_path: Path, token: str) -> None:
    auth = {"bearer_file": token, "ca_file": str(TLS / "localhost.pem")}
    result = checked(tmp_path, {"backends": [{**BACKEND, "auth": auth}]})
    assert result.exit_code == 0
    assert "warning" not in result.output


UNWISE = [
    ("https://engine.example", {"bearer_file": "open"}, "backends.0.auth.bearer_file: {0}/open can be read by every user"),
    ("http://engine.example", {"bearer_file": "token"}, "backends.0: credentials go to http://engine.example unencrypted"),
    ("http://engine.example", {"ca_file": "ca"}, "backends.0.auth.ca_file: has no effect on http://engine.example"),
    ("http://127.0.0.1:1", {"bearer_file": "token"}, None),
    ("https://engine.example", {"bearer_file": "token", "ca_file": "ca"}, None),
]


@pytest.mark.parametrize(("url", "auth", "words"), UNWISE)
def test_what_is_allowed_and_unwise_is_a_warning(
    url: str, auth: dict[str, str], words: str | None, tmp_path: Path, token: str
) -> None:
    written(tmp_path / "open", SECRET, 0o644)
    written(tmp_path / "ca", (TLS / "localhost.pem").read_text(), 0o644)
    files = {name: str(tmp_path / file) for name, file in auth.items()}
    result = checked(tmp_path, {"backends": [{**BACKEND, "url": url, "auth": files}]})
    assert result.exit_code == 0
    warnings = [line for line in result.output.splitlines() if "warning" in line]
    assert len(warnings) == (words is not None)
    assert words is None or words.format(tmp_path) in warnings[0]
    assert SECRET not in result.output


@pytest.mark.parametrize("section", ["exporter", "watchdog"])
def test_our_own_token_is_one_that_every_client_can_send_and_its_file_is_looked_at_too(section: str, tmp_path: Path) -> None:
    refused = checked(tmp_path, {section: {"token_file": written(tmp_path / "phrase", f"{SECRET} {SECRET}")}})
    assert refused.exit_code == 2
    assert f"{section}.token_file: {tmp_path / 'phrase'} must hold the token alone, one word" in refused.output
    taken = checked(tmp_path, {section: {"token_file": written(tmp_path / "open", SECRET, 0o644)}})
    assert taken.exit_code == 0
    assert f"warning: {section}.token_file: {tmp_path / 'open'} can be read by every user" in taken.output
    assert SECRET not in refused.output + taken.output


def test_a_set_credential_of_the_defaults_is_left_out_by_null(tmp_path: Path, token: str) -> None:
    defaults = {"auth": {"bearer_file": token}}
    backend = {**BACKEND, "auth": {"bearer_file": None, "basic_file": token}}
    assert parse({"defaults": defaults, "backends": [backend]}).backends[0].auth.bearer_file is None
