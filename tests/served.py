"""An application behind the server that the exporter and the watchdog use, on a free loopback port, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from tailkeeper_exporter.serving import Server, bind, server_config

START_LIMIT_S = 10.0


@asynccontextmanager
async def served(app: ASGIApp, ending: Callable[[], None] = lambda: None, port: int = 0) -> AsyncIterator[tuple[int, Server]]:
    """Its port, and the server; it has ended when this is left."""
    with bind(f"127.0.0.1:{port}", "listen") as listening:
        config = server_config(app)
        config.lifespan = "auto"  # where it is served for real, somebody else begins and ends it
        server = Server(config, ending)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        async with asyncio.timeout(START_LIMIT_S):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.005)
        try:
            yield listening.getsockname()[1], server
        finally:
            server.should_exit = True
            await task
