"""Heads of requests and answers: checked, freed of what is meant for one connection only, and written anew. Pure.

Everything is framed again from what was parsed, never copied, so that the other side cannot read another message than we did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

MAX_HEAD_BYTES = 65_536
"""Eight times what most servers take: tokens in headers are long. More is answered by 431."""

LAST_CHUNK = b"0\r\n\r\n"

Headers = list[tuple[bytes, bytes]]
"""Names in lower case."""

_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"te", b"trailer", b"upgrade"),
        *(b"proxy-authenticate", b"proxy-authorization", b"proxy-authentication-info", b"http2-settings"),
    }
)
# Ours to say, on either side; without `accept-encoding` the backend answers in plain text, which can be read as it passes.
_REQUEST_OURS = frozenset(
    {b"host", b"content-length", b"expect", b"accept-encoding", b"x-request-id", b"traceparent", b"tracestate"}
)
_ANSWER_OURS = frozenset({b"content-length", b"x-request-id"})
_NO_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A client's request, parsed. ``length`` and ``chunked`` say how its body is framed."""

    method: bytes
    target: bytes
    version: str
    headers: Headers
    keep_alive: bool
    length: int | None
    chunked: bool

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.length)

    def first(self, name: bytes) -> bytes | None:
        return next((v for n, v in self.headers if n == name), None)

    def texts(self, name: bytes) -> list[str]:
        """All values of a header, in a text that cannot fail to be made."""
        return [v.decode("latin-1") for n, v in self.headers if n == name]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """A backend's answer. Neither ``length`` nor ``chunked``: it ends with the connection."""

    status: int
    reason: bytes
    headers: Headers
    length: int | None
    chunked: bool

    def first(self, name: bytes) -> bytes | None:
        return next((v for n, v in self.headers if n == name), None)

    def has_no_body(self, method: bytes) -> bool:
        return method == b"HEAD" or self.status in _NO_BODY


def wrong_with(head: RequestHead) -> str | None:
    """Why a parsed request is refused all the same, or None."""
    if head.version not in ("1.0", "1.1"):
        return "only HTTP/1.0 and HTTP/1.1 are spoken here"
    hosts = sum(name == b"host" for name, _ in head.headers)
    if hosts > 1 or (hosts == 0 and head.version == "1.1"):
        return "exactly one Host header is needed"
    if head.version == "1.0" and head.chunked:
        return "HTTP/1.0 has no chunked bodies"
    if not plain_coding(head.headers):
        return "a transfer coding other than chunked is not spoken here"
    if any(b"\r" in value or b"\n" in value or b"\0" in value for _, value in head.headers):
        return "a header value has a line break"
    return None


def plain_coding(headers: Headers) -> bool:
    """Whether the body has no transfer coding but `chunked`: another would be passed on as if it were the body."""
    return all(value.strip().lower() == b"chunked" for name, value in headers if name == b"transfer-encoding")


def origin_form(target: bytes) -> bytes:
    """Path and query of a request target, which a client may send as a whole URL."""
    if target.startswith((b"/", b"*")):
        return target
    _, found, rest = target.partition(b"://")
    cut = min((i for mark in (b"/", b"?") if (i := rest.find(mark)) >= 0), default=len(rest))
    path = rest[cut:] if found else target
    return path if path.startswith(b"/") else b"/" + path


def kept(headers: Headers, ours: frozenset[bytes]) -> Headers:
    """The headers that go on: not those of this connection (RFC 9110 7.6.1), nor those that we write."""
    named = {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in headers if name not in _HOP_BY_HOP and name not in ours and name not in named]


def chunk(data: bytes) -> bytes:
    """One chunk; ``data`` is not empty, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def write_head(first_line: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A head with its empty line."""
    return b"".join((first_line, b"\r\n", *(b"%b: %b\r\n" % header for header in headers), b"\r\n"))


def request_head(head: RequestHead, path: bytes, host: bytes, ids: Headers) -> bytes:
    """What the backend gets."""
    headers = [(b"host", host), *kept(head.headers, _REQUEST_OURS), *ids, (b"via", b"1.1 tailkeeper")]
    if head.chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    elif head.length is not None:
        headers.append((b"content-length", b"%d" % head.length))
    return write_head(b"%b %b HTTP/1.1" % (head.method, path), headers)


def answer_head(answer: AnswerHead, request: RequestHead, request_id: str, *, chunked: bool, close: bool) -> bytes:
    """What the client gets. ``chunked`` is how we frame the body, where it has one whose length is not known."""
    headers = [*kept(answer.headers, _ANSWER_OURS), (b"x-request-id", request_id.encode())]
    if answer.length is not None and not answer.chunked and answer.status != HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", b"%d" % answer.length))
    elif chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    if close:
        headers.append((b"connection", b"close"))
    return write_head(b"HTTP/1.1 %d %b" % (answer.status, answer.reason), headers)


def refusal(status: int, code: str, message: str, request_id: str, more: Headers, *, close: bool, bodiless: bool) -> bytes:
    """A whole answer of our own, in the shape that clients of this interface read."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode()),
        (b"x-tailkeeper-reason", code.encode()),
        *more,
        *([(b"connection", b"close")] if close else []),
    ]
    head = write_head(b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()), headers)
    return head if bodiless else head + body
