"""One finished request as OpenTelemetry has it: a server span with its stages as children, and an access-log record. Pure.

``llm_request`` lasts from the request's first byte to the answer's last. Its children are those stages whose two ends are
known: ``queue`` (in the tap), ``prefill`` (asked until the first content token, so with the engine's own queue) and
``decode`` (first to last content token). A child never begins before its parent or ends after it.

Names are those of OpenTelemetry's GenAI conventions where there is one. The time to the first token has none for spans:
``gen_ai.response.time_to_first_chunk`` counts a role or an empty delta too, so it is ``tailkeeper.ttft_s``, and
``gen_ai.latency.time_to_first_token`` as vLLM calls it.
"""

from __future__ import annotations

import json
from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO, SEVERITY_NUMBER_WARN, LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from tailkeeper_exporter.otlp import attributes as names
from tailkeeper_exporter.otlp.attributes import Value, sendable, written
from tailkeeper_exporter.otlp.ids import SPAN_BYTES, TRACE_BYTES, derived_span_id, hex_id
from tailkeeper_exporter.tap.exchange import Exchange

REQUEST_SPAN: Final = "llm_request"
QUEUE, PREFILL, DECODE = "queue", "prefill", "decode"
STAGES = (QUEUE, PREFILL, DECODE)
SERVICE_NAME = "tailkeeper-tap"
SCOPE_NAME = "tailkeeper.tap"
SAMPLED_FLAG = 1
REMOTE_KNOWN, PARENT_IS_REMOTE = 0x100, 0x200
"""Bits of a span's flags: whether it is known where the parent is, and that it is another process's."""
_RESOURCE = Resource(attributes=written({"service.name": SERVICE_NAME}))
_SCOPE = InstrumentationScope(name=SCOPE_NAME)
_OPERATIONS = (("/chat/completions", "chat"), ("/completions", "text_completion"), ("/embeddings", "embeddings"))
_NS = 1_000_000_000


def spans_of(exchange: Exchange, gpu_uuid: str | None, engine: str) -> ExportTraceServiceRequest | None:
    """The request's spans; None where its trace is not sampled, or has no valid id. ``engine`` is the backend's kind."""
    trace_id, span_id = hex_id(exchange.trace_id, TRACE_BYTES), hex_id(exchange.span_id, SPAN_BYTES)
    if not exchange.sampled or trace_id is None or span_id is None:
        return None
    parent = _request_span(exchange, trace_id, span_id, written(_span_values(exchange, gpu_uuid, engine)))
    scope = ScopeSpans(scope=_SCOPE, spans=[parent, *_stages(exchange, parent)])
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=_RESOURCE, scope_spans=[scope])])


def _request_span(exchange: Exchange, trace_id: bytes, span_id: bytes, attributes: list[KeyValue]) -> Span:
    parent = hex_id(exchange.parent_span_id or "", SPAN_BYTES)
    failed = exchange.outcome == "error"
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent or b"",
        flags=SAMPLED_FLAG | REMOTE_KNOWN | (PARENT_IS_REMOTE if parent else 0),
        name=REQUEST_SPAN,
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=_ns(exchange.start_unix_s),
        end_time_unix_nano=_ns(exchange.start_unix_s) + _ns(exchange.end_s),
        attributes=attributes,
        status=Status(code=Status.STATUS_CODE_ERROR, message=sendable(exchange.error)) if failed else None,
    )


def _stages(exchange: Exchange, parent: Span) -> list[Span]:
    """The children, each clamped into its parent."""
    bounds = (
        (QUEUE, 0.0, exchange.sent_s),
        (PREFILL, exchange.sent_s, exchange.first_token_s),
        (DECODE, exchange.first_token_s, exchange.last_token_s),
    )
    start, end = parent.start_time_unix_nano, parent.end_time_unix_nano
    children = []
    for name, from_s, until_s in bounds:
        if from_s is not None and until_s is not None:
            begins = min(start + _ns(from_s), end)
            ends = min(max(start + _ns(until_s), begins), end)
            children.append(_child(parent, name, begins, ends))
    return children


def _child(parent: Span, name: str, start_ns: int, end_ns: int) -> Span:
    return Span(
        trace_id=parent.trace_id,
        span_id=derived_span_id(parent.trace_id, parent.span_id, name),
        parent_span_id=parent.span_id,
        flags=SAMPLED_FLAG | REMOTE_KNOWN,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
    )


def _ns(seconds: float) -> int:
    """Nanoseconds, never negative: the field has no sign."""
    return max(0, round(seconds * _NS))


def operation_of(path: str) -> str | None:
    """The convention's name for what an OpenAI-compatible path asks for; None for another path."""
    return next((operation for end, operation in _OPERATIONS if path.endswith(end)), None)


def _span_values(exchange: Exchange, gpu_uuid: str | None, engine: str) -> dict[str, Value | None]:
    return {
        **_common_values(exchange, gpu_uuid),
        names.OPERATION_NAME: operation_of(exchange.path),
        "gen_ai.provider.name": engine,
        "gen_ai.request.temperature": exchange.temperature,
        "gen_ai.request.top_p": exchange.top_p,
        "gen_ai.request.max_tokens": exchange.max_tokens,
        names.REQUEST_STREAM: exchange.streaming,
        "gen_ai.latency.time_to_first_token": exchange.first_token_s,
        names.ITL: exchange.itl_s,
        names.PRIORITY: exchange.priority,
        names.RUNNING: exchange.running,
        names.WAITING: exchange.waiting,
        names.BACKLOG: exchange.backlog_tokens,
        names.CACHE_HIT: exchange.cache_hit or None,
    }


def _common_values(exchange: Exchange, gpu_uuid: str | None) -> dict[str, Value | None]:
    """What span and log record both say."""
    return {
        names.REQUEST_ID: exchange.request_id,
        names.REQUEST_MODEL: exchange.model,
        names.BACKEND: exchange.backend,
        names.GPU: gpu_uuid,
        names.OUTCOME: exchange.outcome,
        names.TTFT: exchange.first_token_s,
        names.SEMANTIC_OPERATION: exchange.operation,
        names.SEMANTIC_TENANT: exchange.tenant,
        names.SEMANTIC_SENSITIVITY: exchange.sensitivity,
        names.MODALITY: exchange.modality,
        names.CANARY: exchange.canary_revision,
        names.INPUT_TOKENS: exchange.prompt_tokens,
        names.OUTPUT_TOKENS: exchange.generated_tokens,
        names.CACHED_TOKENS: exchange.cached_tokens,
        "http.request.method": exchange.method,
        "url.path": exchange.path,
        names.HTTP_STATUS: exchange.status,
        names.ERROR_TYPE: exchange.error if exchange.outcome != "ok" else None,
    }


def log_of(exchange: Exchange, gpu_uuid: str | None) -> ExportLogsServiceRequest:
    """The access-log record. Sent whether or not the trace is sampled: the slow request is often in one that is not."""
    ended = _ns(exchange.start_unix_s) + _ns(exchange.end_s)
    good = exchange.outcome == "ok"
    values = {**_common_values(exchange, gpu_uuid), "tailkeeper.duration_s": exchange.end_s}
    record = LogRecord(
        time_unix_nano=ended,
        observed_time_unix_nano=ended,
        severity_number=SEVERITY_NUMBER_INFO if good else SEVERITY_NUMBER_WARN,
        severity_text="INFO" if good else "WARN",
        body=AnyValue(string_value=_line(exchange)),
        attributes=written(values),
        trace_id=hex_id(exchange.trace_id, TRACE_BYTES) or b"",
        span_id=hex_id(exchange.span_id, SPAN_BYTES) or b"",
        flags=SAMPLED_FLAG if exchange.sampled else 0,
    )
    scope = ScopeLogs(scope=_SCOPE, log_records=[record])
    return ExportLogsServiceRequest(resource_logs=[ResourceLogs(resource=_RESOURCE, scope_logs=[scope])])


def _line(exchange: Exchange) -> str:
    """One line of JSON, for readers of plain logs; the rest is in the attributes."""
    found = {
        "request_id": exchange.request_id,
        "trace_id": exchange.trace_id,
        "backend": exchange.backend,
        "method": exchange.method,
        "path": exchange.path,
        "status": exchange.status,
        "outcome": exchange.outcome,
        "duration_s": round(exchange.end_s, 6),
    }
    return json.dumps(found, separators=(",", ":"))
