"""Whatever is posted is understood or refused, and whatever a span says becomes a record that can be published, or none."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tailkeeper_exporter import catalog
from tailkeeper_exporter.otlp import wire
from tailkeeper_exporter.otlp.attributes import text_of, written
from tailkeeper_exporter.otlp.counts import Outcome
from tailkeeper_exporter.otlp.match import Backends, NoBackend
from tailkeeper_exporter.otlp.receiver import understand
from tailkeeper_exporter.otlp.records import Reading, read_spans
from tests.unit.otlp_messages import NOW, VLLM, a_backend

BACKENDS = Backends((a_backend("a", "http://10.0.0.1:8000"), a_backend("b", "http://10.0.0.2:8000")))


def read(request: ExportTraceServiceRequest) -> Reading:
    return read_spans(request, BACKENDS, {"a": "GPU-1"}, NOW)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(
    ["resourceSpans", "scopeSpans", "spans", "traceId", "spanId", "attributes", "key", "value", "intValue", "links", "status"]
)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.dictionaries(KEYS, inner | st.lists(inner, max_size=2), max_size=4), max_leaves=20
)


def one_span(field: bytes) -> bytes:
    return b'{"resourceSpans":[{"scopeSpans":[{"spans":[{' + field + b"}]}]}]}"


@given(st.binary(max_size=300) | DOCUMENTS.map(lambda d: json.dumps(d).encode()), st.sampled_from(wire.Encoding), st.booleans())
@example(one_span(b'"startTimeUnixNano":1e400'), wire.Encoding.JSON, False)
@example(one_span(b'"kind":99999999999'), wire.Encoding.JSON, False)
@example(one_span(b'"attributes":[{"value":{"bytesValue":"!"}}]'), wire.Encoding.JSON, False)
def test_any_bytes_are_understood_or_refused(body: bytes, encoding: wire.Encoding, compressed: bool) -> None:
    try:
        received = understand(gzip.compress(body) if compressed else body, encoding, "gzip" if compressed else "", read)
    except wire.BodyError as error:
        refusal = error
    else:
        assert ExportTraceServiceRequest.FromString(received.payload) is not None
        assert received.reading.counts[Outcome.RECEIVED] == received.reading.spans
        return
    assert refusal.status == 400
    assert wire.failure(refusal.code, refusal.message, encoding)


@given(st.binary(max_size=200), st.text(max_size=12))
def test_any_compression_is_undone_or_refused(body: bytes, name: str) -> None:
    status = 200
    try:
        wire.inflated(body, name, 100)
    except wire.BodyError as error:
        status = error.status
    assert status in (200, 400, 413, 415)


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.just("12") | st.text(max_size=5)
NAMES = st.sampled_from(
    [
        *VLLM,
        "tailkeeper.ttft_s",
        "tailkeeper.itl_s",
        "gen_ai.usage.input_tokens",
        "tailkeeper.running",
        "semantic.tenant",
    ]
)
ANY = st.dictionaries(NAMES, NUMBERS, max_size=8)
BYTES = st.sampled_from([b"", bytes(8), bytes(16), b"\1" * 8, b"\2" * 16, b"\3" * 16, b"\1" * 7])
NANOS = st.sampled_from([0, 1, round(NOW * 1e9), round((NOW + 2) * 1e9), 2**64 - 1])


@st.composite
def posts(draw: st.DrawFn) -> ExportTraceServiceRequest:
    spans = []
    for attributes in draw(st.lists(ANY, max_size=4)):
        spans.append(
            Span(
                trace_id=draw(BYTES),
                span_id=draw(BYTES),
                parent_span_id=draw(BYTES),
                name=draw(st.sampled_from(["llm_request", "queue", "decode", "x"])),
                start_time_unix_nano=draw(NANOS),
                end_time_unix_nano=draw(NANOS),
                attributes=written({"tailkeeper.backend": "a", "tailkeeper.outcome": "ok", **attributes}),
            )
        )
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])])


@given(posts())
def test_no_record_has_a_value_that_cannot_be(post: ExportTraceServiceRequest) -> None:
    reading = read(post)
    assert len(reading.told) == sum(len(s.spans) for s in post.resource_spans[0].scope_spans)
    for told in reading.told:
        document = told.record.document()
        json.dumps(document, allow_nan=False)
        for name, value in document.items():
            if name.endswith(("_s", "_tokens")) or name in ("running", "waiting"):
                assert value is None or (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0), name
        assert document["outcome"] in catalog.OUTCOMES
        assert told.record.trace_id is None or len(told.record.trace_id) == 32


WORDS = st.sampled_from(["a", "b", "c", "10.0.0.1", "10.0.0.2", "10.0.0.1:8000", "http://10.0.0.2:8000/v1", "", "[", "//", "a:b"])
CLUES = ["tailkeeper.backend", "server.address", "server.port", "url.full", "service.name", "service.instance.id", "host.name"]


@given(st.dictionaries(st.sampled_from(CLUES), WORDS | st.integers(-1, 70_000)), st.dictionaries(st.sampled_from(CLUES), WORDS))
def test_a_backend_is_never_found_against_the_name_that_was_given(span: Mapping[str, Any], resource: Mapping[str, Any]) -> None:
    found = BACKENDS.find(span, resource, is_engine=True)
    named = text_of(span, "tailkeeper.backend") or text_of(resource, "tailkeeper.backend")
    if named is not None:
        assert (found if isinstance(found, NoBackend) else found.name) == (named if named in ("a", "b") else NoBackend.UNMATCHED)
    elif not isinstance(found, NoBackend):
        assert any(
            found.name == text or found.url.removeprefix("http://").partition(":")[0] in text for text in said(span, resource)
        )


def said(*parts: Mapping[str, Any]) -> list[str]:
    return [str(value) for part in parts for value in part.values()]
