"""Who may act where two watchdogs were started by mistake or for safety: one leads, the others stand by.

Without a leader's consent nothing is done at any gateway. Beside the ledger lies a lock file that the kernel frees when its
holder dies, however it dies. What stands in that file is for people; the lock alone decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

MAX_LOCK_FILE_BYTES = 4_096
MAX_WORD_CHARS = 200


class Leadership(Protocol):
    """Decides which of several watchdogs acts.

    ``try_lead`` is asked before each tick, again before a tick's changes are made, and four times a second while another one
    leads: who asks a server for it keeps a pace of its own. What is done with a consent may take ``settings.ACTING_S`` more, so a
    leadership that runs out by itself must last longer than that beyond the last consent.
    """

    async def try_lead(self) -> str | None:
        """None where we lead now, else a sentence that says who does, or why it cannot be said. Never raises."""
        ...

    async def step_down(self) -> None:
        """Let another one lead at once. Without effect where we do not lead."""
        ...


class NotLeadingError(Exception):
    """Nothing may be done at a gateway now; the message is a sentence that says who leads."""


class AllOf:
    """Leads where every one of ``parts`` says so, asked in this order: the lock of the ledger before a lease that others see."""

    def __init__(self, *parts: Leadership) -> None:
        self._parts = parts

    async def try_lead(self) -> str | None:
        for part in self._parts:
            if (why_not := await part.try_lead()) is not None:
                return why_not
        return None

    async def step_down(self) -> None:
        for part in reversed(self._parts):
            await part.step_down()


class FileLock:
    """Leads while it holds the lock of ``STATE.lock``. ``listen`` is told to those who find it held.

    ``wall`` gives epoch seconds. A lock file that somebody deleted or replaced is no lock any more, for another one may hold
    the new file's: then the leadership is lost, and won again only with the lock of the file that is there now.
    """

    def __init__(self, state: Path, listen: str, wall: Callable[[], float]) -> None:
        self._path = state.with_name(f"{state.name}.lock")
        self._listen, self._wall = listen, wall
        self._held: int | None = None

    async def try_lead(self) -> str | None:
        try:
            if self._held is not None and not self._is_there(self._held):
                self._let_go()
            return None if self._held is not None else self._take()
        except OSError as error:
            return f"the lock file {self._path} cannot be used, so nobody can say who leads: {error.strerror or error}"

    async def step_down(self) -> None:
        self._let_go()

    def check(self) -> None:
        """Raises OSError where there can be no lock file: no folder, no right to write."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def _is_there(self, held: int) -> bool:
        """Whether the file that we hold is the one that another watchdog would find."""
        try:
            return os.path.samestat(os.fstat(held), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _take(self) -> str | None:
        opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            why_not = self._lock(opened)
            if why_not is None and not self._is_there(opened):  # replaced meanwhile: the next try finds the new one
                why_not = f"the lock file {self._path} was replaced a moment ago"
        except BaseException:
            os.close(opened)  # kept open it would keep the lock, and us from ever having it
            raise
        if why_not is not None:
            os.close(opened)
            return why_not
        self._held = opened
        return None

    def _lock(self, opened: int) -> str | None:
        """None where the lock is ours now, else who has it. Raises OSError."""
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._leader(opened)
        with contextlib.suppress(OSError):  # a full disk keeps nobody from leading: the lock is held already
            self._write(opened, self._words())
        return None

    def _words(self) -> dict[str, Any]:
        """Who we are."""
        since = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="seconds")
        return {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "listen": self._listen}

    def _write(self, held: int, words: Mapping[str, Any]) -> None:
        os.ftruncate(held, 0)
        os.pwrite(held, f"{json.dumps(words)}\n".encode(), 0)

    def _said(self, opened: int) -> Mapping[str, Any]:
        """What stands in the file; nothing where that is not ours to read."""
        try:
            words: Any = json.loads(os.pread(opened, MAX_LOCK_FILE_BYTES, 0))
        except (ValueError, RecursionError):
            return {}
        return words if isinstance(words, dict) else {}

    def _leader(self, opened: int) -> str:
        words = self._said(opened)
        if not words:
            return f"another watchdog leads: it holds {self._path}, which does not say who it is"
        pid, host, since, listen = (str(words.get(key, "unknown"))[:MAX_WORD_CHARS] for key in ("pid", "host", "since", "listen"))
        who = f"process {pid} on {host} at {listen}, since {since} (it holds {self._path})"
        shards = words.get("shards")
        if shards is None:
            return f"another watchdog leads: {who}"
        return (
            f"this fleet is watched by {str(shards)[:MAX_WORD_CHARS]} shards, and a fleet has one number of them at a time: {who}"
        )

    def _let_go(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            os.close(held)  # and with it the lock: it is ours alone, for nothing that we start inherits it


class ShardsLock(FileLock):
    """The same lock file, held together by all shards of one number: a watchdog without shards holds it alone, and so do those of
    another number in turn. So of two layouts of one fleet only one acts, and no pool has two watchdogs.

    How many they are stands in the file, written by the first of them while it alone has the lock, and by nobody while any other
    has it.
    """

    def __init__(self, state: Path, listen: str, wall: Callable[[], float], of: int) -> None:
        super().__init__(state, listen, wall)
        self._of = of

    def _lock(self, opened: int) -> str | None:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if self._said(opened).get("shards") == self._of:
                return None
            # Taking it alone gives the shared one up first: whoever gets in between is found by reading once more.
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(opened, {**self._words(), "shards": self._of})
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._leader(opened)
        return None if self._said(opened).get("shards") == self._of else self._leader(opened)
