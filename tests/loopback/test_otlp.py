"""OTLP through the whole exporter and real sockets: a collector that is away, hangs, is slow or lies, and posts of all sizes."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tailkeeper_exporter.app import Exporter, build
from tailkeeper_exporter.otlp import sender
from tailkeeper_exporter.otlp.counts import Outcome
from tailkeeper_exporter.otlp.queue import MAX_BYTES
from tailkeeper_exporter.server import MAX_BODY_BYTES
from tests.loopback.test_collector import QUIET, backend, settings, until
from tests.loopback.test_exporter_server import listening
from tests.unit.loopback import Seen, Server, head, reply, serving, serving_at, silence
from tests.unit.otlp_messages import VLLM, a_post, a_span, an_exchange

PROTOBUF = {"content-type": "application/x-protobuf"}
POST = a_post(a_span(VLLM, start=time.time())).SerializeToString()


@asynccontextmanager
async def exporting(
    endpoint: str | None = None, log: Any = QUIET, **otlp: Any
) -> AsyncIterator[tuple[Exporter, httpx.AsyncClient]]:
    exporter = build((backend("http://127.0.0.1:9"),), settings(otlp={"endpoint": endpoint, **otlp}), log=log)
    async with exporter.running(), listening(exporter) as client:
        yield exporter, client


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "LINGER_S", 0.05)
    monkeypatch.setattr(sender, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(sender, "LONGEST_PAUSE_S", 0.2)


def sent(exporter: Exporter, outcome: Outcome = Outcome.SENT) -> int:
    return exporter.otlp.counts.spans[outcome]


def spans_in(collector: Server) -> list[str]:
    posts = [ExportTraceServiceRequest.FromString(gzip.decompress(seen.body)) for seen in collector.requests]
    return [span.name for post in posts for r in post.resource_spans for s in r.scope_spans for span in s.spans]


async def test_what_is_posted_becomes_a_record_goes_on_and_is_on_the_page(tmp_path: Any) -> None:
    secret = tmp_path / "headers"
    secret.write_text("# for the collector\nAuthorization: Bearer s3cret\n")
    async with serving(reply(200)) as collector, exporting(collector.url, headers_file=str(secret)) as (exporter, client):
        page = (await client.get("/metrics")).text
        assert 'tailkeeper_exporter_otlp_spans_total{outcome="received"} 0.0' in page
        assert (await client.post("/v1/traces", content=POST, headers=PROTOBUF)).status_code == 200
        (record,) = (await client.get("/api/v1/requests")).json()["requests"]
        assert (record["request_id"], record["backend"], record["queue_s"]) == ("chatcmpl-req-1", "a", 0.1)
        await until(lambda: sent(exporter) == 1)
        (seen,) = collector.requests
        assert (seen.method, seen.path, seen.headers["authorization"]) == ("POST", "/v1/traces", "Bearer s3cret")
        assert gzip.decompress(seen.body) == POST
        page = (await client.get("/metrics", headers={"accept": "application/openmetrics-text"})).text
        for outcome in ("received", "recorded", "offered", "sent"):
            assert f'tailkeeper_exporter_otlp_spans_total{{outcome="{outcome}"}} 1.0' in page


async def test_without_a_collector_spans_are_read_and_go_nowhere() -> None:
    async with exporting() as (exporter, client):
        assert (await client.post("/v1/traces", content=POST, headers=PROTOBUF)).status_code == 200
        assert len(exporter.ring.since(0, 10).records) == 1
        assert sent(exporter, Outcome.OFFERED) == 0


async def test_a_collector_that_is_away_costs_nothing_and_gets_its_spans_when_it_is_back() -> None:
    async with serving(reply(200)) as collector:
        port = int(collector.url.rpartition(":")[2])
    with structlog.testing.capture_logs() as lines:
        async with exporting(f"http://127.0.0.1:{port}", log=structlog.get_logger()) as (exporter, client):
            for _ in range(5):
                exporter.otlp.on_exchange(an_exchange(), None)
                await asyncio.sleep(0.1)
            started = time.monotonic()
            assert (await client.post("/v1/traces", content=POST, headers=PROTOBUF)).status_code == 200
            assert time.monotonic() - started < 0.5
            assert sent(exporter) == 0
            async with serving_at(reply(200), port) as again:
                await until(lambda: sent(exporter) == 21)
                assert len(spans_in(again)) == 21
    said = [line["event"] for line in lines if line["event"].startswith("collector")]
    assert said == ["collector does not take all", "collector takes again"]


async def test_a_collector_that_hangs_is_given_up_after_its_deadline_and_the_end_is_not_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "POST_S", 0.2)
    monkeypatch.setattr(sender, "FLUSH_S", 0.3)
    async with serving(silence) as collector:
        async with exporting(collector.url) as (exporter, client):
            exporter.otlp.on_exchange(an_exchange(), None)
            await until(lambda: len(collector.requests) >= 2)
            assert (await client.get("/livez")).status_code == 200
            started = time.monotonic()
        assert time.monotonic() - started < 1.5
    assert sent(exporter, Outcome.DROPPED) == 4


async def test_a_collector_that_answers_nonsense_or_cuts_its_answer_is_met_again() -> None:
    answers = [b"nonsense\r\n\r\n", head(200, length=99) + b"cut", head(503), head(200, length=0)]

    async def respond(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()

    async with serving(respond) as collector, exporting(collector.url) as (exporter, _):
        exporter.otlp.on_exchange(an_exchange(), None)
        await until(lambda: sent(exporter) == 4)
        assert answers == []


async def test_a_flood_while_the_collector_is_away_stays_within_the_queue() -> None:
    async with exporting("http://127.0.0.1:9") as (exporter, client):
        big = a_post(*(a_span({**VLLM, "x": "y" * 250}, span_id=f"{n:016x}") for n in range(1, 4_000))).SerializeToString()
        assert 3_000_000 < len(big) < MAX_BODY_BYTES
        for _ in range(7):
            assert (await client.post("/v1/traces", content=big, headers=PROTOBUF)).status_code == 200
        assert sent(exporter, Outcome.OFFERED) == 7 * 3_999
        assert exporter.otlp.sender is not None
        assert exporter.otlp.sender._spans.queue.size_bytes <= MAX_BYTES
        assert sent(exporter, Outcome.DROPPED) >= 2 * 3_999
        answer = await client.post("/v1/traces", content=bytes(MAX_BODY_BYTES + 1), headers=PROTOBUF)
        assert answer.status_code == 413


async def test_a_post_of_thousands_of_spans_does_not_hold_up_a_health_check() -> None:
    """Measured: at most 20 ms for 3,000 spans in protobuf. The client here shares the loop and the cores, hence the limit."""
    spans = (a_span({**VLLM, "gen_ai.request.id": f"r{n}"}, trace=f"{n:032x}", span_id=f"{n:016x}") for n in range(1, 3_001))
    body = gzip.compress(a_post(*spans).SerializeToString())
    async with exporting() as (exporter, client):
        post = asyncio.create_task(client.post("/v1/traces", content=body, headers={**PROTOBUF, "content-encoding": "gzip"}))
        slowest = 0.0
        while not post.done():
            started = time.monotonic()
            assert (await client.get("/livez")).status_code == 200
            slowest = max(slowest, time.monotonic() - started)
        assert (await post).status_code == 200
        assert slowest < 0.5
        assert exporter.otlp.counts.spans[Outcome.RECEIVED] == 3_000
        assert exporter.otlp.counts.spans[Outcome.LIMITED] == 1_000
