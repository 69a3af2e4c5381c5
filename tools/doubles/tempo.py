"""Tempo's query API over a `Store`: a test double. Search by TraceQL, and a trace by its id.

After Tempo's documentation ("Tempo HTTP API"): ``/api/search`` takes ``q``, ``start`` and ``end`` in seconds, ``limit`` (20) and
``spss``, the most spans shown of a trace (3); ids in its answers have no leading zeros. A trace by id is OTLP in JSON, and 404
where there is none. Which traces come first where there are more than ``limit`` is Tempo's choice; here it is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from tools.doubles.lexing import QueryError
from tools.doubles.store import SpanRow, Store, Value
from tools.doubles.traceql import Attribute, Query, Trace, parse

LIMIT, SPANS_EACH = 20, 3
MOST = 10_000
_SHOWN_ELSEWHERE = ("duration", "traceDuration", "rootName", "rootServiceName")
"""Intrinsics that every trace or span of an answer has in fields of their own."""


def search(store: Store, query: Mapping[str, str]) -> dict[str, Any]:
    """``/api/search``. Raises QueryError."""
    wanted = parse(query.get("q", "{}"))
    limit, each = _number(query, "limit", LIMIT), _number(query, "spss", SPANS_EACH)
    start_ns = _number(query, "start", 0) * 1_000_000_000
    end_ns = _number(query, "end", 2**33) * 1_000_000_000
    traces = [Trace(tuple(spans)) for spans in store.traces().values()]
    seen = [trace for trace in traces if trace.start_ns < end_ns and trace.end_ns >= start_ns]
    found: list[dict[str, Any]] = []
    for trace in sorted(seen, key=lambda trace: trace.start_ns, reverse=True):
        spans = [span for span in trace.spans if wanted.matches(span, trace)]
        if spans and len(found) < limit:
            found.append(_summary(trace, spans, wanted, each))
    return {"traces": found, "metrics": {"inspectedTraces": len(seen)}}


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "") or str(default)
    if not text.isdigit() or (name in ("limit", "spss") and not 0 < int(text) <= MOST):
        raise QueryError(f"{name}: is {text!r}; a whole number is wanted, and of limit and spss 1 to {MOST}")
    return int(text)


def _summary(trace: Trace, spans: list[SpanRow], query: Query, each: int) -> dict[str, Any]:
    root = trace.root or trace.spans[0]
    return {
        "traceID": trace.spans[0].trace_id.lstrip("0"),
        "rootServiceName": root.service,
        "rootTraceName": root.name,
        "startTimeUnixNano": str(trace.start_ns),
        "durationMs": int(trace.duration_s * 1_000),
        "spanSets": [{"matched": len(spans), "spans": [_span(span, trace, query.shown) for span in spans[:each]]}],
    }


def _span(span: SpanRow, trace: Trace, shown: tuple[Attribute, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "spanID": span.span_id.lstrip("0"),
        "startTimeUnixNano": str(span.start_ns),
        "durationNanos": str(span.end_ns - span.start_ns),
        "attributes": [],
    }
    for attribute in shown:
        value = attribute.of(span, trace)
        if attribute == Attribute("intrinsic", "name"):
            found["name"] = value
        elif value is not None and not (attribute.scope == "intrinsic" and attribute.name in _SHOWN_ELSEWHERE):
            found["attributes"].append({"key": attribute.name, "value": _any_value(value)})
    return found


def _any_value(value: Value) -> dict[str, Any]:
    """As protobuf's JSON has it: whole numbers are text."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def trace_by_id(store: Store, trace_id: str) -> list[dict[str, Any]] | None:
    """The resource spans of a trace; its id with or without leading zeros. None where there is none. Raises QueryError."""
    padded = trace_id.lower().zfill(32)
    if len(padded) != 32 or set(padded) - set("0123456789abcdef"):
        raise QueryError(f"trace IDs can only contain hex characters, at most 32 of them: {trace_id[:64]!r}")
    found = [json_format.MessageToDict(span.raw) for span in store.trace(padded)]
    return found or None
