"""PING to a Redis-compatible KV-cache service: does it answer, and how fast.

A client of one command in RESP, so that the exporter needs no Redis package. A fresh connection each time: what is asked is
whether a client would be served now. Credentials come from the URL's user part, go into AUTH and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

DEFAULT_PORT = 6379
MAX_REPLY_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class Ping:
    """One PING. ``took_s`` is the round trip with connection and AUTH; ``reason`` is bounded, None when it was answered."""

    ended_s: float
    took_s: float
    reason: str | None = None


async def ping(url: str, deadline_s: float, clock: Callable[[], float], tls: ssl.SSLContext | None = None) -> Ping:
    """PING the service at ``redis://[user[:password]@]host[:port]``. Never raises for what the other side does."""
    started = clock()
    try:
        async with asyncio.timeout(deadline_s):
            reason = await _ping(url, tls)
    except TimeoutError:
        reason = "timeout"
    except ConnectionRefusedError:
        reason = "refused"
    except (OSError, asyncio.IncompleteReadError, ValueError):
        reason = "connection"
    return Ping(clock(), clock() - started, reason)


async def _ping(url: str, tls: ssl.SSLContext | None) -> str | None:
    target = urlsplit(url)
    secure = (tls or ssl.create_default_context()) if target.scheme == "rediss" else None
    reader, writer = await asyncio.open_connection(
        target.hostname or "127.0.0.1", target.port or DEFAULT_PORT, ssl=secure, limit=MAX_REPLY_BYTES
    )
    try:
        if target.password is not None:
            user = [unquote(target.username)] if target.username else []
            writer.write(_command("AUTH", *user, unquote(target.password)))
            if not (await reader.readuntil(b"\r\n")).startswith(b"+OK"):
                return "unauthorized"
        writer.write(_command("PING"))
        return _reason(await reader.readuntil(b"\r\n"))
    except asyncio.LimitOverrunError:
        return "not_redis"
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            writer.transport.abort()


def _reason(reply: bytes) -> str | None:
    if reply.startswith(b"+PONG"):
        return None
    if reply.startswith((b"-NOAUTH", b"-WRONGPASS", b"-NOPERM")):
        return "unauthorized"
    return "loading" if reply.startswith(b"-LOADING") else "not_redis"


def _command(*words: str) -> bytes:
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
