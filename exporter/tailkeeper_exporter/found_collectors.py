"""The collectors of found backends: one more for each that appears, none for what has gone. Decides nothing: it follows.

A backend that has gone leaves ``views`` in the same step in which that is known, and with it every page; what ends after that
(its task, its connections) takes ``END_S`` at the most and holds up nobody. One whose settings are others is a new one. At most
``MAX_FOUND`` are watched; who is watched already is not put out by a newcomer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tailkeeper_exporter.clients import CredentialError
from tailkeeper_exporter.collector import BackendCollector
from tailkeeper_exporter.discovery import Discoverer
from tailkeeper_exporter.requests_ring import RequestRing
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.views import BackendView

MAX_FOUND = 2_000
"""The largest fleet this is made for. At one page in five seconds each, and 2 ms a page, they take one CPU."""
END_S = 3.0
RETRY_S = 30.0
"""A backend whose credentials cannot be read is tried again after this long: the file may have been put there."""

Open = Callable[[BackendSettings], tuple[BackendCollector, httpx.AsyncClient]]


@dataclass(frozen=True, slots=True)
class _Watched:
    settings: BackendSettings
    collector: BackendCollector
    client: httpx.AsyncClient
    task: asyncio.Task[None]


class FoundCollectors:
    """Follows a discoverer, which somebody else runs."""

    def __init__(self, discoverer: Discoverer[Any], open_one: Open, ring: RequestRing, spread_s: float, log: Any) -> None:
        self._discoverer = discoverer
        self._open = open_one
        self._ring = ring
        self._spread_s = spread_s
        self._log = log
        self._watched: dict[str, _Watched] = {}
        self._followed: tuple[BackendSettings, ...] | None = None
        self.watched: tuple[BackendSettings, ...] = ()
        """The settings of those that are watched; the same tuple while nobody comes or goes."""
        self._refused: dict[str, str] = {}
        self._was_ready = False

    @property
    def views(self) -> Mapping[str, BackendView]:
        return {name: watched.collector.latest() for name, watched in self._watched.items()}

    def waiting_for(self) -> tuple[str, ...]:
        """Sources whose first listing has not ended, then the backends they found whose first page read has not.

        Once over, it is over for good: a backend found later does not make this an exporter that has not started.
        """
        if not self._was_ready:
            waiting = self._discoverer.unlisted or self._unread()
            self._was_ready = not waiting
            return waiting
        return ()

    def _unread(self) -> tuple[str, ...]:
        if self._followed is not self._discoverer.backends:
            return ("discovery",)
        return tuple(name for name, watched in self._watched.items() if not watched.collector.first_round.is_set())

    async def run(self) -> None:
        """Follow until cancelled. All clients are closed then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    found: tuple[BackendSettings, ...] = self._discoverer.backends
                    await self._follow(found, tasks)
                    # Time out only where there is something to be tried again.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RETRY_S if self._refused else None):
                            await self._discoverer.changed(found)
        finally:
            for watched in self._watched.values():
                await watched.client.aclose()
            self._watched.clear()

    async def _follow(self, found: tuple[BackendSettings, ...], tasks: asyncio.TaskGroup) -> None:
        wanted = {backend.name: backend for backend in found}
        for name, watched in list(self._watched.items()):
            if wanted.get(name) != watched.settings:
                del self._watched[name]
                self._ring.forget(name)
                tasks.create_task(_end(watched))
        new = [backend for name, backend in wanted.items() if name not in self._watched]
        room = MAX_FOUND - len(self._watched)
        refused = {backend.name: f"more than {MAX_FOUND} found backends cannot be watched here" for backend in new[room:]}
        refused |= await self._begin(new[:room], tasks)
        self._say(refused)
        self.watched = tuple(watched.settings for watched in self._watched.values())
        self._followed = found

    async def _begin(self, new: list[BackendSettings], tasks: asyncio.TaskGroup) -> dict[str, str]:
        """Watch these too; those that cannot be, and why."""
        refused: dict[str, str] = {}
        for number, backend in enumerate(new):
            # Half a millisecond each: a page that is asked for meanwhile is not kept waiting for all of them.
            await asyncio.sleep(0)
            try:
                collector, client = self._open(backend)
            except (CredentialError, ValueError) as error:
                refused[backend.name] = str(error)
                continue
            task = tasks.create_task(collector.run(number * self._spread_s / len(new)))
            self._watched[backend.name] = _Watched(backend, collector, client, task)
        return refused

    def _say(self, refused: dict[str, str]) -> None:
        if refused and refused != self._refused:
            name, why = next(iter(refused.items()))
            self._log.warning("found backends not watched", count=len(refused), backend=name, why=why)
        self._refused = refused


async def _end(watched: _Watched) -> None:
    """End one collector, within ``END_S``, and close its connections whether it has ended or not."""
    watched.task.cancel()
    try:
        await asyncio.wait({watched.task}, timeout=END_S)
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await watched.client.aclose()
