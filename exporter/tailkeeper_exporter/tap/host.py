"""The exporter's side of the taps: their sockets, their process, and what comes from it. Satisfies ``status.Taps``.

The sockets are bound here, so that a bad address is found at start, and so that connections wait in the backlog, rather than
be refused, while a process that died is started anew. A line that makes no sense costs itself and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, cast

import structlog

from tailkeeper_exporter.serving import bind
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.tap import lines
from tailkeeper_exporter.tap.exchange import Exchange, exchange_of
from tailkeeper_exporter.tap.knobs import Knobs
from tailkeeper_exporter.tap.lines import Order, Splitter, TapPlan
from tailkeeper_exporter.tap.status import TapStatus

RESTART_FIRST_S, RESTART_MOST_S = 0.1, 5.0
"""A crash on one request is over at once; one on every request must not keep a core busy."""
LASTED_S = 10.0
"""A process that lived so long starts the next one without delay."""
STOP_S = 3.0
"""How long answers in flight may take to end when the exporter stops; then they are cut, counted and logged."""
KILL_AFTER_S = 1.0


class _Link(asyncio.Protocol):
    """Our end of the socket pair to one process."""

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._on_line = on_line
        self._splitter = Splitter()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        for line in self._splitter.feed(data):
            self._on_line(line)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    @property
    def oversized(self) -> int:
        return self._splitter.oversized

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class TapHost:
    """All taps of one exporter. ``run`` keeps their process alive while it is awaited."""

    def __init__(
        self,
        backends: Iterable[BackendSettings],
        on_exchange: Callable[[Exchange], None],
        log: Any = None,
        clock: Callable[[], float] = time.monotonic,
        stop_s: float = STOP_S,
    ) -> None:
        self._backends = {backend.name: backend for backend in backends if backend.tap is not None}
        self._on_exchange = on_exchange
        self._log = structlog.get_logger("tailkeeper.tap") if log is None else log
        self._clock = clock
        self._stop_s = stop_s
        self._sockets: dict[str, socket.socket] = {}
        self._statuses: dict[str, TapStatus] = {}
        self._in_force: dict[str, Knobs] = {}
        self._link: _Link | None = None
        self._up = asyncio.Event()
        self._orders: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        self.pid: int | None = None
        """Of the taps' process; None while there is none."""
        self.restarts = 0
        self.bad_lines = 0
        """Lines that made no sense, which only another version of us could send."""
        self.dropped = 0
        """Exchanges that the present process could not tell us, because we did not read."""

    def open(self) -> None:
        """Bind all addresses. Raises OSError that names the setting."""
        try:
            for name, backend in self._backends.items():
                if name not in self._sockets and backend.tap is not None:
                    self._sockets[name] = bind(backend.tap.listen, f"backends.{name}.tap.listen")
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Give the addresses back."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where each tap listens, HOST:PORT, while it is open."""
        return {name: "{}:{}".format(*sock.getsockname()[:2]) for name, sock in self._sockets.items()}

    @property
    def statuses(self) -> Mapping[str, TapStatus]:
        """The last status that each tap reported; ``at_s`` says how old it is."""
        return self._statuses

    async def ready(self) -> None:
        """Wait until the process has reported that it listens."""
        await self._up.wait()

    async def apply(self, backend: str, knobs: Knobs, deadline_s: float) -> None:
        """Turn the knobs; returns when the tap has confirmed them. ``deadline_s`` is seconds from now.

        Raises KeyError (no tap), TimeoutError (not confirmed: read the status to see), OSError (the process died).
        """
        if backend not in self._backends:
            raise KeyError(backend)
        async with asyncio.timeout(deadline_s):
            await self._up.wait()
            self._number += 1
            number, done = self._number, asyncio.get_running_loop().create_future()
            self._orders[number] = done
            try:
                self._write(Order(number, backend, knobs).line())
                await done
            finally:
                self._orders.pop(number, None)
        self._in_force[backend] = knobs

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[TapHost]:
        """Run in the background while the block lasts. Raises OSError where it cannot listen."""
        self.open()
        task = asyncio.create_task(self.run())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def run(self) -> None:
        """Keep the process alive until cancelled; then end it, within ``stop_s`` and a second. Raises OSError at start."""
        if not self._backends:
            return
        self.open()
        delay_s = RESTART_FIRST_S
        try:
            while True:
                started_s = self._clock()
                code = await self._outcome()
                lasted = self._clock() - started_s >= LASTED_S
                delay_s = RESTART_FIRST_S if lasted else min(2 * delay_s, RESTART_MOST_S)
                self.restarts += 1
                self._log.error("tap_process_ended", code=code, again_in_s=delay_s)
                await asyncio.sleep(delay_s)
        finally:
            self.close()

    async def _outcome(self) -> int | str:
        """How one process ended, or why there could be none: a machine out of memory or processes may have some again."""
        try:
            return await self._life()
        except OSError as error:
            return str(error.strerror or error)

    async def _life(self) -> int:
        """One process from its start to its end. Returns its exit code."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                fds = [theirs.fileno(), *(sock.fileno() for sock in self._sockets.values())]
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tailkeeper_exporter.tap.worker", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=fds,
                    start_new_session=True,  # signals to our group are ours; we end it in order
                )
        except BaseException:
            ours.close()
            raise
        self.pid = process.pid
        try:
            ours.setblocking(False)
            _, link = await asyncio.get_running_loop().create_unix_connection(lambda: _Link(self._line), sock=ours)
            self._link = link
            self._write(self._configuration())
            return await process.wait()
        finally:
            await self._end(process)

    def _configuration(self) -> bytes:
        plans = tuple(
            TapPlan(name, backend.url, self._sockets[name].fileno(), *_paths(backend)) for name, backend in self._backends.items()
        )
        return b"".join((lines.plans_line(plans), *(Order(0, name, knobs).line() for name, knobs in self._in_force.items())))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """The process is gone, or is to go: politely, then not."""
        if process.returncode is None:
            self._write(lines.line(lines.QUIT, {"within_s": self._stop_s}))
            try:
                await asyncio.wait_for(process.wait(), self._stop_s + KILL_AFTER_S)
            except (TimeoutError, asyncio.CancelledError):
                process.kill()
                await process.wait()
                self._log.warning("tap_process_killed", after_s=self._stop_s + KILL_AFTER_S)
        self._up.clear()
        self.pid = None
        if self._link is not None:
            self._link.close()
            self._link = None
        for done in self._orders.values():
            if not done.done():
                done.set_exception(OSError("the tap's process ended before it confirmed"))

    def _write(self, data: bytes) -> None:
        if self._link is not None:
            self._link.write(data)

    # What comes from the process.

    def _line(self, line: bytes) -> None:
        try:
            self._take(line[:1], line[1:])
        except (ValueError, KeyError, TypeError, RecursionError):
            self.bad_lines += 1
            if self.bad_lines == 1:
                self._log.warning("tap_line_refused", kind=line[:1].decode("latin-1"), size_bytes=len(line))

    def _take(self, kind: bytes, content: bytes) -> None:
        if kind == lines.EXCHANGE:
            exchange = exchange_of(content)
            if exchange.backend in self._backends:
                self._on_exchange(exchange)
        elif kind == lines.STATUSES:
            statuses, self.dropped = lines.statuses_of(content)
            self._statuses.update({name: status for name, status in statuses.items() if name in self._backends})
            self._up.set()
        elif kind == lines.ACKNOWLEDGED:
            done = self._orders.get(lines.document_of(content)["number"])
            if done is not None and not done.done():
                done.set_result(None)
        elif kind == lines.LOG:
            facts = lines.document_of(content)
            self._log.warning(str(facts.pop("event")), **{str(name): value for name, value in facts.items()})
        else:
            raise ValueError("of no known kind")


def _paths(backend: BackendSettings) -> tuple[str | None, str | None, str | None]:
    auth = backend.auth
    ca, cert, key = (None if path is None else str(path) for path in (auth.ca_file, auth.cert_file, auth.key_file))
    return ca, cert, key
