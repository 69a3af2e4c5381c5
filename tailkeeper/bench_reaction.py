"""``bench loop``: from a fault to what an independent eye reads at the gateway. The real loop, with all policies enforced.

Three clocks, each from where it can be known to begin:

* ``fault_to_weight_seconds``, the contract's: from the first exporter page that says hung to the drain. A page server plays the
  exporter: from a known moment on, at a random phase of the tick, the page says hung, whoever asks. The watchdog's loop, its HTTP
  client, its ledger and the gateway (HAProxy where there is one, else the demo's small gateway) are real. What comes before the
  page (a hang needs ``no_progress_s`` by definition) is not in it.
* ``gpu`` and ``shedding``: see `bench_faults`. ``peers``: see `bench_peers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tailkeeper.bench import build_loop, summary
from tailkeeper.bench_gateways import LIMIT_S, Started, a_gateway, until
from tailkeeper_exporter.catalog import BACKEND_STATE
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.actuators.contract import Actuator
from tailkeeper_watchdog.collect.exporter import ExporterSource
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.loop import Loop
from tailkeeper_watchdog.model import Backend, Target

NAMES = ("a", "b", "c", "d")
STALE_AFTER_S = 3.0
REST_S = 0.4
"""Between two trials. A backend that was released is left alone for the cooldown of 1 s; its turn comes again after four."""


class PageServer:
    """Serves an exporter's page on which ``hung`` is hung and the others serve."""

    def __init__(self) -> None:
        self.hung: str | None = None

    def page(self) -> str:
        lines = [
            f'{BACKEND_STATE.name}{{backend="{n}",state="{s}"}} {int(s == (State.HUNG if n == self.hung else State.SERVING))}'
            for n in NAMES
            for s in State
        ]
        return "\n".join([*lines, ""])

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1]
                body = self.page().encode() if path == b"/metrics" else b'{"backends": []}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def watching(
    url: str, backends: tuple[Backend, ...], actuators: Mapping[str, Actuator], folder: Path, tick_s: float
) -> AsyncIterator[Loop]:
    """The watchdog's loop over the exporter at ``url``, ticking until the end of the block."""
    source = ExporterSource((url,), tuple(b.name for b in backends), STALE_AFTER_S)
    ledger = Ledger(folder / f"ledger-{time.monotonic_ns()}.db")
    loop = build_loop(backends, source, actuators, ledger, tick_s)
    stop = asyncio.Event()
    ticking = asyncio.create_task(loop.run(stop))
    try:
        yield loop
    finally:
        stop.set()
        await ticking
        await source.close()
        await loop.parts.reconciler.close()
        ledger.close()


async def run(trials: int, tick_s: float, seed: int, peers: bool) -> dict[str, Any]:
    """Figures in seconds. Raises TimeoutError where a gateway never changed, RuntimeError where a program cannot be had."""
    from tailkeeper.bench_faults import gpu_born, shedding

    phases = random.Random(seed)  # noqa: S311  spreads the trials over the tick
    with tempfile.TemporaryDirectory(prefix="tk-") as name:
        folder = Path(name)
        async with a_gateway(folder, NAMES) as started:
            figures: dict[str, Any] = {"trials": trials, "tick_s": tick_s, "gateway": started.gateway.kind}
            seconds = await _hung_pages(started, trials, tick_s, folder, phases)
            figures["fault_to_weight_seconds"] = summary(seconds)
            figures["gpu"] = await gpu_born(started, trials, tick_s, folder, phases)
        figures["shedding"] = await shedding(trials, tick_s, folder, phases)
    if peers:
        from tailkeeper.bench_peers import side_by_side

        figures["peers"] = await side_by_side(tick_s, seed)
    return figures


async def _hung_pages(started: Started, trials: int, tick_s: float, folder: Path, phases: random.Random) -> list[float]:
    pages = PageServer()
    async with await asyncio.start_server(pages.answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        actuators = {"edge": build_actuator(started.gateway)}
        async with watching(url, at_gateway(NAMES, started.prefix), actuators, folder, tick_s) as loop:
            seconds = []
            for number in range(trials):
                victim = NAMES[number % len(NAMES)]
                await asyncio.sleep(REST_S + phases.uniform(0.0, tick_s))
                begun = time.monotonic()
                pages.hung = victim
                await until(started.touched, victim, True)
                seconds.append(time.monotonic() - begun)
                pages.hung = None
                await give_back(loop, victim, started)
    return seconds


def at_gateway(names: tuple[str, ...], prefix: str) -> tuple[Backend, ...]:
    return tuple(Backend(n, "m", (Target("edge", prefix + n, "llm"),)) for n in names)


async def give_back(loop: Loop, victim: str, started: Started) -> None:
    """As a person would, so that no trial inherits the attempts of those before: the fifth would be a quarantine.

    Repeated, because the last page with the fault may be read once more. Raises TimeoutError.
    """
    async with asyncio.timeout(LIMIT_S):
        while True:
            await loop.release("the trial is over", victim)
            if not await started.touched(victim):
                return
            await asyncio.sleep(loop.parts.tick_s)
