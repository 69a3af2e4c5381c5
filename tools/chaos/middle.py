"""What stands in the middle: before each engine's metrics page, and before HAProxy's socket. A process of its own.

    python -m tools.chaos.middle CONFIGURATION.json

The pages can be spoilt (`Spoil`). At the socket nothing is spoilt: each command that changes something is held against the
ledger before HAProxy gets it, and written down, a line of JSON each, in ``events``. So it is seen of every single change, not of
samples, whether a lease was there before it. The socket can be taken away with HAProxy, as its own goes with it.
Told what to do by ``control``, a JSON file that is read again when it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import sqlite3
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tools.chaos.ledger_eye import LeaseRow, read_open

LOOK_EVERY_S = 0.05
PAGE_TIMEOUT_S = 10.0
MAX_BYTES = 4 * 1024 * 1024


class Spoil(StrEnum):
    """What becomes of an engine's metrics page."""

    RUBBISH = "rubbish"
    """200 and bytes that are no page, another kind each time."""
    HALF = "half"
    """It ends in the middle of a line, although more was promised."""
    CUT = "cut"
    """The first half of its lines and a length that fits: it looks whole."""
    SILENT = "silent"
    """Nobody answers."""
    EMPTY = "empty"
    ERROR = "error"
    """500."""
    DRIP = "drip"
    """A line at a time, slower than anybody waits."""


@dataclass(frozen=True, slots=True)
class Told:
    """The configuration. ``pages`` are ports by engine: where to listen, and where the engine is."""

    pages: Mapping[str, tuple[int, int]]
    gate: str
    haproxy: str
    ledger: str
    control: str
    events: str


class Middle:
    def __init__(self, told: Told) -> None:
        self._told = told
        self._spoils: dict[str, Spoil] = {}
        self._gate: asyncio.Server | None = None
        self._random = random.Random(1)
        self._seen = -1

    async def run(self) -> None:
        for engine, (port, upstream) in self._told.pages.items():
            await asyncio.start_server(functools.partial(self._page, engine, upstream), "127.0.0.1", port)
        while True:
            wanted = self._news()
            if wanted is not None:
                await self._obey(wanted)
            await asyncio.sleep(LOOK_EVERY_S)

    def _news(self) -> Mapping[str, Any] | None:
        """What ``control`` says, where it has changed."""
        control = Path(self._told.control)
        with contextlib.suppress(OSError, ValueError):
            stamp = control.stat().st_mtime_ns
            if stamp != self._seen:
                document: dict[str, Any] = json.loads(control.read_text())
                self._seen = stamp
                return document
        return None

    async def _obey(self, wanted: Mapping[str, Any]) -> None:
        self._spoils = {engine: Spoil(spoil) for engine, spoil in wanted["spoils"].items()}
        if wanted["gate"] and self._gate is None:
            self._remove_gate()
            self._gate = await asyncio.start_unix_server(self._command, self._told.gate)
        elif not wanted["gate"] and self._gate is not None:
            self._gate.close()
            self._gate = None
            self._remove_gate()

    def _remove_gate(self) -> None:
        Path(self._told.gate).unlink(missing_ok=True)

    # Pages

    async def _page(self, engine: str, upstream: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                await reader.readuntil(b"\r\n\r\n")
                await self._answer(self._spoils.get(engine), upstream, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, spoil: Spoil | None, upstream: int, writer: asyncio.StreamWriter) -> None:
        if spoil is Spoil.SILENT:
            await asyncio.sleep(PAGE_TIMEOUT_S)
            return
        status, body = (200, b"") if spoil in (Spoil.RUBBISH, Spoil.EMPTY, Spoil.ERROR) else await _fetch(upstream)
        if spoil is Spoil.RUBBISH:
            body = rubbish(self._random)
        elif spoil is Spoil.ERROR:
            status = 500
        elif spoil is Spoil.CUT:
            lines = body.splitlines(keepends=True)
            body = b"".join(lines[: len(lines) // 2])
        head = f"HTTP/1.1 {status} OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"connection: close\r\n\r\n")
        if spoil is Spoil.HALF:
            body = body[: len(body) // 2]
        if spoil is Spoil.DRIP:
            for line in body.splitlines(keepends=True):
                writer.write(line)
                await writer.drain()
                await asyncio.sleep(0.2)
        else:
            writer.write(body)
        await writer.drain()

    # The socket

    async def _command(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One command or batch a connection, as HAProxy has it; whoever hangs up takes the way to HAProxy along."""
        up: asyncio.StreamWriter | None = None
        try:
            line = await reader.readline()
            self._note(line.decode(errors="replace").strip())
            answers, up = await asyncio.open_unix_connection(self._told.haproxy)
            up.write(line)
            await up.drain()
            answering = asyncio.ensure_future(_relay(answers, writer))
            leaving = asyncio.ensure_future(reader.read(1))
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        except (OSError, ValueError):
            pass
        finally:
            for side in (writer, up):
                if side is not None:
                    side.close()

    def _note(self, line: str) -> None:
        """Of a command that changes something: whether a lease says so already."""
        words = line.split()
        if words[:2] != ["set", "server"]:
            return
        event: dict[str, Any] = {"at": time.monotonic(), "command": line}
        try:
            event["covered"], event["leases"] = covered(words, read_open(self._told.ledger))
        except (sqlite3.Error, ValueError) as error:
            event["covered"], event["error"] = None, str(error)
        with Path(self._told.events).open("a") as events:
            events.write(json.dumps(event) + "\n")


def covered(words: list[str], leases: tuple[LeaseRow, ...], units: int = 100) -> tuple[bool, list[str]]:
    """Whether ``set server …`` only does what a lease in force says, or gives back what it says was there before; and the leases
    on that server in words. ``units`` is the configured weight of every server."""
    server, what, value = words[2], words[3], words[4]
    here = [lease for lease in leases if lease.server == server]
    for lease in here:
        if what == "state" and lease.knob == "admission":
            wanted = {"drain": "drain", "ready": "serve"}[value]
            if wanted in (lease.written, lease.prior):
                return True, [str(one) for one in here]
        if what == "weight" and lease.knob == "weight":
            share = int(value) / units
            if any(abs(share - float(known)) <= 1.0 / units for known in (lease.written, lease.prior)):
                return True, [str(one) for one in here]
    return False, [str(one) for one in here]


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65_536):
        writer.write(chunk)
        await writer.drain()


async def _fetch(port: int) -> tuple[int, bytes]:
    """The engine's own page. Raises OSError where there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(x.split(":")[1]) for x in head.splitlines() if x.lower().startswith("content-length")), None)
        body = await (reader.read(MAX_BYTES) if length is None else reader.readexactly(length))
        return int(head.split()[1]), body
    finally:
        writer.close()


def rubbish(rng: random.Random) -> bytes:
    """No page, of one kind or another; the last ones name our metrics and give them no number."""
    kinds = (
        lambda: rng.randbytes(20_000),
        lambda: b"<html><body>502 Bad Gateway</body></html>",
        lambda: b'vllm:num_requests_running{model_name="m"} NaN\nvllm:num_requests_waiting{model_name="m"} \n',
        lambda: b'vllm:num_requests_running{model_name="m" 3\nvllm:kv_cache_usage_perc{} -1e999\n' * 50,
        lambda: b"{" * 5_000,
        lambda: b"\x00" * 1_000 + b"\n" + b"a" * 70_000,
    )
    return rng.choice(kinds)()


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    pages = {engine: (int(a), int(b)) for engine, (a, b) in document.pop("pages").items()}
    asyncio.run(Middle(Told(pages, **document)).run())


if __name__ == "__main__":
    main()
