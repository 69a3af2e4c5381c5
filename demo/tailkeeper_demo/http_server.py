"""A small HTTP/1.1 server for the demo: keep-alive, chunked streaming, and the news of a client that hung up.

A streamed token costs one write here, and no task, queue or middleware on its way: the demo shares two cores with the product
it shows, and a fleet of four writes some 1,100 tokens a second. It knows nothing of engines or gateways.
Data flows socket → `ServerConnection` → handler → `Reply` → socket.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping

from tailkeeper_demo.http1 import (
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    BodyDecoder,
    Head,
    ProtocolError,
    Request,
    chunk,
    parse_head,
    response_head,
)

_LOG = logging.getLogger(__name__)

MAX_UNREAD_BYTES = 1024 * 1024
"""A client that stopped reading is cut once this much waits for it."""


class Reply:
    """One answer: either `send`, or `start`, then `write` as often as needed, then `end`."""

    __slots__ = ("_connection", "_started", "finished", "lost", "on_close", "status")

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._started = False
        self.finished = False
        self.lost = False
        """The client hung up before the answer was complete."""
        self.status = 0
        self.on_close: Callable[[], None] | None = None
        """Called once, when the answer is complete or the client is gone."""

    def send(
        self, status: int, body: bytes = b"", content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole answer."""
        fields = {"content-length": str(len(body)), **(headers or {})}
        if content_type is not None:
            fields["content-type"] = content_type
        self.status, self._started = status, True
        self._connection.put(response_head(status, fields) + body)
        self._finish()

    def send_json(self, status: int, document: object, headers: Mapping[str, str] | None = None) -> None:
        """Send a JSON document as vLLM's server prints it, without spaces."""
        body = json.dumps(document, separators=(",", ":")).encode()
        self.send(status, body, "application/json", headers)

    def start(self, status: int, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """Begin a chunked answer."""
        self.status, self._started = status, True
        fields = {"content-type": content_type, "transfer-encoding": "chunked", **(headers or {})}
        self._connection.put(response_head(status, fields))

    def write(self, data: bytes) -> None:
        """Send one chunk. After the client is gone this does nothing."""
        if not self.finished and data:
            self._connection.put(chunk(data))

    def end(self) -> None:
        """Complete a chunked answer."""
        if not self.finished:
            self._connection.put(b"0\r\n\r\n")
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._notify()
        self._connection.answered()

    def client_gone(self) -> None:
        """Called by the connection when the client hung up."""
        if not self.finished:
            self.finished = self.lost = True
            self._notify()

    def _notify(self) -> None:
        callback, self.on_close = self.on_close, None
        if callback is not None:
            callback()


Handler = Callable[[Request, Reply], None]
"""Starts answering a request; it must not block, and may complete the reply later."""


class ServerConnection(asyncio.Protocol):
    """One client connection: requests one after another, each answered before the next is read."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._head: Head | None = None
        self._body: BodyDecoder | None = None
        self._payload: list[bytes] = []
        self._payload_bytes = 0
        self._reply: Reply | None = None
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._server.adopt(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        self._transport = None
        if self._reply is not None:
            self._reply.client_gone()

    def eof_received(self) -> bool:
        # A half-closed client is treated as gone, as uvicorn does; the engine must not decode for nobody.
        return False

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._reply is not None and len(self._buffer) > MAX_HEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._advance()

    def put(self, data: bytes) -> None:
        """Queue bytes for the client; a client that does not read is cut."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            transport.abort()

    def answered(self) -> None:
        """The reply is complete: go on with the next request, or close."""
        self._reply = None
        if self._transport is None:
            return
        if not self._keep_alive:
            self._transport.close()
            return
        self._transport.resume_reading()
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._advance)

    def abort(self) -> None:
        """Cut the connection without finishing what is being sent."""
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        if self._reply is not None or self._transport is None or self._transport.is_closing():
            return
        try:
            request = self._next_request()
        except ProtocolError as error:
            self._keep_alive = False
            self._reply = Reply(self)
            self._reply.send_json(error.status, {"error": str(error)}, {"connection": "close"})
            return
        if request is not None:
            self._reply = Reply(self)
            self._answer(request, self._reply)

    def _answer(self, request: Request, reply: Reply) -> None:
        """Call the handler. Its bugs end this connection, never the listener."""
        try:
            self._server.handler(request, reply)
        except Exception:
            _LOG.exception("answering %s %s failed", request.method, request.path)
            self.abort()

    def _next_request(self) -> Request | None:
        if self._head is None and not self._read_head():
            return None
        assert self._head is not None
        assert self._body is not None
        payload = self._body.feed(self._buffer)
        self._buffer = b""
        self._payload_bytes += len(payload)
        if self._payload_bytes > MAX_BODY_BYTES:
            raise ProtocolError(f"request body is over the limit of {MAX_BODY_BYTES} bytes", 413)
        self._payload.append(payload)
        if not self._body.done:
            return None
        return self._take_request(self._head, self._body)

    def _take_request(self, head: Head, body: BodyDecoder) -> Request:
        self._buffer, payload = body.rest, b"".join(self._payload)
        self._head, self._body, self._payload, self._payload_bytes = None, None, [], 0
        connection = head.headers.get("connection", "").lower()
        self._keep_alive = "close" not in connection and (head.start[2] != "HTTP/1.0" or "keep-alive" in connection)
        return Request(head.start[0], head.start[1].partition("?")[0], head.headers, payload)

    def _read_head(self) -> bool:
        raw, found, rest = self._buffer.lstrip(b"\r\n").partition(b"\r\n\r\n")
        if len(raw) > MAX_HEAD_BYTES:
            raise ProtocolError(f"request head is over the limit of {MAX_HEAD_BYTES} bytes", 431)
        if not found:
            return False
        self._head = parse_head(raw)
        self._body = BodyDecoder.for_headers(self._head.headers, response=False)
        self._buffer = rest
        if self._head.headers.get("expect", "").lower() == "100-continue":
            self.put(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True


class HttpServer:
    """Listening socket, live connections and the handler they share."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._connections: set[ServerConnection] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start listening; returns the port. Raises `OSError` when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: ServerConnection(self), host, port)
        return int(self._listener.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """New connections are refused from here on; live ones go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def cut_connections(self) -> None:
        """Cut every live connection, answers in progress included."""
        for connection in tuple(self._connections):
            connection.abort()

    def adopt(self, connection: ServerConnection) -> bool:
        """Count a new connection; False when there are `MAX_CONNECTIONS` already."""
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
