"""Reads server-sent events as they pass: counts content events, and keeps what the stream says of itself. Pure.

Fed with the bytes in whatever pieces they come; what it finds does not depend on the pieces. It never holds the stream up:
the bytes are on their way before they are read here. JSON is parsed until the first content event; after it an event of the
usual shape is judged by a few searches for bytes, and only an unusual one (an end, usage, an error) is parsed.
"""

from __future__ import annotations

from tailkeeper_exporter.tap.answers import Said, Usage, said
from tailkeeper_exporter.tap.facts import json_object

MAX_EVENT_BYTES = 262_144
"""Of one event. A larger one counts as content, unread: only an embedding or log-probabilities are so large."""

_DONE = b"[DONE]"
# A key cannot be faked by the text of an answer: inside a JSON string its quotes would be escaped.
_CLOSERS: tuple[tuple[bytes, bytes, bytes], ...] = (
    (b'"finish_reason"', b'"finish_reason":null', b'"finish_reason": null'),
    (b'"usage"', b'"usage":null', b'"usage": null'),
    (b'"error"', b'"error":null', b'"error": null'),
)
_TEXTS: tuple[tuple[bytes, bytes], ...] = (
    (b'"content":"', b'"content":""'),
    (b'"text":"', b'"text":""'),
    (b'"content": "', b'"content": ""'),
    (b'"text": "', b'"text": ""'),
    (b'"reasoning_content":"', b'"reasoning_content":""'),
)


class SseReader:
    """One stream. ``first`` and the others only ever turn true."""

    def __init__(self) -> None:
        self._tail = bytearray()
        self._searched = 0
        self._oversized = False
        self._held_return = False
        self.content_events = 0
        self.usage = Usage()
        self.done = False
        """The stream said that it is whole: ``[DONE]``, or its interface's word for it."""
        self.finished = False
        """A finish reason has come."""
        self.failed = False
        self.aborted = False
        self._marked = False

    @property
    def complete(self) -> bool:
        """Whether the stream, if it ended here, would be whole. A stream of no kind that we know has nothing to miss."""
        return self.done or self.finished or not self._marked

    def feed(self, data: bytes) -> int:
        """How many content events ended with these bytes."""
        before = self.content_events
        if self._held_return or b"\r" in data:
            data = self._line_feeds(data)
        if not self._tail and not self._oversized and data.endswith(b"\n\n"):
            for event in data[:-2].split(b"\n\n"):
                self._event(event)
        else:
            self._slow(data)
        return self.content_events - before

    def finish(self) -> int:
        """The stream has ended: an event without the empty line after it is read too, as every reader in the field does."""
        before = self.content_events
        if not self._oversized and self._tail:
            self._event(bytes(self._tail))
        self._tail.clear()
        return self.content_events - before

    def _line_feeds(self, data: bytes) -> bytes:
        """All three line ends as one. A return at the end waits for what follows, which may be its line feed."""
        if self._held_return:
            data = b"\r" + data
        self._held_return = data.endswith(b"\r")
        if self._held_return:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _slow(self, data: bytes) -> None:
        tail = self._tail
        tail += data
        start = 0
        while (end := tail.find(b"\n\n", max(start, self._searched - 1))) >= 0:
            if self._oversized:
                self._oversized = False
                self.content_events += 1
            else:
                self._event(bytes(tail[start:end]))
            start = self._searched = end + 2
        del tail[:start]
        self._searched = len(tail)
        if len(tail) > MAX_EVENT_BYTES + 1:
            self._oversized = True
        if self._oversized:
            # One byte is enough to see the end of the event; the rest would only be kept.
            del tail[:-1]
            self._searched = 0

    def _event(self, event: bytes) -> None:
        if event.startswith(b"\n"):
            event = event.lstrip(b"\n")
        if len(event) > MAX_EVENT_BYTES:
            self.content_events += 1
        elif event.startswith(b"data:") and b"\n" not in event:
            self._data(event[5:].strip())
        elif event:
            lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            self._data(b"\n".join(lines))

    def _data(self, data: bytes) -> None:
        if self.content_events and (content := _judge(data)) is not None:
            self.content_events += content
        elif data == _DONE:
            self.done = True
        elif data:
            self._document(data)

    def _document(self, data: bytes) -> None:
        document = json_object(data)
        if document is not None:
            self._take(said(document))

    def _take(self, found: Said) -> None:
        self.content_events += found.content
        self.usage = self.usage if found.usage is None else found.usage.over(self.usage)
        self.finished |= found.finished
        self.failed |= found.failed
        self.aborted |= found.aborted
        self._marked |= found.marked


def _judge(data: bytes) -> bool | None:
    """Whether an event of the usual shape is content, without parsing it; None: not of the usual shape."""
    if b'"choices"' not in data or b'"type"' in data:
        return None
    for key, compact, spaced in _CLOSERS:
        if key in data and data.count(key) != (data.count(compact) or data.count(spaced)):
            return None
    for key, empty in _TEXTS:
        if key in data:
            return True if empty not in data else None
    return None
