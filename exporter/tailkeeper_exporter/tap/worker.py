"""The taps' process: ``python -m tailkeeper_exporter.tap.worker FD``, where FD is its end of a socket pair to the exporter.

It gets its configuration and its listening sockets from the exporter, and sends what it sees back; the parts are put together
here and nowhere else. Users' traffic comes first: nothing waits for the exporter, and lines that it does not read are dropped
and counted. Headers, bodies and queries are never logged.

Where the exporter has gone, this process stops listening at once, so that a new exporter can, lets the answers in flight
end, and ends itself.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from tailkeeper_exporter import open_files
from tailkeeper_exporter.tap import lines
from tailkeeper_exporter.tap.admission import Admission
from tailkeeper_exporter.tap.cache import LocalCache
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.gate import Means, Tap
from tailkeeper_exporter.tap.knobs import Knobs
from tailkeeper_exporter.tap.lines import Splitter, TapPlan
from tailkeeper_exporter.tap.proxy import ClientConnection
from tailkeeper_exporter.tap.status import TapStatus
from tailkeeper_exporter.tap.upstream import Address, Pool
from tailkeeper_exporter.tls import tls_context

TICK_S = 0.25
"""How often what changed is told, and what took too long is ended."""
STATUS_EVERY_S = 1.0
MAX_UNREAD_BYTES = 4 * 1_048_576
"""Lines to the exporter that it has not read: some 4,000 exchanges, half a minute of a busy tap."""
BACKLOG = 2_048
CACHE_BYTES = 64 * 1_048_576
CACHE_ENTRY_BYTES = 262_144
ORPHAN_S = 600.0
"""How long answers may take to end when the exporter has gone: above the longest streams in use, of 8 minutes."""
TERMINATED_S = 3.0
"""The same after a SIGTERM meant for this process alone: the exporter will start another, and clients wait for it."""
MAX_LOGS_PER_TICK = 4


class Worker(asyncio.Protocol):
    """All taps, and the way to the exporter."""

    def __init__(self) -> None:
        self._splitter = Splitter()
        self._transport: asyncio.WriteTransport | None = None
        self._taps: dict[str, Tap] = {}
        self._servers: list[asyncio.Server] = []
        self._last: dict[str, TapStatus] = {}
        self._last_s = 0.0
        self._open = False
        self._dropped = 0
        self._logged = 0
        self._deadline_s: float | None = None
        """When to end, whatever is still in flight; None while serving."""
        self._tasks: set[asyncio.Task[None]] = set()

    # The way to the exporter.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        for line in self._splitter.feed(data):
            try:
                self._obey(line[:1], line[1:])
            except ValueError as error:
                # Another version of us, or a defect: the knob stays as it is, and the exporter's order times out.
                self.log("tap_line_refused", error=str(error)[:200])

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.end_within(ORPHAN_S)

    def _obey(self, kind: bytes, content: bytes) -> None:
        if kind == lines.CONFIGURE:
            self._configure(lines.plans_of(content))
        elif kind == lines.KNOBS:
            order = lines.order_of(content)
            if order.backend not in self._taps:
                raise ValueError("no tap for that backend")
            self._taps[order.backend].apply(order.knobs)
            # The status first: whoever reads it after the acknowledgement finds the new knobs in it.
            self._tell(time.monotonic())
            self._send(lines.line(lines.ACKNOWLEDGED, {"number": order.number}))
        elif kind == lines.QUIT:
            self.end_within(float(lines.document_of(content)["within_s"]))

    def _send(self, line: bytes) -> bool:
        """Whether it was sent. A reader that does not read must not make us grow."""
        if self._transport is None or self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            return False
        self._transport.write(line)
        return True

    def _emit(self, exchange: Exchange) -> None:
        self._dropped += not self._send(lines.EXCHANGE + exchange.line())

    def log(self, event: str, **facts: Any) -> None:
        """A line in the exporter's log; a few per tick, because a defect repeats itself with every request."""
        self._logged += 1
        if self._logged <= MAX_LOGS_PER_TICK:
            self._send(lines.line(lines.LOG, {"event": event, **facts}))

    # Life.

    def _configure(self, plans: tuple[TapPlan, ...]) -> None:
        """Make the taps at once, so that knobs which came in the same breath find them; listen right after."""
        means = Means(time.monotonic, time.time, secrets.token_hex, self._emit)
        for plan in plans:
            pool = Pool(_address(plan, lambda sentence: self.log("certificates", error=sentence)), time.monotonic)
            self._taps[plan.name] = Tap(plan.name, pool, Admission(Knobs()), LocalCache(CACHE_BYTES, CACHE_ENTRY_BYTES), means)
        task = asyncio.get_running_loop().create_task(self._listen(plans))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, plans: tuple[TapPlan, ...]) -> None:
        for plan in plans:
            listening = socket.socket(fileno=plan.fd)
            listening.setblocking(False)
            accept = functools.partial(ClientConnection, self._taps[plan.name])
            server = await asyncio.get_running_loop().create_server(accept, sock=listening, backlog=BACKLOG)
            self._servers.append(server)
        # What was made so far lives as long as the process: no collection need look at it again.
        gc.freeze()
        self._open = True
        self._tell(time.monotonic())

    async def run(self) -> None:
        """Until told to end, and then until nothing is in flight or the time is up."""
        while not self._is_over():
            await asyncio.sleep(TICK_S if self._deadline_s is None else 0.05)
            self._logged = 0
            for tap in self._taps.values():
                tap.sweep()
            self._tell(time.monotonic())
        cut = sum(tap.cut() for tap in self._taps.values())
        if cut:
            self.log("tap_streams_cut", count=cut)
        if self._transport is not None:
            self._transport.close()
        # One more turn of the loop, so that what was just written leaves.
        await asyncio.sleep(0.05)

    def _is_over(self) -> bool:
        if self._deadline_s is None:
            return False
        return time.monotonic() >= self._deadline_s or not any(tap.in_flight for tap in self._taps.values())

    def end_within(self, seconds: float) -> None:
        """Take no new requests; end when those in flight have, or after ``seconds``. The shortest time asked for counts."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for tap in self._taps.values():
            tap.close()
        deadline_s = time.monotonic() + seconds
        self._deadline_s = deadline_s if self._deadline_s is None else min(deadline_s, self._deadline_s)

    def _tell(self, now: float) -> None:
        """All statuses, where one changed or a second has passed. None before the taps listen: the first says that they do."""
        if not self._open:
            return
        statuses = {name: tap.status() for name, tap in self._taps.items()}
        if now - self._last_s < STATUS_EVERY_S and not any(_differs(self._last.get(n), s) for n, s in statuses.items()):
            return
        if self._send(lines.statuses_line(statuses, self._dropped)):
            self._last, self._last_s = statuses, now

    def failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A defect of ours in a callback: where it was, and nothing of what it was about."""
        error = context.get("exception")
        where = traceback.extract_tb(error.__traceback__)[-1:] if isinstance(error, BaseException) else []
        place = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in where]
        self.log("tap_error", error=type(error).__name__, where=place)


def _differs(before: TapStatus | None, now: TapStatus) -> bool:
    if before is None:
        return True
    return before != replace(now, at_s=before.at_s)


def _address(plan: TapPlan, warn: Callable[[str], None]) -> Address:
    """The exporter has read the same files at its start, and said so where it could not."""
    parts = urlsplit(plan.url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    tls = tls_context(plan.auth, f"backends.{plan.name}.auth", warn) if secure else None
    return Address(parts.hostname or "", port, parts.path.rstrip("/").encode(), parts.netloc.encode(), tls)


async def _main(fd: int) -> None:
    loop = asyncio.get_running_loop()
    worker = Worker()
    loop.set_exception_handler(worker.failed)
    loop.add_signal_handler(signal.SIGTERM, worker.end_within, TERMINATED_S)
    await loop.create_unix_connection(lambda: worker, sock=socket.socket(fileno=fd))
    await worker.run()


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the exporter, which ends us in order
    open_files.raise_limit()  # two sockets for each stream: 500 of them would reach the usual limit
    uvloop.run(_main(int(sys.argv[1])))


if __name__ == "__main__":
    main()
