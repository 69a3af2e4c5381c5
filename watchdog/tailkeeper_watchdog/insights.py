"""What is worked out beside the tick's decisions and moves nothing: compliance by tier, capacity,
forecasts. Fed after each tick.

It hangs on the loop as its listener, so a fault in here costs a log line and no action. Counts are saved every
``SAVE_EVERY_S`` in a thread; forecasts are trained every ``TRAIN_EVERY_S`` in a process of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from tailkeeper_watchdog.capacity.book import CapacityBook
from tailkeeper_watchdog.fleet import Fleet, turnover
from tailkeeper_watchdog.forecast.book import ForecastBook
from tailkeeper_watchdog.forecast.features import Rows
from tailkeeper_watchdog.forecast.linear import read
from tailkeeper_watchdog.forecast.worker import TrainingError, train
from tailkeeper_watchdog.model import Backend, TickRecord
from tailkeeper_watchdog.slo.bins import oldest_kept
from tailkeeper_watchdog.slo.compliance import SloBook
from tailkeeper_watchdog.slo.store import SloStore
from tailkeeper_watchdog.slo.tiers import Tier

log = structlog.get_logger("tailkeeper.watchdog")

SAVE_EVERY_S = 60.0
TRAIN_EVERY_S = 120.0
Train = Callable[[Sequence[Rows]], Awaitable[list[Any]]]


class Insights:
    """``note`` each tick's record; ``run`` saves until cancelled. One task writes it all."""

    def __init__(self, tiers: tuple[Tier, ...], objective: float, store: SloStore | None = None, training: Train = train) -> None:
        self._store, self._training = store, training
        self._fleet = Fleet()
        self._noted_unix_s: float | None = None
        self._last_error = ""
        self.slo = self._restored(tiers, objective)
        self.capacity = CapacityBook()
        self.forecast = ForecastBook()

    def _restored(self, tiers: tuple[Tier, ...], objective: float) -> SloBook:
        if self._store is None:
            return SloBook(tiers, objective)
        try:
            kept = self._store.load()
        except sqlite3.Error as error:  # compliance begins anew; the watchdog does its work without
            self._complain(error)
            return SloBook(tiers, objective)
        return SloBook(tiers, objective, kept.rows, kept.counted_until_unix_s)

    def note(self, record: TickRecord) -> None:
        self._follow(record.situation.snapshot.backends)
        self._noted_unix_s = record.time_unix_s
        self.slo.note(record.situation)
        self.capacity.note(record.situation)
        self.forecast.note(record.situation)

    def _follow(self, backends: tuple[Backend, ...]) -> None:
        """Whoever is gone, or another one under its name, takes along what was known of it."""
        if backends is self._fleet.backends:
            return
        gone = turnover(self._fleet, backends).gone
        self._fleet = Fleet(backends)
        self.slo.forget(gone)
        self.capacity.forget(gone)
        self.forecast.follow(gone, backends)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_every(SAVE_EVERY_S, self.save))
            group.create_task(_every(TRAIN_EVERY_S, self.train))

    async def train(self) -> None:
        """Train what there is enough of. Whatever goes wrong costs this training and is said in the document."""
        wanted = self.forecast.trainable()
        if not wanted:
            return
        try:
            models = await self._training(tuple(wanted.values()))
        except (TrainingError, OSError) as error:
            self._tell_training(str(error))
            return
        for (group, rows), document in zip(wanted.items(), models, strict=True):
            model = read(document, len(rows.rows[0]))
            if model is not None:
                self.forecast.learn(group, model)
        self._tell_training(None)

    def _tell_training(self, error: str | None) -> None:
        """Once when it begins to fail, and once for each other reason."""
        if error is not None and error != self.forecast.training_error:
            log.warning("forecasts are not trained", error=error)
        self.forecast.training_error = error

    async def save(self) -> None:
        """Write what has changed, in a thread. What could not be written stays to be written."""
        if self._store is None or self._noted_unix_s is None:
            return
        rows, until = self.slo.take_changed(), self._noted_unix_s
        try:
            await asyncio.to_thread(self._store.save, rows, until, oldest_kept(until))
            self._last_error = ""
        except sqlite3.Error as error:
            self.slo.put_back(rows)
            self._complain(error)

    def _complain(self, error: sqlite3.Error) -> None:
        """Once for each kind of failure, not once a minute."""
        if str(error) != self._last_error:
            self._last_error = str(error)
            log.warning("counts of compliance are not saved", error=self._last_error)


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """For ever. Whatever ``work`` raises is logged and is the end of that time only."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            with contextlib.suppress(Exception):  # a log on a full disk raises as well
                log.exception("work beside the ticks failed")
