"""Where drift baselines are kept: read from the file of ``watchdog.baselines``, and remembered beside the state file.

A baseline takes forty minutes to gather, so those in use are written down once a minute, in a thread, into a database of
their own: nothing waits for it, and what is wrong with it costs the ledger nothing. What cannot be read there is left out
with a line in the log, and gathered anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from tailkeeper_watchdog.baseline_set import MAX_KEYS, AnyBaseline, BaselineSet, Form, parse

log = structlog.get_logger("tailkeeper.baselines")

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_DOCUMENT_BYTES = 256 * 1024
"""A baseline of forty minutes has 20 kB; one of a backend so quiet that it took days is not kept, and gathered anew."""
SAVE_EVERY_S = 60.0
KEEP_S = 30 * 86_400.0
"""Of backends that were not seen since; a month away is another engine."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS baselines (
  backend TEXT NOT NULL, form TEXT NOT NULL, document TEXT NOT NULL, saved REAL NOT NULL, PRIMARY KEY (backend, form)
);
"""
Key = tuple[str, Form]


class BaselineFileError(ValueError):
    """The file of ``watchdog.baselines`` cannot be used. The message names the key, the file, and the place in it."""


def read_file(path: Path) -> BaselineSet:
    """The baselines of a file. Raises BaselineFileError."""
    where = f"watchdog.baselines: {path}"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BaselineFileError(f"{where} is larger than {MAX_FILE_BYTES} bytes; is this the right file?")
        return parse(json.loads(path.read_bytes()))
    except OSError as error:
        raise BaselineFileError(f"{where} cannot be read: {error.strerror}") from error
    except BaselineFileError:
        raise
    except (ValueError, RecursionError) as error:
        what = "is not valid JSON: " if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)) else ""
        raise BaselineFileError(f"{where}: {what}{error}") from error


class BaselineStore:
    """One database; every call opens and closes it, from whichever thread. Never raises for what the disk does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last_error: str | None = None

    @classmethod
    def beside(cls, state: Path) -> BaselineStore:
        """For a watchdog with this state file."""
        return cls(state.with_name(f"{state.name}.baselines"))

    def load(self, wall: float) -> BaselineSet:
        """What was saved in the last month, as of ``wall`` (epoch seconds); empty where there is nothing that can be read."""
        if not self._path.exists():
            return BaselineSet()
        try:
            with contextlib.closing(self._open()) as database, database:
                database.execute("DELETE FROM baselines WHERE saved < ?", (wall - KEEP_S,))
                rows = database.execute("SELECT backend, form, document FROM baselines LIMIT ?", (MAX_KEYS,)).fetchall()
        except sqlite3.Error as error:
            self._set_aside(error)
            return BaselineSet()
        found: dict[Key, AnyBaseline] = {}
        for backend, form, text in rows:
            found |= self._one(backend, form, text)
        return BaselineSet(found, {})

    def _one(self, backend: Any, form: Any, text: Any) -> Mapping[Key, AnyBaseline]:
        try:
            return parse({"version": 1, "backends": {str(backend): [json.loads(text)]}}).backends
        except (ValueError, TypeError, RecursionError) as error:
            log.warning("a saved baseline is left out", backend=str(backend), form=str(form), error=str(error)[:300])
            return {}

    def _set_aside(self, error: Exception) -> None:
        """A database that cannot be read is moved out of the way once, so that the next one can be written."""
        aside = self._path.with_name(f"{self._path.name}.unreadable")
        log.warning(
            "the saved baselines cannot be read and are gathered anew", path=str(self._path), error=str(error), kept=str(aside)
        )
        with contextlib.suppress(OSError):
            self._path.replace(aside)

    def save(self, changed: Mapping[Key, AnyBaseline], ended: frozenset[Key], wall: float) -> bool:
        """Write these, and take those away, all at once or not at all. False where that failed."""
        try:
            rows = [(n, form.value, text, wall) for (n, form), b in changed.items() if (text := _text(n, b)) is not None]
            with contextlib.closing(self._open()) as database, database:
                database.executemany("DELETE FROM baselines WHERE backend = ? AND form = ?", [(n, f.value) for n, f in ended])
                database.executemany("INSERT OR REPLACE INTO baselines VALUES (?, ?, ?, ?)", rows)
        except (sqlite3.Error, OSError, ValueError) as error:
            if str(error) != self._last_error:
                log.warning("the baselines could not be saved", path=str(self._path), error=str(error))
            self._last_error = str(error)
            return False
        self._last_error = None
        return True

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=2.0)
        try:
            database.executescript(_SCHEMA)
        except sqlite3.Error:
            database.close()
            raise
        return database


def _text(name: str, baseline: AnyBaseline) -> str | None:
    text = json.dumps(baseline.document(), separators=(",", ":"), allow_nan=False)
    if len(text) <= MAX_DOCUMENT_BYTES:
        return text
    log.info("a baseline is too large to be kept over a restart", backend=name, bytes=len(text), limit=MAX_DOCUMENT_BYTES)
    return None


class Keeper:
    """Writes down what has changed among the baselines in use. ``used`` is asked in the event loop, ``wall`` is epoch seconds."""

    def __init__(self, store: BaselineStore, used: Callable[[], BaselineSet], wall: Callable[[], float]) -> None:
        self._store, self._used, self._wall = store, used, wall
        self._saved: Mapping[Key, AnyBaseline] = {}

    async def run(self) -> None:
        """Once a minute until it is cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.keep()

    async def keep(self) -> None:
        """Save what has changed since the last time; what was not in use yet is left as it was saved."""
        used = dict(self._used().backends)
        changed = {key: baseline for key, baseline in used.items() if self._saved.get(key) is not baseline}
        ended = frozenset(self._saved) - frozenset(used)
        if not changed and not ended:
            return
        if await asyncio.to_thread(self._store.save, changed, ended, self._wall()):
            self._saved = used
