"""What a request asks for, put into the words of those who decide on it: the record, the door and the cache. Pure."""

from __future__ import annotations

from tailkeeper_exporter.tap import messages
from tailkeeper_exporter.tap.admission import Ticket, priority_of
from tailkeeper_exporter.tap.cache import LocalCache
from tailkeeper_exporter.tap.facts import MAX_BODY_BYTES, BodyFacts, body_facts, clean, is_json
from tailkeeper_exporter.tap.messages import LAST_CHUNK, RequestHead, chunk
from tailkeeper_exporter.tap.observe import Asked

DEFAULT_TOKENS_PER_BYTE = 0.25
"""English under the usual vocabularies, until the tap has seen its own traffic."""
DEFAULT_MAX_TOKENS = 512
"""What a request without a limit generates, for the order of the queue only."""
_NEUTRAL = frozenset(
    {
        *(b"host", b"content-length", b"expect", b"accept-encoding", b"x-request-id", b"traceparent", b"tracestate"),
        *(b"user-agent", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto", b"x-real-ip"),
    }
)
"""Headers that say nothing of what is asked nor of who asks: ours to write, or those of a gateway about the way here."""


class Body:
    """A request's body on its way: what waits to be sent, and all of it as long as it is small."""

    def __init__(self, *, chunked: bool) -> None:
        self._chunked = chunked
        self._unsent: list[bytes] = []
        self.unsent_bytes = 0
        self.kept: bytearray | None = bytearray()
        """None once it is too large to be kept."""

    def add(self, data: bytes, *, sent: bool) -> None:
        """Another piece has come. ``sent``: it is on its way already."""
        if self.kept is not None:
            self.kept += data
            if len(self.kept) > MAX_BODY_BYTES:
                self.kept = None
        if not sent:
            self._unsent.append(data)
            self.unsent_bytes += len(data)

    def framed(self, data: bytes) -> bytes:
        """A piece as the backend gets it."""
        return chunk(data) if self._chunked else data

    def take(self, *, whole: bool) -> bytes:
        """All that waits, as the backend gets it. ``whole``: nothing comes after it."""
        data = b"".join((*map(self.framed, self._unsent), LAST_CHUNK if whole and self._chunked else b""))
        self.drop()
        return data

    def rewind(self) -> None:
        """From the beginning again; only while it is kept."""
        self._unsent = [bytes(self.kept)] if self.kept else []
        self.unsent_bytes = len(self.kept or b"")

    def drop(self) -> None:
        self._unsent, self.unsent_bytes = [], 0


def path_of(target: bytes) -> str:
    """The path for records, without the query, which may hold secrets."""
    return clean(messages.origin_form(target).partition(b"?")[0]) or ""


def facts_of(head: RequestHead, body: bytearray | None) -> BodyFacts:
    """What a whole request says in its body."""
    if not head.has_body:
        return BodyFacts(streaming=False)
    readable = body is not None and is_json(head.first(b"content-type")) and head.first(b"content-encoding") is None
    return body_facts(bytes(body or b"")) if readable else BodyFacts()


def ticket(key: int, head: RequestHead, asked: Asked, facts: BodyFacts, size: int, tokens_per_byte: float | None) -> Ticket:
    """For the door. ``size`` is what has come of the body, where its head does not say how much there will be."""
    ratio = DEFAULT_TOKENS_PER_BYTE if tokens_per_byte is None else tokens_per_byte
    most = DEFAULT_MAX_TOKENS if facts.max_tokens is None else facts.max_tokens
    cost_tokens = (size if head.length is None else head.length) * ratio + most
    return Ticket(key, priority_of(asked.facts.priority), facts.streaming, cost_tokens)


def cache_key(cache: LocalCache, head: RequestHead, asked: Asked, body: bytearray) -> bytes | None:
    """Under which the answer may be kept; None where it may not, or where the client forbids it."""
    if head.first(b"cache-control") is not None:
        return None
    # All that the backend gets, for it may answer by any of it: else one caller's odd header would be answered to the next.
    kept = messages.kept(head.headers, _NEUTRAL)
    caller = "\n".join(f"{n.decode('latin-1')}:{v.decode('latin-1')}" for n, v in kept)
    path, _, query = messages.origin_form(head.target).decode("latin-1").partition("?")
    content_type = (head.first(b"content-type") or b"").decode("latin-1")
    return cache.key(asked.facts.tenant, caller, asked.method, path, query, content_type, bytes(body))
