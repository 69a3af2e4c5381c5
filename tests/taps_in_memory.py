"""Taps without their data path, for tests: the real admission behind the real knobs, and requests that a test makes up.

A small fake of ``Taps``, labelled so; the real one, in a process of its own, has tests of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from tailkeeper_exporter.serving import Server, bind
from tailkeeper_exporter.tap.admission import Admission, Priority, Refusal, Ticket
from tailkeeper_exporter.tap.knobs import Knobs
from tailkeeper_exporter.tap.routes import tap_routes
from tailkeeper_exporter.tap.status import Taps, TapStatus


class TapsInMemory:
    """Satisfies ``Taps``. ``history`` is every change, in order; ``fails`` is raised instead of the next ones."""

    def __init__(self, *backends: str) -> None:
        self.knobs = dict.fromkeys(backends, Knobs())
        self.doors = {backend: Admission(Knobs()) for backend in backends}
        self.history: list[tuple[str, Knobs]] = []
        self.fails: Exception | None = None
        self.silent_s = 0.0
        """How long ago the taps last reported."""
        self.lag_s = 0.0
        """How long after the confirmation a change is reported."""
        self._before: tuple[float, Mapping[str, TapStatus]] = (0.0, {})
        self._keys = count()

    @property
    def statuses(self) -> Mapping[str, TapStatus]:
        now = time.monotonic()
        if now < self._before[0]:
            return self._before[1]
        at_s = now - self.silent_s
        return {
            backend: TapStatus(at_s, door.admitted, 0, door.queued, None, None, self.knobs[backend])
            for backend, door in self.doors.items()
        }

    async def apply(self, backend: str, knobs: Knobs, deadline_s: float) -> None:
        if self.fails is not None:
            raise self.fails
        self._before = (time.monotonic() + self.lag_s, self.statuses)
        self.doors[backend].change(knobs, time.monotonic())
        self.knobs[backend] = knobs
        self.history.append((backend, knobs))

    def ask(self, backend: str, priority: Priority = Priority.NORMAL) -> Refusal | bool:
        """A request comes and stays."""
        return self.doors[backend].ask(Ticket(next(self._keys), priority, True, 100.0), time.monotonic())


class Counting:
    """Passes everything on, and notes paths and how many requests were there at once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.paths: list[str] = []
        self.most_at_once = 0
        self._at_once = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(f"{scope['method']} {scope['path']}")
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await self._app(scope, receive, send)
        finally:
            self._at_once -= 1


@asynccontextmanager
async def exporter_with(taps: Taps, token: str | None = None) -> AsyncIterator[tuple[str, Counting]]:
    """The exporter's real routes over ``taps`` on a port of its own: its URL, and what came to it."""
    app = Counting(Starlette(routes=tap_routes(taps, token, "127.0.0.1:0")))
    with bind("127.0.0.1:0", "test") as listening:
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", http="h11", ws="none")
        server = Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", app
        finally:
            server.should_exit = True
            await serving
