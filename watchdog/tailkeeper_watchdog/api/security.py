"""Who may change something: a bearer token where one is configured, and never another web site's page.

Pure ASGI, in front of the application: it looks at headers only, so a refused call costs nothing.
"""

from __future__ import annotations

import json
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY_BYTES = 1024 * 1024
"""Alertmanager's webhook of 500 alerts is about half of this."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


class Gate:
    """Wraps an ASGI application. ``token`` None means that changing calls need none (loopback only)."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]  # type: ignore[misc]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, with_headers)  # type: ignore[arg-type]
            return
        status, detail = refusal
        body = json.dumps({"detail": detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await with_headers({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        if scope["method"] in _READING:
            return None
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and urlsplit(origin).netloc != headers.get(b"host", b"").decode("latin-1"):
            return 403, "a page of another site may not change anything here"
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers:
            return 411, "send a Content-Length"
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            return 413, f"the body may have at most {MAX_BODY_BYTES} bytes"
        return self._unauthorized(headers.get(b"authorization", b""))

    def _unauthorized(self, authorization: bytes) -> tuple[int, str] | None:
        if self._token is None:
            return None
        scheme, _, given = authorization.partition(b" ")
        if scheme.lower() == b"bearer" and compare_digest(given.strip(), self._token.encode()):
            return None
        return 401, "send Authorization: Bearer TOKEN, the content of the configured token_file"
