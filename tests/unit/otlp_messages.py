"""Spans as engines, gateways and taps make them, for tests. Attribute names are from their documents and source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from tailkeeper_exporter.otlp.attributes import written
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.tap.exchange import Exchange

NOW = 1_700_000_000.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = "00f067aa0ba902b7"

VLLM: Mapping[str, Any] = {
    "gen_ai.latency.time_to_first_token": 0.5,
    "gen_ai.latency.e2e": 2.4,
    "gen_ai.latency.time_in_queue": 0.1,
    "gen_ai.latency.time_in_model_prefill": 0.4,
    "gen_ai.latency.time_in_model_decode": 1.9,
    "gen_ai.latency.time_in_model_inference": 2.3,
    "gen_ai.usage.prompt_tokens": 384,
    "gen_ai.usage.completion_tokens": 20,
    "gen_ai.request.id": "chatcmpl-req-1",
    "gen_ai.request.temperature": 1.0,
    "gen_ai.request.top_p": 1.0,
    "gen_ai.request.max_tokens": 32,
    "gen_ai.request.n": 1,
}
"""vLLM's V1 engine (0.8 and later)."""
VLLM_0_6: Mapping[str, Any] = {
    "gen_ai.response.model": "tiny",
    "gen_ai.request.id": "cmpl-req-1",
    "gen_ai.request.temperature": 0.0,
    "gen_ai.request.top_p": 1.0,
    "gen_ai.request.max_tokens": 16,
    "gen_ai.request.n": 1,
    "gen_ai.usage.num_sequences": 1,
    "gen_ai.usage.prompt_tokens": 7,
    "gen_ai.usage.completion_tokens": 16,
    "gen_ai.latency.time_in_queue": 0.02,
    "gen_ai.latency.time_to_first_token": 0.3,
    "gen_ai.latency.e2e": 0.9,
    "gen_ai.latency.time_in_scheduler": 0.01,
    "gen_ai.latency.time_in_model_forward": 250.0,
    "gen_ai.latency.time_in_model_execute": 0.4,
}
"""vLLM's V0 engine. ``time_in_model_forward`` is in milliseconds there, and is not used."""


def a_span(
    attributes: Mapping[str, Any],
    *,
    name: str = "llm_request",
    trace: str = TRACE,
    span_id: str = SPAN,
    parent: str = "",
    start: float = NOW,
    lasts_s: float = 2.5,
    failed: bool = False,
) -> Span:
    return Span(
        trace_id=bytes.fromhex(trace),
        span_id=bytes.fromhex(span_id),
        parent_span_id=bytes.fromhex(parent),
        name=name,
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=round(start * 1e9),
        end_time_unix_nano=round((start + lasts_s) * 1e9),
        attributes=written(attributes),
        status=Status(code=Status.STATUS_CODE_ERROR) if failed else None,
    )


def a_post(*spans: Span, resource: Mapping[str, Any] | None = None) -> ExportTraceServiceRequest:
    group = ResourceSpans(resource=Resource(attributes=written(resource or {})), scope_spans=[ScopeSpans(spans=spans)])
    return ExportTraceServiceRequest(resource_spans=[group])


def a_backend(name: str = "a", url: str = "http://127.0.0.1:8000", **more: Any) -> BackendSettings:
    return BackendSettings.model_validate({"name": name, "engine": "vllm", "url": url, **more})


def an_exchange(**changes: Any) -> Exchange:
    whole: dict[str, Any] = {
        "backend": "a",
        "request_id": "req-1",
        "trace_id": TRACE,
        "span_id": SPAN,
        "parent_span_id": PARENT,
        "start_unix_s": NOW,
        "end_s": 2.5,
        "outcome": "ok",
        "status": 200,
        "method": "POST",
        "path": "/v1/chat/completions",
        "streaming": True,
        "model": "tiny",
        "tenant": "premium",
        "operation": "payment.submit",
        "sensitivity": 2,
        "sent_s": 0.1,
        "first_token_s": 0.6,
        "last_token_s": 2.4,
        "prompt_tokens": 384,
        "cached_tokens": 128,
        "generated_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 32,
        "running": 3,
        "waiting": 1,
        "backlog_tokens": 900,
    }
    return Exchange(**{**whole, **changes})
