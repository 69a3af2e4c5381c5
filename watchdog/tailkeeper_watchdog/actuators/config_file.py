"""A gateway's configuration file that others write too: read, changed, and replaced at once by rename.

Blocking, but for what is named in the past tense, which does the same in a thread.

Nobody ever sees half a file, and no edit of another hand is lost: what is there is compared with what was read just before
the rename, and the change is made anew on what is there then. The new text is written into `.NAME.tailkeeper`, made only
where there is none: that is also the lock between two of us. Mode and owner stay. Knows no format.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind

FILE_LIMIT_BYTES = 16 * 1024 * 1024
"""10,000 endpoints of Envoy are 3 MB."""
ATTEMPTS = 3
"""Edits of others that may come in between, one after the other, before it is left for the next tick."""
STALE_LOCK_S = 30.0
"""A change takes well under a second; what is as old as this was left by a process that was killed."""

RESERVE_S = 0.25
"""Of the deadline, to put the file back in. What came into force after we had given it up would be nobody's."""
PUT_BACK_S = 10.0
"""The disk may be slow; later than this it is not tried."""


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes that were there, and those that are there now; the same where there was nothing to change."""

    before: bytes
    after: bytes


class Making(Protocol):
    """One change of a text: ``text`` makes it, ``undone`` takes it out again where it still stands. Both raise CallError."""

    def text(self, found: str) -> str: ...

    def undone(self, found: str) -> str: ...


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file. With ``aside`` the draft lies above the file's folder where that is possible, on the same file system: a
    gateway that watches the folder for any change would else wake up for the draft, and then be busy for the file.
    """

    path: Path
    aside: bool = False

    def change(self, make: Callable[[str], str], until: float, republish: bool = False) -> Written:
        """Replace the text by what ``make`` makes of it, not after ``until`` (monotonic seconds).

        A text that stays the same is written only with ``republish``. Raises CallError; then nothing was written.
        """
        with _told(self.path):
            path = self.path.resolve()
            for _ in range(ATTEMPTS):
                before = _content(path)
                after = make(_text(before, path)).encode()
                if (after == before and not republish) or _replaced(path, before, after, until, self.aside):
                    return Written(before, after)
        raise CallError(ErrorKind.UNREACHABLE, f"{path} is being changed by someone else all the time; nothing was written")

    def put_back(self, written: Written, until: float) -> bool:
        """Whether the file is again as it was; not where another hand has changed it since. Raises CallError."""
        with _told(self.path):
            return _replaced(self.path.resolve(), written.after, written.before, until, self.aside)

    async def changed(self, making: Making, ends_at: float, republish: bool = False) -> Written:
        """``change`` beside the loop, early enough before ``ends_at`` (loop time) to be put back. Raises CallError."""
        until = time.monotonic() + ends_at - RESERVE_S - asyncio.get_running_loop().time()
        return await asyncio.to_thread(self.change, making.text, until, republish)

    async def taken_back(self, making: Making, written: Written) -> str:
        """What was written and never came into force goes, in words for people.

        Done also where the deadline ends before: the thread goes on, for what it puts back was never in force.
        """
        return await asyncio.to_thread(self._take_back, making, written)

    def _take_back(self, making: Making, written: Written) -> str:
        until = time.monotonic() + PUT_BACK_S
        if self.put_back(written, until):
            return "it was put back as it was"
        _ = self.change(making.undone, until)  # left there, ours would come into force with the other's, and be nobody's
        return "another hand has changed it since, so ours alone was taken out of it"


def _replaced(path: Path, before: bytes, after: bytes, until: float, aside: bool) -> bool:
    with _draft(path, aside) as (draft, handle):
        found = path.stat()
        _ = handle.write(after)
        handle.flush()
        os.fchmod(handle.fileno(), found.st_mode & 0o7777)
        if (found.st_uid, found.st_gid) != (os.getuid(), os.getgid()):
            with suppress(PermissionError):  # only root may give a file away; the gateway reads it by its mode
                os.fchown(handle.fileno(), found.st_uid, found.st_gid)
        os.fsync(handle.fileno())
        if _content(path) != before:
            return False
        if time.monotonic() > until:
            raise CallError(ErrorKind.UNREACHABLE, f"writing the draft of {path} took too long; the file itself was not touched")
        os.replace(draft, path)
    _sync_folder(path.parent)
    return True


@contextmanager
def _draft(path: Path, aside: bool) -> Iterator[tuple[Path, IO[bytes]]]:
    above = path.parent.parent
    apart = aside and os.access(above, os.W_OK) and above.stat().st_dev == path.parent.stat().st_dev
    draft = (above if apart else path.parent) / f".{path.name}.tailkeeper"
    with suppress(FileNotFoundError):
        if time.time() - draft.stat().st_mtime > STALE_LOCK_S:
            draft.unlink()
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise CallError(ErrorKind.UNREACHABLE, f"{draft} is there: another change is being written") from None
    with os.fdopen(descriptor, "wb") as handle:
        try:
            yield draft, handle
        finally:
            with suppress(FileNotFoundError):  # renamed into place, as it should be; what has its name by now is another one's
                if os.path.samestat(os.fstat(handle.fileno()), draft.stat()):
                    draft.unlink()


def _content(path: Path) -> bytes:
    with path.open("rb") as opened:
        content = opened.read(FILE_LIMIT_BYTES + 1)
    if len(content) > FILE_LIMIT_BYTES:
        raise CallError(ErrorKind.PROTOCOL, f"{path} is larger than {FILE_LIMIT_BYTES} bytes")
    return content


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CallError(ErrorKind.PROTOCOL, f"{path} is not UTF-8 text") from None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_KINDS: tuple[tuple[type[OSError], ErrorKind, str], ...] = (
    (FileNotFoundError, ErrorKind.UNREACHABLE, "is missing"),
    (PermissionError, ErrorKind.UNAUTHORIZED, "and its folder must be readable and writable for this process"),
    (IsADirectoryError, ErrorKind.NOT_FOUND, "is a folder, and a file is needed"),
)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """An error of the file system in words for people."""
    try:
        yield
    except OSError as error:
        raise _failed(path, error) from None


def _failed(path: Path, error: OSError) -> CallError:
    for cause, kind, words in _KINDS:
        if isinstance(error, cause):
            return CallError(kind, f"{path} {words}")
    # A file that is itself a mount point cannot be replaced (EBUSY); a file system may be full or read-only.
    advice = "; mount its folder into the container, not the file alone" if error.errno == 16 else ""
    return CallError(ErrorKind.REFUSED, f"{path} cannot be replaced: {error.strerror}{advice}")
