"""The door of the watchdog's interface: who may change something, how large a body may be, and headers for every answer.

Pure ASGI, in front of the application: it looks at headers only, so a refused call costs nothing. HEAD is answered
as GET without its body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailkeeper_exporter import answer_headers, change_rights
from tailkeeper_exporter.change_rights import Refused

MAX_BODY_BYTES = 1024 * 1024
"""Alertmanager's webhook of 500 alerts is about half of this."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = [
    *answer_headers.ALWAYS,
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
]
"""The policy is the console's: its own files, no code in the page, and no text that becomes markup (trusted types)."""


class Gate:
    """Wraps an ASGI application. ``token`` None means that changing calls need none (loopback only).

    Raises ValueError for an empty token: it would let everyone in who sends none.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        if token is not None and not token.strip():
            raise ValueError("token_file: the file is empty; write a token into it, or take token_file out")
        self._app = app
        self._token = None if token is None else token.strip().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = answer_headers.adding(_without_body(send) if scope["method"] == "HEAD" else send, _HEADERS)
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(refusal, answer)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Refused | None:
        if scope["method"] in _READING:
            return None
        headers: dict[bytes, bytes] = dict(scope["headers"])
        return change_rights.refused(headers, self._token) or _unbounded(headers)


def _unbounded(headers: Mapping[bytes, bytes]) -> Refused | None:
    if b"transfer-encoding" in headers:
        return 411, f"send a Content-Length of at most {MAX_BODY_BYTES} bytes; chunked bodies are not taken"
    length = headers.get(b"content-length", b"0")
    # Longer numbers are not even read: Python refuses to convert them.
    if not length.isdigit() or len(length) > 12 or int(length) > MAX_BODY_BYTES:
        return 413, f"the body may have at most {MAX_BODY_BYTES} bytes"
    return None


def _without_body(send: Send) -> Send:
    """``send`` of an answer that is complete with its headers, and ends there."""
    complete = False

    async def answer(message: Message) -> None:
        nonlocal complete
        if complete:
            return
        if message["type"] == "http.response.body":
            message, complete = {"type": "http.response.body", "body": b"", "more_body": False}, True
        await send(message)

    return answer


async def _refuse(refusal: Refused, answer: Send) -> None:
    status, detail = refusal
    body = json.dumps({"detail": detail}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if status == 401:
        headers.append((b"www-authenticate", change_rights.CHALLENGE.encode()))
    await answer({"type": "http.response.start", "status": status, "headers": headers})
    await answer({"type": "http.response.body", "body": body})
