"""``POST /v1/traces`` as a client meets it: what is taken, what is refused and how, and where it goes."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import structlog
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from starlette.applications import Starlette

from tailkeeper_exporter.otlp import receiver, wire
from tailkeeper_exporter.otlp.counts import Outcome
from tailkeeper_exporter.otlp.service import Otlp
from tailkeeper_exporter.requests_ring import RequestRecord, RequestRing
from tailkeeper_exporter.settings import OtlpSettings
from tests.unit.otlp_messages import NOW, SPAN, TRACE, VLLM, a_backend, a_post, a_span, an_exchange

PROTOBUF, JSON = "application/x-protobuf", "application/json"


@dataclass
class World:
    otlp: Otlp
    ring: RequestRing
    client: httpx.AsyncClient
    forwarded: list[bytes]

    async def post(self, body: bytes, content_type: str = PROTOBUF, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post("/v1/traces", content=body, headers={"content-type": content_type, **named})

    def records(self) -> tuple[RequestRecord, ...]:
        return self.ring.since(0, 100).records


@asynccontextmanager
async def a_world(*, forwards: bool = False, logs: bool = False) -> AsyncIterator[World]:
    forwarded: list[bytes] = []

    def collect(request: httpx.Request) -> httpx.Response:
        forwarded.append(gzip.decompress(request.content))
        return httpx.Response(200)

    settings = OtlpSettings(endpoint="http://c:4318" if forwards else None, logs=logs)
    collector = httpx.AsyncClient(transport=httpx.MockTransport(collect)) if forwards else None
    ring = RequestRing()
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[structlog.processors.JSONRenderer()])
    backends = (a_backend(),)
    otlp = Otlp(lambda: backends, settings, dict, ring, lambda: {"a": "GPU-1"}, log, collector, unix_clock=lambda: NOW + 10)
    transport = httpx.ASGITransport(Starlette(routes=[otlp.route]), raise_app_exceptions=True)
    task = asyncio.create_task(otlp.run())
    async with httpx.AsyncClient(transport=transport, base_url="http://exporter") as client:
        yield World(otlp, ring, client, forwarded)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailkeeper_exporter.otlp.sender.LINGER_S", 0.005)


def as_json(request: ExportTraceServiceRequest) -> bytes:
    """As a client writes OTLP's JSON: ids in hexadecimal, 64-bit numbers as text, enumerations as numbers."""
    document = json_format.MessageToDict(request, use_integers_for_enums=True)
    for span in (s for r in document["resourceSpans"] for g in r["scopeSpans"] for s in g["spans"]):
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = b64decode(span[name]).hex()
    return json.dumps(document).encode()


POST = a_post(a_span(VLLM))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("content_type", [PROTOBUF, JSON, "application/json; charset=utf-8"])
async def test_both_encodings_give_the_same_record_and_are_answered_in_kind(content_type: str, compressed: bool) -> None:
    body = POST.SerializeToString() if content_type == PROTOBUF else as_json(POST)
    async with a_world() as world:
        more = {"content_encoding": "gzip"} if compressed else {}
        answer = await world.post(gzip.compress(body) if compressed else body, content_type, **more)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == content_type.partition(";")[0]
        if content_type == PROTOBUF:
            assert ExportTraceServiceResponse.FromString(answer.content) == ExportTraceServiceResponse()
        else:
            assert answer.json() == {}
        (record,) = world.records()
        assert (record.request_id, record.trace_id, record.ttft_s, record.gpu) == ("chatcmpl-req-1", TRACE, 0.5, "GPU-1")


async def test_json_may_have_numbers_for_text_unknown_fields_and_a_short_id() -> None:
    span = {
        "traceId": TRACE[2:].upper(),
        "spanId": SPAN,
        "parentSpanId": "",
        "kind": 2,
        "name": "llm_request",
        "startTimeUnixNano": int(NOW * 1e9),
        "endTimeUnixNano": str(int((NOW + 2.5) * 1e9)),
        "newField": {"traceId": 5},
        "attributes": [
            {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 2}},
            {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": 7}},
            {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "3"}},
        ],
    }
    async with a_world() as world:
        answer = await world.post(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode(), JSON)
        assert answer.status_code == 200, answer.text
        (record,) = world.records()
        assert (record.trace_id, record.prompt_tokens, record.generated_tokens) == ("00" + TRACE[2:], 7, 3)


def status_of(answer: httpx.Response) -> tuple[int, str]:
    """Code and message of a google.rpc.Status, by a reader that shares nothing with our writer but the format."""
    if answer.headers["content-type"] == JSON:
        return answer.json()["code"], answer.json()["message"]
    body = answer.content
    assert (body[0], body[2]) == (0x08, 0x12)
    length, start = (body[3], 4) if body[3] < 0x80 else ((body[3] & 0x7F) | body[4] << 7, 5)
    assert len(body) == start + length
    return body[1], body[start:].decode()


REFUSED: list[tuple[str, bytes, str, dict[str, str], int, str]] = [
    ("no type", b"", "", {}, 415, "application/x-protobuf or application/json"),
    ("another type", b"", "text/plain", {}, 415, "application/x-protobuf or application/json"),
    ("another compression", b"", PROTOBUF, {"content_encoding": "br"}, 415, "gzip"),
    ("not protobuf", b"\xff\xff\xff", PROTOBUF, {}, 400, "ExportTraceServiceRequest"),
    ("json as protobuf", b'{"resourceSpans":[]}', PROTOBUF, {}, 400, "ExportTraceServiceRequest"),
    ("half a body", POST.SerializeToString()[:-3], PROTOBUF, {}, 400, "ExportTraceServiceRequest"),
    ("not json", b"{", JSON, {}, 400, "ExportTraceServiceRequest"),
    ("a json list", b"[]", JSON, {}, 400, "object"),
    ("not text", b"\xff{}", JSON, {}, 400, "ExportTraceServiceRequest"),
    ("deep json", b"[" * 100_000, JSON, {}, 400, "ExportTraceServiceRequest"),
    ("a bad id", as_json(POST).replace(TRACE.encode(), b"zz" * 16), JSON, {}, 400, "traceId"),
    ("a long id", as_json(POST).replace(TRACE.encode(), b"1" * 33), JSON, {}, 400, "32 hexadecimal digits"),
    ("half a character", as_json(POST).replace(b"llm_request", b"\\ud800"), JSON, {}, 400, "ExportTraceServiceRequest"),
    ("a wrong type", b'{"resourceSpans": 5}', JSON, {}, 400, "ExportTraceServiceRequest"),
    ("not gzip", b"plain", PROTOBUF, {"content_encoding": "gzip"}, 400, "gzip"),
    ("half a gzip", gzip.compress(b"x" * 999)[:-9], PROTOBUF, {"content_encoding": "gzip"}, 400, "too early"),
    ("gzip and more", gzip.compress(b"") + b"x", PROTOBUF, {"content_encoding": "gzip"}, 400, "after its end"),
    ("a bomb", gzip.compress(bytes(64 * 1024 * 1024)), PROTOBUF, {"content_encoding": "gzip"}, 413, "smaller batches"),
    ("a bomb of json", gzip.compress(b" " * (5 * 1024 * 1024)), JSON, {"content_encoding": "gzip"}, 413, "smaller batches"),
]


@pytest.mark.parametrize(("body", "kind", "headers", "status", "said"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
async def test_what_cannot_be_taken_is_refused_in_the_requests_encoding_and_goes_nowhere(
    body: bytes, kind: str, headers: dict[str, str], status: int, said: str
) -> None:
    async with a_world(forwards=True) as world:
        answer = await world.post(body, kind, **headers)
        assert answer.status_code == status
        assert answer.headers["content-type"] == (PROTOBUF if kind == PROTOBUF else JSON)
        code, message = status_of(answer)
        assert said in message
        assert code == (wire.RESOURCE_EXHAUSTED if status == 413 else wire.INVALID_ARGUMENT)
    assert (world.records(), world.forwarded) == ((), [])


async def test_reading_it_is_no_method() -> None:
    async with a_world() as world:
        assert (await world.client.get("/v1/traces")).status_code == 405


async def test_spans_of_any_kind_go_on_unchanged_even_what_this_version_does_not_know() -> None:
    unknown_field = b"\xfa\x3f\x03abc"
    body = a_post(a_span({"db.system": "redis"}, name="GET"), a_span(VLLM)).SerializeToString() + unknown_field
    async with a_world(forwards=True) as world:
        assert (await world.post(body)).status_code == 200
        assert (await world.post(as_json(POST), JSON)).status_code == 200
    assert b"".join(world.forwarded) == body + POST.SerializeToString()
    assert world.otlp.counts.spans[Outcome.SENT] == 3
    assert world.otlp.counts.spans[Outcome.RECORDED] == world.otlp.counts.spans[Outcome.DUPLICATE] == 1


async def test_the_engines_span_of_a_request_that_the_tap_told_is_no_second_record_and_goes_on() -> None:
    async with a_world(forwards=True) as world:
        world.otlp.on_exchange(an_exchange(), "GPU-1")
        await world.post(a_post(a_span(VLLM, span_id="00000000000000ee", parent=SPAN)).SerializeToString())
        assert world.records() == ()
        assert world.otlp.counts.spans[Outcome.DUPLICATE] == 1
    assert world.otlp.counts.spans[Outcome.SENT] == 5


async def test_the_taps_requests_are_sent_as_spans_and_logs_only_where_they_are_wanted() -> None:
    for logs in (False, True):
        async with a_world(forwards=True, logs=logs) as world:
            world.otlp.on_exchange(an_exchange(), "GPU-1")
            world.otlp.on_exchange(an_exchange(sampled=False), "GPU-1")
        assert world.otlp.counts.spans[Outcome.SENT] == 4
        assert world.otlp.counts.logs[Outcome.SENT] == (2 if logs else 0)
    async with a_world() as world:
        world.otlp.on_exchange(an_exchange(), "GPU-1")
        assert world.otlp.counts.spans[Outcome.OFFERED] == 0


async def test_only_so_many_posts_are_open_and_the_next_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_POSTS", 1)
    gate = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        await gate.wait()
        yield POST.SerializeToString()

    async with a_world() as world:
        headers = {"content-type": PROTOBUF}
        first = asyncio.create_task(world.client.post("/v1/traces", content=slowly(), headers=headers))
        await asyncio.sleep(0.01)
        refused = await world.post(POST.SerializeToString())
        assert (refused.status_code, refused.headers["retry-after"], status_of(refused)[0]) == (503, "1", wire.UNAVAILABLE)
        gate.set()
        assert (await first).status_code == 200
        assert (await world.post(POST.SerializeToString())).status_code == 200


async def test_a_body_that_never_ends_does_not_hold_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "BODY_S", 0.02)

    async def drips() -> AsyncIterator[bytes]:
        yield b"\n"
        await asyncio.Event().wait()

    async with a_world() as world:
        answer = await world.client.post("/v1/traces", content=drips(), headers={"content-type": PROTOBUF})
        assert (answer.status_code, status_of(answer)[0]) == (408, wire.DEADLINE_EXCEEDED)


def every_cut(body: bytes) -> Iterator[bytes]:
    yield from (body[:end] for end in range(len(body)))


def test_no_prefix_of_a_good_body_is_more_than_refused() -> None:
    for kind, body in ((wire.Encoding.PROTOBUF, POST.SerializeToString()), (wire.Encoding.JSON, as_json(POST))):
        for cut in every_cut(body):
            status = 200
            try:
                wire.request_of(cut, kind)
            except wire.BodyError as error:
                status = error.status
            assert status == 400 or (status == 200 and kind is wire.Encoding.PROTOBUF), "half a JSON document is none"


async def test_the_handler_runs_beside_others() -> None:
    """Two posts at once: each is answered for itself."""
    async with a_world() as world:
        other: Any = a_post(a_span({**VLLM, "gen_ai.request.id": "x"}, trace="1" * 32))
        answers = await asyncio.gather(world.post(POST.SerializeToString()), world.post(other.SerializeToString()))
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {record.request_id for record in world.records()} == {"chatcmpl-req-1", "x"}
