"""The leader's row of a whole fleet, held together by all shards of one number: so of two layouts of one fleet only one acts.

A watchdog without shards has the same row alone, with the ledger behind it (`leadership`); shards have each a ledger of their
own, and this row beside it. It runs out by the server's clock, and whoever holds it stops before that by his own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from tailkeeper_watchdog.leader_lease import leads_for_s
from tailkeeper_watchdog.postgres import work
from tailkeeper_watchdog.postgres.leadership import EXPECTED, FIRST_SENTENCE, PATIENCE_S, RENEW_EVERY_S, WRITE_S
from tailkeeper_watchdog.postgres.line import Line
from tailkeeper_watchdog.postgres.server import connect, user_of, where
from tailkeeper_watchdog.postgres.words import sentence
from tailkeeper_watchdog.settings import LedgerSettings


class LayoutRow:
    """Satisfies ``Leadership``. ``settings`` are those of the whole fleet, ``of`` how many shards there are."""

    def __init__(
        self, settings: LedgerSettings, of: int, clock: Callable[[], float] = time.monotonic, line: Line | None = None
    ) -> None:
        self._settings, self._holder, self._clock = settings, f"a layout of {of} shards", clock
        self._line = line or Line(partial(connect, settings))
        self._under_way: asyncio.Task[None] | None = None
        self._said = FIRST_SENTENCE
        self._asked_at = self._held_at = float("-inf")
        self._failing = False

    async def try_lead(self) -> str | None:
        idle = self._under_way is None or self._under_way.done()
        if idle and self._clock() - self._asked_at >= RENEW_EVERY_S:
            self._asked_at = self._clock()
            self._under_way = asyncio.create_task(self._hold())
            await asyncio.wait({self._under_way}, timeout=0 if self._failing else PATIENCE_S)
        return self._why_not()

    def _why_not(self) -> str | None:
        return None if self._clock() - self._held_at < leads_for_s(self._settings.lease_s) else self._said

    async def _hold(self) -> None:
        began = self._clock()
        piece = partial(work.hold, schema=self._settings.in_schema, holder=self._holder, lease_s=self._settings.lease_s)
        try:
            other = await self._line.use(piece, WRITE_S)
        except EXPECTED as error:
            self._failing = True
            words = sentence(error, where(self._settings), user_of(self._settings), self._settings.in_schema)
            self._said = f"standing by: {words}"
            return
        self._failing = False
        if other is None:
            self._held_at = began
        else:
            self._held_at, self._said = float("-inf"), f"standing by: {other}"

    async def step_down(self) -> None:
        """The others go on holding it; after the last one it runs out."""
        if self._under_way is not None:
            self._under_way.cancel()
        self._held_at = float("-inf")
        await self._line.close()
