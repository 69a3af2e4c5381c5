"""TLS: a failure in words whoever wrapped it, files that are followed, and a silent server that is no TLS trouble."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from tailkeeper_exporter.clients import Clients
from tailkeeper_exporter.credentials import CredentialError
from tailkeeper_exporter.evidence import GONE, Answer
from tailkeeper_exporter.fetch import FetchError, Progress, fetch, translated
from tailkeeper_exporter.page import Reason
from tailkeeper_exporter.page_reader import health_answer, page_answer
from tailkeeper_exporter.probe import _outcome_of
from tailkeeper_exporter.probe_answer import Outcome, answer_of
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tls import TlsCode, causes, tls_context, tls_trouble
from tailkeeper_watchdog.collect.words import reasons_of
from tests.unit.loopback import serving, silence

TLS = Path(__file__).parents[1] / "fixtures" / "tls"
CERT, KEY = TLS / "localhost.pem", TLS / "localhost.key"


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] words")
    error.reason = reason
    return error


def of_certificate(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "words")
    error.verify_code, error.verify_message = code, "OpenSSL's words."
    return error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (of_certificate(10), TlsCode.EXPIRED, "its certificate has expired; renew it there"),
        (of_certificate(9), TlsCode.NOT_YET, "is a clock wrong"),
        (of_certificate(18), TlsCode.UNTRUSTED, "put that authority into auth.ca_file (OpenSSL's words)"),
        (of_certificate(20), TlsCode.UNTRUSTED, "put that authority into auth.ca_file (OpenSSL's words)"),
        (of_certificate(62), TlsCode.WRONG_NAME, "is for another name"),
        (of_certificate(64), TlsCode.WRONG_NAME, "is for another name"),
        (of_certificate(23), TlsCode.OTHER, "TLS failed (OpenSSL's words)"),
        (
            ssl_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            TlsCode.CERTIFICATE_WANTED,
            "name one in auth.cert_file and auth.key_file",
        ),
        (ssl_error("SSLV3_ALERT_HANDSHAKE_FAILURE"), TlsCode.CERTIFICATE_WANTED, "or no common cipher"),
        (ssl_error("TLSV1_ALERT_UNKNOWN_CA"), TlsCode.CERTIFICATE_REFUSED, "of an authority that it does not trust"),
        (ssl_error("SSLV3_ALERT_CERTIFICATE_EXPIRED"), TlsCode.CERTIFICATE_REFUSED, "it has expired; renew it"),
        (ssl_error("WRONG_VERSION_NUMBER"), TlsCode.PLAIN, "is it http://"),
        (ssl_error("NO_CIPHERS_AVAILABLE"), TlsCode.OTHER, "TLS failed (no ciphers available)"),
    ],
)
def test_each_failure_is_said_with_what_to_do(error: ssl.SSLError, code: TlsCode, words: str) -> None:
    trouble = tls_trouble(error)
    assert trouble is not None
    assert trouble.code is code
    assert words in trouble.sentence


@pytest.mark.parametrize(
    "error",
    [ssl.SSLEOFError(8, "eof"), ssl.SSLWantReadError(2, "want"), ssl.SSLZeroReturnError(6, "closed"), OSError(111, "refused")],
)
def test_silence_and_a_closed_connection_are_no_trouble_of_tls(error: OSError) -> None:
    assert tls_trouble(error) is None


def test_a_failure_is_found_in_causes_contexts_groups_and_arguments() -> None:
    inner = of_certificate(10)
    wrapped = [RuntimeError("outer", inner), ExceptionGroup("all", [ValueError(), inner]), RuntimeError("chained")]
    wrapped[2].__cause__ = ValueError("between")
    wrapped[2].__cause__.__context__ = inner
    for error in wrapped:
        trouble = tls_trouble(error)
        assert trouble is not None
        assert trouble.code is TlsCode.EXPIRED


def test_an_error_that_leads_back_to_itself_ends() -> None:
    error, other = RuntimeError("a"), RuntimeError("b")
    error.__cause__, other.__cause__, error.args = other, error, (other, error)
    assert list(causes(error)) == [error, other]


def test_a_tls_failure_never_takes_an_engine_for_gone() -> None:
    error = FetchError(Reason.TLS, "words", accepted=True, tls=TlsCode.BROKEN)
    assert page_answer(error) not in GONE
    assert health_answer(error) not in GONE
    outcome = _outcome_of(error)
    assert outcome is Outcome.TLS
    assert answer_of(outcome, late=False, accepted=True, status=None) not in GONE
    assert error.code == "tls_broken"


def test_the_watchdog_says_which_certificate_it_is() -> None:
    row = {"reasons": ["probe_denied"], "checks": {"engine": {"status": "unknown", "reason": "tls_expired"}}}
    assert reasons_of(row) == ("TLS to the engine fails: its certificate has expired; renew it there",)
    assert reasons_of({"reasons": ["probe_denied"], "checks": {"engine": {"reason": ["tls_expired"]}}})[0].startswith(
        "our probe is"
    )


# Files that are followed


def copied(folder: Path, name: str, source: Path) -> Path:
    """In the place of the file that may be there, as a rotation does it."""
    (folder / f"{name}.new").write_bytes(source.read_bytes())
    return (folder / f"{name}.new").replace(folder / name)


def test_files_that_did_not_change_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = tls_context(Auth(ca_file=copied(tmp_path, "ca", CERT)))
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: pytest.fail("read again"))
    for _ in range(3):
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")


def test_a_changed_file_is_read_for_the_next_connection_with_the_same_protocols(tmp_path: Path) -> None:
    warned: list[str] = []
    context = tls_context(Auth(ca_file=copied(tmp_path, "ca", CERT)), warn=warned.append)
    context.set_alpn_protocols(["http/1.1"])
    first = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost").context
    copied(tmp_path, "ca", CERT)
    second = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost").context
    assert first is not second
    assert second.cert_store_stats()["x509"] == 1
    assert not warned


@pytest.mark.parametrize("content", [None, b"", b"half a certific"])
def test_files_that_cannot_be_used_are_told_once_and_the_old_ones_stay(content: bytes | None, tmp_path: Path) -> None:
    warned: list[str] = []
    file = copied(tmp_path, "ca", CERT)
    context = tls_context(Auth(ca_file=file), "gateways.0.auth", warned.append)
    first = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost").context
    file.unlink() if content is None else file.write_bytes(content)
    for _ in range(3):
        again = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost").context
        assert again is first
    assert len(warned) == 1
    assert warned[0].startswith(f"gateways.0.auth.ca_file: {file} cannot be used")
    assert warned[0].endswith("going on with what was read before")


def test_a_key_that_is_of_another_certificate_or_encrypted_is_an_error_that_asks_nobody(tmp_path: Path) -> None:
    encrypted = tmp_path / "key"
    encrypted.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(CredentialError, match="a certificate and its own key are needed, in PEM and not encrypted"):
        tls_context(Auth(cert_file=CERT, key_file=encrypted))


# Servers


async def test_a_server_that_is_silent_in_the_handshake_is_a_timeout() -> None:
    async with serving(silence) as server:
        url = server.url.replace("http:", "https:")
        async with Clients().client_for((url,), Auth(ca_file=CERT), url) as client:
            with pytest.raises(FetchError) as caught:
                await fetch(client, url, {}, 0.3)
    assert (caught.value.reason, caught.value.detail) == (Reason.TIMEOUT, "no answer")
    assert page_answer(caught.value) is Answer.SILENT, "as of a stopped process without TLS: its kernel has accepted"


@pytest.mark.parametrize(
    ("progress", "reason"),
    [
        (Progress(accepted=True, secured=True), Reason.TLS),
        (Progress(accepted=True, secured=True, answered=True), Reason.CONNECTION),
        (Progress(accepted=True), Reason.CONNECTION),
        (Progress(secured=True), Reason.CONNECTION),
    ],
)
def test_a_connection_that_breaks_once_tls_is_agreed_hints_at_the_client_certificate(progress: Progress, reason: Reason) -> None:
    with pytest.raises(FetchError) as caught, translated(progress):
        raise httpx.ReadError("")
    error = caught.value
    assert error.reason is reason
    assert ("as where a client certificate is wanted or not taken" in str(error)) is (reason is Reason.TLS)
