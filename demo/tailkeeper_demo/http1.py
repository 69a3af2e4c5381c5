"""HTTP/1.1 messages for the demo's own programs: heads, bodies by length or in chunks, and their bounds.

It refuses what it does not understand and bounds everything it buffers. Pure: bytes in, values out; sockets are in
`http_server`, `gateway` and `load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 4 * 1024 * 1024
"""A chat with a full context window as text is well below this."""
MAX_CONNECTIONS = 1024


class ProtocolError(Exception):
    """The peer sent something that is not acceptable HTTP/1.1. `status` is what a server answers."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """Start line and headers. Header names are lower case; repeated ones are joined with a comma."""

    start: tuple[str, str, str]
    headers: Mapping[str, str]

    @property
    def status(self) -> int:
        """Status code of a response head. Raises `ProtocolError` when it is not one."""
        try:
            return int(self.start[1])
        except ValueError as error:
            raise ProtocolError(f"not a status line: {' '.join(self.start)[:80]!r}", 502) from error


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request. `path` is the target without its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def parse_head(raw: bytes) -> Head:
    """Parse a message head without its final empty line. Raises `ProtocolError`."""
    first, _, rest = raw.decode("latin-1").partition("\r\n")
    parts = first.split(" ", 2)
    if len(parts) < 2 or not all(parts[:2]):
        raise ProtocolError(f"not an HTTP start line: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in rest.split("\r\n") if rest else ():
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise ProtocolError(f"not an HTTP header line: {line[:80]!r}")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return Head((parts[0], parts[1], parts[2] if len(parts) > 2 else ""), headers)


class BodyDecoder:
    """Takes a body's bytes as they come and gives back its payload. `rest` holds what follows a finished body."""

    __slots__ = ("_buffer", "_expect", "_left", "done", "rest")

    def __init__(self, *, chunked: bool, length: int | None) -> None:
        self._buffer = b""
        self._expect: Literal["size", "chunk end", "trailer"] | None = "size" if chunked else None
        self._left: int | None = 0 if chunked else length
        """Payload bytes still due; None: all until the peer closes, so `done` never turns true."""
        self.done = not chunked and length == 0
        self.rest = b""

    @classmethod
    def for_headers(cls, headers: Mapping[str, str], *, response: bool) -> BodyDecoder:
        """The decoder a message head asks for. A response without a length lasts until the peer closes."""
        coding = headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                raise ProtocolError(f"transfer coding {coding[:40]!r} is not supported, only chunked", 501)
            return cls(chunked=True, length=None)
        text = headers.get("content-length")
        if text is None:
            return cls(chunked=False, length=None if response else 0)
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            raise ProtocolError(f"content-length {text[:40]!r} is not a number")
        return cls(chunked=False, length=int(text))

    def feed(self, data: bytes) -> bytes:
        """Payload contained in `data`. Raises `ProtocolError` on broken chunk framing."""
        if self.done:
            self.rest += data
            return b""
        if self._left is None:
            return data
        self._buffer += data
        payload: list[bytes] = []
        while not self.done and self._step(payload):
            pass
        if self.done:
            self.rest, self._buffer = self._buffer, b""
        return b"".join(payload)

    def _step(self, payload: list[bytes]) -> bool:
        """Take one piece of the grammar off the buffer; False when more bytes are needed."""
        if self._left:
            part = self._buffer[: self._left]
            payload.append(part)
            self._buffer = self._buffer[len(part) :]
            self._left -= len(part)
            self.done = self._left == 0 and self._expect is None
            return bool(part)
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise ProtocolError("a chunk size line is too long")
            return False
        self._buffer = rest
        self._take_line(line)
        return True

    def _take_line(self, line: bytes) -> None:
        if self._expect == "size":
            self._left = _chunk_size(line)
            self._expect = "chunk end" if self._left else "trailer"
        elif self._expect == "trailer":
            self.done = not line
        elif line:
            raise ProtocolError("a chunk does not end where its size says")
        else:
            self._expect = "size"


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    try:
        size = int(digits, 16)
    except ValueError as error:
        raise ProtocolError(f"chunk size {line[:40]!r} is not hexadecimal") from error
    if size < 0 or size > MAX_BODY_BYTES:
        raise ProtocolError(f"chunk of {size} bytes is over the limit of {MAX_BODY_BYTES}", 413)
    return size


def chunk(data: bytes) -> bytes:
    """`data` framed as one HTTP/1.1 chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response_head(status: int, headers: Mapping[str, str]) -> bytes:
    """Status line and headers with the final empty line. Values with line breaks are refused with `ValueError`."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"header {name} contains a line break")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
