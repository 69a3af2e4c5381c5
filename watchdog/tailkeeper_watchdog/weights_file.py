"""Watches the configuration file for other weights of the HScore, while the watchdog runs. Nothing else of it is reloaded.

The file is looked at every ``POLL_S`` in a thread, and read when it has changed (time, size, inode) and stood still for one
look: whoever writes it in pieces has ended by then, and who renames a new one into its place is seen at once. The same
content is read once. What cannot be read or is not valid changes nothing and is said once, until it is something else. A file
that no longer names weights changes nothing either: it may be one of which half is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import structlog

from tailkeeper_watchdog.ledger import LedgerError

log = structlog.get_logger("tailkeeper.watchdog")

POLL_S = 0.5
"""Seen after a second at the latest, in force at the tick after that."""

Signature = tuple[int, int, int]
"""Time of the last change in nanoseconds, size in bytes, inode."""
Weights = Mapping[str, float]


class WeightsFile:
    """``read`` gives the weights that a file says, valid ones, or None where it names none; what it raises is said.

    Build it before the file is loaded: what is written from then on is a change.
    """

    def __init__(self, path: Path, read: Callable[[Path], Weights | None]) -> None:
        self._path = path
        self._read = read
        self._settled = self._seen = self._look()
        self._digest = self._digest_now()
        self._complaint, self._named = "", False

    def _look(self) -> Signature | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _digest_now(self) -> bytes | None:
        try:
            return sha256(self._path.read_bytes()).digest()
        except OSError:
            return None

    def poll(self) -> Weights | None:
        """The weights of a file that has changed and stands still, else None. Blocks; never raises for what is in a file."""
        before, self._seen = self._seen, self._look()
        if self._seen != before or self._seen == self._settled:
            return None
        self._settled = self._seen
        digest = self._digest_now()
        if digest is not None and digest == self._digest:
            return None
        self._digest = digest
        return self._weights()

    def _weights(self) -> Weights | None:
        try:
            weights = self._read(self._path)
        except Exception as error:  # the boundary of what may be in a file: nothing in it ends the watching
            self._complain(str(error))
            return None
        if weights is None:
            if self._named:
                self._complain("hscore.weights is not there any more; to go back to the defaults, write them")
            return None
        self._named, self._complaint = True, ""
        return weights

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            log.warning("the weights in the file are not taken; the old ones stay", file=str(self._path), why=why)

    async def follow(self, take: Callable[[Weights], bool], *, named: bool) -> None:
        """Give what ``poll`` finds to ``take``, which says whether it was new; for ever, cancel it to end.

        ``named`` says that the file names weights at the start. What cannot be written down is tried again at each look.
        """
        self._named, waiting = named, None
        while True:
            await asyncio.sleep(POLL_S)
            waiting = await asyncio.to_thread(self.poll) or waiting
            if waiting is not None and self._given(waiting, take):
                waiting = None

    def _given(self, weights: Weights, take: Callable[[Weights], bool]) -> bool:
        try:
            if take(weights):
                log.info("the weights in the file are new and in force", file=str(self._path), weights=dict(weights))
        except LedgerError as error:
            self._complain(f"they cannot be written down: {error}")
            return False
        self._complaint = ""
        return True
