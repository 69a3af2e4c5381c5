"""The last finished requests, in memory, for whoever asks with a cursor; and their exemplars for the histograms.

Whoever knows of a request calls ``append`` (the tap, and OTLP spans). The ring keeps the newest ``MAX_RECORDS``; what was
overwritten before a reader came for it is counted as ``dropped``. Unknown is None and goes out as ``null``. No I/O, no clock.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import asdict, dataclass
from itertools import islice

from tailkeeper_exporter import catalog

MAX_RECORDS = 10_000
"""Two minutes at 80 requests a second; a reader comes twice a second. About 6 MB."""
DEFAULT_LIMIT = 1_000
MAX_CURSOR = 2**63 - 1
EXEMPLAR_RECORDS = 256
"""How far back exemplars are looked for, per backend: they are pointers to recent requests, not a history."""
MAX_EXEMPLAR_CHARS = 128
"""OpenMetrics' limit for names and values of an exemplar's labels together."""
_TRACE_ID = re.compile(r"[0-9a-f]{1,32}")


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request. Seconds and tokens; ``start`` is epoch seconds; the rest as the request or its backend said."""

    backend: str
    request_id: str | None = None
    trace_id: str | None = None
    model: str | None = None
    tenant: str | None = None
    modality: str | None = None
    canary_revision: str | None = None
    operation: str | None = None
    sensitivity: int | None = None
    streaming: bool | None = None
    start: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    backlog_tokens: int | None = None
    outcome: str | None = None
    gpu: str | None = None

    def document(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Batch:
    """An answer to one reader. ``next`` is the cursor for its next call."""

    next: int
    dropped: int
    records: tuple[RequestRecord, ...]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One request behind a bucket: ``value`` in the histogram's unit, ``at_unix_s`` when it ended."""

    value: float
    labels: tuple[tuple[str, str], ...]
    at_unix_s: float | None


# Inter-token latency is left out: a record has its mean, the histogram single intervals.
_EXEMPLAR_FIELDS: tuple[tuple[str, str], ...] = (
    (catalog.TTFT.name, "ttft_s"),
    (catalog.LATENCY.name, "e2e_s"),
    (catalog.QUEUE_TIME.name, "queue_s"),
    (catalog.PREFILL_TIME.name, "prefill_s"),
)


class RequestRing:
    """Written in the event loop only."""

    def __init__(self, capacity: int = MAX_RECORDS) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} is not at least 1")
        self.capacity = capacity
        self._records: deque[RequestRecord] = deque(maxlen=capacity)
        self._recent: dict[str, deque[RequestRecord]] = {}
        self._appended = 0

    def append(self, record: RequestRecord) -> None:
        """Keep a finished request. Its backend is one that is watched, so that the memory stays bounded."""
        self._appended += 1
        self._records.append(record)
        self._recent.setdefault(record.backend, deque(maxlen=EXEMPLAR_RECORDS)).append(record)

    def forget(self, backend: str) -> None:
        """Of a backend that has gone nothing is shown any more. Its requests did happen, and stay for the readers."""
        self._recent.pop(backend, None)

    def since(self, cursor: int, limit: int) -> Batch:
        """Records after ``cursor``, oldest first, at most ``limit``.

        A cursor ahead of all records is from before a restart of this process: the reader gets what there is.
        """
        if cursor > self._appended:
            cursor = 0
        oldest = self._appended - len(self._records)
        dropped = max(0, oldest - cursor)
        start = max(cursor, oldest) - oldest
        found = tuple(islice(self._records, start, start + limit))
        return Batch(oldest + start + len(found), dropped, found)

    def exemplars(self, backend: str) -> dict[str, tuple[Exemplar, ...]]:
        """By histogram name, newest first, of the backend's recent requests that have a trace."""
        found: dict[str, list[Exemplar]] = {}
        for record in reversed(self._recent.get(backend, ())):
            labels = exemplar_labels(record)
            for metric, name in _EXEMPLAR_FIELDS if labels else ():
                value = getattr(record, name)
                if value is not None and _is_example(record.outcome, name):
                    ended = None if record.start is None or record.e2e_s is None else record.start + record.e2e_s
                    found.setdefault(metric, []).append(Exemplar(value, labels, ended))
        return {metric: tuple(exemplars) for metric, exemplars in found.items()}


def _is_example(outcome: str | None, field: str) -> bool:
    """Whether such a request is among what the histogram counts: a failure is not, and an aborted one has no whole latency."""
    return outcome in (None, "ok") or (outcome == "aborted" and field != "e2e_s")


def exemplar_labels(record: RequestRecord) -> tuple[tuple[str, str], ...]:
    """``trace_id`` as 32 lower-case hexadecimal digits, and ``request_id`` where it fits; empty without a valid trace."""
    trace_id = (record.trace_id or "").lower()
    if not _TRACE_ID.fullmatch(trace_id) or not trace_id.strip("0"):
        return ()
    labels = [("trace_id", trace_id.rjust(32, "0"))]
    request_id = record.request_id or ""
    if request_id and sum(len(n) + len(v) for n, v in [*labels, ("request_id", request_id)]) <= MAX_EXEMPLAR_CHARS:
        labels.append(("request_id", request_id))
    return tuple(labels)
