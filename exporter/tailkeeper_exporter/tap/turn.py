"""One request and its answer on their way through the tap: who is asked, what is sent where, and how it ends.

It stands between a client's connection and a backend's, and owns neither: it holds back the side that is faster, and when
one side ends it ends the other. Nothing is kept but a small request body, to be read and to be sent a second time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailkeeper_exporter.tap import asking, messages
from tailkeeper_exporter.tap.admission import Refusal
from tailkeeper_exporter.tap.asking import Body
from tailkeeper_exporter.tap.cache import CachedAnswer
from tailkeeper_exporter.tap.facts import MAX_BODY_BYTES, header_facts
from tailkeeper_exporter.tap.ids import request_id, trace
from tailkeeper_exporter.tap.messages import LAST_CHUNK, AnswerHead, Headers, RequestHead
from tailkeeper_exporter.tap.observe import Asked, Observation
from tailkeeper_exporter.tap.outgoing import Client, Outgoing
from tailkeeper_exporter.tap.upstream import Upstream
from tailkeeper_exporter.tls import tls_trouble

if TYPE_CHECKING:
    from tailkeeper_exporter.tap.gate import Tap

RETRY_WITHIN_S = 1.0
"""A kept connection that the backend had closed already says so within a round trip. One that ends later may have been at
work on the request, and a request that kills a backend must not be sent to it twice."""
MAX_CACHED_BYTES = 262_144


class Turn:
    """From a request's head to its answer's end."""

    def __init__(self, tap: Tap, client: Client, head: RequestHead) -> None:
        self._tap, self._client, self.head = tap, client, head
        self.key = tap.next_key()
        self.whole = False
        """The client has sent its request to the end."""
        self._trace = trace(head.texts(b"traceparent"), head.texts(b"tracestate"), tap.random_hex)
        facts = header_facts(dict(reversed(head.headers)))
        asked = Asked(
            tap.name,
            request_id(head.texts(b"x-request-id"), tap.random_hex),
            self._trace,
            head.method.decode("latin-1"),
            asking.path_of(head.target),
            facts,
            tap.unix_clock(),
            tap.clock(),
        )
        self._seen = Observation(asked, tap.book)
        self._body = Body(chunked=head.chunked)
        self._out = Outgoing(client, head, asked.request_id)
        self.started = self._asked = self._retried = self._ended = False
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._sent_at = 0.0
        self._cache_key: bytes | None = None
        self._answer: AnswerHead | None = None
        self._cached = bytearray()

    # The client's side.

    def start(self) -> None:
        """It is this request's turn on its connection."""
        self.started = True
        wrong = messages.wrong_with(self.head)
        if wrong is not None:
            self._refuse(400, "bad_request", wrong, "rejected", close=True)
        elif self._ready_to_ask():
            self._ask()
        else:
            self._permit()

    def body(self, data: bytes) -> None:
        """A piece of the request's body has come."""
        if self._ended:
            return
        self._seen.asked_more(len(data))
        self._body.add(data, sent=self._upstream is not None)
        if self._upstream is not None:
            self._upstream.write(self._body.framed(data))
            return
        if self.started and not self._asked and self._ready_to_ask():
            self._ask()
        if self._upstream is None and self._body.unsent_bytes > MAX_BODY_BYTES:
            self._client.hold()

    def end(self) -> None:
        """The request is whole."""
        self.whole = True
        if self._ended:
            return
        if self._upstream is not None and self.head.chunked:
            self._upstream.write(LAST_CHUNK)
        self._seen.facts = asking.facts_of(self.head, self._body.kept)
        if self.started and not self._asked:
            self._ask()

    def client_gone(self) -> None:
        """The client has closed its connection: nobody waits for this answer."""
        self._stop("aborted", "client_gone")

    def refused_late(self, status: int, code: str, message: str) -> None:
        """The rest of the request is no good. Before its turn it is not for us to say; before the answer began it can be said;
        after it, only be ended."""
        if self._ended:
            return
        if not self.started:
            self._seen.status = status
            self._stop("rejected", code)
        elif self._out.began:
            self._stop("aborted", code)
            self._client.cut()
        else:
            self._refuse(status, code, message, "rejected")

    def cut_short(self) -> None:
        """The tap ends before the answer does."""
        if not self._ended:
            self._stop("aborted", "tap_stopped")
            self._client.cut()

    def client_full(self) -> None:
        if self._upstream is not None:
            self._upstream.hold()

    def client_ready(self) -> None:
        if self._upstream is not None:
            self._upstream.go_on()

    # Admission.

    def admitted(self) -> None:
        """There is room for it at the backend."""
        if self._ended:
            return
        kept = self._tap.pool.take()
        if kept is not None:
            self._send(kept)
        else:
            self._connect()

    def refused(self, refusal: Refusal) -> None:
        """Not now, and perhaps later."""
        if not self._ended:
            message = f"the tap before this backend does not serve this request now: {refusal.reason}"
            more = [(b"retry-after", b"%d" % refusal.retry_after_s)]
            self._refuse(refusal.status, refusal.reason, message, "rejected", more)

    def _ready_to_ask(self) -> bool:
        return self.whole or self._body.kept is None or not self._tap.needs_body or not self.head.has_body

    def _ask(self) -> None:
        self._asked = True
        hit = self._from_cache()
        if hit is not None:
            self._give(hit)
            return
        seen = self._seen
        ratio = self._tap.book.tokens_per_byte
        verdict = self._tap.ask(self, asking.ticket(self.key, self.head, seen.asked, seen.facts, seen.request_bytes, ratio))
        if verdict is True:
            self.admitted()
        elif isinstance(verdict, Refusal):
            self.refused(verdict)

    def _from_cache(self) -> CachedAnswer | None:
        cache = self._tap.cache
        if cache is None or not self.whole or self._body.kept is None:
            return None
        self._cache_key = asking.cache_key(cache, self.head, self._seen.asked, self._body.kept)
        return None if self._cache_key is None else cache.get(self._cache_key, self._tap.clock())

    def _give(self, hit: CachedAnswer) -> None:
        head = AnswerHead(hit.status, b"OK", [*hit.headers, (b"x-tailkeeper-cache", b"hit")], len(hit.body), False)
        self._cache_key = None
        self._seen.cache_hit = True
        self.answer_begins(head, hit.body, last=True)
        self.answer_ends()

    # The backend's side.

    def _connect(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._connected())

    async def _connected(self) -> None:
        try:
            upstream = await self._tap.pool.connect()
        except TimeoutError:
            self._refuse(504, "backend_timeout", "the backend did not accept a connection in time", "error")
        except (OSError, UnicodeError) as error:
            # To clients only what kind of failure it is: names of our files and hosts are for the exporter's log.
            trouble = tls_trouble(error)
            why = type(error).__name__ if trouble is None else trouble.code.value
            self._refuse(502, "backend_unreachable", f"the backend could not be reached: {why}", "error")
        else:
            if self._ended:
                upstream.drop()
            else:
                self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        """Ask the backend, with as much of the body as is here."""
        self._sent_at = self._tap.clock()
        self._seen.sent(self._sent_at)
        self._upstream = upstream
        upstream.serve(self, head_only=self.head.method == b"HEAD")
        head = messages.request_head(self.head, self._target(), self._tap.pool.address.authority, self._ids())
        upstream.write(head + self._body.take(whole=self.whole))
        self._permit()
        if self._client.full:
            upstream.hold()
        if not self.whole and not upstream.is_full:
            self._client.go_on()

    def _target(self) -> bytes:
        target = messages.origin_form(self.head.target)
        return target if target == b"*" else self._tap.pool.address.path + target

    def _ids(self) -> Headers:
        ids = [(b"x-request-id", self._seen.asked.request_id.encode()), (b"traceparent", self._trace.traceparent.encode())]
        state = self._trace.tracestate
        return ids if state is None else [*ids, (b"tracestate", state.encode())]

    def _permit(self) -> None:
        if not self.whole and not self._seen.request_bytes:
            self._out.permit()

    def answer_begins(self, head: AnswerHead, data: bytes, *, last: bool) -> None:
        self._seen.answered(head, self._tap.clock())
        self._out.begin(head, data, last=last, request_is_whole=self.whole)
        if self.whole:
            self._body.kept = None
        if self._cache_key is not None:
            self._answer = head
        self._passed(data)

    def answer_goes_on(self, data: bytes, *, last: bool) -> None:
        self._out.go_on(data, last=last)
        self._passed(data)

    def _passed(self, data: bytes) -> None:
        """It is on its way; now there is time to look at it."""
        if data:
            self._seen.passed(data, self._tap.clock())
        if self._answer is not None:
            self._cached += data
            if len(self._cached) > MAX_CACHED_BYTES:
                self._answer = None

    def answer_ends(self) -> bool:
        if self._ended:
            return False
        self._out.end()
        now = self._tap.clock()
        outcome, error = self._seen.whole(now)
        if outcome == "ok":
            self._keep_answer(now)
        whole, self._upstream = self.whole, None
        self._finish(outcome, error)
        self._client.turn_ended(close=self._out.close or not whole)
        return whole

    def _keep_answer(self, now: float) -> None:
        cache = self._tap.cache
        if self._answer is not None and self._cache_key is not None and cache is not None:
            cache.put(self._cache_key, CachedAnswer(self._answer.status, tuple(self._answer.headers), bytes(self._cached)), now)

    def answer_lost(self, error: str, *, unused: bool) -> None:
        self._upstream = None
        if self._ended:
            return
        if self._out.began:
            self._stop("error", error)
            self._client.cut()
        elif unused and self._may_repeat():
            self._retried = True
            self._body.rewind()
            self._connect()
        else:
            self._refuse(502, error, "the backend ended the connection without a whole answer", "error")

    def backend_full(self) -> None:
        self._client.hold()

    def backend_ready(self) -> None:
        self._client.go_on()

    def _may_repeat(self) -> bool:
        soon = self._tap.clock() - self._sent_at < RETRY_WITHIN_S
        return soon and not self._retried and self._body.kept is not None

    # The end.

    def _refuse(
        self, status: int, code: str, message: str, outcome: str, more: Headers | None = None, *, close: bool = False
    ) -> None:
        if self._ended:
            return
        close = close or not (self.head.keep_alive and self.whole)
        bodiless = self.head.method == b"HEAD"
        number = self._seen.asked.request_id
        self._client.write(messages.refusal(status, code, message, number, more or [], close=close, bodiless=bodiless))
        self._seen.status = status
        self._stop(outcome, code)
        self._client.turn_ended(close=close)

    def _stop(self, outcome: str, error: str) -> None:
        if self._ended:
            return
        if self._connecting is not None and not self._connecting.done() and self._connecting is not _current_task():
            self._connecting.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.drop()
        self._finish(outcome, error)

    def _finish(self, outcome: str, error: str) -> None:
        self._ended = True
        self._body.kept = None
        self._body.drop()
        self._tap.done(self, self._seen.end(outcome, error, self._tap.clock()))


def _current_task() -> asyncio.Task[None] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
