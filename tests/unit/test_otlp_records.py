"""Which spans become records, of which backend, with which values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tailkeeper_exporter.otlp import records
from tailkeeper_exporter.otlp.attributes import written
from tailkeeper_exporter.otlp.counts import Outcome
from tailkeeper_exporter.otlp.ids import core_request_id, hex_id, same_request
from tailkeeper_exporter.otlp.known import Kin, KnownRequests
from tailkeeper_exporter.otlp.match import Backends
from tailkeeper_exporter.otlp.records import Reading, read_spans
from tailkeeper_exporter.otlp.spans import spans_of
from tailkeeper_exporter.requests_ring import RequestRecord
from tests.unit.otlp_messages import NOW, PARENT, SPAN, TRACE, VLLM, VLLM_0_6, a_backend, a_post, a_span, an_exchange

FIXTURES = Path(__file__).parents[1] / "fixtures" / "spans"
ONE = (a_backend(),)
TWO = (a_backend("a", "http://10.0.0.1:8000"), a_backend("b", "http://10.0.0.2:8000", tap={"listen": "127.0.0.1:9500"}))


def reading(*spans: Any, backends: Any = ONE, resource: Any = None) -> Reading:
    return read_spans(a_post(*spans, resource=resource), Backends(backends), {"a": "GPU-1"}, NOW + 10)


def record(*spans: Any, **more: Any) -> RequestRecord:
    (told,) = reading(*spans, **more).told
    return told.record


def test_a_span_of_vllm_is_a_record_with_the_engines_own_stages() -> None:
    found = record(a_span(VLLM))
    assert found.itl_s == pytest.approx(0.1), "1.9 s for the 19 tokens after the first"
    assert replace(found, itl_s=None) == RequestRecord(
        backend="a",
        request_id="chatcmpl-req-1",
        trace_id=TRACE,
        start=NOW,
        queue_s=0.1,
        prefill_s=0.4,
        ttft_s=0.5,
        e2e_s=2.4,
        prompt_tokens=384,
        generated_tokens=20,
        outcome="ok",
        gpu="GPU-1",
    )


def test_a_captured_post_of_vllm_gives_its_requests_and_not_its_start_up() -> None:
    post = ExportTraceServiceRequest()
    post.ParseFromString((FIXTURES / "vllm-0.32.0.pb").read_bytes())
    start_s = post.resource_spans[0].scope_spans[-1].spans[-1].start_time_unix_nano / 1e9
    found = read_spans(post, Backends(ONE), {}, start_s + 1)
    assert found.counts[Outcome.OTHER] == 1, "a span of its start"
    records = [told.record for told in found.told]
    assert [r.request_id for r in records] == ["cmpl-my-req-1-0", "cmpl-my-req-2-0", "cmpl-my-req-3-0"]
    first = records[0]
    assert (first.trace_id, first.outcome) == ("0af7651916cd43dd8448eb211c803191", "ok")
    assert (first.prompt_tokens, first.generated_tokens, first.model) == (2, 20, None)
    assert first.ttft_s == pytest.approx(0.0447, abs=1e-4)
    assert first.e2e_s == pytest.approx(0.3914, abs=1e-4)
    assert first.queue_s == pytest.approx(3.2e-5, abs=1e-6)
    assert first.prefill_s == pytest.approx(0.0379, abs=1e-4)
    assert same_request(first.request_id or "", "my-req-1"), "the client's own id, as vLLM writes it"


@pytest.mark.parametrize("request_id", ["cmpl-tailkeeper-probe-54b2b19474e0-0", "tailkeeper-probe-54b2"])
def test_our_own_probe_is_no_request_of_a_user(request_id: str) -> None:
    found = reading(a_span({**VLLM, "gen_ai.request.id": request_id}))
    assert (found.told, found.counts[Outcome.OTHER]) == ([], 1)


def test_a_span_of_an_old_vllm_has_no_prefill_time_and_none_is_made_up() -> None:
    found = record(a_span(VLLM_0_6, lasts_s=1.0))
    assert (found.model, found.queue_s, found.ttft_s, found.e2e_s) == ("tiny", 0.02, 0.3, 0.9)
    assert (found.prefill_s, found.itl_s, found.generated_tokens) == (None, None, 16)


GATEWAYS = {
    "genai conventions": {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "alias",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 4,
    },
    "openllmetry and litellm": {
        "llm.request.type": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.prompt_tokens": 9,
        "gen_ai.usage.completion_tokens": 4,
    },
    "openinference (envoy ai gateway)": {
        "openinference.span.kind": "LLM",
        "llm.model_name": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "llm.token_count.prompt": 9,
        "llm.token_count.completion": 4,
    },
}


@pytest.mark.parametrize("attributes", GATEWAYS.values(), ids=GATEWAYS)
def test_a_gateways_span_is_a_record_with_its_tokens_and_its_duration(attributes: dict[str, Any]) -> None:
    found = record(a_span({**attributes, "server.address": "127.0.0.1", "server.port": 8000}, name="chat tiny"))
    assert (found.request_id, found.model, found.prompt_tokens, found.generated_tokens) == ("chatcmpl-1", "tiny", 9, 4)
    assert found.e2e_s == pytest.approx(2.5)
    assert (found.ttft_s, found.queue_s) == (None, None)


def test_the_first_chunk_is_not_taken_for_the_first_token() -> None:
    chunk = {**GATEWAYS["genai conventions"], "gen_ai.response.time_to_first_chunk": 0.01, "tailkeeper.backend": "a"}
    assert record(a_span(chunk)).ttft_s is None


def test_what_another_exporters_tap_sends_is_the_record_that_it_has_itself() -> None:
    exchange = an_exchange(gaps=(0,) * 6 + (19,) + (0,) * 8, gap_sum_s=1.9)
    request = spans_of(exchange, "GPU-7", "vllm")
    assert request is not None
    (told,) = read_spans(request, Backends(ONE), {"a": "GPU-1"}, NOW).told
    own = exchange.record("GPU-7")
    found = told.record.document()
    for name, value in own.document().items():
        assert found[name] == (pytest.approx(value) if isinstance(value, float) else value), name


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"http.request.method": "GET", "url.path": "/metrics"},
        {"gen_ai.operation.name": "execute_tool"},
        {"gen_ai.operation.name": "embeddings"},
        {"openinference.span.kind": "CHAIN"},
        {"db.system": "redis"},
    ],
)
def test_a_span_that_is_no_request_is_only_counted(attributes: dict[str, Any]) -> None:
    found = reading(a_span(attributes, name="GET"))
    assert (found.told, found.counts[Outcome.OTHER], found.counts[Outcome.RECEIVED]) == ([], 1, 1)


CHAT = {"gen_ai.operation.name": "chat"}
MATCHES = [
    (CHAT | {"tailkeeper.backend": "b", "server.address": "10.0.0.1", "server.port": 8000}, {}, "b"),
    (CHAT | {"tailkeeper.backend": "elsewhere", "server.address": "10.0.0.1", "server.port": 8000}, {}, "unmatched"),
    (CHAT | {"server.address": "10.0.0.2", "server.port": 8000}, {}, "b"),
    (CHAT | {"server.address": "10.0.0.2", "server.port": "8000"}, {}, "b"),
    (CHAT | {"server.address": "10.0.0.2"}, {}, "b"),
    (CHAT | {"server.address": "10.0.0.2", "server.port": 8001}, {}, "unmatched"),
    (CHAT | {"url.full": "http://10.0.0.1:8000/v1/chat/completions"}, {}, "a"),
    (CHAT | {"http.url": "http://127.0.0.1:9500/v1/completions"}, {}, "b"),
    (CHAT | {"url.full": "http://10.0.0.1:x/"}, {}, "unmatched"),
    (CHAT, {"service.instance.id": "b"}, "b"),
    (CHAT, {"service.instance.id": "http://10.0.0.1:8000"}, "a"),
    (CHAT, {"service.instance.id": "10.0.0.1:8000"}, "a"),
    (CHAT, {"service.name": "a"}, "a"),
    (CHAT, {"host.name": "10.0.0.2"}, "b"),
    (CHAT | {"server.address": "10.0.0.1", "server.port": 8000}, {"service.name": "b"}, "a"),
    (CHAT | {"server.address": "gateway.local", "server.port": 443}, {"service.name": "b"}, "b"),
    (CHAT, {"service.name": "vllm"}, "unmatched"),
    (VLLM, {}, "unmatched"),
]


@pytest.mark.parametrize(("attributes", "resource", "expected"), MATCHES)
def test_a_span_is_the_backends_that_it_names_or_nobodys(attributes: Any, resource: Any, expected: str) -> None:
    found = reading(a_span(attributes), backends=TWO, resource=resource)
    if expected in ("a", "b"):
        assert [told.record.backend for told in found.told] == [expected]
    else:
        assert (found.told, found.counts[Outcome(expected)]) == ([], 1)


def test_two_backends_on_one_host_are_not_told_apart_by_the_host_and_nobody_guesses() -> None:
    both = (a_backend("a", "http://h:8000"), a_backend("b", "http://h:8001"))
    found = reading(a_span(VLLM), backends=both, resource={"host.name": "h"})
    assert (found.told, found.counts[Outcome.AMBIGUOUS]) == ([], 1)
    assert record(a_span(VLLM), backends=both, resource={"host.name": "h", "service.name": "b"}).backend == "b"


def test_the_only_backend_gets_an_engines_span_but_no_gateways_and_none_from_elsewhere() -> None:
    assert record(a_span(VLLM), resource={"service.name": "vllm-server"}).backend == "a"
    assert reading(a_span(CHAT)).counts[Outcome.UNMATCHED] == 1
    assert reading(a_span({**VLLM, "server.address": "10.9.9.9"})).counts[Outcome.UNMATCHED] == 1


@pytest.mark.parametrize("name", ["time_to_first_token", "time_in_queue", "time_in_model_prefill"])
@pytest.mark.parametrize("value", [1.2e6, -0.5, float("inf"), float("nan"), 2.4 + 0.2])
def test_a_time_that_cannot_be_is_unknown_and_counted_and_the_record_stays(name: str, value: float) -> None:
    found = reading(a_span({**VLLM, f"gen_ai.latency.{name}": value}))
    (told,) = found.told
    fields = {"time_to_first_token": "ttft_s", "time_in_queue": "queue_s", "time_in_model_prefill": "prefill_s"}
    assert getattr(told.record, fields[name]) is None
    assert found.counts[Outcome.IMPLAUSIBLE] == 1
    assert told.record.e2e_s == 2.4


def test_an_impossible_whole_is_replaced_by_how_long_the_span_lasted() -> None:
    found = reading(a_span({**VLLM, "gen_ai.latency.e2e": 1.2e6}))
    assert found.told[0].record.e2e_s == pytest.approx(2.5)
    assert found.counts[Outcome.IMPLAUSIBLE] == 1


@pytest.mark.parametrize(("start", "known"), [(NOW - 8 * 86_400, False), (NOW + 4_000, False), (NOW - 86_400, True)])
def test_a_start_far_from_now_is_unknown(start: float, known: bool) -> None:
    assert (record(a_span(VLLM, start=start)).start is not None) == known


@pytest.mark.parametrize(
    ("attributes", "failed", "outcome"),
    [
        ({}, False, "ok"),
        ({}, True, "error"),
        ({"http.response.status_code": 500}, False, "error"),
        ({"http.response.status_code": 429}, True, "rejected"),
        ({"http.response.status_code": 499}, True, "aborted"),
        ({"error.type": "CancelledError"}, True, "aborted"),
        ({"error.type": "timeout"}, False, "error"),
        ({"gen_ai.response.finish_reasons": ("abort",)}, False, "aborted"),
        ({"gen_ai.response.finish_reasons": ("stop",)}, False, "ok"),
        ({"tailkeeper.outcome": "aborted"}, False, "aborted"),
        ({"tailkeeper.outcome": "splendid"}, True, "error"),
    ],
)
def test_an_abort_is_not_a_success_and_a_failure_is_not_either(attributes: Any, failed: bool, outcome: str) -> None:
    assert record(a_span({**VLLM, **attributes}, failed=failed)).outcome == outcome


def test_what_a_request_says_of_itself_beats_its_backends_label() -> None:
    backends = (a_backend(model="configured", labels={"canary_revision": "v1", "tenant": "all", "sensitivity": "3"}),)
    plain = record(a_span(VLLM), backends=backends)
    assert (plain.canary_revision, plain.tenant, plain.sensitivity, plain.model) == ("v1", "all", 3, "configured")
    said = {"semantic.tenant": "premium", "semantic.operation": "payment.submit", "semantic.pii_sensitivity": 1}
    own = record(a_span({**VLLM, **said, "tailkeeper.canary_revision": "v2", "gpu.uuid": "GPU-9"}), backends=backends)
    assert (own.canary_revision, own.tenant, own.operation, own.sensitivity) == ("v2", "premium", "payment.submit", 1)
    assert own.gpu == "GPU-9"


def test_one_post_cannot_push_everything_else_out_of_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", 3)
    monkeypatch.setattr(records, "MAX_SPANS", 6)
    found = reading(*(a_span(VLLM, span_id=f"{n:016x}") for n in range(1, 9)))
    assert len(found.told) == 3
    assert found.counts[Outcome.LIMITED] == 5
    assert found.counts[Outcome.RECEIVED] == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("008EFFF798038103D269B633813FC703", "008efff798038103d269b633813fc703"),
        ("8efff798038103d269b633813fc703", "008efff798038103d269b633813fc703"),
        ("d269b633813fc703", "0000000000000000d269b633813fc703"),
        ("0" * 32, None),
        ("", None),
        ("xyz", None),
        ("1" * 33, None),
    ],
)
def test_a_trace_id_has_one_spelling(text: str, expected: str | None) -> None:
    found = hex_id(text, 16)
    assert (None if found is None else found.hex()) == expected


def test_a_request_id_is_capped_cleaned_and_found_behind_an_engines_prefix() -> None:
    assert record(a_span({**VLLM, "gen_ai.request.id": " a\x00b\n" + "x" * 500})).request_id == ("ab" + "x" * 500)[:128]
    assert core_request_id("chatcmpl-req-1") == "req-1"
    assert core_request_id("cmpl-") == "cmpl-"
    assert same_request("cmpl-req-1-0", "req-1")
    assert not same_request("cmpl-req-1-0", "req-10")


def test_the_last_of_two_equal_attributes_counts_and_only_so_many_are_read() -> None:
    span = a_span(VLLM)
    span.attributes.extend(written({"gen_ai.usage.prompt_tokens": 1}))
    assert record(span).prompt_tokens == 1
    span.attributes.extend(written({f"x{n}": n for n in range(300)}))
    span.attributes.extend(written({"gen_ai.usage.prompt_tokens": 2}))
    assert record(span).prompt_tokens == 1


def kin(
    span: str, parent: str = "", request_id: str | None = None, at: float = 0.0, until: float = 2.0, trace: str = TRACE
) -> Kin:
    return Kin(bytes.fromhex(trace), bytes.fromhex(span), bytes.fromhex(parent), request_id, NOW + at, NOW + until)


A, B, C = SPAN, PARENT, "00000000000000cc"
KIN = [
    ("the engine's span under the tap's", kin(A), kin(B, A, at=5, until=6), False),
    ("the tap's span under the engine's, told later", kin(B, A, at=5, until=6), kin(A), False),
    ("the same span again", kin(A), kin(A, at=9, until=10), False),
    ("the same id, with the engine's prefix", kin(A, request_id="req-1"), kin(B, C, "chatcmpl-req-1-0", 1.0, 2.5), False),
    ("one id for all steps of an agent", kin(A, request_id="x"), kin(B, C, "x", 3.0, 4.0), True),
    ("within the gateway's time, parents unknown", kin(A), kin(B, C, None, 0.1, 1.9), False),
    ("two calls of one agent at a time", kin(A, C), kin(B, C, None, 0.1, 1.9), True),
    ("the agent's next step", kin(A, C), kin(B, "00000000000000dd", None, 2.5, 3.0), True),
    ("another trace", kin(A), kin(A, trace="1" * 32), True),
]


@pytest.mark.parametrize(("first", "second", "new"), [case[1:] for case in KIN], ids=[case[0] for case in KIN])
def test_a_request_is_recorded_once_and_an_agents_requests_each(first: Kin, second: Kin, new: bool) -> None:
    known = KnownRequests()
    assert known.is_new("a", first)
    assert known.is_new("a", second) == new
    assert known.is_new("b", second), "another backend is another request"


def test_only_so_many_traces_are_remembered() -> None:
    known = KnownRequests(max_traces=2)
    for trace in ("1" * 32, "2" * 32, "3" * 32):
        known.remember("a", kin(A, trace=trace))
    assert known.is_new("a", kin(A, trace="1" * 32))
    assert not known.is_new("a", kin(A, trace="3" * 32))
