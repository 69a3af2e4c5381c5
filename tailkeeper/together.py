"""``tailkeeper up``: exporter and watchdog in one process, each with its own server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tailkeeper.config import Config


async def run_together(config: Config, build_watchdog: Callable[[Config], Any]) -> None:
    """Run both until SIGTERM or SIGINT, or until one of them ends; then the other is ended too. Raises OSError."""
    from tailkeeper_exporter.app import serve
    from tailkeeper_exporter.serving import bind

    # Tried before anything starts: a server that is cancelled in the middle of its start logs a page of traceback.
    for address, key in ((config.exporter.listen, "exporter.listen"), (config.watchdog.listen, "watchdog.listen")):
        bind(address, key).close()
    watchdog = build_watchdog(config)
    tasks = [
        asyncio.create_task(serve(config.backends, config.exporter), name="exporter"),
        asyncio.create_task(watchdog.run(), name="watchdog"),
    ]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()
