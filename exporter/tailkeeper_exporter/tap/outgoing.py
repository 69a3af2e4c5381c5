"""An answer on its way to the client: framed for that client, with as few calls of the system as can be. No I/O of its own."""

from __future__ import annotations

from typing import Protocol

from tailkeeper_exporter.tap import messages
from tailkeeper_exporter.tap.messages import LAST_CHUNK, AnswerHead, RequestHead, chunk

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Client(Protocol):
    """The client's connection, as a turn needs it."""

    full: bool
    """It has more to send than its buffer should hold."""

    def write(self, data: bytes) -> None: ...
    def hold(self) -> None: ...
    def go_on(self) -> None: ...
    def turn_ended(self, *, close: bool) -> None: ...
    def cut(self) -> None:
        """End the connection so that the client cannot take what it has for a whole answer."""
        ...


class Outgoing:
    """One answer. ``began``: a head is out, so that nothing else can be said any more; ``close``: the connection ends with it."""

    def __init__(self, client: Client, request: RequestHead, request_id: str) -> None:
        self._client, self._request, self._request_id = client, request, request_id
        self.began = self.close = False
        self._chunked = self._terminated = False

    def permit(self) -> None:
        """The client may wait with its body until it is told to send it; the backend is not asked, for we take it in any case."""
        expects = (self._request.first(b"expect") or b"").strip().lower() == b"100-continue"
        if expects and self._request.version == "1.1":
            self._client.write(CONTINUE)

    def begin(self, answer: AnswerHead, data: bytes, *, last: bool, request_is_whole: bool) -> None:
        """The head, and what came with it in one piece."""
        self.began = True
        framed = answer.has_no_body(self._request.method) or (answer.length is not None and not answer.chunked)
        self._chunked = not framed and self._request.version == "1.1"
        # What is left of an unfinished request is not waited for, and would be taken for the next one.
        self.close = not (self._request.keep_alive and request_is_whole) or not (framed or self._chunked)
        head = messages.answer_head(answer, self._request, self._request_id, chunked=self._chunked, close=self.close)
        self._client.write(head + self._framed(data, last))

    def go_on(self, data: bytes, *, last: bool) -> None:
        self._client.write(self._framed(data, last))

    def end(self) -> None:
        """The answer is whole, if that is not said yet."""
        if self._chunked and not self._terminated:
            self._client.write(LAST_CHUNK)

    def _framed(self, data: bytes, last: bool) -> bytes:
        if not self._chunked:
            return data
        self._terminated = last
        return (chunk(data) if data else b"") + (LAST_CHUNK if last else b"")
