"""Services that run beside each other: discovery beside either, and ``tailkeeper up``, exporter and watchdog in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tailkeeper.config import Config

if TYPE_CHECKING:
    from tailkeeper_exporter.discovery import Discoverer
    from tailkeeper_watchdog.settings import WatchedBackend

    BuildWatchdog = Callable[[Config, Discoverer[WatchedBackend] | None], Any]


async def with_discovery(discoverer: Discoverer[Any] | None, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` to its end, and discovery beside it. Raises what ``work`` raises."""
    finding = None if discoverer is None else asyncio.create_task(discoverer.run(), name="discovery")
    try:
        await work
    finally:
        if finding is not None:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)


async def run_together(
    config: Config, build_watchdog: BuildWatchdog, discoverer: Discoverer[WatchedBackend] | None = None
) -> None:
    """Run both until SIGTERM or SIGINT, or until one of them ends; then the other is ended too. Raises OSError.

    ``discoverer`` is one for both: they see the same fleet, and its sources are asked once.
    """
    from tailkeeper_exporter.app import serve
    from tailkeeper_exporter.serving import bind

    # Tried before anything starts: a server that is cancelled in the middle of its start logs a page of traceback.
    addresses = [(config.exporter.listen, "exporter.listen"), (config.watchdog.listen, "watchdog.listen")]
    addresses += [(b.tap.listen, f"backends.{b.name}.tap.listen") for b in config.backends if b.tap is not None]
    for address, key in addresses:
        bind(address, key).close()
    watchdog = build_watchdog(config, discoverer)
    exporting = with_discovery(discoverer, serve(config.backends, config.exporter, discoverer))
    tasks = [
        asyncio.create_task(exporting, name="exporter"),
        asyncio.create_task(watchdog.run(), name="watchdog"),
    ]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()
