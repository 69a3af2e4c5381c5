"""What is sent, what is tried again, what is lost and counted; with a clock and a pause that the test owns."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from structlog.testing import capture_logs

from tailkeeper_exporter.clients import CredentialError, headers_in
from tailkeeper_exporter.otlp import queue
from tailkeeper_exporter.otlp.counts import Counts, Outcome
from tailkeeper_exporter.otlp.queue import MAX_AGE_S, Item, SendQueue
from tailkeeper_exporter.otlp.sender import LONGEST_PAUSE_S, Sender
from tailkeeper_exporter.otlp.spans import log_of, spans_of
from tests.unit.otlp_messages import an_exchange

Respond = Callable[[httpx.Request], httpx.Response]


def payload(number: int = 0) -> bytes:
    request = spans_of(an_exchange(request_id=f"req-{number}"), None, "vllm")
    assert request is not None
    return bytes(request.SerializeToString())


@dataclass
class Collector:
    """Answers by ``respond`` and keeps what it took."""

    respond: Respond
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.respond(request)

    def request_ids(self) -> list[str]:
        found = []
        for request in self.requests:
            post = ExportTraceServiceRequest.FromString(gzip.decompress(request.content))
            found += [spans.scope_spans[0].spans[0].attributes[0].value.string_value for spans in post.resource_spans]
        return found


class Pauses:
    """Stands in for sleeping: remembers how long, and lets the loop turn."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, pause_s: float) -> None:
        self.taken.append(pause_s)
        await asyncio.sleep(0)


@dataclass
class World:
    sender: Sender
    collector: Collector
    counts: Counts
    pauses: Pauses
    now: float = 0.0

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110  what is waited for has no event of its own
                await asyncio.sleep(0.001)


@asynccontextmanager
async def a_world(respond: Respond | None = None, **headers: str) -> AsyncIterator[World]:
    collector, counts, pauses = Collector(respond or (lambda _: httpx.Response(200))), Counts(), Pauses()
    client = httpx.AsyncClient(transport=httpx.MockTransport(collector))
    with ThreadPoolExecutor(1) as executor:
        world: World

        def clock() -> float:
            return world.now

        log = structlog.get_logger()
        sender = Sender("http://c:4318/x", lambda: headers, client, counts, log, executor, clock, pauses, lambda: 1.0)
        world = World(sender, collector, counts, pauses)
        task = asyncio.create_task(sender.run())
        try:
            yield world
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailkeeper_exporter.otlp.sender.LINGER_S", 0.005)


async def test_spans_go_gzipped_in_one_batch_to_the_collectors_path_with_the_headers() -> None:
    async with a_world(authorization="Bearer s3cret") as world:
        for number in range(3):
            world.sender.offer_spans(payload(number), 4)
        await world.until(lambda: world.counts.spans[Outcome.SENT] == 12)
        (request,) = world.collector.requests
        assert str(request.url) == "http://c:4318/x/v1/traces"
        assert request.headers["content-type"] == "application/x-protobuf"
        assert request.headers["content-encoding"] == "gzip"
        assert request.headers["authorization"] == "Bearer s3cret"
        assert world.collector.request_ids() == ["req-0", "req-1", "req-2"]


async def test_logs_go_to_their_own_path_and_are_counted_apart() -> None:
    async with a_world() as world:
        world.sender.offer_logs(log_of(an_exchange(), None).SerializeToString(), 1)
        await world.until(lambda: world.counts.logs[Outcome.SENT] == 1)
        (request,) = world.collector.requests
        assert request.url.path == "/x/v1/logs"
        assert len(ExportLogsServiceRequest.FromString(gzip.decompress(request.content)).resource_logs) == 1
        assert world.counts.spans[Outcome.SENT] == 0


def failing(times: int, failure: httpx.Response | Exception) -> Respond:
    left = [times]

    def respond(request: httpx.Request) -> httpx.Response:
        left[0] -= 1
        if left[0] < 0:
            return httpx.Response(200)
        if isinstance(failure, Exception):
            raise failure
        return failure

    return respond


@pytest.mark.parametrize(
    "failure",
    [
        httpx.Response(429),
        httpx.Response(502),
        httpx.Response(503),
        httpx.Response(504),
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("nonsense"),
    ],
    ids=repr,
)
async def test_what_may_be_tried_again_is_and_then_arrives_once(failure: httpx.Response | Exception) -> None:
    with capture_logs() as logs:
        async with a_world(failing(3, failure)) as world:
            world.sender.offer_spans(payload(), 4)
            await world.until(lambda: world.counts.spans[Outcome.SENT] == 4)
            assert world.pauses.taken == [1.0, 2.0, 4.0]
            assert world.counts.spans[Outcome.DROPPED] == world.counts.spans[Outcome.REFUSED] == 0
    assert [line["event"] for line in logs] == ["collector does not take all", "collector takes again"]


async def test_retry_after_is_kept_to_and_bounded_and_pauses_do_not_grow_for_ever() -> None:
    async with a_world(failing(1, httpx.Response(503, headers={"retry-after": "17"}))) as world:
        world.sender.offer_spans(payload(), 4)
        await world.until(lambda: world.counts.spans[Outcome.SENT] == 4)
        assert world.pauses.taken == [17.0]
    async with a_world(failing(12, httpx.Response(429, headers={"retry-after": "999999"}))) as world:
        world.sender.offer_spans(payload(), 4)
        await world.until(lambda: world.counts.spans[Outcome.SENT] == 4)
        assert set(world.pauses.taken) == {LONGEST_PAUSE_S}


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 500])
async def test_a_lasting_refusal_loses_the_batch_and_is_said_once_until_it_changes(status: int) -> None:
    answers = [status, status, 403, 200, status]

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(answers.pop(0), text="your token is s3cret", headers={"location": "http://evil/"})

    with capture_logs() as logs:
        async with a_world(respond, authorization="Bearer s3cret") as world:
            for number in range(1, 6):
                world.sender.offer_spans(payload(), 4)
                await world.until(lambda n=number: len(world.collector.requests) == n and not world.sender._spans.queue)  # type: ignore[misc]
                await world.until(lambda n=number: sum(world.counts.spans[o] for o in (Outcome.SENT, Outcome.REFUSED)) == 4 * n)  # type: ignore[misc]
            assert world.counts.spans[Outcome.REFUSED] == 16
            assert world.pauses.taken == []
            assert {request.url.host for request in world.collector.requests} == {"c"}
    assert [line.get("reason") for line in logs] == [f"http_{status}", "http_403", None, f"http_{status}"]
    assert "s3cret" not in str(logs)


async def test_what_a_collector_takes_only_in_part_is_counted() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("traces"):
            traces = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=3))
            return httpx.Response(200, content=traces.SerializeToString())
        logs = ExportLogsServiceResponse(partial_success=ExportLogsPartialSuccess(rejected_log_records=99))
        return httpx.Response(200, content=logs.SerializeToString())

    async with a_world(respond) as world:
        world.sender.offer_spans(payload(), 4)
        world.sender.offer_logs(b"", 1)
        await world.until(lambda: world.counts.spans[Outcome.SENT] == 1 and world.counts.logs[Outcome.REFUSED] == 1)
        assert world.counts.spans[Outcome.REFUSED] == 3
        assert world.counts.logs[Outcome.SENT] == 0


@pytest.mark.parametrize("body", [b"\xff\xff", b"<html>", b"x" * 200_000])
async def test_a_good_answer_with_any_body_is_a_good_answer(body: bytes) -> None:
    async with a_world(lambda _: httpx.Response(200, content=body)) as world:
        world.sender.offer_spans(payload(), 4)
        await world.until(lambda: world.counts.spans[Outcome.SENT] == 4)


async def test_spans_go_on_while_the_collector_takes_no_logs() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503 if request.url.path.endswith("logs") else 200)

    async with a_world(respond) as world:
        world.sender.offer_logs(b"", 1)
        world.sender.offer_spans(payload(), 4)
        await world.until(lambda: world.counts.spans[Outcome.SENT] == 4)
        assert world.counts.logs[Outcome.SENT] == 0


async def test_what_is_left_is_sent_at_the_end_and_what_cannot_be_is_counted() -> None:
    async with a_world() as world:
        await asyncio.sleep(0)
        world.sender.offer_spans(payload(), 4)
    assert world.counts.spans[Outcome.SENT] == 4
    async with a_world(failing(99, httpx.ConnectError("refused"))) as world:
        await asyncio.sleep(0)
        world.sender.offer_spans(payload(), 4)
        world.sender.offer_logs(b"", 1)
    assert (world.counts.spans[Outcome.DROPPED], world.counts.logs[Outcome.DROPPED]) == (4, 1)


async def test_a_post_that_is_open_at_the_end_is_sent_again_and_not_lost() -> None:
    first = [True]

    async def respond(request: httpx.Request) -> httpx.Response:
        if first:
            first.clear()
            await asyncio.Event().wait()
        return httpx.Response(200)

    async with a_world(respond) as world:  # type: ignore[arg-type]  # httpx awaits what a transport's handler gives
        world.sender.offer_spans(payload(), 4)
        await world.until(lambda: not first)
    assert (world.counts.spans[Outcome.SENT], world.counts.spans[Outcome.DROPPED]) == (4, 0)


async def test_a_batch_that_is_never_taken_is_dropped_when_it_is_old_and_the_new_goes() -> None:
    async with a_world(failing(3, httpx.Response(503))) as world:
        world.sender.offer_spans(payload(1), 4)
        await world.until(lambda: len(world.collector.requests) >= 1)
        world.now = MAX_AGE_S + 1
        world.sender.offer_spans(payload(2), 4)
        await world.until(lambda: world.counts.spans[Outcome.SENT] == 4)
        assert world.counts.spans[Outcome.DROPPED] == 4
        assert world.collector.request_ids()[-1] == "req-2"


def items(*sizes: int, at_s: float = 0.0) -> list[Item]:
    return [Item(bytes(size), number + 1, at_s) for number, size in enumerate(sizes)]


def test_the_queue_drops_the_oldest_by_number_and_by_bytes_and_counts_what_was_in_it() -> None:
    dropped: list[int] = []
    by_number = SendQueue(dropped.append, max_items=2)
    for item in items(1, 1, 1, 1):
        by_number.offer(item)
    assert dropped == [1, 2]
    assert [item.count for item in by_number.take(0.0)] == [3, 4]
    by_bytes = SendQueue(dropped.append, max_bytes=10)
    for item in items(4, 4, 4, 11):
        by_bytes.offer(item)
    assert dropped == [1, 2, 1, 2, 3, 4], "an item larger than the queue is dropped itself"
    assert (len(by_bytes), by_bytes.size_bytes) == (0, 0)


def test_a_batch_is_bounded_and_a_large_item_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "BATCH_ITEMS", 3)
    monkeypatch.setattr(queue, "BATCH_BYTES", 10)
    waiting = SendQueue(lambda _: None)
    for item in items(1, 1, 1, 1, 20, 6, 6):
        waiting.offer(item)
    batches = []
    while batch := waiting.take(0.0):
        batches.append([item.count for item in batch])
    assert batches == [[1, 2, 3], [4], [5], [6], [7]]
    assert waiting.size_bytes == 0


def test_what_is_put_back_is_the_oldest_again_and_gives_way_to_the_new() -> None:
    dropped: list[int] = []
    waiting = SendQueue(dropped.append, max_items=3)
    for item in items(1, 1):
        waiting.offer(item)
    batch = waiting.take(0.0)
    for item in items(5, 5, at_s=1.0):
        waiting.offer(item)
    waiting.put_back(batch)
    assert dropped == [1]
    assert [len(item.payload) for item in waiting.take(1.0)] == [1, 5, 5]


def test_what_is_too_old_is_not_sent() -> None:
    dropped: list[int] = []
    waiting = SendQueue(dropped.append)
    waiting.offer(items(1)[0])
    assert waiting.take(MAX_AGE_S + 0.1) == []
    assert dropped == [1]


def test_every_outcome_is_on_the_page_at_zero_from_the_start() -> None:
    series: list[Any] = list(Counts().series())
    assert {s.value for s in series} == {0.0}
    assert len(series) == len(Outcome) + 4
    assert all(len(Outcome) <= s.metric.labels[0].bound for s in series)


async def test_what_nobody_foresaw_costs_one_batch_and_not_the_sender() -> None:
    async with a_world(failing(1, ValueError("s3cret"))) as world:
        with capture_logs() as logs:
            world.sender.offer_spans(payload(1), 4)
            await world.until(lambda: world.counts.spans[Outcome.REFUSED] == 4)
        world.sender.offer_spans(payload(2), 4)
        await world.until(lambda: world.counts.spans[Outcome.SENT] == 4)
    assert [line["reason"] for line in logs] == ["internal error: ValueError"]


async def test_a_token_that_was_changed_is_taken_up_and_a_file_that_is_gone_is_waited_for() -> None:
    answers: list[dict[str, str] | CredentialError] = [
        {"x-token": "old"},
        CredentialError("headers_file: gone"),
        {"x-token": "new"},
    ]

    def headers() -> dict[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, CredentialError):
            raise answer
        return answer

    async with a_world() as world:
        world.sender._headers = headers
        for sent in (4, 8):
            world.sender.offer_spans(payload(), 4)
            await world.until(lambda sent=sent: world.counts.spans[Outcome.SENT] == sent)  # type: ignore[misc]
        assert [request.headers["x-token"] for request in world.collector.requests] == ["old", "new"]


@pytest.mark.parametrize("line", ["no colon", "X A: b", "Host: h", "X-A: ä", "X-A: b\x01c", ": x", "X-A:"])
def test_a_headers_file_that_is_wrong_is_named_with_its_line_and_never_shown(tmp_path: Path, line: str) -> None:
    file = tmp_path / "headers"
    file.write_text(f"# token\nAuthorization: Bearer s3cret\n\n{line} s3cret\n" if ":" not in line else f"X-B: s3cret\n{line}\n")
    with pytest.raises(CredentialError, match=r"exporter\.otlp\.headers_file: .* line [24] is not") as caught:
        headers_in(file, "exporter.otlp.headers_file")
    assert "s3cret" not in str(caught.value)


def test_a_headers_file_is_lines_of_name_and_value_with_comments(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# token\nAuthorization: Bearer a b:c\n\n  X-Scope-OrgID:7  \n")
    assert headers_in(file, "k") == {"authorization": "Bearer a b:c", "x-scope-orgid": "7"}
