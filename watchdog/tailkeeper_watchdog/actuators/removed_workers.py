"""The workers that we took out of a router, in a small file: what is needed to add each back exactly as it was.

A router forgets a worker that is removed, so this must outlive a crash: it is on disk before the removal is asked for, and
leaves the file once the worker was seen in the router again. One file a gateway; every change replaces it whole. Blocking:
call it in a thread. It holds no credential, for no router tells any.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind

FILE_LIMIT_BYTES = 4 * 1024 * 1024
"""A worker takes some 300 bytes: 10,000 of them, the most we watch, all taken out at once, fit."""


@dataclass(frozen=True, slots=True)
class Removed:
    """``document`` adds the worker back. ``at_unix_s`` is when its removal was asked for, ``gone`` whether it was seen to be
    out since, ``job`` what the router calls our last try to add it back, empty where there was none."""

    document: Mapping[str, Any]
    at_unix_s: float
    gone: bool = False
    job: str = ""


class RemovedWorkers:
    """The file of one gateway, shared by its replicas: each has a part of its own, by its address.

    With ``looks_only`` nothing is forgotten: the file is then another process's, which keeps it.
    """

    def __init__(self, path: Path, looks_only: bool = False) -> None:
        self._path = path
        self._looks_only = looks_only
        self._lock = threading.Lock()

    def of(self, address: str) -> dict[str, Removed]:
        """By the worker's URL. Raises CallError(REFUSED) where the file is there and cannot be understood."""
        with self._lock:
            return self._load().get(address, {})

    def note(self, address: str, url: str, removed: Removed) -> None:
        """Returns once it is safely on disk. Raises CallError(REFUSED)."""
        with self._lock:
            parts = self._load()
            parts.setdefault(address, {})[url] = removed
            self._store(parts)

    def forget(self, address: str, urls: Collection[str]) -> None:
        """Raises CallError(REFUSED)."""
        if self._looks_only:
            return
        with self._lock:
            parts = self._load()
            kept = {url: removed for url, removed in parts.get(address, {}).items() if url not in urls}
            self._store({**parts, address: kept})

    def _load(self) -> dict[str, dict[str, Removed]]:
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_LIMIT_BYTES + 1)
            return parse(content)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or str(error)
            message = f"{self._path}, where removed workers are noted, cannot be read: {why}; it is needed to add them back"
            raise CallError(ErrorKind.REFUSED, message) from None

    def _store(self, parts: Mapping[str, Mapping[str, Removed]]) -> None:
        plain = {address: {u: asdict(r) for u, r in part.items()} for address, part in parts.items() if part}
        content = json.dumps({"version": 1, "removed": plain}, indent=1, sort_keys=True).encode("ascii")
        try:
            if len(content) > FILE_LIMIT_BYTES:
                raise OSError(None, f"it would be longer than {FILE_LIMIT_BYTES} bytes")
            _replace(self._path, content)
        except OSError as error:
            message = f"{self._path}, where removed workers are noted, cannot be written: {error.strerror}"
            raise CallError(ErrorKind.REFUSED, message) from None


def parse(content: bytes) -> dict[str, dict[str, Removed]]:
    """Raises ValueError that says what is wrong."""
    if len(content) > FILE_LIMIT_BYTES:
        raise ValueError(f"longer than {FILE_LIMIT_BYTES} bytes")
    whole = json.loads(content)
    if not isinstance(whole, dict) or whole.get("version") != 1 or not isinstance(whole.get("removed"), dict):
        raise ValueError("not a file of this version")
    return {address: _part(part) for address, part in whole["removed"].items()}


def _part(part: object) -> dict[str, Removed]:
    if not isinstance(part, dict):
        raise ValueError("a part that is no object")
    return {url: _removed(url, row) for url, row in part.items()}


def _removed(url: str, row: object) -> Removed:
    if isinstance(row, dict) and row.keys() == {"document", "at_unix_s", "gone", "job"}:
        document, at, gone, job = (row[key] for key in ("document", "at_unix_s", "gone", "job"))
        right_types = isinstance(at, (int, float)) and isinstance(gone, bool) and isinstance(job, str)
        if right_types and isinstance(document, dict) and document.get("url") == url:
            return Removed(document, at, gone, job)
    raise ValueError(f"the note of {url[:100]!r} is not complete")


def _replace(path: Path, content: bytes) -> None:
    """Never half of a file: a new one beside it, safely on disk, takes its place. Raises OSError."""
    beside = path.with_name(path.name + ".new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
