"""``bench loop``: from the first exporter page that says hung to the drain that an independent eye reads at the gateway.

A page server plays the exporter, so that the clock starts at a known moment: from then on the page says hung, whoever
asks, at a random phase of the tick. The watchdog's loop, its HTTP client, its ledger and the gateway (HAProxy where
there is one, else the demo's small gateway) are real. What comes before the page (a hang needs ``no_progress_s`` by
definition) is not in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from tailkeeper.bench import build_loop, summary
from tailkeeper_exporter.catalog import BACKEND_STATE
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.collect.exporter import ExporterSource
from tailkeeper_watchdog.gateways import HaproxyGateway, WebhookGateway
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Backend, Target

NAMES = ("a", "b", "c", "d")
LOOK_EVERY_S = 0.002
LIMIT_S = 30.0

Look = Callable[[str], Awaitable[bool]]


class PageServer:
    """Serves an exporter's page on which ``hung`` is hung and the others serve."""

    def __init__(self) -> None:
        self.hung: str | None = None

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1]
                body = self._page() if path == b"/metrics" else b'{"backends": []}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        writer.close()

    def _page(self) -> bytes:
        lines = [
            f'{BACKEND_STATE.name}{{backend="{n}",state="{s}"}} {int(s == (State.HUNG if n == self.hung else State.SERVING))}'
            for n in NAMES
            for s in State
        ]
        return "\n".join([*lines, ""]).encode()


async def run(trials: int, tick_s: float, seed: int, haproxy: str | None) -> dict[str, Any]:
    """Figures in seconds. Raises TimeoutError where the gateway never changed."""
    with tempfile.TemporaryDirectory(prefix="tk-") as name:
        folder = Path(name)
        start = _haproxy(folder, haproxy) if haproxy else _small_gateway(folder)
        pages = PageServer()
        async with start as (gateway, prefix, drained), await asyncio.start_server(pages.answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            backends = tuple(Backend(n, "m", (Target("edge", prefix + n, "llm"),)) for n in NAMES)
            source = ExporterSource((url,), NAMES, 3.0)
            ledger = Ledger(folder / "ledger.db")
            loop = build_loop(backends, source, {"edge": build_actuator(gateway)}, ledger, tick_s)
            stop = asyncio.Event()
            ticking = asyncio.create_task(loop.run(stop))
            phases = random.Random(seed)  # noqa: S311  spreads the trials over the tick
            seconds = []
            for number in range(trials):
                await asyncio.sleep(phases.uniform(0.0, tick_s))
                seconds.append(await _trial(NAMES[number % len(NAMES)], pages, drained))
            stop.set()
            await ticking
            await source.close()
            await loop.parts.reconciler.close()
            ledger.close()
    return {
        "trials": trials,
        "tick_s": tick_s,
        "gateway": gateway.kind,
        "fault_to_weight_seconds": summary(seconds),
    }


async def _trial(victim: str, pages: PageServer, drained: Look) -> float:
    started = time.monotonic()
    pages.hung = victim
    at = await _until(drained, victim, True)
    pages.hung = None
    await _until(drained, victim, False)
    return at - started


async def _until(drained: Look, victim: str, wanted: bool) -> float:
    async with asyncio.timeout(LIMIT_S):
        while await drained(victim) is not wanted:  # noqa: ASYNC110  the eye is another program's, which tells nobody
            await asyncio.sleep(LOOK_EVERY_S)
    return time.monotonic()


@contextlib.asynccontextmanager
async def _haproxy(folder: Path, binary: str) -> AsyncIterator[tuple[HaproxyGateway, str, Look]]:
    socket = folder / "s"
    servers = "\n".join(f"  server {n} 127.0.0.1:1 weight 100" for n in NAMES)
    (folder / "h.cfg").write_text(
        f"global\n  stats socket {socket} mode 600 level admin\ndefaults\n  mode http\n  timeout connect 1s\n"
        f"  timeout client 1s\n  timeout server 1s\nbackend llm\n{servers}\nlisten idle\n  bind {folder}/l\n"
    )

    async def drained(name: str) -> bool:
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(b"show stat llm 4 -1\n")
        rows = (await reader.read()).decode().splitlines()
        writer.close()
        header = rows[0].lstrip("# ").split(",")
        row = next(r.split(",") for r in rows[1:] if r.split(",")[header.index("svname")] == name)
        return row[header.index("status")].startswith("DRAIN")

    async with _program([binary, "-db", "-f", str(folder / "h.cfg")], socket.exists):
        yield HaproxyGateway(name="edge", kind="haproxy", socket=str(socket)), "llm/", drained


@contextlib.asynccontextmanager
async def _small_gateway(folder: Path) -> AsyncIterator[tuple[WebhookGateway, str, Look]]:
    import httpx

    from tailkeeper_demo.processes import free_port

    admin, ready = free_port(), folder / "ready"
    servers = [part for n in NAMES for part in ("--server", f"{n}=http://127.0.0.1:1")]
    command = [sys.executable, "-m", "tailkeeper_demo.gateway", "--listen", f"127.0.0.1:{free_port()}"]
    url = f"http://127.0.0.1:{admin}"
    async with (
        _program([*command, "--admin", f"127.0.0.1:{admin}", "--ready-file", str(ready), *servers], ready.exists),
        httpx.AsyncClient(trust_env=False) as client,
    ):

        async def drained(name: str) -> bool:
            document = json.loads((await client.get(f"{url}/{name}")).content)
            return bool(document["admission"] == "drain")

        yield WebhookGateway(name="edge", kind="webhook", url=url), "", drained


@contextlib.asynccontextmanager
async def _program(command: list[str], ready: Callable[[], bool]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(LIMIT_S):
            while not ready():
                if process.returncode is not None:
                    raise RuntimeError(f"{command[0]} ended with {process.returncode}")
                await asyncio.sleep(0.02)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
