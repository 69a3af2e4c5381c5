"""``--auth KEY=FILE``: what `auth` is in the configuration, for a Prometheus that a command line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper.auth_options import auth_in, files_of
from tailkeeper_exporter.settings import Auth

URL = "https://prometheus.example"
SECRET = "s3cret"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text(f"{SECRET}\n")
    Path("pair").write_text(f"me:{SECRET}\n")
    Path("phrase").write_text(f"{SECRET} {SECRET}\n")
    Path("tenant").write_text("X-Scope-OrgID: a\n")


def test_nothing_given_is_no_credentials() -> None:
    assert auth_in((), URL) == auth_in((), None) == Auth()


def test_files_are_named_wherever_the_configuration_will_be_read(tmp_path: Path) -> None:
    auth = auth_in(("bearer_file=token", "headers_file=tenant"), URL)
    assert files_of(auth) == {"bearer_file": str(tmp_path / "token"), "headers_file": str(tmp_path / "tenant")}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([SECRET], "--auth: give KEY=FILE, with KEY one of bearer_file, basic_file"),
        ([f"token={SECRET}"], "--auth: give KEY=FILE"),
        (["bearer_file="], "--auth: give KEY=FILE"),
        (["bearer_file=token", "bearer_file=token"], "bearer_file is there twice"),
        (["bearer_file=token", "basic_file=pair"], "--auth: bearer_file and basic_file are both for the header"),
        (["key_file=token"], "--auth: key_file needs cert_file"),
        (["bearer_file=nowhere"], "--auth bearer_file: "),
        (["bearer_file=phrase"], "one word of printable ASCII; letters, digits and -._~+/= are right everywhere (RFC 6750)"),
        (["basic_file=token"], "must hold user:password on one line"),
        (["ca_file=token"], "--auth ca_file: "),
    ],
)
def test_what_cannot_be_used_is_told_by_the_option_and_without_what_may_be_a_secret(given: list[str], said: str) -> None:
    with pytest.raises(ValueError, match="--auth") as told:
        auth_in(given, URL)
    assert said in str(told.value)
    assert SECRET not in str(told.value)


def test_credentials_for_nobody_are_refused() -> None:
    with pytest.raises(ValueError, match="--auth belongs to --prometheus URL"):
        auth_in(["bearer_file=token"], None)
