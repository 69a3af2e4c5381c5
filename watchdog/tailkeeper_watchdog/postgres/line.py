"""One connection, used in a thread of its own: a server that is slow, frozen or gone delays nobody beyond a stated time.

Work is done one piece after the other. Whatever fails, the connection is thrown away, and the next piece gets a new one; so does
what takes too long, for its connection is cut off from here, which ends it there. Nothing is tried twice here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tailkeeper_watchdog.postgres.server import Connection
from tailkeeper_watchdog.postgres.words import NoAnswerError

T = TypeVar("T")
END_S = 3.0
_Piece = tuple[Callable[[Connection], Any], "Future[Any]"]


class Line:
    """``connect`` is called in the thread, which is started with the first piece of work."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._pieces: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        """The thread's own."""
        self._wire: socket.socket | None = None
        """The connection's socket once more, so that it can be cut whatever libpq does. Two threads use it: under the lock."""
        self._lock = threading.Lock()
        self._at_work = threading.Event()

    async def use(self, work: Callable[[Connection], T], within_s: float) -> T:
        """What ``work`` returns. Raises what it raises or connecting does, and NoAnswerError after ``within_s``.

        After that the work may still be done, or be done already: only the server knows.
        """
        if self._at_work.is_set():
            raise NoAnswerError("no answer to what was asked before: it is still waited for")
        self._at_work.set()
        done: Future[T] = Future()
        self._pieces.put((work, done))
        self._started()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(done), within_s)
        except TimeoutError:
            self._cut()
            raise NoAnswerError(f"no answer within {within_s:g} s") from None

    async def close(self) -> None:
        """Ends the thread. One that waits for a server is waited for no longer than ``END_S``, and dies with the process."""
        if self._thread is not None:
            self._pieces.put(None)
            if self._at_work.is_set():
                self._cut()
            await asyncio.to_thread(self._thread.join, END_S)

    def _started(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tailkeeper-ledger", daemon=True)
            self._thread.start()

    def _cut(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._wire is not None:
                self._wire.shutdown(socket.SHUT_RDWR)

    # In the thread

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            work, done = piece
            if done.set_running_or_notify_cancel():
                self._do(work, done)
            else:
                self._at_work.clear()
        self._drop()

    def _do(self, work: Callable[[Connection], T], done: Future[T]) -> None:
        try:
            result = work(self._connected())
        except BaseException as error:
            self._drop()
            self._at_work.clear()
            done.set_exception(error)
        else:
            self._at_work.clear()
            done.set_result(result)

    def _connected(self) -> Connection:
        if self._connection is None or _has_ended(self._connection):
            self._drop()
            self._connection = self._connect()
            with self._lock:
                self._wire = socket.socket(fileno=os.dup(self._connection.fileno()))
        return self._connection

    def _drop(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._wire is not None:
                self._wire.close()
            self._wire = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _has_ended(connection: Connection) -> bool:
    """Whether the server has ended it while it was not used: what it says unasked is its last word."""
    if connection.closed:
        return True
    readable, _, _ = select.select([connection.fileno()], [], [], 0)
    return bool(readable)
