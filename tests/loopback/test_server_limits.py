"""What a client can be slow or endless at, against both servers over real sockets: it ends, and others are served."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tailkeeper_exporter import bounded_http, serving
from tailkeeper_exporter.app import build
from tests.loopback.test_collector import QUIET, backend, settings
from tests.served import served
from tests.unit.watchdog_http import TOKEN, gated, world_at

QUICK_S = 0.3
PATIENT_S = 15.0
"""For a machine shared with others; what is waited for takes well under a second."""
GET = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
AUTHORIZED = f"authorization: Bearer {TOKEN}\r\n".encode()


@pytest.fixture(params=["exporter", "watchdog"])
async def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Of a server with little patience; in the end nobody has logged an error."""
    for name in ("HEAD_S", "BODY_S", "LINGER_S", "UNREAD_S"):
        monkeypatch.setattr(bounded_http, name, QUICK_S + {"BODY_S": 0.1, "LINGER_S": 0.2}.get(name, 0.0))
    caplog: pytest.LogCaptureFixture = request.getfixturevalue("caplog")
    async with _application(request.param, tmp_path) as app, served(app) as (number, _):
        yield number
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@asynccontextmanager
async def _application(which: str, folder: Path) -> AsyncIterator[ASGIApp]:
    if which == "watchdog":
        world = world_at(folder)
        await world.run(1)
        yield gated(world, TOKEN)
        return
    exporter = build((backend("http://127.0.0.1:9"),), settings(), log=QUIET)
    yield exporter.app
    await exporter._close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_096)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _ended(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server ends the connection, which it does in time."""
    async with asyncio.timeout(PATIENT_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def _alive(port: int) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENT_S) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/livez")).status_code == 200


async def _drip(writer: asyncio.StreamWriter, piece: bytes, every_s: float = 0.02) -> None:
    with suppress(ConnectionError):
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_s)


async def _dripping(port: int, beginning: bytes, piece: bytes, every_s: float = 0.02) -> float:
    """How long a client was borne that says ``beginning`` and then ``piece`` again and again."""
    async with connected(port) as (reader, writer):
        began = time.monotonic()
        writer.write(beginning)
        dripping = asyncio.create_task(_drip(writer, piece, every_s))
        await _alive(port)
        await _ended(reader)
        took_s = time.monotonic() - began
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
    return took_s


async def test_a_connection_that_says_nothing_ends(port: int) -> None:
    async with connected(port) as (reader, _):
        assert await _ended(reader) == b""


async def test_a_connection_that_has_been_served_may_wait_for_its_next_request_and_not_in_the_middle_of_it(port: int) -> None:
    async with connected(port) as (reader, writer):
        for _ in range(2):
            writer.write(GET)
            async with asyncio.timeout(PATIENT_S):
                assert b"200" in await reader.readline()
                await reader.readuntil(b"}")
            await asyncio.sleep(2 * QUICK_S)
        writer.write(GET[:10])
        assert await _ended(reader) == b""


SLOW = {
    "a head that never ends": (b"GET /livez HTTP/1.1\r\n", b"x: y\r\n"),
    "a line that never ends": (b"GET /livez HTTP/1.1\r\nx: ", b"y"),
    "a body that comes byte by byte": (
        b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99999\r\n\r\n",
        b"x",
    ),
    "an alert that comes byte by byte": (
        b"POST /api/v1/alerts HTTP/1.1\r\nhost: x\r\n" + AUTHORIZED + b"content-length: 99999\r\n\r\n",
        b" ",
    ),
    "a body that goes on after its refusal": (
        b"POST /api/v1/alerts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        b"3\r\nabc\r\n",
    ),
    "empty lines": (b"", b"\r\n"),
}


@pytest.mark.parametrize("name", list(SLOW))
async def test_who_is_slow_is_cut_off_however_steadily_the_bytes_come(port: int, name: str) -> None:
    assert await _dripping(port, *SLOW[name]) < PATIENT_S / 2


ENDLESS = {
    "a huge header": (b"GET /livez HTTP/1.1\r\nx: ", b"y" * 65_536),
    "a million headers": (b"GET /livez HTTP/1.1\r\n", b"x: y\r\n" * 10_000),
    "a huge path": (b"GET /", b"a" * 65_536),
    "a huge number of bytes in a chunk": (
        b"POST /livez HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        b"f" * 65_536,
    ),
    "chunks of one byte": (b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 50_000),
    "a huge chunked body": (
        b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        b"10000\r\n" + b"x" * 65_536 + b"\r\n",
    ),
    "trailers without end": (
        b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        b"x: y\r\n" * 10_000,
    ),
}


@pytest.mark.parametrize("name", list(ENDLESS))
async def test_who_never_ends_is_cut_off_and_others_are_served_meanwhile(port: int, name: str) -> None:
    assert await _dripping(port, *ENDLESS[name], every_s=0.0) < PATIENT_S / 2


BROKEN = [
    b"NONSENSE\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"POST /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    b"POST /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /livez HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"POST /livez HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /livez HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxy\r\n",
    b"POST /api/v1/pause HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\r\n: \r\n\r\n",
]


@pytest.mark.parametrize("said", BROKEN)
async def test_what_is_no_http_is_refused_and_ends_the_connection(port: int, said: bytes) -> None:
    async with connected(port) as (reader, writer):
        writer.write(said)
        answer = await _ended(reader)
    assert answer == b"" or answer.split()[1][:1] == b"4", answer
    assert b"Traceback" not in answer
    await _alive(port)


async def test_a_thousand_requests_in_one_piece_are_answered_one_after_the_other(port: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(GET * 999 + GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        await _alive(port)
        assert (await _ended(reader)).count(b"HTTP/1.1 200 OK") == 1_000


TRAVERSAL = [
    "/../../../../etc/passwd",
    "/console.js/../../../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "/%252e%252e%252fetc/passwd",
    "/..\\..\\etc\\passwd",
    "/console.css%00.html",
    "//etc/passwd",
    "/healthz/../../etc/passwd",
    "/api/v1/taps/..%2f..%2fetc%2fpasswd",
    "/api/v1/backends/..%2f..%2fetc%2fpasswd/hold",
    "/%ff%fe/%c0%ae%c0%ae/etc/passwd",
    "http://127.0.0.2/etc/passwd",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("path", TRAVERSAL)
async def test_no_path_leads_out_of_what_is_served(port: int, path: str) -> None:
    async with connected(port) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        answer = await _ended(reader)
    assert answer.split()[1] in (b"400", b"404", b"405"), answer[:200]
    assert b"root:" not in answer


async def test_connections_beyond_the_limit_are_told_so_and_their_places_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bounded_http, serving):
        monkeypatch.setattr(module, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(bounded_http, "HEAD_S", 2.0)
    async with _application("exporter", tmp_path) as app, served(app) as (port, server), AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(connected(port)) for _ in range(4)]
        await _until(lambda: len(server.server_state.connections) == 4)
        async with connected(port) as (reader, _):
            assert (await _ended(reader)).startswith(b"HTTP/1.1 503"), "without having been asked anything"
        for one, _ in idle:
            assert await _ended(one) == b""
        await _alive(port)


def _deaf(port: int) -> socket.socket:
    """One that asks and reads nothing; its kernel keeps little for it."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    deaf.connect(("127.0.0.1", port))
    deaf.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
    return deaf


@pytest.mark.parametrize("closes", [False, True])
async def test_a_page_that_nobody_reads_is_not_kept_in_memory(closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def large(request: Request) -> Response:
        return Response(bytes(16 * 1024 * 1024), headers={"connection": "close"} if closes else {})

    monkeypatch.setattr(bounded_http, "UNREAD_S", QUICK_S)
    async with served(Starlette(routes=[Route("/large", large)])) as (port, server):
        deaf = [_deaf(port) for _ in range(3)]
        await _until(lambda: len(server.server_state.connections) == 3)
        await _until(lambda: not server.server_state.connections)
        for one in deaf:
            one.close()


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not true():  # noqa: ASYNC110 - what is waited for is counted elsewhere
            await asyncio.sleep(0.01)


async def test_whoever_reads_slowly_and_steadily_gets_all_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async def large(request: Request) -> Response:
        return Response(bytes(2 * 1024 * 1024))

    monkeypatch.setattr(bounded_http, "HEAD_S", QUICK_S)
    async with served(Starlette(routes=[Route("/large", large)])) as (port, _), connected(port) as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        got = 0
        while piece := await reader.read(65_536):
            got += len(piece)
            await asyncio.sleep(0.02)
    assert got > 2 * 1024 * 1024
