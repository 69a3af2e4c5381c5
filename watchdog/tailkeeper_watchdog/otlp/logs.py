"""Happenings as OpenTelemetry log records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import (
    SEVERITY_NUMBER_ERROR,
    SEVERITY_NUMBER_INFO,
    SEVERITY_NUMBER_WARN,
    LogRecord,
    ResourceLogs,
    ScopeLogs,
    SeverityNumber,
)

from tailkeeper_exporter.otlp import attributes
from tailkeeper_exporter.otlp.attributes import Value, sendable, written
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.happenings.teller import Happening
from tailkeeper_watchdog.model import Severity
from tailkeeper_watchdog.otlp.traces import SAMPLED_FLAG, SCOPE, TickTrace, nanoseconds, resource

MAX_SENTENCE_CHARS = 2_048
_SEVERITIES: Final[Mapping[Severity, tuple[SeverityNumber.ValueType, str]]] = {
    Severity.PAGE: (SEVERITY_NUMBER_ERROR, "ERROR"),
    Severity.TICKET: (SEVERITY_NUMBER_WARN, "WARN"),
    Severity.INFO: (SEVERITY_NUMBER_INFO, "INFO"),
}


def logs_of(happenings: Iterable[Happening], trace: TickTrace) -> ExportLogsServiceRequest:
    """One record for each; those of the tick point at its trace, at the span of the step they belong to."""
    scope = ScopeLogs(scope=SCOPE, log_records=[_record(one, trace) for one in happenings])
    return ExportLogsServiceRequest(resource_logs=[ResourceLogs(resource=resource(trace.instance), scope_logs=[scope])])


def _record(one: Happening, trace: TickTrace) -> LogRecord:
    number, text = _SEVERITIES[one.severity]
    at = nanoseconds(one.at_unix_s)
    record = LogRecord(
        time_unix_nano=at,
        observed_time_unix_nano=max(at, nanoseconds(trace.ended_unix_s)),
        severity_number=number,
        severity_text=text,
        body=AnyValue(string_value=sendable(one.sentence[:MAX_SENTENCE_CHARS])),
        attributes=written(values_of(one) | {names.TICK: trace.tick}),
    )
    if one.in_tick:
        record.trace_id, record.span_id, record.flags = trace.trace_id, trace.span_id(one.step), SAMPLED_FLAG
    return record


def values_of(one: Happening) -> dict[str, Value | None]:
    """Its attributes, as a log record and a span's event have them. Names of backends and servers are cut like every text."""
    return {name: _cut(value) for name, value in one.attributes.items()}


def _cut(value: Value | None) -> Value | None:
    return value[: attributes.MAX_TEXT_CHARS] if isinstance(value, str) else value
