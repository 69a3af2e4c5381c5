"""Serves from the first moment on, and builds the watchdog only once it leads: what it reads at its start is then the last word.

While another watchdog leads, every answer says who, and nothing is done at any gateway, in the ledger or beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import structlog
from fastapi import FastAPI, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tailkeeper_exporter import open_files
from tailkeeper_exporter.serving import Server, bind, end_on_signals, server_config
from tailkeeper_watchdog.api.console import add_console
from tailkeeper_watchdog.api.security import Gate
from tailkeeper_watchdog.api.strict import StrictJson
from tailkeeper_watchdog.leadership import Leadership
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.switches import Switches

log = structlog.get_logger("tailkeeper.watchdog")

TRY_EVERY_S = 0.25
"""How soon a dead leader's place is taken: well within a second."""
TRY_SERVER_EVERY_S = 1.0
"""The same where a server is asked for it."""
FIRST_SENTENCE = "it is not known yet who leads"
BY_SIGNAL = "paused by SIGUSR1"


class Led(Protocol):
    """What is built once we lead."""

    switches: Switches
    asgi: ASGIApp

    def running(self) -> AbstractAsyncContextManager[None]: ...

    def end_streams(self) -> None: ...


class Standby:
    """``build`` makes the watchdog, ``pause`` presses the kill switch of whoever leads, for the reason that it is given;
    ``token`` is that of the interface, if it has one."""

    def __init__(
        self,
        leadership: Leadership,
        build: Callable[[], Led],
        listen: str,
        pause: Callable[[str], Awaitable[None]],
        token: str | None,
        try_every_s: float = TRY_EVERY_S,
    ) -> None:
        self._leadership, self._build, self._listen, self._pause_leader = leadership, build, listen, pause
        self._why_not = FIRST_SENTENCE
        self._try_every_s = try_every_s
        self._led: Led | None = None
        self._pausing: asyncio.Task[None] | None = None
        self._asgi: ASGIApp = Gate(standing_by(lambda: self._why_not), token)

    async def run(self) -> None:
        """Serve, lead as soon as nobody else does, and tick, until SIGTERM or SIGINT. SIGUSR1 pauses, as the kill switch that
        needs no network. Raises OSError where it cannot listen, and what ``build`` raises.
        """
        open_files.raise_limit()
        server = Server(server_config(self._serve), self._end_streams)  # the application's lifespan begins when it is built
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._pause)
        with bind(self._listen, "watchdog.listen") as listening:
            end_on_signals(server)
            ended = asyncio.Event()
            leading = asyncio.create_task(self._lead(ended))
            leading.add_done_callback(lambda _: setattr(server, "should_exit", True))
            try:
                await server.serve(sockets=[listening])
            finally:
                ended.set()
                await leading

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._asgi(scope, receive, send)

    async def _lead(self, ended: asyncio.Event) -> None:
        """Wait for our turn, and be the watchdog until ``ended``."""
        try:
            while not ended.is_set() and (why_not := await self._leadership.try_lead()) is not None:
                if why_not != self._why_not:
                    log.warning("standing by", leader=why_not)
                self._why_not = why_not
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), self._try_every_s)
            if not ended.is_set():
                await self._be(self._build(), ended)
        finally:
            await self._leadership.step_down()

    async def _be(self, led: Led, ended: asyncio.Event) -> None:
        async with led.running():
            self._led, self._asgi = led, led.asgi
            await ended.wait()

    def _end_streams(self) -> None:
        if self._led is not None:
            self._led.end_streams()

    def _pause(self) -> None:
        """The kill switch works at a watchdog that stands by too: it is in the ledger, which the leader reads at each tick."""
        if self._led is not None:
            self._led.switches.pause(BY_SIGNAL)
        else:
            self._pausing = asyncio.create_task(self._pause_other())

    async def _pause_other(self) -> None:
        try:
            await self._pause_leader(BY_SIGNAL)
        except LedgerError as error:
            log.error("the leader could not be paused", error=str(error))


async def pause_by_file(state: Path, why: str) -> None:
    """Presses the kill switch of whoever leads by the ledger in this file. Raises LedgerError."""
    with contextlib.closing(Ledger(state)) as ledger:
        Switches(ledger, None, lambda: 0.0).pause(why)


def standing_by(why: Callable[[], str]) -> FastAPI:
    """The application of a watchdog that does not lead: the console's page, and the sentence of ``why`` for all else."""

    def sentence() -> str:
        said = why()
        return said if said.startswith("standing by") else f"standing by: {said}"

    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    add_console(api)

    @api.get("/livez")
    async def livez() -> Response:
        return StrictJson({"status": "pass"})

    @api.get("/readyz")
    async def readyz() -> Response:
        return StrictJson({"status": "fail", "reason": sentence()}, 503)

    @api.get("/metrics")
    async def metrics() -> Response:
        """Nothing is known here, which is no fault of this process: a page without series."""
        return Response("# standing by: another watchdog leads\n", media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE"])
    async def anything(path: str) -> Response:
        return StrictJson({"detail": sentence()}, 503)

    return api
