"""``GET /api/v1/stream``: what the console shows, as server-sent events: a whole picture after each tick, a beat in between.

A picture is written once for all who listen, beside the loop and only while somebody does; the loop knows nothing of it. Nothing
is queued: who is slower than the ticks gets the newest picture and misses those before it, and who does not take one within
``SEND_LIMIT_S`` is ended. Bounded: ``MAX_STREAMS``, one picture in memory, and two ``CHUNK_BYTES`` under way to each.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import structlog
from fastapi import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailkeeper_watchdog.api.strict import StrictJson, encode
from tailkeeper_watchdog.ledger import LedgerError

log = structlog.get_logger("tailkeeper.watchdog")

MAX_STREAMS = 64
"""An on-call team and its wall screens. Whoever comes after them asks again and again, as the console then does."""
BEAT_S = 5.0
"""So often at least something is said; who hears nothing for three of them has lost us. Proxies cut silence after a minute."""
SEND_LIMIT_S = 15.0
LOOK_EVERY_S = 0.25
"""How soon after a tick its picture is begun."""
SPACING_S = 1.0
"""Between two pictures, however fast the ticks follow each other: nobody reads faster."""
CHUNK_BYTES = 64 * 1024
RETRY_AFTER_S = 30
FAST = 1
"""zlib's level. A picture of 2,000 backends is 1.5 MB of much the same words, and leaves as a few percent of that."""
_GZIP_BEGINS = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_OPENING = b"retry: 5000\n\n"
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it is sent. ``packed`` refers to nothing before it, so that every gzip stream can go on with it."""

    name: str
    plain: bytes
    packed: bytes


def event(name: str, content: object) -> Event:
    """``content`` is anything that JSON can say; it is on one line, as the format wants it."""
    plain = b"event: " + name.encode() + b"\ndata: " + encode(content) + b"\n\n"
    return Event(name, plain, _packed(plain))


def _packed(plain: bytes) -> bytes:
    deflate = zlib.compressobj(FAST, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(plain) + deflate.flush(zlib.Z_FULL_FLUSH)


class Live:
    """Who listens, and the newest event. One task follows the ticks; streams read."""

    def __init__(self) -> None:
        self._open = 0
        self._latest: Event | None = None
        self._changed = asyncio.Event()
        self._ended = False

    @property
    def open(self) -> int:
        """How many listen."""
        return self._open

    @property
    def full(self) -> bool:
        return self._ended or self._open >= MAX_STREAMS

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def end(self) -> None:
        """Ends every stream, and none begins any more: a server that ends would wait for them."""
        self._ended = True
        self._changed.set()

    def tell(self, told: Event) -> None:
        self._latest = told
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, seen: Event | None, wall: Callable[[], float]) -> Event | None:
        """The newest event once it is not ``seen``, or else a beat in time; None when all has ended."""
        changed = self._changed
        if not self._ended and (self._latest is None or self._latest is seen):
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), BEAT_S)
        if self._ended:
            return None
        newest = self._latest
        return event("beat", {"now": wall()}) if newest is None or newest is seen else newest

    async def follow(self, latest: Callable[[], object], picture: Callable[[], Awaitable[Event]]) -> None:
        """Tell a ``picture`` of each ``latest`` record, for ever; cancel it to end."""
        told: object = _NOTHING
        while True:
            record = latest()
            if not self._open:
                told, self._latest = _NOTHING, None
            elif record is not told:
                told = record
                self.tell(await _written(picture))
                await asyncio.sleep(SPACING_S)
            await asyncio.sleep(LOOK_EVERY_S)


async def _written(picture: Callable[[], Awaitable[Event]]) -> Event:
    """Never raises: who listens is told why there is no picture, as a call would be."""
    try:
        return await picture()
    except HTTPException as error:
        return event("trouble", {"detail": error.detail})
    except LedgerError as error:
        return event("trouble", {"detail": f"the ledger cannot be used: {error}"})
    except Exception:  # the boundary of a picture: the next one may be better
        with suppress(Exception):
            log.exception("a picture for the console could not be written")
        return event("trouble", {"detail": "the picture could not be written; the watchdog's log says why"})


class Stream(Response):
    """The answer to one listener; ``wall`` is the watchdog's clock."""

    media_type = "text/event-stream"

    def __init__(self, live: Live, wall: Callable[[], float]) -> None:
        super().__init__()
        self._live, self._wall = live, wall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._live.full:
            refusal = {"detail": f"{MAX_STREAMS} streams are open, no more are served; ask /api/v1/fleet instead"}
            await StrictJson(refusal, 503, {"retry-after": str(RETRY_AFTER_S)})(scope, receive, send)
            return
        with self._live.listening():
            tasks = [asyncio.create_task(_gone(receive)), asyncio.create_task(self._tell(send, packed=takes_gzip(scope)))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, send: Send, *, packed: bool) -> None:
        """Until all ends. Raises TimeoutError, and leaves the answer unfinished, where an event is not taken."""
        await send({"type": "http.response.start", "status": 200, "headers": _headers(packed)})
        await _send(send, _GZIP_BEGINS + _packed(_OPENING) if packed else _OPENING)
        seen: Event | None = None
        while (told := await self._live.after(seen, self._wall)) is not None:
            await _send(send, told.packed if packed else told.plain)
            seen = seen if told.name == "beat" else told
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, body: bytes) -> None:
    """In pieces, for a piece that is under way is in memory until it is taken."""
    async with asyncio.timeout(SEND_LIMIT_S):
        for at in range(0, len(body), CHUNK_BYTES):
            await send({"type": "http.response.body", "body": body[at : at + CHUNK_BYTES], "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _headers(packed: bool) -> list[tuple[bytes, bytes]]:
    """``x-accel-buffering`` keeps nginx from gathering events; ``no-transform`` keeps others from packing them anew."""
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store, no-transform"),
        (b"x-accel-buffering", b"no"),
        (b"vary", b"accept-encoding"),
        *([(b"content-encoding", b"gzip")] if packed else []),
    ]


def takes_gzip(scope: Scope) -> bool:
    """Whether gzip is asked for by its name and not refused by ``q=0``."""
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding")
    for entry in accepted[:1_000].lower().split(b","):
        coding, *given = (part.strip() for part in entry.split(b";"))
        if coding == b"gzip":
            return not any(part.replace(b" ", b"") in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for part in given)
    return False
