"""The two ends of ``bench tap``, each a process of its own: an engine that streams marked tokens, and a client that checks them.

``python -m tailkeeper.bench_tap_ends engine GAP_S TOKENS`` prints its port; ``… client PORT STREAMS SECONDS SEED`` prints what
it saw as JSON. Both do as little as can be, so that what lies between them is what is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import cast

import httptools
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
PROMPT = "word " * 100
START_SPREAD_S = 0.5


def token(mark: str, number: int) -> bytes:
    """One event of the size that engines send, in a chunk of its own."""
    choice = f'{{"index":0,"delta":{{"content":"{mark}-{number}"}},"logprobs":null,"finish_reason":null}}'
    head = '"id":"chatcmpl-0af7651916cd43dd8448eb211c80319c","object":"chat.completion.chunk","created":1700000000,"model":"m"'
    event = f'data: {{{head},"choices":[{choice}]}}\n\n'.encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


class EngineConnection(asyncio.Protocol):
    """Answers each request with ``tokens`` tokens, ``gap_s`` apart; with no gap, as fast as they are taken."""

    def __init__(self, gap_s: float, tokens: int) -> None:
        self._gap_s, self._tokens = gap_s, tokens
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._body = b""
        self._mark = ""
        self._sent = 0
        self._due_s = 0.0
        """Of the next token, from the answer's own start: streams that once met by chance do not stay together."""
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._mark, self._body, self._sent = json.loads(self._body)["user"], b"", 0
        if self._transport is not None:
            self._transport.write(HEAD)
        self._due_s = asyncio.get_running_loop().time()
        self._next()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if not self._gap_s:
            self._next()

    def _next(self) -> None:
        if self._transport is None or (self._paused and not self._gap_s):
            return
        if self._sent == self._tokens:
            self._transport.write(DONE)
            return
        self._transport.write(token(self._mark, self._sent))
        self._sent += 1
        loop = asyncio.get_running_loop()
        if self._gap_s:
            self._due_s += self._gap_s
            loop.call_at(self._due_s, self._next)
        else:
            loop.call_soon(self._next)


class ClientStream(asyncio.Protocol):
    """Asks again and again on one connection, and checks that each answer is its own and whole."""

    def __init__(self, number: int, seen: Seen) -> None:
        self._number, self._seen = number, seen
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._asked = 0
        self._asked_at = 0.0
        self._first = True
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        # A parser goes with a connection, not with an answer; the tap and the engine keep both.
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._seen.lost += 1

    def _ask(self) -> None:
        self._asked += 1
        mark = f"s{self._number}q{self._asked}"
        messages = [{"role": "user", "content": PROMPT}]
        body = json.dumps({"model": "m", "stream": True, "user": mark, "messages": messages}).encode()
        self._mark = f'"content":"{mark}-'.encode()
        self._first, self._body = True, bytearray()
        self._asked_at = time.perf_counter()
        if self._transport is not None:
            self._transport.write(REQUEST % len(body) + body)

    def on_body(self, data: bytes) -> None:
        if self._first:
            self._first = False
            self._seen.first_s.append(time.perf_counter() - self._asked_at)
        self._body += data
        self._seen.tokens += data.count(b"data: {")

    def on_message_complete(self) -> None:
        tokens = self._body.count(b'"content":"')
        self._seen.foreign += tokens - self._body.count(self._mark)
        self._seen.requests += 1
        self._ask()


class Seen:
    """What all streams of one run saw together."""

    def __init__(self) -> None:
        self.first_s: list[float] = []
        self.tokens = self.requests = self.foreign = self.lost = 0


async def engine(gap_s: float, tokens: int) -> None:
    """Serve until ended; the port is printed first."""
    server = await asyncio.get_running_loop().create_server(lambda: EngineConnection(gap_s, tokens), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def client(port: int, streams: int, seconds: float, seed: int) -> None:
    """Warm up while the streams start, then count for ``seconds``."""
    loop, start, seen = asyncio.get_running_loop(), random.Random(seed), Seen()  # noqa: S311  spreads the starts
    spread_s = START_SPREAD_S if streams > 1 else 0.0

    async def one(number: int) -> None:
        await asyncio.sleep(start.random() * spread_s)
        await loop.create_connection(lambda: ClientStream(number, seen), "127.0.0.1", port)

    await asyncio.gather(*(one(number) for number in range(streams)))
    await asyncio.sleep(spread_s)
    seen.first_s, seen.tokens, seen.requests = [], 0, 0
    started = time.perf_counter()
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - started
    counts = {"tokens": seen.tokens, "requests": seen.requests, "foreign": seen.foreign, "lost": seen.lost}
    print(json.dumps({"seconds": took_s, "first_s": seen.first_s, **counts}))


def main() -> None:
    """Entry point."""
    kind, *numbers = sys.argv[1:]
    if kind == "engine":
        uvloop.run(engine(float(numbers[0]), int(numbers[1])))
    else:
        uvloop.run(client(int(numbers[0]), int(numbers[1]), float(numbers[2]), int(numbers[3])))


if __name__ == "__main__":
    main()
