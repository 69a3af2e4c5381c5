"""Connections to one backend: kept between requests where that is safe, bounded in number, and never shared by two at once.

A connection is given to one request; what comes on it goes to that request or to nobody. It is used again only after an
answer that ended cleanly, to a request that was sent whole, with not a byte too many.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from tailkeeper_exporter.tap.messages import MAX_HEAD_BYTES, AnswerHead, Headers, plain_coding

CONNECT_TIMEOUT_S = 5.0
"""A backend on this machine or beside it accepts in milliseconds; a full backlog retries its first packet after 1 and 3 s."""
MAX_IDLE = 256
"""Connections kept without a request: as many as an engine's usual batch."""
IDLE_S = 4.0
"""Below uvicorn's 5 s, so that we and not the engine close an idle connection."""
HIGH_WATER_BYTES = 65_536
"""Unsent bytes per direction from which on the sender is held back."""
READ_MOST_BYTES = 65_536
"""At once from one connection; then the others come first. The loop else reads on, up to 8 MB, while there is more."""

Clock = Callable[[], float]


class Asker(Protocol):
    """The request that a connection serves."""

    def answer_begins(self, head: AnswerHead, data: bytes, *, last: bool) -> None:
        """The head, with as much of the body as came with it. ``last``: that is all of it."""
        ...

    def answer_goes_on(self, data: bytes, *, last: bool) -> None: ...
    def answer_ends(self) -> bool:
        """The answer is whole. Returns whether the request was sent whole, so that the connection is clean."""
        ...

    def answer_lost(self, error: str, *, unused: bool) -> None:
        """The connection ended before the answer did. ``unused``: it was a kept one, and gave not one byte this time."""
        ...

    def backend_full(self) -> None: ...
    def backend_ready(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where a backend is. ``path`` stands before every request's own path."""

    host: str
    port: int
    path: bytes
    authority: bytes
    tls: ssl.SSLContext | None


class Upstream(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._asker: Asker | None = None
        self._used = False
        self._held = False
        self.is_full = False
        """More is to be sent to the backend than the buffer should hold."""
        self.idle_since_s = 0.0
        self._reset(head_only=False)

    def _reset(self, *, head_only: bool) -> None:
        self._head_only = head_only
        self._headers: Headers = []
        self._reason = b""
        self._head: AnswerHead | None = None
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._any = self._began = self._complete = self._reusable = self._until_close = self._surplus = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # What the request does.

    def serve(self, asker: Asker, *, head_only: bool) -> None:
        """Everything from now on is this request's. ``head_only``: its answer has no body whatever its head says."""
        self._reset(head_only=head_only)
        self._asker = asker

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def hold(self) -> None:
        """Read no more of the answer for now."""
        self._held = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self) -> None:
        self._held = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def drop(self) -> None:
        """Nobody wants the answer: end the connection now, which tells the backend."""
        self._asker = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def pause_writing(self) -> None:
        self.is_full = True
        if self._asker is not None:
            self._asker.backend_full()

    def resume_writing(self) -> None:
        self.is_full = False
        if self._asker is not None:
            self._asker.backend_ready()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._pool.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received(bytes(self._pool.buffer[:nbytes]))
        if nbytes == READ_MOST_BYTES and self.is_open and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._held:
            self.go_on()

    def _received(self, data: bytes) -> None:
        if self._asker is None:
            # A kept connection has nothing to say; whatever this is, it is nobody's.
            self._pool.forget(self)
            self.drop()
            return
        self._any = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._surplus = True
            if not self._complete:
                self._fail("bad_answer")
                return
        if not self._began or not self._pieces:
            self._unread_bytes += len(data)
            if self._unread_bytes > MAX_HEAD_BYTES and not self._complete:
                self._fail("bad_answer")
                return
        self._deliver()

    def _deliver(self) -> None:
        head, self._head = self._head, None
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if data:
            self._pieces.clear()
            self._unread_bytes = 0
        if self._asker is not None:
            if head is not None:
                self._asker.answer_begins(head, data, last=self._complete)
            elif data:
                self._asker.answer_goes_on(data, last=self._complete)
        if self._complete:
            self._end()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        if self._asker is None:
            return
        if self._until_close and error is None:
            self._complete = True
            self._end()
        else:
            self._fail("backend_closed")

    def _fail(self, error: str) -> None:
        asker, unused = self._asker, self._used and not self._any
        self.drop()
        if asker is not None:
            asker.answer_lost(error, unused=unused)

    def _end(self) -> None:
        asker, self._asker = self._asker, None
        clean = asker is not None and asker.answer_ends()
        if clean and self._reusable and not self._surplus and self._transport is not None:
            self._used = True
            self.go_on()
            self._pool.keep(self)
        else:
            self.drop()

    # The parser's side.

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._began:
            self._headers.append((name.lower(), value))
            self._unread_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._complete or self._asker is None:
            self._surplus = True
            return
        if status < 200:
            self._headers, self._reason = [], b""
            return
        if self._unread_bytes > MAX_HEAD_BYTES or not plain_coding(self._headers):
            raise ValueError("the head is too large, or the coding unknown")
        lengths = [value for name, value in self._headers if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in self._headers)
        self._head = AnswerHead(status, self._reason, self._headers, int(lengths[0]) if lengths else None, chunked)
        self._began = True
        bodiless = self._head_only or status in (204, 304)
        self._until_close = not (bodiless or chunked or lengths)
        # The parser does not know that an answer to HEAD has no body, so its connection is not used again.
        self._reusable = self._parser.should_keep_alive() and not self._head_only
        self._complete = self._complete or self._head_only

    def on_body(self, data: bytes) -> None:
        if self._complete:
            self._surplus = True
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._began:
            self._complete = True


class Pool:
    """The connections to one backend."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self.buffer = memoryview(bytearray(READ_MOST_BYTES))
        """For whatever is read next; what was read is taken out of it before anything else happens."""
        self._idle: dict[Upstream, None] = {}

    def take(self) -> Upstream | None:
        """The connection that was used last, if one is kept."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_open:
                return connection
        return None

    async def connect(self) -> Upstream:
        """A new connection. Raises OSError, and TimeoutError after ``CONNECT_TIMEOUT_S``."""
        address = self.address
        name = address.host if address.tls is not None else None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, protocol = await asyncio.get_running_loop().create_connection(
                lambda: Upstream(self), address.host, address.port, ssl=address.tls, server_hostname=name
            )
        return protocol

    def keep(self, connection: Upstream) -> None:
        if len(self._idle) >= MAX_IDLE:
            connection.drop()
            return
        connection.idle_since_s = self._clock()
        self._idle[connection] = None

    def forget(self, connection: Upstream) -> None:
        self._idle.pop(connection, None)

    def sweep(self, now: float) -> None:
        """Close what was not used for ``IDLE_S``."""
        for connection in [c for c in self._idle if now - c.idle_since_s > IDLE_S]:
            self.forget(connection)
            connection.drop()

    def close(self) -> None:
        for connection in list(self._idle):
            self.forget(connection)
            connection.drop()
