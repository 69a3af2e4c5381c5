"""HTTP to one gateway: bounded answers, the credential as its file holds it now, and no deadline but the caller's.

Knows no gateway's words. Redirects are not followed and proxies of the environment are not used: a gateway must not be able to
send our credential elsewhere. Compression is not asked for, and what is compressed all the same is never unpacked. Every
failure is a ``CallError``; none of them quotes a credential.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from tailkeeper_exporter import long_json, strict_json
from tailkeeper_exporter.fetch import EXCHANGE_ERRORS
from tailkeeper_exporter.hiding import hidden_of
from tailkeeper_exporter.settings import Auth
from tailkeeper_exporter.tls import BROKEN, TlsCode, tls_trouble
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind

CALLS_AT_ONCE = 8
"""In flight during one read of many servers: no burden for a gateway, and a thousand of them at 5 ms each take 0.6 s."""
IDLE_CONNECTION_S = 2.0
"""Shorter than the 5 s after which common servers close an idle connection, so none is reused while it is being closed."""
NAME_LIMIT_CHARS = 512

T = TypeVar("T")
Meaning = tuple[ErrorKind, str]
_STATUS: Mapping[int, Meaning] = {
    401: (ErrorKind.UNAUTHORIZED, "the credential is not accepted; check `auth` of this gateway"),
    403: (ErrorKind.UNAUTHORIZED, "the credential may not do this; check its rights at the gateway"),
    404: (ErrorKind.NOT_FOUND, "it is not known there"),
    429: (ErrorKind.UNREACHABLE, "the gateway is too busy and took nothing"),
    504: (ErrorKind.TIMEOUT, "whoever does it did not answer in time, and may do it yet"),
}
OF_PAGES: Mapping[int, Meaning] = {
    404: (ErrorKind.REFUSED, "there is no such page; check the address of this gateway and its version")
}
"""Where a path names a page of the gateway, and no server of it."""

_DOCUMENT = (b"{", b"[")
"""How JSON begins that is worked with."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in small letters."""
    meanings: Mapping[int, Meaning] = field(default_factory=dict)
    """What a status means there, where it is not what it means anywhere."""

    def checked(self) -> Answer:
        """Itself where it is 2xx. Raises CallError."""
        if not self.ok:
            raise self.error()
        return self

    def json(self) -> Any:
        """Raises CallError(PROTOCOL)."""
        try:
            return strict_json.loads(self.body)
        except ValueError as error:
            raise CallError(ErrorKind.PROTOCOL, f"the answer is not JSON ({excerpt(str(error))}): {self.words()}") from None

    async def parsed(self, parse: Callable[[Any], T]) -> T:
        """What ``parse`` makes of its JSON; beside the loop where it is long. Raises CallError, and what ``parse`` does."""
        return await long_json.parsed(self.body, lambda _: parse(self.json()))

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def error(self) -> CallError:
        """What an answer that is not 2xx means, with its first words."""
        if 300 <= self.status < 400:
            words = f"{self.status}: redirects are not followed; write the final address into `url`"
            return CallError(ErrorKind.REFUSED, words)
        refused = 400 <= self.status < 500
        otherwise = (ErrorKind.REFUSED, "the gateway refused") if refused else (ErrorKind.PROTOCOL, "the gateway failed")
        kind, meaning = self.meanings.get(self.status) or _STATUS.get(self.status, otherwise)
        # A credential check may quote what it was given, so its words are not repeated.
        said = "" if kind is ErrorKind.UNAUTHORIZED else self.words()
        return CallError(kind, f"{self.status}: {meaning}" + (f": {said}" if said else ""))

    def words(self) -> str:
        return excerpt(self.body[:1_000].decode("utf-8", errors="replace"))

    def document(self) -> dict[str, Any]:
        """The JSON object of a 2xx answer. Raises CallError: of the status, or PROTOCOL."""
        document = self.checked().json()
        if not isinstance(document, dict):
            raise CallError(ErrorKind.PROTOCOL, f"the answer must be a JSON object, not {type(document).__name__}")
        return document


def segment(name: str) -> str:
    """``name`` as one segment of a path. Raises CallError(NOT_FOUND) for what cannot be one."""
    if name in ("", ".", "..") or len(name) > NAME_LIMIT_CHARS:
        raise CallError(ErrorKind.NOT_FOUND, f"a server name has 1 to {NAME_LIMIT_CHARS} characters and is neither `.` nor `..`")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise CallError(ErrorKind.NOT_FOUND, "the server name is not valid Unicode") from None


class HttpCalls:
    """Calls with one credential. Opens connections only when called; certificates are read when the first is opened, and again
    where they changed."""

    def __init__(
        self,
        auth: Auth,
        answer_limit_bytes: int,
        at_once: int = CALLS_AT_ONCE,
        meanings: Mapping[int, Meaning] | None = None,
    ) -> None:
        self._auth = auth
        self._at_once = at_once
        self._meanings = meanings or {}
        self._limit = answer_limit_bytes
        self._client: httpx.AsyncClient | None = None

    async def call(self, method: str, url: str, document: object = None, limit_bytes: int | None = None) -> Answer:
        """The whole answer, whatever its status. ``document`` is sent as JSON; bytes go as they are. Raises CallError.

        ``limit_bytes`` is for this answer, where it may be longer than others.
        """
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        headers |= {"content-type": "application/json"} if document is not None else {}
        headers |= await asyncio.to_thread(http_auth.headers, self._auth)
        content = document if document is None or isinstance(document, bytes) else json.dumps(document).encode("ascii")
        client = await self._opened(url)
        try:
            async with client.stream(method, url, headers=headers, content=content) as response:
                body = await _whole(response, self._limit if limit_bytes is None else limit_bytes)
                if response.status_code >= 300 or body.lstrip()[:1] not in _DOCUMENT:  # words, which may repeat our credential
                    body = hidden_of(body, headers)
                return Answer(response.status_code, body, dict(response.headers), self._meanings)
        except (UnicodeError, *EXCHANGE_ERRORS) as error:
            raise _failure(error, url) from error

    async def _opened(self, url: str) -> httpx.AsyncClient:
        if self._client is None:
            # Where nothing is encrypted there is nothing to verify, and building a context costs 20 ms.
            tls = await asyncio.to_thread(http_auth.tls_context, self._auth) if url.startswith("https:") else False
            limits = httpx.Limits(max_connections=self._at_once, keepalive_expiry=IDLE_CONNECTION_S)
            none = httpx.Timeout(None)  # a call's deadline is for the whole of it
            if self._client is None:  # of calls that begin at once the first makes it: another one would be closed by nobody
                self._client = httpx.AsyncClient(verify=tls, trust_env=False, timeout=none, limits=limits, follow_redirects=False)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _failure(error: Exception, url: str) -> CallError:
    """What went wrong on the way, in words. An OSError is what TLS gives where the server ends it only after the handshake."""
    trouble = tls_trouble(error)
    if trouble is not None:
        ours = trouble.code in (TlsCode.CERTIFICATE_WANTED, TlsCode.CERTIFICATE_REFUSED)
        return CallError(ErrorKind.UNAUTHORIZED if ours else ErrorKind.UNREACHABLE, f"TLS: {trouble.sentence}")
    if isinstance(error, (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError)):
        # A UnicodeError is what a host name gives that is no name by IDNA, such as `xn--a`.
        return CallError(ErrorKind.UNREACHABLE, f"cannot connect: {excerpt(str(error))}")
    # Its text may quote a header, so only its type is told.
    maybe = f"; over TLS: {BROKEN.sentence}" if url.startswith("https:") else ""
    return CallError(ErrorKind.PROTOCOL, f"the connection broke before the answer ({type(error).__name__}){maybe}")


async def _whole(response: httpx.Response, limit_bytes: int) -> bytes:
    """Raw as it came: what is compressed although nobody asked is never unpacked into gigabytes."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit_bytes:
            raise CallError(ErrorKind.PROTOCOL, f"the answer is longer than {limit_bytes} bytes")
    return bytes(body)


class JsonHttp:
    """The API at one address: paths instead of URLs."""

    def __init__(self, url: str, auth: Auth, answer_limit_bytes: int) -> None:
        self._url = url.rstrip("/")
        self._calls = HttpCalls(auth, answer_limit_bytes, meanings=OF_PAGES)

    async def call(self, method: str, path: str, document: object = None) -> Answer:
        """``path`` is encoded already. See ``HttpCalls.call``."""
        return await self._calls.call(method, self._url + path, document)

    async def json(self, path: str) -> Any:
        """What stands at ``path``; a long answer is read beside the loop. Raises CallError."""
        return await (await self.call("GET", path)).checked().parsed(lambda document: document)

    async def close(self) -> None:
        await self._calls.close()
