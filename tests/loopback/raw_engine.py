"""An engine on loopback that says byte for byte what a test tells it, and knows when its client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Asked:
    """One request as it came, and the connection it came on."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    writer: asyncio.StreamWriter
    gone: asyncio.Event

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def send(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    def chunk(self, *pieces: bytes) -> None:
        for data in pieces:
            self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")

    def reset(self) -> None:
        self.writer.transport.abort()


Answer = Callable[[Asked], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def token(text: str) -> bytes:
    return (
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}).encode() + b"\n\n"
    )


def usage(prompt: int, generated: int, cached: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": generated, "prompt_tokens_details": {"cached_tokens": cached}}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


def whole(body: bytes, status: int = 200, *more: str, content_type: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status} Word", f"content-type: {content_type}", f"content-length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def says(*pieces: bytes) -> Answer:
    """The same bytes to everybody."""

    async def answer(asked: Asked) -> None:
        asked.send(*pieces)

    return answer


@dataclass
class RawEngine:
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def raw_engine(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawEngine]:
    """Serves until the block ends."""
    engine, tasks = RawEngine(), set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        engine.connections += 1
        number = engine.connections
        first = b""
        try:
            while True:
                asked = await _request(reader, writer, first, number)
                engine.asked.append(asked)
                more = asyncio.create_task(_next_byte(reader, asked.gone))
                await answer(asked)
                await writer.drain()
                if writer.is_closing():
                    more.cancel()
                    return
                first = await more
                if not first:
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next_byte(reader: asyncio.StreamReader, gone: asyncio.Event) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        data = await reader.read(1)
    if not data:
        gone.set()
    return data


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes, number: int) -> Asked:
    head, *lines = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head.split(" ")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]
    asked = Asked(method, target, headers, b"", number, writer, asyncio.Event())
    if asked.header("transfer-encoding"):
        asked.body = await _chunks(reader)
    elif asked.header("content-length"):
        asked.body = await reader.readexactly(int(asked.header("content-length")[0]))
    return asked


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


@dataclass
class Told:
    """An answer as a client read it. ``whole`` is False where the connection ended before the answer did."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    whole: bool = True

    @property
    def error(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.body)["error"]
        return found


async def read_answer(reader: asyncio.StreamReader, method: str = "GET") -> Told:
    """One answer. Raises IncompleteReadError where there is no head."""
    head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    told = Told(int(head.split(" ")[1]), headers)
    if method == "HEAD" or told.status in (100, 204, 304):
        return told
    try:
        if "transfer-encoding" in headers:
            await _read_chunks(reader, told)
        elif "content-length" in headers:
            told.body = await reader.readexactly(int(headers["content-length"]))
        else:
            told.body = await reader.read()
    except asyncio.IncompleteReadError as error:
        told.body, told.whole = told.body + error.partial, False
    except (ConnectionError, ValueError):
        told.whole = False
    return told


async def _read_chunks(reader: asyncio.StreamReader, told: Told) -> None:
    while size := int(await reader.readline(), 16):
        told.body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()


async def until(condition: Callable[[], object], limit_s: float = 5.0) -> float:
    """Wait for it. Returns the seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s, "it never came to that"
        await asyncio.sleep(0.005)
    return time.monotonic() - started
