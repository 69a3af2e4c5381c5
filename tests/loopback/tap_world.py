"""A tap in the test's own process, before a raw engine: for what does not need the tap's process itself."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tailkeeper_exporter.tap.admission import Admission
from tailkeeper_exporter.tap.cache import LocalCache
from tailkeeper_exporter.tap.exchange import Exchange, exchange_of
from tailkeeper_exporter.tap.gate import Means, Tap
from tailkeeper_exporter.tap.knobs import Knobs
from tailkeeper_exporter.tap.proxy import ClientConnection
from tailkeeper_exporter.tap.upstream import Address, Pool
from tests.loopback.raw_engine import Answer, RawEngine, Told, raw_engine, read_answer, until


@dataclass
class World:
    engine: RawEngine
    tap: Tap
    port: int
    seen: list[Exchange] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)

    async def say(self, data: bytes, method: str = "GET") -> Told:
        """These bytes on a connection of their own, and the answer."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            async with asyncio.timeout(10):
                return await read_answer(reader, method)
        finally:
            writer.close()

    async def exchange(self, number: int = -1) -> Exchange:
        """The last record, once it is there."""
        await until(lambda: self.seen)
        return self.seen[number]


def post(body: object, *headers: str, path: str = "/v1/chat/completions") -> bytes:
    """A request as a client of this interface sends it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: tap", "content-type: application/json", f"content-length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def tapping(answer: Answer, path: bytes = b"", tls: ssl.SSLContext | None = None) -> AsyncIterator[World]:
    """The engine and its tap, until the block ends; then nothing is in flight, or the test fails."""
    async with raw_engine(answer) as engine, tapping_at(engine, engine.port, path, tls) as world:
        yield world


@asynccontextmanager
async def tapping_at(
    engine: RawEngine, port: int, path: bytes = b"", tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[World]:
    pool = Pool(Address(host, port, path, f"engine:{port}".encode(), tls), time.monotonic)
    seen: list[Exchange] = []
    means = Means(time.monotonic, time.time, secrets.token_hex, lambda e: seen.append(exchange_of(e.line())))
    tap = Tap("a", pool, Admission(Knobs()), LocalCache(1 << 20, 1 << 18), means)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(tap), "127.0.0.1", 0)
    ticking = asyncio.create_task(_tick(tap))
    try:
        yield World(engine, tap, server.sockets[0].getsockname()[1], seen)
        await until(lambda: not tap.in_flight, 2.0)
        assert (tap.book.held, tap.book.waiting, tap.book.running, tap.book.backlog_tokens) == (0, 0, 0, 0)
    finally:
        ticking.cancel()
        server.close()
        tap.close()
        tap.cut()
        await until(lambda: not tap.connections)


async def _tick(tap: Tap) -> None:
    while True:
        await asyncio.sleep(0.05)
        tap.sweep()
