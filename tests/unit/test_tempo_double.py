"""The double of Tempo answers as Tempo's documentation says, and refuses what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sent_telemetry import AT_S, GPU, request, store
from tools.doubles import tempo
from tools.doubles.lexing import QueryError
from tools.doubles.store import Store
from tools.doubles.traceql import parse


@pytest.fixture
def sent() -> Store:
    slow, failed = request(1, backend="sim-a", ttft_s=4.0), request(2, outcome="error")
    return store(request(0), slow, failed)


def _found(sent: Store, q: str, **more: str) -> list[str]:
    return [trace["traceID"] for trace in tempo.search(sent, {"q": q, **more})["traces"]]


@pytest.mark.parametrize(
    ("query", "traces"),
    [
        ("{}", ["3", "2", "1"]),
        ('{ span.gen_ai.request.id = "r-1" }', ["2"]),
        ('{ .gen_ai.request.id = "r-1" }', ["2"]),
        ("{ span.gen_ai.request.id = `r-0` }", ["1"]),
        ('{ resource.service.name = "tailkeeper-tap" && name = "llm_request" }', ["3", "2", "1"]),
        ('{ span.service.name = "tailkeeper-tap" }', []),
        ('{ span.tailkeeper.backend =~ "sim-(a|c)" }', ["2"]),
        ('{ span.tailkeeper.backend =~ "sim" }', []),
        ('{ span.tailkeeper.backend !~ "sim-a" && name="llm_request" }', ["3", "1"]),
        ('{ span.tailkeeper.backend != "sim-a" }', ["3", "1"]),
        ("{ span.tailkeeper.ttft_s > 1 }", ["2"]),
        ("{ span.tailkeeper.ttft_s >= 200ms && span.tailkeeper.ttft_s < 1s }", ["3", "1"]),
        ("{ duration > 2s }", ["2"]),
        ("{ trace:duration > 2s && name = `queue` }", ["2"]),
        ("{ status = error }", ["3"]),
        ("{ kind = internal && name = `decode` }", ["3", "2", "1"]),
        ('{ status = error || span.gen_ai.request.id = "r-0" }', ["3", "1"]),
        ('{ (status = error || duration > 2s) && span.tailkeeper.backend = "sim-b" }', ["3"]),
        ("{ span.gen_ai.usage.input_tokens = 101 }", ["2"]),
        ("{ span.gen_ai.request.stream = true && span.error.type = nil }", ["2", "1"]),
        ('{ span.gen_ai.usage.input_tokens = "101" }', []),
        ('{ span.tailkeeper.ttft_s != "x" }', []),
        ('{ span.gen_ai.request.id = "r-1" } > { name = "prefill" }', ["2"]),
        ('{ span.gen_ai.request.id = "r-1" } >> { }', ["2"]),
        ('{ name = "prefill" } > { name = "queue" }', []),
    ],
)
def test_a_filter_finds_the_traces_with_such_a_span_newest_first(sent: Store, query: str, traces: list[str]) -> None:
    assert _found(sent, query) == traces


@pytest.mark.parametrize(
    "query",
    [
        "",
        "{",
        '{ span.a = "b" ',
        "{ a }",
        "{ span.a && }",
        "{ span.a = }",
        "{ span.a = b }",
        "{ status = fine }",
        '{ span.a =~ "(" }',
        "{ span.a > nil }",
        '{ name = "x',
        "{} | rate()",
        "{} << {}",
        "{} >",
        "{} && {}",
        "{} | select()",
        "{ nestedSetParent < 0 }",
        "{" + "(" * 6_000,
        "{" + "(" * 4_000,
    ],
)
def test_a_query_that_is_wrong_or_not_known_is_refused_with_words(query: str) -> None:
    with pytest.raises(QueryError, match=r"\w+"):
        parse(query)


def test_a_trace_is_told_with_its_root_and_the_matching_spans_with_what_was_asked_for(sent: Store) -> None:
    query = '{ name = "llm_request" && span.gen_ai.request.id = "r-1" } | select(span.gpu.uuid, resource.service.name, status)'
    trace = tempo.search(sent, {"q": query})["traces"][0]
    assert (trace["traceID"], trace["rootServiceName"], trace["rootTraceName"]) == ("2", "tailkeeper-tap", "llm_request")
    assert (trace["startTimeUnixNano"], trace["durationMs"]) == (f"{AT_S + 1}000000000", 5300)
    spans: list[dict[str, Any]] = trace["spanSets"][0]["spans"]
    assert [span["name"] for span in spans] == ["llm_request"]
    assert spans[0]["durationNanos"] == "5300000000"
    values = {attribute["key"]: attribute["value"] for attribute in spans[0]["attributes"]}
    assert values == {
        "gen_ai.request.id": {"stringValue": "r-1"},
        "gpu.uuid": {"stringValue": GPU},
        "service.name": {"stringValue": "tailkeeper-tap"},
        "status": {"stringValue": "unset"},
    }


def test_values_keep_their_kinds_as_protobufs_json_has_them(sent: Store) -> None:
    query = "{ span.tailkeeper.ttft_s > 1 } | select(span.gen_ai.usage.input_tokens, span.gen_ai.request.stream)"
    span = tempo.search(sent, {"q": query})["traces"][0]["spanSets"][0]["spans"][0]
    values = [attribute["value"] for attribute in span["attributes"]]
    assert values == [{"doubleValue": 4.0}, {"intValue": "101"}, {"boolValue": True}]


def test_time_limit_and_spans_of_a_trace_are_bounded_as_asked(sent: Store) -> None:
    assert _found(sent, "{}", limit="2") == ["3", "2"]
    assert _found(sent, "{}", start=str(AT_S + 2), end=str(AT_S + 3)) == ["3", "2"]
    assert _found(sent, "{}", start=str(AT_S - 9), end=str(AT_S + 1)) == ["1"]
    whole = tempo.search(sent, {"q": "{}", "spss": "2"})["traces"][0]["spanSets"][0]
    assert (whole["matched"], len(whole["spans"])) == (4, 2)
    with pytest.raises(QueryError, match="limit"):
        tempo.search(sent, {"q": "{}", "limit": "0"})
    with pytest.raises(QueryError, match="start"):
        tempo.search(sent, {"q": "{}", "start": "yesterday"})


@pytest.mark.parametrize("trace_id", ["2", "0" * 31 + "2", "0002"])
def test_a_trace_is_found_by_its_id_with_and_without_leading_zeros(sent: Store, trace_id: str) -> None:
    found = tempo.trace_by_id(sent, trace_id)
    assert found is not None
    names = [span["name"] for one in found for scope in one["scopeSpans"] for span in scope["spans"]]
    assert names == ["llm_request", "queue", "prefill", "decode"]


def test_an_unknown_trace_is_none_and_no_id_is_refused(sent: Store) -> None:
    assert tempo.trace_by_id(sent, "99") is None
    for bad in ("xyz", "1" * 33):
        with pytest.raises(QueryError, match="hex"):
            tempo.trace_by_id(sent, bad)
