"""uvicorn's HTTP/1.1, with an end to everything that a client can be slow or endless at.

uvicorn bounds how many requests it serves, and neither how long a head or a body may take, nor how long an answer may wait to be
read, nor how many connections stand open and say nothing. Each would be a way to keep everybody else out, or to use up the
sockets that the look at engines needs. Whoever is over a bound is cut off; nothing is logged for it, for he would fill the log.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512
"""Readers are a Prometheus or two, a watchdog and load balancers; beyond this new ones get 503 at once."""
MAX_HEAD_BYTES = 32_768
"""A browser sends the cookies of every program on this machine along."""
MAX_PIECES = 8_192
"""Of one body. The longest one (4 MiB) comes in some 3,000 as the network cuts it. Each costs 12 us: a body in chunks of one byte
would hold up every probe in this event loop for a minute."""
HEAD_S = 10.0
"""From a connection, or the first byte of a request, to the end of its head."""
BODY_S = 30.0
"""For the longest body at 140 kB/s; most routes give it less."""
LINGER_S = 5.0
"""How long what a client still sends is thrown away after an early answer, so that the answer is not lost to a reset."""
UNREAD_S = 60.0
"""A client that leaves so much unread that we wait for it, for so long, holds a page of ours in memory for nothing."""

_FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\nconnection: close\r\n\r\n"


class _Connection(h11.Connection):
    """h11's, with a bound on the pieces of a body, and without bodies of two lengths."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self._pieces = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = 0
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("a proxy before us may have read it by the other one")
        elif isinstance(event, h11.Data):
            self._pieces += 1
            if self._pieces > MAX_PIECES:
                raise h11.RemoteProtocolError("a body in too many pieces")
        return event


class BoundedProtocol(H11Protocol):
    """One connection of one client."""

    def __init__(self, config: uvicorn.Config, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _Connection()
        self._limit_s: float | None = None
        """Of what the client is at; None while it is our turn."""
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._served = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(_FULL)
            transport.close()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self._served = True
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own raises where an answer has begun, and lets the application go on to answer after it."""
        cycle, begun = self.cycle, self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if begun:
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        _cancel(self._late)
        _cancel(self._unread)

    def _watch(self) -> None:
        """Start the clock of what the client is at now, unless it runs already."""
        limit_s = None if self.transport.is_closing() else self._patience_s()
        if limit_s == self._limit_s:
            return
        self._limit_s = limit_s
        _cancel(self._late)
        if limit_s is not None:
            self._late = self.loop.call_later(limit_s, self.transport.abort)

    def _patience_s(self) -> float | None:
        said = self.conn.their_state
        if said is h11.SEND_BODY:
            return LINGER_S if self.cycle is not None and self.cycle.response_complete else BODY_S
        # Between two requests uvicorn's own clock runs, until the first byte of the next.
        begun = said is h11.IDLE and (not self._served or self.conn.trailing_data[0])
        return HEAD_S if begun else None


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
