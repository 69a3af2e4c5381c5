"""Lines on their way to the disk: written as JSON piece by piece, and compressed as they come.

A line of thousands of backends has tens of millions of characters. One call for all of it would keep every other thread waiting
for a second, the loop's among them, because Python's lock is not given back within; and the whole text is never needed at once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

_GZIP = 31
"""Makes zlib write gzip's format."""
CHUNK_CHARS = 1 << 16
"""Compressed in one go."""
_text = json.JSONEncoder(separators=(",", ":")).encode


class Batch:
    """One part of the file, which can be read by itself. ``add`` lines, then take its ``body``."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(wbits=_GZIP)
        self._body: list[bytes] = []
        self.ticks = 0
        """Whose lines are in it, the last perhaps in part; counted by whoever adds them."""
        self.chars = 0
        """Of the lines, before they are compressed."""

    def add(self, line: Mapping[str, Any]) -> None:
        waiting: list[str] = []
        chars = 0
        for piece in chain(pieces(line), ("\n",)):
            waiting.append(piece)
            chars += len(piece)
            if chars >= CHUNK_CHARS:
                self._compress(waiting)
                waiting, chars = [], 0
        self._compress(waiting)

    def _compress(self, texts: list[str]) -> None:
        text = "".join(texts)
        self.chars += len(text)
        self._body.append(self._deflate.compress(text.encode()))

    def body(self) -> bytes:
        """All of it, at the end."""
        return b"".join((*self._body, self._deflate.flush()))


def pieces(line: Mapping[str, Any]) -> Iterator[str]:
    """``line`` as JSON, each of its fields' members by itself: what is one of these is of one backend, lease or finding."""
    between = "{"
    for key, value in line.items():
        yield f"{between}{_text(key)}:"
        yield from _members(value)
        between = ","
    yield "}" if line else "{}"


def _members(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        between = "{"
        for key, member in value.items():
            yield f"{between}{_text(key)}:{_text(member)}"
            between = ","
        yield "}"
    elif isinstance(value, list) and value:
        between = "["
        for member in value:
            yield between + _text(member)
            between = ","
        yield "]"
    else:
        yield _text(value)
