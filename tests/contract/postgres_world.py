"""A ledger on a real PostgreSQL server, opened as a watchdog opens it: by leading. Each world has a schema of its own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tailkeeper_watchdog.postgres.leadership import PostgresLeadership
from tailkeeper_watchdog.postgres.ledger import PostgresLedger
from tailkeeper_watchdog.settings import LedgerSettings
from tests.e2e.postgres_server import PASSWORD, PostgresServer

T = TypeVar("T")
_numbers = itertools.count()


def settings_for(server: PostgresServer, **given: Any) -> LedgerSettings:
    """Of a new ledger, unless ``in_schema`` is given."""
    secret = server.folder / "password"
    secret.write_text(f"{PASSWORD}\n")
    return LedgerSettings(**{"url": server.url, "password_file": secret, "in_schema": f"ledger_{next(_numbers)}", **given})


async def led(settings: LedgerSettings, holder: str = "a") -> PostgresLeadership:
    """One that leads."""
    leadership = PostgresLeadership(settings, holder)
    assert await leadership.try_lead() is None
    return leadership


class Restarts:
    """Opens one ledger again and again from code that is not asynchronous; its event loop runs in a thread."""

    def __init__(self, settings: LedgerSettings) -> None:
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._leadership: PostgresLeadership | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def opened(self) -> PostgresLedger:
        """As after a clean restart: what was noted is there."""
        self.end()
        self._leadership = self.run(led(self.settings))
        return self._leadership.ledger

    def killed(self) -> PostgresLedger:
        """As after a kill: what was noted and not written is not there, and the dead leader's row has run out."""
        if self._leadership is not None:
            self.run(self._leadership._line.close())
            self._leadership = None
        return self.opened()

    def settle(self) -> None:
        assert self._leadership is not None
        self.run(self._leadership.settle())

    def end(self) -> None:
        if self._leadership is not None:
            self.run(self._leadership.step_down())
            self._leadership = None

    def close(self) -> None:
        self.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def run_out(server: PostgresServer, settings: LedgerSettings) -> None:
    """The leader's row is over, as when it was not renewed for its whole lease."""
    server.run(f"UPDATE {settings.in_schema}.leader SET expires = clock_timestamp()")


def secret_file(folder: Path, text: str) -> Path:
    file = folder / "another-password"
    file.write_text(text)
    return file
