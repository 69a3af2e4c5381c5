"""Sends spans and log records to a collector: OTLP/HTTP, protobuf, gzipped, in batches.

``offer`` never waits. A collector that is away costs the queue and nothing else; when it is back, what the queue still holds
is sent. Retried is what the protocol allows to be: no connection, and 429, 502, 503, 504. Any other refusal loses the batch,
and is counted. A batch whose answer was lost may be sent twice. Headers hold secrets: they are never logged, and neither is
what a collector answers.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from anyio import EndOfStream
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tailkeeper_exporter.clients import CredentialError
from tailkeeper_exporter.otlp.counts import Counts, Outcome
from tailkeeper_exporter.otlp.queue import Item, SendQueue
from tailkeeper_exporter.probe_answer import retry_after_s
from tailkeeper_exporter.tls import tls_trouble

POST_S = 10.0
"""For a whole post, OpenTelemetry's usual limit."""
LINGER_S = 1.0
"""How long the first of a batch waits for others."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Doubling from the first to the longest; the longest also bounds what a collector may ask for in Retry-After."""
FLUSH_S = 2.0
"""For what is left at the end; open answers of the HTTP server have 3 s."""
MAX_ANSWER_BYTES = 64 * 1024
RETRYABLE = frozenset({429, 502, 503, 504})
_GZIP_LEVEL = 1
"""Names and ids repeat so much that more effort gains little."""
_HEADERS: Final = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}


@dataclass(frozen=True, slots=True)
class Answer:
    """How a post ended. ``reason`` is one word for the log; ``rejected`` spans or records were not taken of a good one."""

    good: bool
    reason: str = ""
    retry: bool = False
    retry_after_s: float = 0.0
    rejected: int = 0


@dataclass(slots=True)
class _Signal:
    """One kind of thing that is sent, to its own path, with its own queue: a collector may take spans and no logs."""

    name: str
    counter: Counter[Outcome]
    queue: SendQueue = field(init=False)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    said: str = ""
    """What was last logged, so that the same is not said again."""

    def __post_init__(self) -> None:
        self.queue = SendQueue(self.drop)

    def drop(self, count: int) -> None:
        self.counter[Outcome.DROPPED] += count

    def put(self, item: Item) -> None:
        self.counter[Outcome.OFFERED] += item.count
        self.queue.offer(item)
        self._wake()

    def _wake(self) -> None:
        self.arrived.set()
        if self.queue.has_batch:
            self.full.set()

    def taken(self, now: float) -> list[Item]:
        batch = self.queue.take(now)
        if not self.queue:
            self.arrived.clear()
        if not self.queue.has_batch:
            self.full.clear()
        return batch

    def put_back(self, batch: list[Item]) -> None:
        self.queue.put_back(batch)
        if self.queue:
            self._wake()


class Sender:
    """Owns its queues and its client. ``offer_spans`` and ``offer_logs`` may be called before ``run``, in the event loop.

    ``headers`` reads the credentials, at each post and in a thread, so that a token that was changed is taken up; it may raise
    CredentialError.
    """

    def __init__(
        self,
        endpoint: str,
        headers: Callable[[], Mapping[str, str]],
        client: httpx.AsyncClient,
        counts: Counts,
        log: Any,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._endpoint = endpoint
        self._headers = headers
        self._client = client
        self._log = log.bind(endpoint=endpoint)
        self._executor = executor
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._spans = _Signal("traces", counts.spans)
        self._logs = _Signal("logs", counts.logs)

    def offer_spans(self, payload: bytes, count: int) -> None:
        """Queue an ExportTraceServiceRequest with ``count`` spans."""
        self._spans.put(Item(payload, count, self._clock()))

    def offer_logs(self, payload: bytes, count: int) -> None:
        """Queue an ExportLogsServiceRequest with ``count`` records."""
        self._logs.put(Item(payload, count, self._clock()))

    async def run(self) -> None:
        """Send until cancelled; then what is left, once, for at most ``FLUSH_S``. Closes the client."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for signal in (self._spans, self._logs):
                    tasks.create_task(self._keep_sending(signal))
        finally:
            await self._flush()
            await self._client.aclose()

    async def _keep_sending(self, signal: _Signal) -> None:
        while True:
            await signal.arrived.wait()
            await self._linger(signal)
            answer = await self.send_batch(signal)
            if answer is not None and answer.retry:
                await self._sleep(self._pause_s(signal.failures, answer.retry_after_s))

    async def _linger(self, signal: _Signal) -> None:
        try:
            async with asyncio.timeout(LINGER_S):
                await signal.full.wait()
        except TimeoutError:
            return

    def _pause_s(self, failures: int, asked_s: float) -> float:
        """Doubling, with a random half, so that many exporters do not come back at one moment."""
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S)
        return min(max(pause_s * (0.5 + self._jitter() / 2), asked_s), LONGEST_PAUSE_S)

    async def send_batch(self, signal: _Signal) -> Answer | None:
        """Send the oldest batch once; None where there is none. What may be tried again is back in the queue."""
        batch = signal.taken(self._clock())
        if not batch:
            return None
        try:
            answer = await self._post(signal, b"".join(item.payload for item in batch))
        except asyncio.CancelledError:
            signal.put_back(batch)
            raise
        except Exception as error:
            # What nobody foresaw costs this batch; ending here would end the exporter.
            answer = Answer(False, f"internal error: {type(error).__name__}")
        self._account(signal, batch, answer)
        return answer

    def _account(self, signal: _Signal, batch: list[Item], answer: Answer) -> None:
        count = sum(item.count for item in batch)
        if answer.good:
            rejected = min(max(answer.rejected, 0), count)
            signal.counter[Outcome.REFUSED] += rejected
            signal.counter[Outcome.SENT] += count - rejected
        elif answer.retry:
            signal.put_back(batch)
        else:
            signal.counter[Outcome.REFUSED] += count
        signal.failures = 0 if answer.good else signal.failures + 1
        self._say(signal, "rejected some" if answer.good and answer.rejected > 0 else answer.reason)

    def _say(self, signal: _Signal, said: str) -> None:
        """Log a failure once, then when it changes."""
        if said == signal.said:
            return
        signal.said = said
        if said:
            self._log.warning("collector does not take all", signal=signal.name, reason=said)
        else:
            self._log.info("collector takes again", signal=signal.name)

    async def _post(self, signal: _Signal, payload: bytes) -> Answer:
        try:
            async with asyncio.timeout(POST_S):
                headers, body = await asyncio.get_running_loop().run_in_executor(self._executor, self._prepared, payload)
                url = f"{self._endpoint}/v1/{signal.name}"
                async with self._client.stream("POST", url, content=body, headers=headers) as response:
                    return await _answer_of(response, signal.name)
        except CredentialError as error:
            return Answer(False, str(error), retry=True)
        except TimeoutError:
            return Answer(False, "timeout", retry=True)
        except (httpx.TransportError, OSError, EndOfStream) as error:
            # The last two are of TLS that ends only after its handshake, as where a client certificate is wanted.
            trouble = tls_trouble(error)
            return Answer(False, type(error).__name__ if trouble is None else trouble.code.value, retry=True)
        except httpx.RequestError as error:
            return Answer(False, type(error).__name__)

    def _prepared(self, payload: bytes) -> tuple[dict[str, str], bytes]:
        return {**self._headers(), **_HEADERS}, gzip.compress(payload, _GZIP_LEVEL)

    async def _flush(self) -> None:
        # In a task of its own: early releases of Python 3.11 tell a time-out in a cancelled task as another cancellation.
        sending = asyncio.create_task(self._send_rest())
        try:
            _, late = await asyncio.wait({sending}, timeout=FLUSH_S)
            if late:
                self._log.warning("not all could be sent before the end")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            for signal in (self._spans, self._logs):
                signal.queue.drop_all()

    async def _send_rest(self) -> None:
        for signal in (self._spans, self._logs):
            while (answer := await self.send_batch(signal)) is not None and not answer.retry:
                continue


async def _answer_of(response: httpx.Response, name: str) -> Answer:
    status = response.status_code
    if not 200 <= status < 300:
        retry = status in RETRYABLE
        return Answer(False, f"http_{status}", retry, retry_after_s(response.headers.get("retry-after")) if retry else 0.0)
    body = b""
    try:
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                return Answer(True)
    except httpx.DecodingError:
        return Answer(True)
    return Answer(True, rejected=_rejected(body, name))


def _rejected(body: bytes, name: str) -> int:
    """How many were not taken, as a good answer says; 0 for an answer that cannot be read, because it was a good one."""
    try:
        if name == "traces":
            return int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
        return int(ExportLogsServiceResponse.FromString(body).partial_success.rejected_log_records)
    except DecodeError:
        return 0
