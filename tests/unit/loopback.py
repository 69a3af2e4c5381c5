"""A real HTTP server on loopback that does exactly what a test says, also what no library would let it do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        document = json.loads(self.body)
        assert isinstance(document, dict)
        return document


Handler = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    url: str
    requests: list[Seen] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


def head(status: int = 200, *headers: str, length: int | None = None) -> bytes:
    """A response head; the connection closes after it unless ``length`` says where the body ends."""
    ending = ["connection: close"] if length is None else [f"content-length: {length}"]
    return "\r\n".join([f"HTTP/1.1 {status} X", *headers, *ending, "", ""]).encode()


def reply(status: int, body: bytes | str | Mapping[str, object] = b"", *headers: str) -> Handler:
    """Always this answer. A dictionary goes out as JSON."""
    content = json.dumps(body).encode() if isinstance(body, Mapping) else body.encode() if isinstance(body, str) else body

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, *headers, length=len(content)) + content)

    return handle


def stream(*pieces: bytes | float, status: int = 200) -> Handler:
    """Server-sent events: bytes are sent, numbers are seconds to wait."""

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, "content-type: text/event-stream"))
        for piece in pieces:
            if isinstance(piece, float):
                await writer.drain()
                await asyncio.sleep(piece)
            else:
                writer.write(piece)
        await writer.drain()
        writer.close()

    return handle


async def silence(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Accept, and never answer."""
    await asyncio.Event().wait()


def routes(table: dict[str, Handler], otherwise: Handler | None = None) -> Handler:
    """By path; what is not in the table is 404."""

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await table.get(seen.path, otherwise or reply(404, {"detail": "Not Found"}))(seen, writer)

    return handle


def serving(handler: Handler) -> AbstractAsyncContextManager[Server]:
    """The server, on a free loopback port, until the block ends."""
    return serving_at(handler, 0)


@asynccontextmanager
async def serving_at(handler: Handler, port: int) -> AsyncIterator[Server]:
    """The server, on that loopback port, until the block ends. Handlers still running then are cancelled."""
    server, tasks = Server(""), set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while (seen := await _request(reader)) is not None:
                server.requests.append(seen)
                await handler(seen, writer)
                if writer.is_closing():
                    return
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", port)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = lines[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, path, headers, body)
