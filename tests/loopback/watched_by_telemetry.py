"""A watchdog built from a configuration, over an exporter page that a test turns, for what it sends about itself.

The page is a fake of an exporter's; gateway and collector are whatever the test gives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailkeeper.config import parse
from tailkeeper_exporter import catalog
from tailkeeper_watchdog.app import Watchdog
from tests.unit.loopback import Seen, reply, serving

NAMES = ("a", "b", "c", "d")


@dataclass
class Page:
    """``states`` by backend is what the exporter says."""

    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NAMES, "serving"))

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        name = catalog.BACKEND_STATE.name
        rows = [f'{name}{{backend="{backend}",state="{state}"}} 1' for backend, state in self.states.items()]
        text = "\n".join([f"# TYPE {name} gauge", *rows, ""])
        await reply(200, text if seen.path == "/metrics" else {}, "content-type: text/plain")(seen, writer)


def configured(exporter: str, folder: Path, gateway: dict[str, Any], servers: dict[str, str], **watchdog: Any) -> Any:
    """Four backends behind one gateway, the gate in force; ``watchdog`` are more keys of its section."""
    backends = [
        {"name": n, "engine": "generic", "url": "http://127.0.0.1:9", "gateway": {"name": "edge", "server": servers[n]}}
        for n in NAMES
    ]
    return parse(
        {
            "backends": backends,
            "gateways": [{"name": "edge", **gateway}],
            "watchdog": {
                "state": str(folder / "t.db"),
                "tick_s": 2,  # a deadline that a busy machine keeps; nobody waits for it
                "source": {"kind": "exporter", "urls": [exporter]},
                "records": {"enabled": False},
                **watchdog,
            },
            "policies": {"gpu_health_gate": {"mode": "enforce"}},
        }
    )


@asynccontextmanager
async def watching(
    folder: Path, gateway: dict[str, Any], servers: dict[str, str] | None = None, **watchdog: Any
) -> AsyncIterator[tuple[Watchdog, Page]]:
    """The watchdog with what it does beside the loop; its ticks are the test's to call."""
    page = Page()
    async with serving(page.handle) as exporter:
        config = configured(exporter.url, folder, gateway, servers or {n: n for n in NAMES}, **watchdog)
        built = Watchdog(config.for_watchdog())
        parts = [part.run() for part in (built.telemetry, *built.announcers) if part is not None]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            yield built, page
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(Exception):
                await built.close()
