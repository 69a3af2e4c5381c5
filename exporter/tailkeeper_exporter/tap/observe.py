"""Watches one request and its answer pass, and makes the record of them. No I/O; times are passed in.

It sees every piece after it was sent on, so nothing here delays a token; and it keeps what is bounded: one event of a stream,
or a small JSON answer.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from tailkeeper_exporter import catalog
from tailkeeper_exporter.tap.answers import Usage, said
from tailkeeper_exporter.tap.book import Book
from tailkeeper_exporter.tap.exchange import GAP_COUNTS, Exchange, is_work
from tailkeeper_exporter.tap.facts import BodyFacts, HeaderFacts, is_json, json_object
from tailkeeper_exporter.tap.ids import Trace
from tailkeeper_exporter.tap.messages import AnswerHead
from tailkeeper_exporter.tap.sse import SseReader

MAX_ANSWER_BYTES = 262_144
"""JSON answers up to this are kept while they pass, to read their usage."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request when its head is there."""

    backend: str
    request_id: str
    trace: Trace
    method: str
    path: str
    facts: HeaderFacts
    start_unix_s: float
    start_s: float


class Observation:
    """One exchange in the making. ``end`` is called once, and last."""

    def __init__(self, asked: Asked, book: Book) -> None:
        self.asked = asked
        self._book = book
        # As seen at admission, so before this one is counted.
        self._running, self._waiting, self._backlog = book.running, book.held + book.waiting, book.backlog_tokens
        book.enter()
        self.facts = BodyFacts()
        self.status: int | None = None
        self.cache_hit = False
        self.request_bytes = 0
        self._response_bytes = 0
        self._sent_s: float | None = None
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._gaps = [0] * GAP_COUNTS
        self._gap_sum_s = 0.0
        self._sse: SseReader | None = None
        self._json: bytearray | None = None
        self._usage = Usage()

    def asked_more(self, size: int) -> None:
        """So many bytes of the request's body have come."""
        self.request_bytes += size
        if self._first_s is None:
            self._book.add(size)

    def sent(self, now: float) -> None:
        """The backend is being asked. A second try does not count: the user waits since the first."""
        if self._sent_s is None:
            self._sent_s = now
            self._book.send()

    def answered(self, answer: AnswerHead, now: float) -> None:
        """The answer's head has come."""
        self.status = answer.status
        self._backend_answered(now)
        if answer.first(b"content-encoding") not in (None, b"identity"):
            return
        content_type = answer.first(b"content-type")
        if (content_type or b"").partition(b";")[0].strip().lower() == b"text/event-stream":
            self._sse = SseReader()
        elif is_json(content_type):
            self._json = bytearray()

    def passed(self, data: bytes, now: float) -> None:
        """A piece of the answer's body was sent on."""
        self._response_bytes += len(data)
        self._backend_answered(now)
        if self._sse is not None:
            events = self._sse.feed(data)
            if events:
                self._tokens(events, now)
        elif self._json is not None:
            self._json += data
            if len(self._json) > MAX_ANSWER_BYTES:
                self._json = None

    def _backend_answered(self, now: float) -> None:
        """What comes from the tap's cache is no sign of the backend's life."""
        if not self.cache_hit:
            self._book.answered_s = now

    def _tokens(self, events: int, now: float) -> None:
        """``events`` content events came together: the first after a pause, the others at once."""
        self._book.progress_s = now
        if self._first_s is None:
            self._first_s = now - self.asked.start_s
            self._book.first_token(self.request_bytes)
        else:
            self._gap(now - self.asked.start_s - (self._last_s or 0.0), 1)
        if events > 1:
            self._gap(0.0, events - 1)
        self._last_s = now - self.asked.start_s

    def _gap(self, seconds: float, count: int) -> None:
        self._gaps[bisect_left(catalog.TOKEN_BUCKETS, seconds)] += count
        self._gap_sum_s += seconds * count

    def whole(self, now: float) -> tuple[str, str]:
        """The answer ended as HTTP says. Outcome and, where it is not ok, why: a whole message can hold half an answer."""
        outcome = self._verdict(now)
        if outcome[0] == "ok" and is_work(self.asked.method, self.asked.path) and not self.cache_hit:
            self._book.progress_s = now
        return outcome

    def _verdict(self, now: float) -> tuple[str, str]:
        status = self.status or 0
        failed, aborted, cut = self._read_to_end(now)
        if status >= 500:
            return "error", "status"
        if status >= 400:
            return "rejected", "status"
        if failed:
            return "error", "in_answer"
        if aborted:
            return "aborted", "by_backend"
        return ("error", "cut_short") if cut else ("ok", "")

    def _read_to_end(self, now: float) -> tuple[bool, bool, bool]:
        """Whether what came says that it failed, that it was aborted, and whether its end is missing."""
        if self._sse is not None:
            events = self._sse.finish()
            if events:
                self._tokens(events, now)
            return self._sse.failed, self._sse.aborted, not self._sse.complete
        document = json_object(bytes(self._json)) if self._json else None
        if document is None:
            return False, False, False
        found = said(document)
        self._usage = found.usage or Usage()
        return found.failed, found.aborted, False

    def end(self, outcome: str, error: str, now: float) -> Exchange:
        """The record. The book forgets the request, and learns from it."""
        asked, facts = self.asked, self.facts
        usage = self._sse.usage if self._sse is not None else self._usage
        events = self._sse.content_events if self._sse is not None else 0
        self._book.leave(sent=self._sent_s is not None, first_token=self._first_s is not None, size=self.request_bytes)
        if usage.prompt and self.request_bytes:
            self._book.learn(self.request_bytes, usage.prompt)
        return Exchange(
            backend=asked.backend,
            request_id=asked.request_id,
            trace_id=asked.trace.trace_id,
            span_id=asked.trace.span_id,
            parent_span_id=asked.trace.parent_span_id,
            sampled=asked.trace.sampled,
            start_unix_s=asked.start_unix_s,
            end_s=now - asked.start_s,
            outcome=outcome,
            error=error,
            status=self.status,
            method=asked.method,
            path=asked.path,
            streaming=True if self._sse is not None else facts.streaming,
            model=facts.model or asked.facts.model_hint,
            tenant=asked.facts.tenant,
            modality=asked.facts.modality,
            canary_revision=asked.facts.canary_revision,
            operation=asked.facts.operation,
            sensitivity=asked.facts.sensitivity,
            priority=asked.facts.priority,
            sent_s=None if self._sent_s is None else self._sent_s - asked.start_s,
            first_token_s=self._first_s,
            last_token_s=self._last_s,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            generated_tokens=(events or None) if usage.generated is None else usage.generated,
            gaps=tuple(self._gaps) if any(self._gaps) else (),
            gap_sum_s=self._gap_sum_s,
            temperature=facts.temperature,
            top_p=facts.top_p,
            max_tokens=facts.max_tokens,
            running=self._running,
            waiting=self._waiting,
            backlog_tokens=self._backlog,
            cache_hit=self.cache_hit,
            request_bytes=self.request_bytes,
            response_bytes=self._response_bytes,
        )
