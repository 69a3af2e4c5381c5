"""What happened in a tick as log records and as a trace: ids that can be worked out, times that fit, bounds that hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailkeeper_exporter.otlp.attributes import read
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.happenings.names import Phase, Step, Trigger
from tailkeeper_watchdog.happenings.teller import Happening
from tailkeeper_watchdog.model import Severity
from tailkeeper_watchdog.otlp.logs import MAX_SENTENCE_CHARS, logs_of, values_of
from tailkeeper_watchdog.otlp.traces import MAX_EVENTS, Event, TickTrace, spans_of, trace_id_of

AT = 1_700_000_000.0
STEPS = tuple((step, AT + 0.01 * (number + 1)) for number, step in enumerate(Step))
TRACE = TickTrace("host/1/2.000", 7, AT, AT + 0.08, STEPS)
DRAINED = Happening(
    AT + 0.05, "gpu_health_gate", Trigger.HUNG, Phase.APPLIED, "b", "b: drained", Step.ACT, Severity.INFO,
    {names.VERDICT: "applied", names.LEASE_EXPIRES: AT + 300, names.DECISION_ID: 12, names.REFUSAL: None},
)  # fmt: skip


def records(*told: Happening, trace: TickTrace = TRACE) -> list[LogRecord]:
    (resource,) = logs_of(told, trace).resource_logs
    assert read(resource.resource.attributes) == {"service.name": "tailkeeper-watchdog", "service.instance.id": "host/1/2.000"}
    return list(resource.scope_logs[0].log_records)


def spans(trace: TickTrace = TRACE, *events: Event) -> list[Span]:
    return list(spans_of(trace, {"backends": 4}, events).resource_spans[0].scope_spans[0].spans)


def test_a_record_has_its_words_as_attributes_and_its_sentence_as_body() -> None:
    (record,) = records(DRAINED)
    assert record.body.string_value == "b: drained"
    assert read(record.attributes) == {
        "strategy_id": "gpu_health_gate",
        "trigger_reason": "hung",
        "phase": "applied",
        "backend": "b",
        "verdict": "applied",
        "lease_expires": AT + 300,
        "decision_id": 12,
        "tick": 7,
    }
    assert record.time_unix_nano == round((AT + 0.05) * 1e9)
    assert record.observed_time_unix_nano >= record.time_unix_nano


@pytest.mark.parametrize(("severity", "text"), [(Severity.PAGE, "ERROR"), (Severity.TICKET, "WARN"), (Severity.INFO, "INFO")])
def test_a_page_is_an_error_and_a_ticket_a_warning(severity: Severity, text: str) -> None:
    (record,) = records(replace(DRAINED, severity=severity))
    assert record.severity_text == text


def test_a_record_points_at_the_span_of_its_step_and_its_trace_follows_from_run_and_tick() -> None:
    (record,) = records(DRAINED)
    act = next(span for span in spans() if span.name == "act")
    assert (record.trace_id, record.span_id) == (act.trace_id, act.span_id)
    assert record.trace_id == trace_id_of("host/1/2.000", 7)
    assert trace_id_of("host/1/2.000", 7) != trace_id_of("host/1/2.000", 8) != trace_id_of("host/2/2.000", 8)


def test_what_is_of_no_tick_points_at_no_trace() -> None:
    (record,) = records(replace(DRAINED, in_tick=False))
    assert (record.trace_id, record.span_id) == (b"", b"")


def test_in_a_tick_that_failed_before_a_step_its_record_points_at_the_tick() -> None:
    cut = replace(TRACE, steps=STEPS[:2], error="ValueError: x")
    (record,) = records(DRAINED, trace=cut)
    root, *children = spans(cut)
    assert (record.trace_id, record.span_id) == (root.trace_id, root.span_id)
    assert [child.name for child in children] == ["collect", "score"]
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "ValueError: x")


def test_a_tick_is_a_span_and_its_steps_are_children_that_follow_each_other_within_it() -> None:
    root, *children = spans()
    assert (root.name, read(root.attributes)) == ("tick", {"tick": 7, "backends": 4})
    assert [child.name for child in children] == [step.value for step in Step]
    assert {(child.trace_id, child.parent_span_id) for child in children} == {(root.trace_id, root.span_id)}
    assert len({span.span_id for span in (root, *children)}) == 1 + len(Step)
    begins = root.start_time_unix_nano
    for child in children:
        assert child.start_time_unix_nano == begins
        begins = child.end_time_unix_nano
    assert begins <= root.end_time_unix_nano
    assert root.status.code == Status.STATUS_CODE_UNSET


def test_what_was_done_is_an_event_of_its_step_up_to_a_bound() -> None:
    events = [Event(Step.ACT, "change", AT + 0.05, values_of(DRAINED))] * (MAX_EVENTS + 3)
    act = next(span for span in spans(TRACE, *events) if span.name == "act")
    assert (len(act.events), act.dropped_events_count) == (MAX_EVENTS, 3)
    assert read(act.events[0].attributes)["strategy_id"] == "gpu_health_gate"
    assert [span.name for span in spans(TRACE, *events) if span.events] == ["act"]


texts = st.text(st.characters(codec=None), max_size=40) | st.just("\ud800 half") | st.just("é" * 3_000)
values = st.none() | texts | st.integers() | st.floats()


@given(
    texts,
    st.dictionaries(st.sampled_from([names.FROM, names.TO, names.SERVER, names.SIGNAL]), values),
    st.floats(allow_nan=False),
)
def test_whatever_a_gateway_or_a_clock_says_can_be_sent_and_stays_small(sentence: str, more: Any, at: float) -> None:
    told = replace(DRAINED, sentence=sentence, backend=sentence, values=more, at_unix_s=min(max(at, -1e9), 1e9))
    trace = replace(TRACE, error=sentence)
    assert len(logs_of((told,), trace).SerializeToString()) < 4 * MAX_SENTENCE_CHARS + 8_192
    assert spans_of(trace, {}, [Event(Step.ACT, "change", told.at_unix_s, values_of(told))]).SerializeToString()
