"""The demo's HTTP/1.1: parsing whatever way the bytes are cut, and a server that bad clients cannot break."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_demo.http1 import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    BodyDecoder,
    ProtocolError,
    Request,
    chunk,
    parse_head,
    response_head,
)
from tailkeeper_demo.http_server import Handler, HttpServer, Reply


@given(payload=st.lists(st.binary(min_size=1, max_size=40), max_size=8), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_a_chunked_body_is_the_same_however_it_is_cut(payload: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(chunk(part) for part in payload) + b"0\r\n\r\nNEXT"
    decoder = BodyDecoder(chunked=True, length=None)
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    got = b"".join(decoder.feed(wire[a:b]) for a, b in itertools.pairwise(edges))
    assert got == b"".join(payload)
    assert decoder.done
    assert decoder.rest == b"NEXT"


def test_a_counted_body_ends_at_its_length_and_leaves_the_rest() -> None:
    decoder = BodyDecoder.for_headers({"content-length": "5"}, response=False)
    assert decoder.feed(b"abc") == b"abc"
    assert not decoder.done
    assert decoder.feed(b"deNEXT") == b"de"
    assert (decoder.done, decoder.rest) == (True, b"NEXT")


def test_trailers_and_chunk_extensions_are_skipped() -> None:
    decoder = BodyDecoder(chunked=True, length=None)
    assert decoder.feed(b"3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n") == b"abc"
    assert decoder.done


@pytest.mark.parametrize("wire", [b"xyz\r\n", b"-1\r\n", b"3\r\nabcd\r\n", b"ffffffffff\r\n", b"a" * (MAX_HEAD_BYTES + 1)])
def test_broken_chunk_framing_is_an_error(wire: bytes) -> None:
    with pytest.raises(ProtocolError):
        BodyDecoder(chunked=True, length=None).feed(wire)


@pytest.mark.parametrize(
    "headers", [{"content-length": "-1"}, {"content-length": "1, 2"}, {"content-length": "٣"}, {"transfer-encoding": "gzip"}]
)
def test_a_length_that_cannot_be_understood_is_an_error(headers: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        BodyDecoder.for_headers(headers, response=False)


@pytest.mark.parametrize("raw", [b"", b"GET", b" / HTTP/1.1", b"GET / HTTP/1.1\r\nno colon", b"GET / HTTP/1.1\r\n: x"])
def test_a_broken_head_is_an_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_head(raw)


def test_header_names_are_lowered_and_repeated_ones_joined() -> None:
    assert parse_head(b"GET / HTTP/1.1\r\nX-A: 1\r\nx-a: 2").headers == {"x-a": "1, 2"}


def test_a_header_value_with_a_line_break_is_never_sent() -> None:
    with pytest.raises(ValueError, match="line break"):
        response_head(200, {"x-request-id": "a\r\nset-cookie: b"})


def echo(request: Request, reply: Reply) -> None:
    if request.path == "/bug":
        raise RuntimeError("a handler's bug")
    if request.path == "/stream":
        reply.start(200, "text/plain")
        for part in (b"one", b"two"):
            reply.write(part)
        reply.end()
        return
    reply.send(200, request.method.encode() + b" " + request.path.encode() + b" " + request.body)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(handler)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        server.stop_listening()
        server.cut_connections()


async def raw(port: int, data: bytes) -> bytes:
    """Send, half close nothing, read until the server closes or a second passes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 1.0)
    finally:
        writer.close()


async def test_a_kept_alive_connection_serves_one_request_after_another() -> None:
    async with serving(echo) as (_, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.post("/a", content=b"x")).text == "POST /a x"
        assert (await client.get("/stream")).text == "onetwo"
        assert (await client.get("/b?c=d")).text == "GET /b "


async def test_pipelined_requests_are_answered_in_order() -> None:
    one = b"POST /1 HTTP/1.1\r\ncontent-length: 1\r\n\r\nx"
    two = b"GET /2 HTTP/1.1\r\nconnection: close\r\n\r\n"
    async with serving(echo) as (_, port):
        answer = await raw(port, one + two)
    assert answer.index(b"POST /1 x") < answer.index(b"GET /2")


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 8000, b"431"),
        (f"POST / HTTP/1.1\r\ncontent-length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode() + b"x" * (MAX_BODY_BYTES + 1), b"413"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", b"501"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
)
async def test_a_bad_client_gets_an_error_and_the_next_one_is_served(wire: bytes, status: bytes) -> None:
    async with serving(echo) as (_, port):
        assert (await raw(port, wire)).startswith(b"HTTP/1.1 " + status)
        assert b"GET /ok" in await raw(port, b"GET /ok HTTP/1.1\r\nconnection: close\r\n\r\n")


async def test_a_handlers_bug_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(echo) as (_, port):
        with contextlib.suppress(ConnectionResetError):
            assert await raw(port, b"GET /bug HTTP/1.1\r\n\r\n") == b""
        assert "GET /bug failed" in caplog.text
        assert b"GET /ok" in await raw(port, b"GET /ok HTTP/1.1\r\nconnection: close\r\n\r\n")


async def test_an_expecting_client_is_told_to_continue() -> None:
    async with serving(echo) as (_, port):
        head = b"POST /e HTTP/1.1\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"
        answer = await raw(port, head)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


async def test_a_client_that_does_not_read_is_cut() -> None:
    lost = asyncio.Event()

    def flood(request: Request, reply: Reply) -> None:
        reply.on_close = lost.set
        reply.start(200, "text/plain")
        for _ in range(400):
            reply.write(b"x" * 65536)

    async with serving(flood) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(lost.wait(), 5)
        writer.close()
