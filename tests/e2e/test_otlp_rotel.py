"""A real collector judges what we send, and a real client sends us spans."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailkeeper_exporter.app import build
from tailkeeper_exporter.otlp.counts import Outcome
from tests.e2e.rotel_agent import Rotel, rotel
from tests.loopback.test_collector import QUIET, backend, settings, until
from tests.loopback.test_exporter_server import listening
from tests.unit.otlp_messages import PARENT, SPAN, TRACE, VLLM, a_post, a_span, an_exchange

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailkeeper_exporter.otlp.sender.LINGER_S", 0.05)


def seconds(printed: Any) -> float:
    return (int(printed.fields["End time"]) - int(printed.fields["Start time"])) / 1e9


async def prints(agent: Rotel, spans: int, logs: int) -> None:
    """Wait until it has printed so many, and then until it prints no more: the last may be half there."""
    await until(lambda: len(agent.spans()) >= spans and len(agent.logs()) >= logs)
    text = ""
    while text != (text := agent.log.read_text()):  # noqa: ASYNC110  a file has no event
        await asyncio.sleep(0.2)


async def test_a_real_collector_reads_our_spans_and_logs_as_we_mean_them(tmp_path: Path) -> None:
    with rotel(tmp_path) as agent:
        exporter = build((backend("http://127.0.0.1:9"),), settings(otlp={"endpoint": agent.url, "logs": True}), log=QUIET)
        async with exporter.running():
            exporter.otlp.on_exchange(an_exchange(outcome="error", error="upstream"), "GPU-1")
            exporter.otlp.on_exchange(an_exchange(sampled=False, trace_id="1" * 32), "GPU-1")
            await prints(agent, 4, 2)
        assert exporter.otlp.counts.spans[Outcome.SENT] == 4
        assert exporter.otlp.counts.logs[Outcome.SENT] == 2
        whole, *children = agent.spans()
        assert (
            whole.fields.items()
            >= {
                "Trace ID": TRACE,
                "ID": SPAN,
                "Parent ID": PARENT,
                "Name": "llm_request",
                "Kind": "SPAN_KIND_SERVER",
                "Status code": "STATUS_CODE_ERROR",
                "Status message": "upstream",
            }.items()
        )
        assert (
            whole.attributes.items()
            >= {
                "gen_ai.request.id": "Str(req-1)",
                "gen_ai.request.model": "Str(tiny)",
                "gen_ai.operation.name": "Str(chat)",
                "gen_ai.request.temperature": "Double(0.5)",
                "gen_ai.request.max_tokens": "Int(32)",
                "gen_ai.usage.input_tokens": "Int(384)",
                "gen_ai.usage.output_tokens": "Int(20)",
                "tailkeeper.backend": "Str(a)",
                "tailkeeper.ttft_s": "Double(0.6)",
                "gpu.uuid": "Str(GPU-1)",
                "semantic.operation": "Str(payment.submit)",
                "semantic.tenant": "Str(premium)",
                "semantic.pii_sensitivity": "Int(2)",
            }.items()
        )
        assert [child.fields["Name"] for child in children] == ["queue", "prefill", "decode"]
        assert [seconds(child) for child in children] == [pytest.approx(s) for s in (0.1, 0.5, 1.8)]
        assert {(child.fields["Trace ID"], child.fields["Parent ID"]) for child in children} == {(TRACE, SPAN)}
        log, unsampled = sorted(agent.logs(), key=lambda record: record.fields["Trace ID"])
        assert (log.fields["Trace ID"], log.fields["Span ID"], log.fields["SeverityText"]) == (TRACE, SPAN, "WARN")
        assert log.attributes["tailkeeper.outcome"] == "Str(error)"
        assert unsampled.fields["Trace ID"] == "1" * 32


@pytest.mark.parametrize("compression", ["gzip", "none"])
async def test_spans_of_a_real_client_become_records_and_go_on_to_a_real_collector(tmp_path: Path, compression: str) -> None:
    with rotel(tmp_path) as collector:
        exporter = build((backend("http://127.0.0.1:9"),), settings(otlp={"endpoint": collector.url}), log=QUIET)
        async with exporter.running(), listening(exporter) as client:
            options = ("--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-compression", compression)
            with rotel(tmp_path, (*options, "--otlp-exporter-endpoint", str(client.base_url).rstrip("/"))) as agent:
                post = a_post(a_span(VLLM, start=time.time()), a_span({"db.system": "redis"}, name="GET", span_id="0" * 15 + "9"))
                async with httpx.AsyncClient(trust_env=False) as engine:
                    headers = {"content-type": "application/x-protobuf"}
                    answer = await engine.post(f"{agent.url}/v1/traces", content=post.SerializeToString(), headers=headers)
                    assert answer.status_code == 200
                await until(lambda: len(exporter.ring.since(0, 10).records) == 1)
                await prints(collector, 2, 0)
        (record,) = exporter.ring.since(0, 10).records
        assert (record.request_id, record.trace_id, record.backend, record.ttft_s) == ("chatcmpl-req-1", TRACE, "a", 0.5)
        assert [span.fields["Name"] for span in collector.spans()] == ["llm_request", "GET"]
        assert collector.spans()[0].attributes["gen_ai.latency.time_in_queue"] == "Double(0.1)"
