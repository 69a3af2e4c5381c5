"""TLS towards servers: a context that follows its files, and why a handshake failed in words. Exporter and watchdog share it.

Certificates are rotated by whoever issues them, so their files are looked at for each new connection and read again where
they changed; connections that are open go on. While new files cannot be used (half of them may be written) the old ones are.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tailkeeper_exporter.credentials import CredentialError
from tailkeeper_exporter.settings import Auth

MAX_CAUSES = 64
"""Of one error; the deepest seen has six."""
Warn = Callable[[str], None]
_Stamp = tuple[tuple[int, int, int] | None, ...]


def tls_context(auth: Auth, key: str = "auth", warn: Warn | None = None) -> ssl.SSLContext:
    """The system's authorities, or those of `ca_file` alone, and our certificate. Raises ``CredentialError`` with the files.

    ``warn`` takes a sentence where files were changed and cannot be used; by default it is logged.
    """
    if auth.ca_file is None and auth.cert_file is None:
        return ssl.create_default_context()
    return FollowedContext(auth, key, warn or _log)


def _log(sentence: str) -> None:
    import structlog  # the taps' process has its own way to the log, and should stay small

    structlog.get_logger("tailkeeper.tls").warning("certificates", error=sentence)


class FollowedContext(ssl.SSLContext):
    """A client's context that hands out what its files hold now. Safe to share between threads and connections.

    Clients wrap each connection by ``wrap_bio`` or ``wrap_socket``; those two are all that is asked of the context inside.
    """

    def __new__(cls, auth: Auth, key: str, warn: Warn) -> FollowedContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, auth: Auth, key: str, warn: Warn) -> None:
        self._auth, self._key, self._warn = auth, key, warn
        self._lock = threading.Lock()
        self._alpn: list[str] | None = None
        self._stamp = _stamp(auth)
        self._inside = _loaded(auth, key)

    @property
    def shows_certificate(self) -> bool:
        """Whether a server that wants a certificate gets ours."""
        return self._auth.cert_file is not None

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self._alpn = list(alpn_protocols)
        self._inside.set_alpn_protocols(self._alpn)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self._current().wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        return self._current().wrap_socket(*args, **kwargs)

    def _current(self) -> ssl.SSLContext:
        with self._lock:
            stamp = _stamp(self._auth)
            if stamp != self._stamp:
                self._stamp = stamp
                self._follow()
            return self._inside

    def _follow(self) -> None:
        try:
            fresh = _loaded(self._auth, self._key)
        except CredentialError as error:
            self._warn(f"{error}; going on with what was read before")
            return
        if self._alpn is not None:
            fresh.set_alpn_protocols(self._alpn)
        self._inside = fresh


def _files(auth: Auth) -> tuple[Path, ...]:
    return tuple(file for file in (auth.ca_file, auth.cert_file, auth.key_file) if file is not None)


def _stamp(auth: Auth) -> _Stamp:
    """Differs where a file was written or replaced; None for one that is not there."""
    return tuple(_stamp_of(file) for file in _files(auth))


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _loaded(auth: Auth, key: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=auth.ca_file)
    except (OSError, ValueError) as error:
        raise _unusable(f"{key}.ca_file: {auth.ca_file}", error, "it must hold certificates in PEM") from None
    if auth.cert_file is not None:
        try:
            # An encrypted key would make OpenSSL ask on the terminal; an empty password makes it fail instead.
            context.load_cert_chain(auth.cert_file, auth.key_file, password="")  # nosec B106
        except (OSError, ValueError) as error:
            files = " and ".join(str(file) for file in (auth.cert_file, auth.key_file) if file is not None)
            words = "a certificate and its own key are needed, in PEM and not encrypted"
            raise _unusable(f"{key}.cert_file, {key}.key_file: {files}", error, words) from None
    return context


def _unusable(what: str, error: Exception, needed: str) -> CredentialError:
    if isinstance(error, ssl.SSLError):
        why = f" ({error.reason.lower().replace('_', ' ')})" if error.reason else ""
        return CredentialError(f"{what} cannot be used{why}: {needed}")
    why = getattr(error, "strerror", None) or "not a valid path"
    return CredentialError(f"{what} cannot be used: {why}; see that the file is there and ours to read")


class TlsCode(StrEnum):
    """Why a handshake failed, in one word: bounded, for `/healthz` and logs."""

    EXPIRED = "tls_expired"
    NOT_YET = "tls_not_yet_valid"
    UNTRUSTED = "tls_untrusted"
    WRONG_NAME = "tls_wrong_name"
    CERTIFICATE_WANTED = "tls_certificate_wanted"
    CERTIFICATE_REFUSED = "tls_certificate_refused"
    PLAIN = "tls_not_spoken"
    BROKEN = "tls_broken"
    CUT_OFF = "tls_cut_off"
    OTHER = "tls_failed"

    @property
    def sentence(self) -> str:
        """What is wrong, and what to do."""
        return _SENTENCES[self]


_SENTENCES: dict[TlsCode, str] = {
    TlsCode.EXPIRED: "its certificate has expired; renew it there",
    TlsCode.NOT_YET: "its certificate is not valid yet; is a clock wrong, there or here?",
    TlsCode.UNTRUSTED: "its certificate is of no authority that is trusted here; put that authority into auth.ca_file",
    TlsCode.WRONG_NAME: "its certificate is for another name; write a name that it holds into the url, or have one made for it",
    TlsCode.CERTIFICATE_WANTED: "it wants a client certificate; name one in auth.cert_file and auth.key_file",
    TlsCode.CERTIFICATE_REFUSED: "it does not take the client certificate of auth.cert_file",
    TlsCode.PLAIN: "it does not speak TLS there; is it http://, or another port?",
    TlsCode.BROKEN: (
        "it breaks the connection once TLS is agreed, as where a client certificate is wanted or not taken; see auth.cert_file"
    ),
    TlsCode.CUT_OFF: (
        "it accepts the connection and ends it without a word of TLS or HTTP; nobody is behind it, or it wants a client "
        "certificate, to be named in auth.cert_file"
    ),
    TlsCode.OTHER: "TLS failed",
}
_VERIFY = {
    **dict.fromkeys((2, 18, 19, 20, 21, 79), TlsCode.UNTRUSTED),
    9: TlsCode.NOT_YET,
    10: TlsCode.EXPIRED,
    **dict.fromkeys((62, 64), TlsCode.WRONG_NAME),
}
"""OpenSSL's X509_V_ERR_… of the server's certificate. Source: openssl-verification-options(1) and x509_vfy.h of OpenSSL 3."""
_NOT_OF_TLS = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLZeroReturnError)
"""The other side is silent or has closed, which happens without TLS too."""
_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
_REFUSED = {
    "ALERT_UNKNOWN_CA": "of an authority that it does not trust",
    "ALERT_CERTIFICATE_EXPIRED": "it has expired; renew it",
    "ALERT_CERTIFICATE_REVOKED": "it is revoked",
    "ALERT_BAD_CERTIFICATE": "it is damaged, or not for clients",
    "ALERT_UNSUPPORTED_CERTIFICATE": "of a kind that it does not take",
    "ALERT_CERTIFICATE_UNKNOWN": "it says no more",
    "ALERT_DECRYPT_ERROR": "its key does not fit",
    "ALERT_ACCESS_DENIED": "its holder may not come in",
}
"""Alerts of the server about our certificate (RFC 8446, 6.2), by the end of OpenSSL's name for them."""


@dataclass(frozen=True, slots=True)
class TlsTrouble:
    """One failed handshake."""

    code: TlsCode
    sentence: str

    def at(self, key: str) -> str:
        """The sentence with the path in the configuration that its `auth` has there."""
        return self.sentence.replace(" auth.", f" {key}.")


BROKEN = TlsTrouble(TlsCode.BROKEN, TlsCode.BROKEN.sentence)
"""A fresh connection over TLS that ends before a word of an answer. In TLS 1.3 a server judges our certificate when we take the
handshake for done, and what it says of it is mostly lost with the request that we send meanwhile."""
CUT_OFF = TlsTrouble(TlsCode.CUT_OFF, TlsCode.CUT_OFF.sentence)
"""The same where we show no certificate and have listened before we sent, or in the handshake: a proxy that has no engine, or a
server that wants a certificate and does not say so, as Python's asyncio does not. Whether it ever let us in tells them apart."""


def tls_trouble(error: BaseException) -> TlsTrouble | None:
    """What of TLS made ``error``, through whatever clients wrapped around it; None where it was not TLS."""
    found = next(
        (cause for cause in causes(error) if isinstance(cause, ssl.SSLError) and not isinstance(cause, _NOT_OF_TLS)), None
    )
    if found is None:
        return None
    code, more = _judged(found)
    return TlsTrouble(code, f"{code.sentence} ({more})" if more else code.sentence)


def _judged(error: ssl.SSLError) -> tuple[TlsCode, str]:
    """The code, and in OpenSSL's words what it adds."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = _VERIFY.get(error.verify_code, TlsCode.OTHER)
        return code, "" if code in (TlsCode.EXPIRED, TlsCode.NOT_YET) else error.verify_message.rstrip(".")
    reason = error.reason or ""
    if reason.endswith(("ALERT_CERTIFICATE_REQUIRED", "ALERT_HANDSHAKE_FAILURE")):
        return TlsCode.CERTIFICATE_WANTED, "" if reason.endswith("REQUIRED") else "or no common cipher: handshake failure"
    refused = next((words for name, words in _REFUSED.items() if reason.endswith(name)), None)
    if refused is not None:
        return TlsCode.CERTIFICATE_REFUSED, refused
    return TlsCode.PLAIN if reason in _PLAIN else TlsCode.OTHER, reason.lower().replace("_", " ")


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, outermost first; the socket's own error lies up to five levels down.

    Some clients do not raise from it but put it into their own error's arguments.
    """
    waiting, seen = [error], {id(error)}
    while waiting and len(seen) < MAX_CAUSES:
        found = waiting.pop(0)
        yield found
        for inner in (*getattr(found, "exceptions", ()), found.__cause__ or found.__context__, *found.args):
            if isinstance(inner, BaseException) and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
