"""Credentials from files: what becomes of them in a request, and that no message ever repeats one."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind

SECRET = "s3cr3t-value"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_each_kind_of_file_becomes_its_header(tmp_path: Path) -> None:
    bearer = write(tmp_path / "bearer", b"abc.def\n")
    basic = write(tmp_path / "basic", b"me:pass word\r\n")
    extra = write(tmp_path / "headers", b"# tenant\n\nX-Scope-OrgID: team a\nAuthorization: other\n")

    assert http_auth.headers(Auth()) == {}
    assert http_auth.headers(Auth(bearer_file=bearer)) == {"authorization": "Bearer abc.def"}
    encoded = base64.b64encode(b"me:pass word").decode()
    assert http_auth.headers(Auth(basic_file=basic)) == {"authorization": f"Basic {encoded}"}
    both = http_auth.headers(Auth(bearer_file=bearer, headers_file=extra))
    assert both == {"x-scope-orgid": "team a", "authorization": "Bearer abc.def"}


def test_a_rotated_token_is_taken_up_at_the_next_call(tmp_path: Path) -> None:
    auth = Auth(bearer_file=write(tmp_path / "bearer", b"old"))
    http_auth.headers(auth)
    write(tmp_path / "bearer", b"new")
    assert http_auth.headers(auth)["authorization"] == "Bearer new"


BAD = [
    ("bearer_file", b""),
    ("bearer_file", f"{SECRET}\nsecond".encode()),
    ("bearer_file", f"{SECRET}\x00".encode()),
    ("bearer_file", f"{SECRET}é".encode()),
    ("bearer_file", SECRET.encode() * 10_000),
    ("basic_file", SECRET.encode()),
    ("headers_file", f"no colon {SECRET}".encode()),
    ("headers_file", f"Host: {SECRET}".encode()),
    ("headers_file", f"Content-Length: {SECRET}".encode()),
    ("headers_file", f"X-A: {SECRET}\x01b".encode()),
    ("headers_file", f"X A: {SECRET}".encode()),
]


@pytest.mark.parametrize(("setting", "content"), BAD)
def test_a_bad_file_is_named_and_its_content_is_not(setting: str, content: bytes, tmp_path: Path) -> None:
    file = write(tmp_path / "file", content)
    with pytest.raises(CallError, match=setting) as caught:
        http_auth.headers(Auth.model_validate({setting: file}))
    assert caught.value.kind is ErrorKind.UNAUTHORIZED
    assert str(file) in caught.value.message
    assert SECRET not in caught.value.message


@pytest.mark.parametrize("file", ["/nowhere/token", "/", "a\x00b"])
def test_a_file_that_cannot_be_read_is_a_wrong_credential(file: str) -> None:
    for setting in ("bearer_file", "basic_file", "headers_file"):
        with pytest.raises(CallError, match="cannot be read") as caught:
            http_auth.headers(Auth.model_validate({setting: file}))
        assert caught.value.kind is ErrorKind.UNAUTHORIZED
    for setting in ("ca_file", "cert_file"):
        with pytest.raises(CallError, match="cannot be used") as caught:
            http_auth.tls_context(Auth.model_validate({setting: file}))
        assert caught.value.kind is ErrorKind.UNAUTHORIZED


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_gives_headers_that_http_can_carry_or_a_call_error(tmp_path: Path, content: bytes) -> None:
    file = write(tmp_path / "file", content)
    for setting in ("bearer_file", "basic_file", "headers_file"):
        try:
            found = http_auth.headers(Auth.model_validate({setting: file}))
        except CallError:
            continue
        for name, value in found.items():
            assert (name + value).isascii()
            assert (name + value).isprintable()
