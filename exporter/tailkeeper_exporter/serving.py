"""How our HTTP servers listen, serve and end: one way for the exporter and the watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from tailkeeper_exporter.bounded_http import MAX_CONNECTIONS, BoundedProtocol

KEEP_ALIVE_S = 75
"""Above a Prometheus scrape interval, so that its connection is reused."""
STOP_S = 3
"""How long open answers may take to finish at shutdown; none of them waits for anything."""


def bind(address: str, key: str) -> socket.socket:
    """A listening socket at HOST:PORT. Raises OSError that names ``key``, the setting the address came from.

    Its protocol is TCP by name, and so is that of what it accepts: with protocol 0, which ``create_server`` leaves, asyncio
    keeps Nagle's algorithm on, and every answer of two writes waits 40 ms for an acknowledgement.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, int(port)), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        raise OSError(error.errno, f"{key}: {address}: {error.strerror}") from error
    return socket.socket(fileno=listening.detach())  # asks the kernel for the protocol


def server_config(app: ASGIApp) -> uvicorn.Config:
    """How we serve: no server header, no access log, every connection bounded. The application's lifespan is the caller's."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        interface="asgi3",
        lifespan="off",
        http=BoundedProtocol,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )


class Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would raise the signal anew when all is closed. ``ending`` is called before
    open connections are waited for: answers that go on for ever end there."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def end_on_signals(*servers: Server) -> None:
    """SIGINT and SIGTERM end every one of ``servers``. Needs a running event loop."""

    def end() -> None:
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end)
