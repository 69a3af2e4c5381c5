"""What the doubles of Tempo and Loki have been sent: OTLP messages kept as plain rows, in memory, bounded.

A test double: nothing here is Tempo's or Loki's code. Data flows OTLP/HTTP → `Store` → `traceql`, `logql`. It keeps what it was
sent and makes nothing up. How Loki names what comes over OTLP is from its documentation ("Ingesting logs to Loki using
OpenTelemetry Collector"): ``service.name`` becomes the label ``service_name``, every other attribute structured metadata with
underscores for dots and the like, and trace and span id are structured metadata in hexadecimal.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

Value = str | bool | int | float

MAX_SPANS = 200_000
"""Some five minutes of a demo's ten requests a second come to twelve thousand; older ones go first."""
MAX_LINES = 100_000
KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")
SERVICE_NAME = "service.name"
_INDEXED = (SERVICE_NAME, "service.namespace", "service.instance.id", "k8s.cluster.name", "k8s.namespace.name")
"""Those of Loki's default index labels that our programs could send."""
_LEVELS = {0: "unknown", 1: "trace", 5: "debug", 9: "info", 13: "warn", 17: "error", 21: "fatal"}


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One span; times in nanoseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    status: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    resource: Mapping[str, Value]
    raw: ResourceSpans
    """The span as it was sent, alone in its resource and scope: what is asked for by id is given back unchanged."""

    @property
    def service(self) -> str:
        return str(self.resource.get(SERVICE_NAME, ""))


@dataclass(frozen=True, slots=True)
class LogRow:
    """One log record, named as Loki names it."""

    at_ns: int
    line: str
    labels: Mapping[str, str]
    metadata: Mapping[str, str]


@dataclass(slots=True)
class Store:
    """Written by the receiving threads, read by the answering ones; what is given out is a copy."""

    _spans: deque[SpanRow] = field(default_factory=lambda: deque(maxlen=MAX_SPANS))
    _lines: deque[LogRow] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_spans(self, request: ExportTraceServiceRequest) -> None:
        rows = [
            _span_row(span, scope, resource)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans.extend(rows)

    def add_logs(self, request: ExportLogsServiceRequest) -> None:
        rows = [
            _log_row(record, resource.resource, scope.scope.name)
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]
        with self._lock:
            self._lines.extend(rows)

    def traces(self) -> dict[str, list[SpanRow]]:
        """The spans by trace id, in the order in which they came."""
        with self._lock:
            rows = list(self._spans)
        found: dict[str, list[SpanRow]] = {}
        for row in rows:
            found.setdefault(row.trace_id, []).append(row)
        return found

    def trace(self, trace_id: str) -> list[SpanRow]:
        with self._lock:
            return [row for row in self._spans if row.trace_id == trace_id]

    def lines(self, start_ns: int, end_ns: int) -> list[LogRow]:
        """From the start up to, and without, the end, as Loki takes them."""
        with self._lock:
            return [row for row in self._lines if start_ns <= row.at_ns < end_ns]


def plain(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    """Scalar attributes by name; of the others Tempo and Loki make things that no board of ours reads."""
    found = {pair.key: _value(pair.value) for pair in attributes}
    return {key: value for key, value in found.items() if value is not None}


def _value(value: AnyValue) -> Value | None:
    kind = value.WhichOneof("value")
    scalar: Value | None = getattr(value, kind) if kind in ("string_value", "bool_value", "int_value", "double_value") else None
    return scalar


def _span_row(span: Span, scope: ScopeSpans, resource: ResourceSpans) -> SpanRow:
    return SpanRow(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        KINDS[span.kind],
        STATUSES[span.status.code],
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        plain(span.attributes),
        plain(resource.resource.attributes),
        ResourceSpans(resource=resource.resource, scope_spans=[ScopeSpans(scope=scope.scope, spans=[span])]),
    )


def _log_row(record: Any, resource: Resource, scope: str) -> LogRow:
    whole = plain(resource.attributes)
    labels = {label_name(name): text_of(whole[name]) for name in _INDEXED if name in whole}
    metadata = {label_name(name): text_of(value) for name, value in whole.items() if name not in _INDEXED}
    metadata |= {"scope_name": scope, **{label_name(n): text_of(v) for n, v in plain(record.attributes).items()}}
    metadata |= {"trace_id": record.trace_id.hex(), "span_id": record.span_id.hex(), "severity_text": record.severity_text}
    level = record.severity_number - (record.severity_number - 1) % 4 if record.severity_number else 0
    metadata |= {"severity_number": str(record.severity_number), "detected_level": _LEVELS.get(level, "unknown")}
    return LogRow(
        record.time_unix_nano or record.observed_time_unix_nano,
        record.body.string_value,
        {**labels, "service_name": labels.get("service_name", "unknown_service")},
        {name: value for name, value in metadata.items() if value},
    )


def label_name(attribute: str) -> str:
    """An attribute's name as Loki has it."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", attribute)
    return f"key_{name}" if name[:1].isdigit() else name


def text_of(value: Value) -> str:
    """A value as Loki's metadata has it, which is text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"
    return str(value)
