"""Headers of every answer of our servers: what a browser may do with it, and that nobody keeps it. Pure ASGI."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Message, Send

Headers = list[tuple[bytes, bytes]]

NO_STORE = (b"cache-control", b"no-store")
ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
]
DATA_POLICY = (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
"""For answers that are data: whatever stands in them, a browser that is made to show one runs and loads nothing."""


def adding(send: Send, headers: Iterable[tuple[bytes, bytes]]) -> Send:
    """``send`` that adds ``headers`` to the answer, and ``NO_STORE`` where the answer says nothing of caches."""
    ours = list(headers)

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given: Headers = list(message.get("headers", []))
            kept = any(name == NO_STORE[0] for name, _ in given)
            message = {**message, "headers": [*given, *ours, *([] if kept else [NO_STORE])]}
        await send(message)

    return sending
