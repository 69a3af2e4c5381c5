"""Answers kept for a minute and given again to the very same question of the very same caller. No I/O, no clock.

Off unless ``cache_mode`` is ``local``. Only what is asked to be deterministic is kept: a temperature of 0 that the request
itself names, one choice, no stream; or a kind of request that samples nothing. The key covers the tenant, all headers
by which the backend could tell callers apart, and the whole body with its model: two tenants, or two API keys of one
tenant, never share an answer, and no caller's odd header shapes the answer of the next. Of the
answer's headers only ``content-type`` is kept, so nothing that was meant for the first caller reaches the next.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tailkeeper_exporter import strict_json

TTL_S = 60.0
"""As long as other shared caches of answers keep them; a model that was replaced under its name is seen within it."""
ENTRY_OVERHEAD_BYTES = 512
"""What one entry takes beside its content: the key, the objects and their place in the table."""

_SAMPLED = frozenset({"/v1/chat/completions", "/v1/completions"})
_UNSAMPLED = frozenset({"/v1/embeddings", "/v1/rerank", "/v1/score"})
_WITH_EFFECTS = frozenset(
    {"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "session_params", "background", "store"}
)
"""Fields whose request leaves something behind in the engine (a KV transfer, a session, a stored answer): it must be run."""
_NEVER_KEPT = ("no-store", "private", "no-cache")

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A whole answer as the backend gave it. Header names are in lower case."""

    status: int
    headers: Headers
    body: bytes

    @property
    def size_bytes(self) -> int:
        return ENTRY_OVERHEAD_BYTES + len(self.body) + sum(len(name) + len(value) for name, value in self.headers)


class LocalCache:
    """The least recently used goes when ``max_bytes`` are full. Counters only ever grow."""

    def __init__(self, max_bytes: int, max_entry_bytes: int, ttl_s: float = TTL_S) -> None:
        self._max_bytes = max_bytes
        self._max_entry_bytes = min(max_entry_bytes, max_bytes)
        self._ttl_s = ttl_s
        self._entries: OrderedDict[bytes, tuple[float, CachedAnswer]] = OrderedDict()
        """With the time of its end, in the order of last use."""
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        """Entries that had to go before their time."""

    def __len__(self) -> int:
        return len(self._entries)

    def key(
        self,
        tenant: str | None,
        authorization: str | None,
        method: str,
        path: str,
        query: str,
        content_type: str | None,
        body: bytes,
    ) -> bytes | None:
        """The key of a request, or None for one whose answer must not be kept.

        ``authorization`` is all with which the caller says who it is and what else it wants; where that is more than one
        header, all of them in one text. It is hashed, never stored. ``path`` is without the query. A request that forbids a
        cached answer (``cache-control``) is the caller's to keep away.
        """
        if method != "POST" or path not in _SAMPLED | _UNSAMPLED or not _is_json(content_type):
            return None
        if len(body) > self._max_entry_bytes:
            return None
        canonical = _canonical(body, sampled=path in _SAMPLED)
        return None if canonical is None else _digest((tenant, authorization, path, query, canonical))

    def get(self, key: bytes, now: float) -> CachedAnswer | None:
        """The answer kept under ``key``, or None. ``now`` is monotonic seconds."""
        found = self._entries.get(key)
        if found is not None and now >= found[0]:
            self._drop(key)
            found = None
        if found is None:
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return found[1]

    def put(self, key: bytes, answer: CachedAnswer, now: float) -> None:
        """Keep an answer, if it may be kept: a 200 of JSON, for everyone who asks so, and not too large."""
        if not _may_be_kept(answer):
            return
        kept = replace(answer, headers=tuple((name, value) for name, value in answer.headers if name.lower() == b"content-type"))
        if kept.size_bytes > self._max_entry_bytes:
            return
        if key in self._entries:
            self._drop(key)
        while self.size_bytes + kept.size_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))
            self.evictions += 1
        self._entries[key] = (now + self._ttl_s, kept)
        self.size_bytes += kept.size_bytes

    def clear(self) -> None:
        """Forget every answer: the cache was switched off, or the backend changed."""
        self._entries.clear()
        self.size_bytes = 0

    def _drop(self, key: bytes) -> None:
        self.size_bytes -= self._entries.pop(key)[1].size_bytes


def _is_json(content_type: str | None) -> bool:
    media_type, _, parameters = (content_type or "").lower().partition(";")
    return media_type.strip() == "application/json" and parameters.strip() in ("", "charset=utf-8", 'charset="utf-8"')


def _canonical(body: bytes, *, sampled: bool) -> str | None:
    """The body in one way of writing it; None where it is not repeatable, or where two readers could understand it differently
    (a key twice, a number that is none, no UTF-8)."""
    try:
        document = strict_json.loads(body)
        if not isinstance(document, dict) or not _is_repeatable(document, sampled=sampled):
            return None
        return json.dumps(document, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None


def _is_repeatable(document: dict[str, object], *, sampled: bool) -> bool:
    """Whether the same request has the same answer, and asking again has no other purpose."""
    if document.get("stream") not in (None, False) or not _WITH_EFFECTS.isdisjoint(document):
        return False
    if not sampled:
        return True
    return _is_number(document.get("temperature"), 0) and all(
        document.get(name) is None or _is_number(document[name], 1) for name in ("n", "best_of")
    )


def _is_number(value: object, wanted: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == wanted


def _digest(parts: Iterable[str | None]) -> bytes:
    """Each part with its length before it, so that no two lists of parts make the same bytes; None is not empty."""
    digest = hashlib.sha256()
    for part in parts:
        content = b"" if part is None else part.encode("utf-8", errors="surrogatepass")
        digest.update(b"%d:" % (-1 if part is None else len(content)))
        digest.update(content)
    return digest.digest()


def _may_be_kept(answer: CachedAnswer) -> bool:
    """A 200 of JSON that is the same for every caller: no cookie, no `Vary`, no coding that not every client reads."""
    headers = [(name.lower(), value.lower()) for name, value in answer.headers]
    names = {name for name, _ in headers}
    forbidden = any(name == b"cache-control" and any(w.encode() in value for w in _NEVER_KEPT) for name, value in headers)
    types = [value.partition(b";")[0].strip() for name, value in headers if name == b"content-type"]
    return (
        answer.status == 200
        and types == [b"application/json"]
        and names.isdisjoint({b"set-cookie", b"vary", b"content-encoding", b"content-range"})
        and not forbidden
    )
