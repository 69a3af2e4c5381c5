"""A small reverse proxy for machines without HAProxy: weights, drain, one retry, and the webhook contract as its admin API.

    python -m tailkeeper_demo.gateway --listen 127.0.0.1:8000 --admin 127.0.0.1:8001 --server a=http://127.0.0.1:18001

New requests go to servers by smooth weighted round robin; weight 0 or drain means no new ones, while streams in flight finish.
With nobody left it answers 503. A server that refuses the connection, or whose first word is 502 or 503 (a tap before an engine
that is gone), costs one retry on another, as with HAProxy's `redispatch` and `retry-on 502 503`.
Answers pass through byte for byte as they come. One request a client connection: the answer ends when the server closes.
Data flows client → `_Inbound` → `_Outbound` → server, and back. What the admin API understands is in `gateway_admin`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tailkeeper_demo.gateway_admin import Server, Servers, handler
from tailkeeper_demo.http1 import (
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    BodyDecoder,
    Head,
    ProtocolError,
    parse_head,
    response_head,
)
from tailkeeper_demo.http_server import HttpServer
from tailkeeper_demo.json_file import write_json
from tailkeeper_demo.lifetime import until_told

CONNECT_TIMEOUT_S = 2.0
IDLE_TIMEOUT_S = 60.0
"""A server silent for this long is given up with 504, as with HAProxy's customary `timeout server 60s`."""
MAX_TRIES = 2
_ELSEWHERE = (b"HTTP/1.1 502 ", b"HTTP/1.1 503 ")
"""Answers in place of which another server is asked."""
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "expect", "transfer-encoding"}
)


class Gateway:
    """The proxy side: picks servers and counts what is in flight."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._listener: asyncio.Server | None = None
        self._clients: set[_Inbound] = set()

    async def listen(self, host: str, port: int) -> int:
        """Start proxying; returns the port. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Inbound(self), host, port)
        return int(self._listener.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Close the port and cut what is in flight."""
        if self._listener is not None:
            self._listener.close()
        for client in tuple(self._clients):
            client.abort()

    def adopt(self, client: _Inbound) -> bool:
        """Count a client; False when there are too many."""
        if len(self._clients) >= MAX_CONNECTIONS:
            return False
        self._clients.add(client)
        return True

    def forget(self, client: _Inbound) -> None:
        self._clients.discard(client)


class _Inbound(asyncio.Protocol):
    """A client's connection, for one request."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self._buffer = b""
        self._body: BodyDecoder | None = None
        self._head: Head | None = None
        self._payload = b""
        self._upstream: _Outbound | None = None
        self._task: asyncio.Task[None] | None = None
        self._answering = False
        self._refused: frozenset[str] = frozenset()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self._gateway.adopt(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gateway.forget(self)
        self.transport = None
        if self._task is not None:
            self._task.cancel()
        if self._upstream is not None:
            self._upstream.abort()

    def data_received(self, data: bytes) -> None:
        if self._task is not None:
            return  # A second request on this connection: the answer says `connection: close`, it goes unread.
        self._buffer += data
        try:
            self._read_request()
        except ProtocolError as error:
            self.refuse(error.status, str(error))

    def pause_writing(self) -> None:
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.resume_reading()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _read_request(self) -> None:
        if self._body is None:
            raw, found, self._buffer = self._buffer.lstrip(b"\r\n").partition(b"\r\n\r\n")
            if not found:
                self._buffer = raw
                if len(raw) > MAX_HEAD_BYTES:
                    raise ProtocolError(f"request head is over the limit of {MAX_HEAD_BYTES} bytes", 431)
                return
            self._head = parse_head(raw)
            self._body = BodyDecoder.for_headers(self._head.headers, response=False)
            if self._head.headers.get("expect", "").lower() == "100-continue" and self.transport is not None:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._payload += self._body.feed(self._buffer)
        self._buffer = b""
        if len(self._payload) > MAX_BODY_BYTES:
            raise ProtocolError(f"request body is over the limit of {MAX_BODY_BYTES} bytes", 413)
        if self._body.done and self._head is not None:
            self._task = self._loop.create_task(self._forward(self._head))

    async def _forward(self, head: Head) -> None:
        """Connect to a server, once more to another when the first refuses, and hand the request over."""
        while len(self._refused) < MAX_TRIES:
            server = self._gateway.servers.pick(self._refused)
            if server is None:
                break
            self._upstream = await self._connect(server)
            if self._upstream is not None:
                self._upstream.send(self._request(head, server))
                return
            self._refused |= {server.name}
        self.refuse(503, f"no connection to {', '.join(sorted(self._refused))}" if self._refused else "no server is available")

    def goes_elsewhere(self, data: bytes, server: Server) -> bool:
        """Whether the first bytes of an answer say that another server should be asked; then it is."""
        refused = self._refused | {server.name}
        if self._answering or self._head is None or not data.startswith(_ELSEWHERE) or len(refused) >= MAX_TRIES:
            return False
        self._refused = refused
        self._task = self._loop.create_task(self._forward(self._head))
        return True

    async def _connect(self, server: Server) -> _Outbound | None:
        outbound = _Outbound(self, server)
        try:
            await asyncio.wait_for(self._loop.create_connection(lambda: outbound, server.host, server.port), CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError):
            server.connect_failures += 1
            return None
        return outbound

    def _request(self, head: Head, server: Server) -> bytes:
        headers = {name: value for name, value in head.headers.items() if name not in _HOP_BY_HOP}
        headers |= {"host": f"{server.host}:{server.port}", "connection": "close"}
        if self._payload or "content-length" in headers:
            headers["content-length"] = str(len(self._payload))
        lines = [" ".join((head.start[0], head.start[1], "HTTP/1.1")), *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self._payload

    def relay(self, data: bytes) -> None:
        """Bytes of the answer."""
        self._answering = True
        if self.transport is not None:
            self.transport.write(data)

    def upstream_gone(self, *, clean: bool, status: int) -> None:
        """The server closed. Nothing answered yet: say so. Cut in the middle: cut the client too, it must not look complete."""
        if not self._answering:
            self.refuse(status, "the server closed the connection without an answer" if status == 502 else "the server is silent")
        elif self.transport is not None:
            self.transport.close() if clean else self.transport.abort()

    def refuse(self, status: int, message: str) -> None:
        """Answer for ourselves, and close."""
        if self.transport is None:
            return
        body = json.dumps({"error": {"message": message, "type": "gateway_error", "code": status}}).encode()
        fields = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        self.transport.write(response_head(status, fields) + body)
        self.transport.close()


class _Outbound(asyncio.Protocol):
    """The connection to a server, for the same request."""

    def __init__(self, inbound: _Inbound, server: Server) -> None:
        self._inbound = inbound
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._silent = False
        self._is_over = False
        """Another server is asked in place of this one."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.in_flight += 1
        self._server.requests += 1
        self._watch = self._loop.call_later(IDLE_TIMEOUT_S, self._check_silence)

    def send(self, request: bytes) -> None:
        if self.transport is not None:
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._last_s = self._loop.time()
        if self._is_over:
            return
        if self._inbound.goes_elsewhere(data, self._server):
            self._is_over = True
            self.abort()
        else:
            self._inbound.relay(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.in_flight -= 1
        self.transport = None
        if self._watch is not None:
            self._watch.cancel()
        if self._is_over:
            return
        clean = exc is None and not self._silent
        self._inbound.upstream_gone(clean=clean, status=504 if self._silent else 502)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _check_silence(self) -> None:
        left_s = self._last_s + IDLE_TIMEOUT_S - self._loop.time()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._check_silence)
            return
        self._silent = True
        self.abort()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def _server(text: str) -> Server:
    name, equals, url = text.partition("=")
    parts = urlsplit(url)
    if not equals or not name or parts.scheme != "http" or parts.hostname is None or parts.path not in ("", "/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=http://HOST:PORT")
    return Server(name, parts.hostname, parts.port or 80)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tailkeeper_demo.gateway", description="A small weighted gateway.")
    parser.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--admin", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--server", type=_server, action="append", required=True, metavar="NAME=URL")
    parser.add_argument("--ready-file", type=Path, default=None, help="written when both ports listen")
    parser.add_argument("--parent-pid", type=int, default=None, help="end when this process is gone")
    arguments = parser.parse_args(argv)
    names = [server.name for server in arguments.server]
    if len(set(names)) < len(names):
        parser.error(f"--server: the names {', '.join(names)} are not all different")
    return arguments


async def _run(arguments: argparse.Namespace) -> int:
    servers = Servers(arguments.server)
    gateway, admin = Gateway(servers), HttpServer(handler(servers))
    try:
        port = await gateway.listen(*arguments.listen)
        admin_port = await admin.listen(*arguments.admin)
        if arguments.ready_file is not None:
            urls = {"url": f"http://{arguments.listen[0]}:{port}", "admin_url": f"http://{arguments.admin[0]}:{admin_port}"}
            write_json(arguments.ready_file, urls)
        await until_told(arguments.parent_pid)
    except OSError as error:
        print(f"the gateway cannot start: {error}", file=sys.stderr)
        return 1
    finally:
        gateway.stop()
        admin.stop_listening()
        admin.cut_connections()
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop. Returns the exit code: 0, 1 when an address or a file cannot be had, 2 on wrong usage."""
    return asyncio.run(_run(_arguments(argv)))


if __name__ == "__main__":
    sys.exit(main())
