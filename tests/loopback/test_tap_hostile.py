"""What one client can do to the others, and to what comes after it on its own connection: nothing."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from tailkeeper_exporter.tap import proxy
from tailkeeper_exporter.tap.knobs import DRAIN, Knobs
from tailkeeper_exporter.tap.turn import Turn
from tests.loopback.raw_engine import DONE, STREAM, Asked, Told, read_answer, says, token, until, whole
from tests.loopback.tap_world import CHAT, post, tapping

GET = b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n"


async def _slow_stream(asked: Asked) -> None:
    asked.send(STREAM)
    for number in range(6):
        asked.chunk(token(str(number)))
        await asked.writer.drain()
        await asyncio.sleep(0.05)
    asked.chunk(DONE)
    asked.end()


async def _until_closed(reader: asyncio.StreamReader) -> list[Told]:
    told, rest = [], b""
    async with asyncio.timeout(5):
        while not reader.at_eof():
            try:
                told.append(await read_answer(reader))
            except asyncio.IncompleteReadError as error:
                rest = error.partial
    assert rest == b""
    return told


async def test_a_request_that_comes_with_the_end_of_a_refused_one_has_its_turn_too() -> None:
    async with tapping(says(whole(b"{}"))) as world:
        world.tap.apply(Knobs(DRAIN, concurrency_limit=5))
        reader, writer = await world.connect()
        request = post(CHAT)
        writer.write(request[:-3])
        await until(lambda: world.tap.in_flight)
        writer.write(request[-3:] + GET)
        async with asyncio.timeout(2):
            assert [(await read_answer(reader)).status for _ in range(2)] == [503, 503]
        writer.close()


BROKEN_BODY = b"POST /second HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
SLOW_BODY = b"POST /second HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab"


@pytest.mark.parametrize(("second", "status"), [(BROKEN_BODY, 400), (SLOW_BODY, 408)])
async def test_what_is_wrong_with_a_request_is_said_after_the_answers_before_it(
    second: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "BODY_PAUSE_S", 0.1)
    async with tapping(_slow_stream) as world:
        reader, writer = await world.connect()
        writer.write(post(CHAT))
        await until(lambda: world.tap.book.running)
        writer.write(second)
        first, late = await _until_closed(reader)
        writer.close()
        outcomes = {seen.path: (seen.outcome, seen.status) for seen in world.seen}
    assert (first.status, first.whole, first.body.count(b"data:"), late.status) == (200, True, 7, status)
    assert outcomes == {"/v1/chat/completions": ("ok", 200), "/second": ("rejected", status)}


H2C = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"


@pytest.mark.parametrize("request_", [GET, H2C])
async def test_of_a_flood_of_requests_on_one_connection_only_so_many_are_taken(request_: bytes) -> None:
    async with tapping(says(whole(b"{}"))) as world:
        reader, writer = await world.connect()
        writer.write(request_ * 5_000)
        told = await _until_closed(reader)
        writer.close()
        assert len(world.engine.asked) == len(world.seen) == proxy.MAX_PIPELINED
    assert [one.status for one in told] == [200] * proxy.MAX_PIPELINED + [400]
    assert told[-1].error["code"] == "too_many_requests"


async def test_what_waits_for_its_turn_waits_at_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each connection could make the tap keep as many bodies as requests may wait on it."""
    taken = 0
    add = Turn.body

    def count(turn: Turn, data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        add(turn, data)

    monkeypatch.setattr(Turn, "body", count)
    go = asyncio.Event()

    async def answer(asked: Asked) -> None:
        await go.wait()
        asked.send(whole(b"{}"))

    async with tapping(answer) as world:
        reader, writer = await world.connect()
        writer.write(post(b"x" * 200_000) * 20)
        await until(lambda: world.engine.asked)
        await asyncio.sleep(0.1)
        assert taken < 600_000
        go.set()
        for _ in range(20):
            assert (await read_answer(reader)).status == 200
        writer.close()
        assert [len(asked.body) for asked in world.engine.asked] == [200_000] * 20


async def test_a_client_of_whom_requests_wait_is_missed_when_it_goes() -> None:
    async def never(asked: Asked) -> None:
        await asked.gone.wait()

    async with tapping(never) as world:
        _, writer = await world.connect()
        writer.write(post(CHAT) + GET)
        await until(lambda: world.engine.asked)
        writer.close()
        await until(lambda: len(world.seen) == 2, 2)
    assert {(seen.outcome, seen.error) for seen in world.seen} == {("aborted", "client_gone")}


async def test_chunks_of_one_byte_cost_others_no_more_than_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = 0
    add = Turn.body

    def count(turn: Turn, data: bytes) -> None:
        nonlocal pieces
        pieces += 1
        add(turn, data)

    monkeypatch.setattr(Turn, "body", count)
    async with tapping(says(whole(b"{}"))) as world:
        body = b"1\r\na\r\n" * 50_000 + b"0\r\n\r\n"
        told = await world.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + body)
        assert world.engine.asked[0].body == b"a" * 50_000
    assert told.status == 200
    assert pieces < 200


async def test_a_head_that_comes_byte_by_byte_is_not_waited_for_longer_than_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HEAD_S", 0.3)
    async with tapping(says(whole(b"{}"))) as world:
        _, writer = await world.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")
        await until(lambda: world.tap.connections)
        started = time.monotonic()
        while world.tap.connections:
            assert time.monotonic() - started < 2
            writer.write(b"a")
            await asyncio.sleep(0.05)
        writer.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux ends such a connection")
async def test_a_client_that_never_reads_gives_its_place_at_the_backend_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "UNREAD_S", 0.5)

    async def endless(asked: Asked) -> None:
        if asked.target == "/next":
            asked.send(whole(b"{}"))
            return
        asked.send(STREAM)
        while not asked.gone.is_set():
            asked.chunk(token("x" * 10_000))
            await asked.writer.drain()

    async with tapping(endless) as world:
        world.tap.apply(Knobs(concurrency_limit=1))
        _, writer = await world.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post(CHAT))
        await until(lambda: world.tap.book.running)
        assert (await world.say(GET)).status == 200
        writer.transport.abort()
    assert {(seen.path, seen.outcome) for seen in world.seen} == {("/v1/chat/completions", "aborted"), ("/next", "ok")}


async def test_what_counts_tokens_for_a_client_is_no_progress_of_the_engine() -> None:
    """The front door of a frozen engine still does it, so one client could hide that the engine hangs."""
    async with tapping(says(whole(b'{"count": 3, "tokens": [1, 2, 3]}'))) as world:
        await world.say(post({"prompt": "hi"}, path="/tokenize"))
        assert world.tap.status().progress_s is None
        await world.say(post({"prompt": "hi"}, path="/v1/embeddings"))
        assert world.tap.status().progress_s is not None
