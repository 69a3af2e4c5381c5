"""GET of one bounded answer from a gateway's own API. Knows no gateway; raises ``CallError`` only.

Redirects are not followed and proxies of the environment are not used: a gateway must not be able to send our credential
elsewhere. The deadline is the caller's.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators import http_auth
from tailkeeper_watchdog.actuators.calls import CallError, excerpt
from tailkeeper_watchdog.actuators.contract import ErrorKind

IDLE_CONNECTION_S = 2.0
"""Shorter than the 5 s after which common servers close an idle connection, so none is reused while it is being closed."""


class HttpGet:
    """One client for one API, made at its first call and again after ``close``."""

    def __init__(self, url: str, auth: Auth) -> None:
        self._url = url
        self._auth = auth
        self._client: httpx.AsyncClient | None = None

    async def json(self, path: str, limit_bytes: int) -> Any:
        """What stands at ``path``, which begins with a slash. Raises CallError of the kinds of ``contract.py``."""
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        headers |= await asyncio.to_thread(http_auth.headers, self._auth)
        client = await self._opened()
        try:
            async with client.stream("GET", self._url + path, headers=headers) as response:
                body = await _whole_body(response, limit_bytes)
                _check_status(response.status_code, body)
        except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise CallError(ErrorKind.UNREACHABLE, f"cannot connect: {excerpt(str(error))}") from error
        except httpx.HTTPError as error:
            # Its text may quote a header, so only its type is told.
            raise CallError(ErrorKind.PROTOCOL, f"the connection broke before the answer ({type(error).__name__})") from None
        return await asyncio.to_thread(_parsed, body)

    async def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            tls = await asyncio.to_thread(http_auth.tls_context, self._auth) if self._url.startswith("https:") else False
            limits = httpx.Limits(max_connections=1, keepalive_expiry=IDLE_CONNECTION_S)
            # ``verify`` is False for plain http only, where there is nothing to verify; the only deadline is the caller's.
            self._client = httpx.AsyncClient(verify=tls, trust_env=False, timeout=None, limits=limits, follow_redirects=False)  # noqa: S113
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _check_status(status: int, body: bytes) -> None:
    if 200 <= status < 300:
        return
    if status in (401, 403):
        # A credential check may quote what it was given, so its words are not repeated.
        raise CallError(ErrorKind.UNAUTHORIZED, f"{status}: the credential was not accepted; check `auth` of this gateway")
    if 300 <= status < 400:
        raise CallError(
            ErrorKind.REFUSED, f"{status}: redirects are not followed; write the final address into the configuration"
        )
    words = excerpt(body[:1_000].decode("utf-8", errors="replace"))
    if status == 404:
        raise CallError(ErrorKind.NOT_FOUND, f"404: {words}")
    raise CallError(ErrorKind.PROTOCOL, f"{status}: {words}")


async def _whole_body(response: httpx.Response, limit_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit_bytes:
            raise CallError(ErrorKind.PROTOCOL, f"the answer is longer than {limit_bytes} bytes")
    return bytes(body)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise CallError(ErrorKind.PROTOCOL, f"the answer is not JSON: {excerpt(body[:400].decode('latin-1'))}") from None
