"""What every actuator does around a call: one at a time, inside its deadline, failing with ``ActuatorError`` only.

Knows no protocol and no gateway. The leaves (parsers, transports) raise ``CallError``, which knows the kind and the sentence;
``turn`` adds of whom it was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tailkeeper_exporter.hiding import hidden
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind

EXCERPT_CHARS = 200
"""Of a gateway's own words in a message: enough for its longest known error, too little to flood a log."""


class CallError(Exception):
    """A failure that does not know yet which gateway and server it belongs to. Never carries a credential."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def of(self, gateway: str, server: str) -> ActuatorError:
        return ActuatorError(self.kind, gateway, server, self.message)


def excerpt(text: str) -> str:
    """A gateway's words made safe for one log line: printable, on one line, without what looks like a credential, cut at
    ``EXCERPT_CHARS``."""
    words = hidden(" ".join("".join(c if c.isprintable() else " " for c in text[: 4 * EXCERPT_CHARS]).split()))
    return words if len(words) <= EXCERPT_CHARS else words[:EXCERPT_CHARS] + "…"


def without_password(url: str) -> str:
    """For messages: a configuration refuses a URL with user and password, and a caller may still hold one."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@asynccontextmanager
async def turn(lock: asyncio.Lock, gateway: str, server: str, deadline_s: float) -> AsyncIterator[float]:
    """Wait for the gateway to be free, then yield the loop time at which the call must have ended.

    The wait counts against the deadline. The body bounds itself with ``asyncio.timeout_at``. Raises ActuatorError for
    every CallError and timeout, in the wait or in the body.
    """
    ends_at = asyncio.get_running_loop().time() + deadline_s
    try:
        async with asyncio.timeout_at(ends_at):
            await lock.acquire()
        try:
            yield ends_at
        finally:
            lock.release()
    except TimeoutError:
        message = f"no answer within {deadline_s:g} s, so the effect is unknown; read before repeating"
        raise ActuatorError(ErrorKind.TIMEOUT, gateway, server, message) from None
    except CallError as error:
        raise error.of(gateway, server) from error.__cause__
