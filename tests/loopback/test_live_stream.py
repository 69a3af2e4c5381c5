"""The stream: what it says, for how many, what it costs while nobody listens, and that nobody is waited for."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException

from tailkeeper_watchdog.api import live as live_module
from tailkeeper_watchdog.api.live import MAX_STREAMS, Event, Live, Stream, event, takes_gzip
from tailkeeper_watchdog.ledger import LedgerError
from tests.unit.watchdog_http import application, asked, client_of, gated, sick_fleet, world_at

WALL = 1_700_000_000.0
GZIP = [(b"accept-encoding", b"gzip, br")]


class Listener:
    """One that listens, without a socket: what it was sent, and how it leaves. ``takes`` False: it stops reading."""

    def __init__(self, live: Live, headers: list[tuple[bytes, bytes]] | None = None, *, takes: bool = True) -> None:
        self.live, self.headers, self.takes = live, headers or [], takes
        self.status = 0
        self.sent_headers: dict[bytes, bytes] = {}
        self.body = b""
        self.complete = False
        self._more = asyncio.Event()
        self._left = asyncio.Event()

    async def run(self) -> None:
        await Stream(self.live, lambda: WALL)({"type": "http", "headers": self.headers}, self._receive, self._send)

    async def _receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.sent_headers = message["status"], dict(message["headers"])
            return
        if not self.takes:
            await asyncio.Event().wait()
        self.body += message["body"]
        self.complete = not message.get("more_body", False)
        self._more.set()

    def leave(self) -> None:
        self._left.set()

    @property
    def text(self) -> bytes:
        if self.sent_headers.get(b"content-encoding") != b"gzip":
            return self.body
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        found = []
        for block in self.text.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"])))
        return found

    async def until(self, number: int) -> list[tuple[str, Any]]:
        """The events, once there are ``number`` of them."""
        async with asyncio.timeout(5):
            while len(self.events) < number:
                self._more.clear()
                await self._more.wait()
        return self.events


@asynccontextmanager
async def listening(*listeners: Listener) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(one.run()) for one in listeners]
    try:
        yield tasks
    finally:
        for one in listeners:
            one.leave()
        await asyncio.gather(*tasks)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(live_module, "SPACING_S", 0.001)


async def _number(value: int) -> Event:
    return event("picture", value)


@pytest.mark.parametrize("headers", [[], GZIP])
async def test_a_picture_is_what_the_calls_say(tmp_path: Path, headers: list[tuple[bytes, bytes]]) -> None:
    world = world_at(tmp_path)
    await sick_fleet(world)
    live = Live()
    api, listener = application(world, live=live), Listener(live, headers)
    async with api.router.lifespan_context(api), listening(listener), asked(world, ticks_s=0) as ask:
        ((name, picture),) = await listener.until(1)
        called = [await ask.get(f"/api/v1/{path}") for path in ("fleet", "findings?open=true", "decisions?limit=50")]
    assert name == "picture"
    assert picture["fleet"] == called[0]
    assert {f["id"]: f for f in picture["findings"]} == {f["id"]: f for f in called[1]}
    assert picture["decisions"] == called[2]
    assert listener.status == 200
    assert listener.sent_headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert listener.sent_headers[b"x-accel-buffering"] == b"no"
    assert listener.sent_headers[b"cache-control"] == b"no-store, no-transform"


async def test_each_tick_is_told_and_one_picture_is_written_for_all_who_listen_however_late_they_came() -> None:
    live, tick, written = Live(), 0, []

    async def picture() -> Event:
        written.append(tick)
        return await _number(tick)

    early, packed = Listener(live), Listener(live, GZIP)
    following = asyncio.create_task(live.follow(lambda: tick, picture))
    async with listening(early, packed):
        await early.until(1)
        tick = 1
        await early.until(2)
        late = Listener(live, GZIP)
        async with listening(late):
            assert await late.until(1) == [("picture", 1)], "at once, and not at the next tick"
            tick = 2
            assert await late.until(2) == [("picture", 1), ("picture", 2)]
        assert await packed.until(3) == await early.until(3) == [("picture", 0), ("picture", 1), ("picture", 2)]
    following.cancel()
    assert written == [0, 1, 2]


async def test_nothing_is_written_while_nobody_listens_and_nothing_kept() -> None:
    live, written = Live(), 0

    async def picture() -> Event:
        nonlocal written
        written += 1
        return await _number(written)

    following = asyncio.create_task(live.follow(object, picture))  # another record at each look
    await asyncio.sleep(0.02)
    assert written == 0
    listener = Listener(live)
    async with listening(listener):
        await listener.until(2)
    await asyncio.sleep(0.01)
    seen = written
    await asyncio.sleep(0.02)
    assert (written, live.open) == (seen, 0)
    again = Listener(live)
    async with listening(again):
        ((_, first),) = (await again.until(1))[:1]
    assert first > seen, "a picture of before would be told as new"
    following.cancel()


async def test_who_is_slower_than_the_ticks_misses_those_between_and_gets_the_newest() -> None:
    live, listener = Live(), Listener(Live())
    listener.live = live
    gate, sent = asyncio.Event(), listener._send

    async def slowly(message: Any) -> None:
        if b"picture" in message.get("body", b""):
            await gate.wait()
        await sent(message)

    listener._send = slowly  # type: ignore[method-assign]
    async with listening(listener):
        for number in range(100):
            live.tell(await _number(number))
            await asyncio.sleep(0)
        gate.set()
        events = await listener.until(2)
    assert events[-1] == ("picture", 99)
    assert len(events) <= 3


async def test_who_takes_nothing_is_ended_and_leaves_the_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "SEND_LIMIT_S", 0.02)
    live = Live()
    deaf, good = Listener(live, takes=False), Listener(live)
    async with listening(good):
        async with asyncio.timeout(5):
            await deaf.run()
        assert live.open == 1
        assert not deaf.complete, "the server closes what was left unfinished"
        live.tell(await _number(7))
        assert await good.until(1) == [("picture", 7)]


async def test_one_more_than_there_is_room_for_is_told_to_ask_instead() -> None:
    live = Live()
    listeners = [Listener(live) for _ in range(MAX_STREAMS)]
    async with listening(*listeners):
        await asyncio.sleep(0.01)
        assert live.full
        refused = Listener(live)
        await refused.run()
        assert (refused.status, refused.sent_headers[b"retry-after"]) == (503, b"30")
        assert f"{MAX_STREAMS} streams are open" in json.loads(refused.body)["detail"]
        assert live.open == MAX_STREAMS
    assert live.open == 0


async def test_silence_is_filled_with_beats_that_tell_the_watchdogs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "BEAT_S", 0.005)
    live = Live()
    listener = Listener(live)
    async with listening(listener):
        assert await listener.until(2) == [("beat", {"now": WALL}), ("beat", {"now": WALL})]
        live.tell(await _number(1))
        await listener.until(len(listener.events) + 3)
    names = [name for name, _ in listener.events]
    assert names.count("picture") == 1, "a beat does not make an old picture new"


async def test_the_end_of_the_server_ends_every_stream_and_begins_none() -> None:
    live = Live()
    listener = Listener(live, GZIP)
    async with listening(listener) as tasks:
        await asyncio.sleep(0.005)
        live.end()
        async with asyncio.timeout(5):
            await tasks[0]
    assert listener.complete
    late = Listener(live)
    await late.run()
    assert late.status == 503


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HTTPException(503, "the first tick has not ended yet"), "the first tick has not ended yet"),
        (LedgerError("disk full"), "the ledger cannot be used: disk full"),
        (RuntimeError("secret of the inside"), "the picture could not be written; the watchdog's log says why"),
    ],
)
async def test_why_there_is_no_picture_is_told_and_the_next_one_comes(error: Exception, said: str) -> None:
    live, tick = Live(), 0

    async def picture() -> Event:
        if tick == 0:
            raise error
        return await _number(tick)

    following = asyncio.create_task(live.follow(lambda: tick, picture))
    listener = Listener(live)
    async with listening(listener):
        assert await listener.until(1) == [("trouble", {"detail": said})]
        tick = 1
        assert (await listener.until(2))[1] == ("picture", 1)
    following.cancel()


async def test_before_the_first_tick_the_stream_says_so(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    live = Live()
    api, listener = application(world, live=live), Listener(live)
    async with api.router.lifespan_context(api), listening(listener):
        assert await listener.until(1) == [("trouble", {"detail": "the first tick has not ended yet"})]


async def test_whatever_a_picture_holds_is_one_event_of_one_line() -> None:
    hostile = "\r\n\n\revent: picture\ndata: {}\u2028\ud800"
    (line,) = [line for line in event("picture", {"a": hostile}).plain.split(b"\n") if line.startswith(b"data: ")]
    assert b"\r" not in event("picture", {"a": hostile}).plain
    assert json.loads(line[6:])["a"].startswith("\r\n\n\revent")


async def test_head_tells_the_headers_and_holds_no_stream(tmp_path: Path) -> None:
    live = Live()
    async with client_of(gated(world_at(tmp_path), live=live)) as client:
        answer = await client.head("/api/v1/stream")
    assert (answer.status_code, answer.content, live.open) == (200, b"", 0)
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        (b"gzip", True),
        (b"gzip, deflate, br, zstd", True),
        (b"br;q=1.0, GZIP;q=0.8", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"identity", False),
        (b"x-gzip-not", False),
        (b"", False),
        (b",;;=,", False),
        (b"br" * 10_000 + b",gzip", False),
    ],
)
def test_gzip_is_used_where_it_is_asked_for(accepted: bytes, taken: bool) -> None:
    assert takes_gzip({"headers": [(b"accept-encoding", accepted)]}) is taken
