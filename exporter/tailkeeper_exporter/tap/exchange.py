"""One request as the tap saw it, from its first byte to its last; and the record that readers get of it. No I/O, no clock.

Times are seconds since ``start_unix_s`` unless their name says otherwise. Unknown is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.requests_ring import RequestRecord
from tailkeeper_exporter.tap.facts import sensitivity_of

_FRONT_DOOR = frozenset({"tokenize", "detokenize", "apply-template", "count_tokens"})


def is_work(method: str, path: str) -> bool:
    """Whether a request asks the engine itself. What lists models, asks for health or counts tokens is answered at once by
    the front door of an engine that is frozen behind it."""
    return method.upper() == "POST" and path.rstrip("/").rpartition("/")[2] not in _FRONT_DOOR


@dataclass(frozen=True, slots=True)
class Exchange:
    """A finished request. ``outcome`` is one of ``catalog.OUTCOMES``; ``error`` says in one word why it is not ``ok``.

    Tokens are as the engine's ``usage`` says; ``generated_tokens`` of a stream without it is the number of content events,
    which is a lower bound where the engine sends several tokens in one.
    """

    backend: str
    request_id: str
    trace_id: str
    span_id: str
    """Of our own server span, which the backend got as its parent."""
    start_unix_s: float
    end_s: float
    outcome: str
    parent_span_id: str | None = None
    sampled: bool = True
    error: str = ""
    status: int | None = None
    method: str = ""
    path: str = ""
    """Without the query, which may hold secrets."""
    streaming: bool | None = None
    model: str | None = None
    tenant: str | None = None
    modality: str | None = None
    canary_revision: str | None = None
    operation: str | None = None
    sensitivity: int | None = None
    priority: str | None = None
    sent_s: float | None = None
    """When the backend was asked: until then the request waited in the tap."""
    first_token_s: float | None = None
    """The first content token; headers, a role, a comment and an empty delta are none."""
    last_token_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    gaps: tuple[int, ...] = ()
    """Times between content events by ``catalog.TOKEN_BUCKETS`` and above: counts, not cumulative; empty for none."""
    gap_sum_s: float = 0.0
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    running: int | None = None
    """Requests of this tap that had their first token, when this one was admitted."""
    waiting: int | None = None
    """Requests of this tap that had not, in the tap or in the engine."""
    backlog_tokens: int | None = None
    """Prompt tokens of those, estimated from the ratio of tokens to bytes seen so far."""
    cache_hit: bool = False
    request_bytes: int = 0
    response_bytes: int = 0

    @property
    def content_events(self) -> int:
        """Content events of the answer."""
        return sum(self.gaps) + (self.first_token_s is not None)

    @property
    def itl_s(self) -> float | None:
        """Mean time between content events; None with fewer than two."""
        count = sum(self.gaps)
        return self.gap_sum_s / count if count else None

    def record(self, gpu: str | None) -> RequestRecord:
        """For the ring. The tap cannot see into the engine: ``prefill_s`` holds the engine's own queue too."""
        both = self.first_token_s is not None and self.sent_s is not None
        return RequestRecord(
            backend=self.backend,
            request_id=self.request_id,
            trace_id=self.trace_id,
            model=self.model,
            tenant=self.tenant,
            modality=self.modality,
            canary_revision=self.canary_revision,
            operation=self.operation,
            sensitivity=self.sensitivity,
            streaming=self.streaming,
            start=self.start_unix_s,
            queue_s=self.sent_s,
            prefill_s=(self.first_token_s or 0.0) - (self.sent_s or 0.0) if both else None,
            ttft_s=self.first_token_s,
            itl_s=self.itl_s,
            e2e_s=self.end_s,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            running=self.running,
            waiting=self.waiting,
            backlog_tokens=self.backlog_tokens,
            outcome=self.outcome,
            gpu=gpu,
        )

    def completed(self, model: str | None, labels: Mapping[str, str]) -> Exchange:
        """What the request did not say of itself, as its backend's model and labels say it; its own word always wins."""
        said: dict[str, Any] = {name: labels.get(name) for name in _LABELS} | {
            "model": model,
            "sensitivity": sensitivity_of(labels.get("sensitivity", "").encode()),
        }
        unsaid = {name: value for name, value in said.items() if value is not None and getattr(self, name) is None}
        return replace(self, **unsaid) if unsaid else self

    def line(self) -> bytes:
        """As one line of JSON, for the way from the tap's process to the exporter's."""
        document = {name: getattr(self, name) for name in _NAMES}  # every value is plain, so none need be copied
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"


_LABELS = ("tenant", "modality", "canary_revision", "operation")
_NAMES = frozenset(field.name for field in fields(Exchange))
GAP_COUNTS = len(catalog.TOKEN_BUCKETS) + 1


def exchange_of(line: bytes) -> Exchange:
    """The exchange in one line. Raises ValueError where it is none: the other side is another version of us."""
    document = json.loads(line)
    if not isinstance(document, dict) or not set(document) <= _NAMES:
        raise ValueError("not an exchange")
    try:
        return Exchange(**{**document, "gaps": tuple(document.get("gaps", ()))})
    except TypeError as error:
        raise ValueError(f"not an exchange: {error}") from None
