"""A finished request as spans and as an access-log record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailkeeper_exporter.otlp.attributes import read
from tailkeeper_exporter.otlp.spans import REQUEST_SPAN, STAGES, log_of, operation_of, spans_of
from tests.unit.otlp_messages import NOW, PARENT, SPAN, TRACE, an_exchange


def spans(**changes: Any) -> list[Span]:
    request = spans_of(an_exchange(**changes), "GPU-1", "vllm")
    assert request is not None
    return list(request.resource_spans[0].scope_spans[0].spans)


def times(span: Span) -> tuple[float, float]:
    start = round(NOW * 1e9)
    return (span.start_time_unix_nano - start) / 1e9, (span.end_time_unix_nano - start) / 1e9


def test_a_request_is_a_server_span_with_its_stages_as_children() -> None:
    whole, *children = spans()
    assert (whole.name, whole.kind) == (REQUEST_SPAN, Span.SPAN_KIND_SERVER)
    assert (whole.trace_id.hex(), whole.span_id.hex(), whole.parent_span_id.hex()) == (TRACE, SPAN, PARENT)
    assert times(whole) == pytest.approx((0.0, 2.5))
    assert [child.name for child in children] == ["queue", "prefill", "decode"]
    assert [times(child) for child in children] == [pytest.approx(p) for p in ((0.0, 0.1), (0.1, 0.6), (0.6, 2.4))]
    assert {child.parent_span_id.hex() for child in children} == {SPAN}
    assert {child.trace_id.hex() for child in children} == {TRACE}
    assert len({span.span_id for span in (whole, *children)}) == 4


def test_the_span_carries_the_names_of_the_contract_and_of_the_genai_conventions() -> None:
    found = read(spans()[0].attributes)
    expected = {
        "gen_ai.request.id": "req-1",
        "gen_ai.request.model": "tiny",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 32,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 384,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 128,
        "tailkeeper.backend": "a",
        "tailkeeper.ttft_s": 0.6,
        "gpu.uuid": "GPU-1",
        "semantic.operation": "payment.submit",
        "semantic.tenant": "premium",
        "semantic.pii_sensitivity": 2,
        "tailkeeper.outcome": "ok",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
    }
    assert expected.items() <= found.items()


def test_what_is_unknown_is_no_attribute_and_no_child() -> None:
    whole, *children = spans(first_token_s=None, last_token_s=None, tenant=None, prompt_tokens=None, error="")
    assert [child.name for child in children] == ["queue"]
    found = read(whole.attributes)
    assert not {"tailkeeper.ttft_s", "semantic.tenant", "gen_ai.usage.input_tokens", "error.type"} & found.keys()
    assert "gpu.uuid" not in read(spans_of(an_exchange(), None, "vllm").resource_spans[0].scope_spans[0].spans[0].attributes)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("outcome", "error", "status"),
    [
        ("ok", "", Status.STATUS_CODE_UNSET),
        ("error", "upstream", Status.STATUS_CODE_ERROR),
        ("aborted", "client_gone", Status.STATUS_CODE_UNSET),
        ("rejected", "draining", Status.STATUS_CODE_UNSET),
    ],
)
def test_only_an_error_has_the_status_error_and_an_abort_is_no_success(outcome: str, error: str, status: int) -> None:
    whole = spans(outcome=outcome, error=error)[0]
    found = read(whole.attributes)
    assert whole.status.code == status
    assert found["tailkeeper.outcome"] == outcome
    assert found.get("error.type", "") == error


def test_a_trace_that_is_not_sampled_is_not_sent_but_its_log_is() -> None:
    exchange = an_exchange(sampled=False)
    assert spans_of(exchange, None, "vllm") is None
    assert log_of(exchange, None).resource_logs[0].scope_logs[0].log_records[0].flags == 0


@pytest.mark.parametrize("bad", ["", "0" * 32, "xyz", TRACE + "00"])
def test_without_a_valid_trace_id_there_are_no_spans(bad: str) -> None:
    assert spans_of(an_exchange(trace_id=bad), None, "vllm") is None


def test_the_same_request_has_the_same_child_ids_and_another_has_others() -> None:
    assert [span.span_id for span in spans()] == [span.span_id for span in spans()]
    assert not {s.span_id for s in spans()} & {s.span_id for s in spans(span_id="00f067aa0ba902b8")}


SECONDS = st.none() | st.floats(-1, 1e5, allow_nan=False)


@given(SECONDS, SECONDS, SECONDS, st.floats(0, 1e5, allow_nan=False))
def test_no_child_begins_before_its_parent_or_ends_after_it_or_before_itself(
    sent: float | None, first: float | None, last: float | None, end: float
) -> None:
    whole, *children = spans(sent_s=sent, first_token_s=first, last_token_s=last, end_s=end)
    for child in children:
        assert whole.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano <= whole.end_time_unix_nano
        assert child.name in STAGES


@given(st.text(max_size=20), st.integers(), st.text(max_size=20))
def test_whatever_a_client_wrote_can_be_sent(model: str, tokens: int, tenant: str) -> None:
    whole = an_exchange(model=model + "\ud800", max_tokens=tokens, tenant=tenant, error="x\udfff", outcome="error")
    request, log = spans_of(whole, None, "vllm"), log_of(whole, None)
    assert request is not None
    assert request.SerializeToString()
    assert log.SerializeToString()


def test_the_access_log_tells_the_request_in_one_line_and_in_attributes() -> None:
    record = (
        log_of(an_exchange(outcome="error", error="upstream", status=502), "GPU-1").resource_logs[0].scope_logs[0].log_records[0]
    )
    assert (record.trace_id.hex(), record.span_id.hex(), record.severity_text) == (TRACE, SPAN, "WARN")
    assert record.time_unix_nano == round(NOW * 1e9) + 2_500_000_000
    line = json.loads(record.body.string_value)
    assert (line["request_id"], line["status"], line["outcome"], line["duration_s"]) == ("req-1", 502, "error", 2.5)
    assert {"gen_ai.request.id": "req-1", "error.type": "upstream", "tailkeeper.ttft_s": 0.6}.items() <= read(
        record.attributes
    ).items()


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/metrics", None),
        ("", None),
    ],
)
def test_the_operation_is_known_from_the_path(path: str, operation: str | None) -> None:
    assert operation_of(path) == operation
