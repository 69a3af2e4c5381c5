"""A client's connection: parses its requests, and gives each its turn, one after the other.

What is malformed, too large or too slow is answered plainly and the connection closed. Nothing that a client sends reaches
anybody but through a parsed head and a body that the parser has measured.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import cast

import httptools

from tailkeeper_exporter.tap import messages
from tailkeeper_exporter.tap.gate import Tap
from tailkeeper_exporter.tap.ids import request_id
from tailkeeper_exporter.tap.messages import MAX_HEAD_BYTES, Headers, RequestHead
from tailkeeper_exporter.tap.turn import Turn
from tailkeeper_exporter.tap.upstream import HIGH_WATER_BYTES, READ_MOST_BYTES

MAX_CONNECTIONS = 4_096
"""Per tap; beyond this a client gets 503 at once. An engine batches hundreds."""
MAX_PIPELINED = 32
"""On one connection. What comes after them is not parsed: a client can send thousands in one read, and each costs us a turn."""
KEEP_ALIVE_S = 75.0
"""Above the 60 s for which common proxies keep connections, so that they close an idle one and not we."""
HEAD_S = 30.0
BODY_PAUSE_S = 60.0
"""No byte of an unfinished body for this long: the client is not coming back."""
LINGER_S = 2.0
"""How long what a client still sends is thrown away after an early answer, so that the answer is not lost to a reset."""
FLUSH_S = 120.0
"""How long a client may take to read the last of a closed connection's buffer."""
UNREAD_S = 120.0
"""A client that takes not one byte of what waits for it for so long has gone, or holds a backend's place for nothing."""

_GONE_STATES = frozenset({7, 8})
"""Linux's TCP_CLOSE and TCP_CLOSE_WAIT, the first byte of its ``tcp_info``."""


class ClientConnection(asyncio.BufferedProtocol):
    """One connection of one client."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._turns: deque[Turn] = deque()
        self._incoming: Turn | None = None
        """The one whose body is being read: the last, while it is not whole."""
        self.full = False
        self._held = False
        self._headers: Headers = []
        self._target = b""
        self._head_bytes = 0
        self._in_head = False
        self._head_since_s = 0.0
        self._staying: RequestHead | None = None
        """The head of a request that offered an upgrade, while its body is read as if it had not."""
        self._arrived: list[RequestHead | bytearray | None] = []
        """What the parser found in the bytes of one call: a head, a piece of a body, None for the end of a request."""
        self._heads = 0
        """Of those, and of the turns that were there before them."""
        self._bad: tuple[int, str, str] | None = None
        """Why nothing more is read; said when the turns before it are over."""
        self._ending_since_s: float | None = None
        self._closing_since_s: float | None = None
        self._since_s = tap.clock()
        """Of the last byte, or of the end of the last turn."""

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._tap.connections.add(self)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
        if len(self._tap.connections) > MAX_CONNECTIONS:
            self._refuse(503, "too_many_connections", "the tap has no room for another connection")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._tap.connections.discard(self)
        turns, self._turns = list(self._turns), deque()
        for turn in turns:
            turn.client_gone()

    def eof_received(self) -> bool:
        """A client that sends no more has gone: HTTP clients do not close one half. Its requests end at once."""
        return False

    def pause_writing(self) -> None:
        self.full = True
        if self._turns:
            self._turns[0].client_full()

    def resume_writing(self) -> None:
        self.full = False
        if self._turns:
            self._turns[0].client_ready()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._tap.pool.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received(bytes(self._tap.pool.buffer[:nbytes]))
        if nbytes == READ_MOST_BYTES and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._held:
            self.go_on()

    def _received(self, data: bytes) -> None:
        self._since_s = self._tap.clock()
        if self._bad is not None or self._ending_since_s is not None or self._closing_since_s is not None:
            return
        self._head_bytes += len(data)
        self._heads = len(self._turns)
        self._parse(data)
        if self._head_bytes > MAX_HEAD_BYTES and (self._in_head or self._incoming is not None) and not self._arrived:
            self._bad = self._bad or (431, "head_too_large", f"a head may have {MAX_HEAD_BYTES} bytes")
        self._take()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            offers = {value.strip().lower() for name, value in self._headers if name == b"upgrade"}
            if offers == {b"h2c"} and self._parser.get_method() != b"CONNECT":
                self._stay(data[upgrade.args[0] :])
            else:
                self._bad = 501, "upgrade", "no upgrade is offered here, and no tunnel: ask with plain HTTP/1.1"
        except httptools.HttpParserError as error:
            self._bad = self._bad or (400, "bad_request", f"this is not HTTP/1.1: {error}"[:200])

    def _stay(self, rest: bytes) -> None:
        """Some clients (Java's) offer HTTP/2 with their first request, which a server may pass over; but the parser then takes
        the body for another protocol. So another parser goes on from there, after a head with the same framing."""
        head = self._head()
        framing = b"transfer-encoding: chunked" if head.chunked else b"content-length: %d" % (head.length or 0)
        self._parser = httptools.HttpRequestParser(self)
        self._staying = head
        self._parse(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        if self._bad is None:
            self._parse(rest)

    def _take(self) -> None:
        """Act on what the parser found; not inside its callbacks, where an error would pass for the client's."""
        arrived, self._arrived = self._arrived, []
        for item in arrived:
            if self._ending_since_s is not None:
                return
            if isinstance(item, RequestHead):
                self._incoming = Turn(self._tap, self, item)
                self._turns.append(self._incoming)
            elif self._incoming is not None:
                if item is not None:
                    self._incoming.body(bytes(item))
                else:
                    turn, self._incoming = self._incoming, None
                    turn.end()
        if self._turns and not self._turns[0].started:
            # With what of its body came together with its head, so that both are sent in one piece.
            self._turns[0].start()
        if self._bad is not None:
            self._stop_reading()
        elif len(self._turns) > 1:
            self.hold()  # what waits for its turn waits at the client

    def _stop_reading(self) -> None:
        turn, self._incoming = self._incoming, None
        if turn is not None and self._bad is not None:
            if turn in self._turns and turn is not self._turns[0]:
                # Others are being answered before it. When they are, the connection says what was wrong.
                self._turns.remove(turn)
            turn.refused_late(*self._bad)
        elif not self._turns:
            self._say_bad()

    def _say_bad(self) -> None:
        if self._bad is not None:
            self._refuse(*self._bad)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """For what is no request yet, so has no record."""
        number = request_id([v.decode("latin-1") for n, v in self._headers if n == b"x-request-id"], self._tap.random_hex)
        self.write(messages.refusal(status, code, message, number, [], close=True, bodiless=False))
        self._linger()

    # The parser's side.

    def on_message_begin(self) -> None:
        self._headers, self._target, self._in_head = [], b"", True
        self._head_since_s = self._since_s

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > MAX_HEAD_BYTES:
            self._bad = 431, "head_too_large", f"a head may have {MAX_HEAD_BYTES} bytes"
            raise ValueError("too large")
        if self._parser.should_upgrade():
            return
        self._heads += 1
        if self._heads > MAX_PIPELINED:
            self._bad = 400, "too_many_requests", f"a connection may have {MAX_PIPELINED} unanswered requests"
            raise ValueError("too many")
        self._head_bytes = 0
        staying, self._staying = self._staying, None
        self._arrived.append(staying or self._head())

    def _head(self) -> RequestHead:
        version = self._parser.get_http_version()
        lengths = [value for name, value in self._headers if name == b"content-length"]
        return RequestHead(
            self._parser.get_method(),
            self._target,
            version,
            self._headers,
            keep_alive=version == "1.1" and self._parser.should_keep_alive(),
            # Python reads no number of thousands of digits, be they zeros.
            length=int(lengths[0].lstrip(b"0") or b"0") if lengths else None,
            chunked=any(name == b"transfer-encoding" for name, _ in self._headers),
        )

    def on_body(self, data: bytes) -> None:
        self._head_bytes = 0
        last = self._arrived[-1] if self._arrived else None
        if isinstance(last, bytearray):
            # Chunks of a byte each are ten thousand in one read: from here on they are one piece.
            last += data
        else:
            self._arrived.append(bytearray(data))

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._head_bytes = 0
            self._arrived.append(None)

    # The turn's side.

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def hold(self) -> None:
        """Read no more of the request for now."""
        self._held = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._held:
            self._since_s = self._tap.clock()  # it could not send before, so it is not late
        self._held = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def turn_ended(self, *, close: bool) -> None:
        """The first turn's answer is whole, on its way to the client."""
        if self._turns:
            self._turns.popleft()
        self._since_s = self._tap.clock()
        if close or (self._tap.closing and not self._turns):
            self._linger()
            return
        self.go_on()
        if self._turns:
            self._turns[0].start()
        elif self._bad is not None:
            self._say_bad()

    def cut(self) -> None:
        """End the connection without the end of an answer. HTTP/1.0 has no other sign of it than a reset."""
        transport = self._transport
        if transport is None:
            return
        if self._turns and self._turns[0].head.version == "1.0":
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            self._close()

    def _linger(self) -> None:
        """The answer is out, and nothing more is read: say so, and wait a little for the client to close."""
        turns, self._turns = list(self._turns), deque()
        for turn in turns:
            turn.client_gone()
        self.go_on()
        self._ending_since_s = self._tap.clock()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._close()

    def _close(self) -> None:
        self._closing_since_s = self._tap.clock()
        if self._transport is not None:
            self._transport.close()

    # The tap's side.

    def sweep(self, now: float) -> None:
        """Close what has been idle, half said or half closed for too long."""
        if self._closing_since_s is not None:
            if now - self._closing_since_s > FLUSH_S and self._transport is not None:
                self._transport.abort()
        elif self._ending_since_s is not None:
            if now - self._ending_since_s > LINGER_S:
                self._close()
        elif self._held and self._peer_has_gone():
            self._drop()
        elif self._incoming is not None:
            if now - self._since_s > BODY_PAUSE_S and not self._held:
                self._bad = 408, "body_timeout", f"no byte of the request's body came for {BODY_PAUSE_S:g} s"
                self._stop_reading()
        elif not self._turns and (now - self._head_since_s > HEAD_S if self._in_head else now - self._since_s > KEEP_ALIVE_S):
            self._close()

    def _peer_has_gone(self) -> bool:
        """Asked of the kernel, because nothing is read while the connection is held, so no end would be seen."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None or not hasattr(socket, "TCP_INFO"):
            return False
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _GONE_STATES

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close_idle(self) -> None:
        """Close once there is no request on it, and take no new one."""
        if not self._turns and self._ending_since_s is None:
            self._close()

    def cut_short(self) -> None:
        for turn in list(self._turns):
            turn.cut_short()
