"""One HTTP API that speaks JSON: calls with credentials, bounded answers and failures sorted, for the actuators that need it.

Knows no gateway. Redirects are not followed and proxies of the environment are not used: a gateway must not be able to send
our credential elsewhere. It has no deadline of its own: whoever calls has one over the whole of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind

CALLS_AT_ONCE = 8
"""Connections to one API: enough to read many servers side by side, no burden to anybody."""
IDLE_CONNECTION_S = 2.0
"""Shorter than the 5 s after which common servers close an idle connection, so none is reused while it is being closed."""
WORDS_LIMIT_BYTES = 1_000
"""Of an answer that is looked at for a sentence to quote."""

_STATUS: Mapping[int, tuple[ErrorKind, str]] = {
    401: (ErrorKind.UNAUTHORIZED, "the credential was not accepted; check `auth` of this gateway"),
    403: (ErrorKind.UNAUTHORIZED, "the credential may not do this; check its rights at the gateway"),
    404: (ErrorKind.REFUSED, "there is no such page; check `url` of this gateway and its version"),
    429: (ErrorKind.UNREACHABLE, "the gateway is too busy and took nothing"),
}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer. Header names are in small letters."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def checked(self) -> HttpAnswer:
        """Itself where it is 2xx. Raises CallError with the first words of a refusal."""
        if 200 <= self.status < 300:
            return self
        if 300 <= self.status < 400:
            message = f"{self.status}: redirects are not followed; write the final address into `url`"
            raise CallError(ErrorKind.REFUSED, message)
        refused = 400 <= self.status < 500
        otherwise = (ErrorKind.REFUSED, "the gateway refused") if refused else (ErrorKind.PROTOCOL, "the gateway failed")
        kind, meaning = _STATUS.get(self.status, otherwise)
        # A credential check may quote what it was given, so its words are not repeated.
        words = "" if kind is ErrorKind.UNAUTHORIZED else self.words()
        raise CallError(kind, f"{self.status}: {meaning}" + (f": {words}" if words else ""))

    def words(self) -> str:
        return excerpt(self.body[:WORDS_LIMIT_BYTES].decode("utf-8", errors="replace"))

    def json(self) -> Any:
        """Raises CallError(PROTOCOL)."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise CallError(ErrorKind.PROTOCOL, f"the answer is not JSON: {self.words()}") from None


class JsonHttp:
    """The API at ``url``. Certificates are read when its client is made, tokens at each call."""

    def __init__(self, url: str, auth: Auth, limit_bytes: int) -> None:
        self._url = url.rstrip("/")
        self._auth = auth
        self._limit_bytes = limit_bytes
        self._client: httpx.AsyncClient | None = None

    async def call(self, method: str, path: str, document: object = None) -> HttpAnswer:
        """``path`` is already encoded. ``document`` goes as JSON; bytes go as they are. Raises CallError, not for a status."""
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        headers |= await asyncio.to_thread(http_auth.headers, self._auth)
        content = document if document is None or isinstance(document, bytes) else json.dumps(document).encode("ascii")
        if content is not None:
            headers["content-type"] = "application/json"
        client = await self._opened()
        try:
            async with client.stream(method, self._url + path, headers=headers, content=content) as response:
                return HttpAnswer(response.status_code, await self._whole(response), dict(response.headers))
        except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise CallError(ErrorKind.UNREACHABLE, f"cannot connect: {excerpt(str(error))}") from error
        except httpx.HTTPError as error:
            # Its text may quote a header, so only its type is told.
            raise CallError(ErrorKind.PROTOCOL, f"the connection broke before the answer ({type(error).__name__})") from None

    async def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            tls = await asyncio.to_thread(http_auth.tls_context, self._auth) if self._url.startswith("https:") else False
            limits = httpx.Limits(max_connections=CALLS_AT_ONCE, keepalive_expiry=IDLE_CONNECTION_S)
            # ``verify`` is False for plain http only, where there is nothing to verify and building a context costs 20 ms.
            self._client = httpx.AsyncClient(verify=tls, trust_env=False, timeout=None, limits=limits, follow_redirects=False)  # noqa: S113
        return self._client

    async def _whole(self, response: httpx.Response) -> bytes:
        """Raw as it came: we asked for no compression, and what is compressed all the same is never unpacked."""
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._limit_bytes:
                raise CallError(ErrorKind.PROTOCOL, f"the answer is longer than {self._limit_bytes} bytes")
        return bytes(body)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
