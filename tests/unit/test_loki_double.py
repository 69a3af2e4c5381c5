"""The double of Loki answers as Loki's documentation says, and refuses what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sent_telemetry import AT_S, GPU, request, store
from tools.doubles import loki
from tools.doubles.lexing import QueryError
from tools.doubles.logql import parse
from tools.doubles.store import Store

TAP = '{service_name="tailkeeper-tap"}'
WHOLE = {"start": str(AT_S), "end": str(AT_S + 60)}


@pytest.fixture
def sent() -> Store:
    slow, failed = request(1, backend="sim-a", ttft_s=4.0), request(2, outcome="error")
    return store(request(0), slow, failed)


def _lines(sent: Store, query: str, flags: str = "", **more: str) -> list[dict[str, Any]]:
    answer = loki.query_range(sent, {"query": query, **WHOLE, **more}, flags)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def _ids(sent: Store, query: str, **more: str) -> list[str]:
    return [stream["stream"]["gen_ai_request_id"] for stream in _lines(sent, query, **more)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (TAP, ["r-1", "r-2", "r-0"]),
        ('{service_name=~"tailkeeper-.+"} | gen_ai_request_id="r-1"', ["r-1"]),
        ('{service_name="someone"}', []),
        ('{service_name=~".+", service_name!="someone"}', ["r-1", "r-2", "r-0"]),
        (f'{TAP} | tailkeeper_outcome!="ok"', ["r-2"]),
        (f'{TAP} | gen_ai_request_id=~"r-[01]" | tailkeeper_backend=`sim-b`', ["r-0"]),
        (f'{TAP} | gen_ai_request_id=~"1"', []),
        (f"{TAP} | tailkeeper_ttft_s > 1", ["r-1"]),
        (f"{TAP} | tailkeeper_ttft_s <= 200ms", ["r-2", "r-0"]),
        (f"{TAP} | nothing > 1", []),
        (f'{TAP} | nothing=""', ["r-1", "r-2", "r-0"]),
        (f'{TAP} |= "sim-a"', ["r-1"]),
        (f'{TAP} != "sim-a" !~ "r-[2]"', ["r-0"]),
        (f'{TAP} |~ "r-[12]"', ["r-1", "r-2"]),
        (f'{TAP} | gen_ai_request_id="r-0" or tailkeeper_ttft_s > 1', ["r-1", "r-0"]),
        (f'{TAP} | (gen_ai_request_id="r-0" or tailkeeper_ttft_s > 1) and tailkeeper_backend="sim-b"', ["r-0"]),
        (f'{TAP} | detected_level="warn"', ["r-2"]),
        (f'{TAP} | json | request_id="r-1"', ["r-1"]),
    ],
)
def test_stages_pass_the_lines_they_name_newest_first(sent: Store, query: str, found: list[str]) -> None:
    assert _ids(sent, query) == found


@pytest.mark.parametrize(
    "query",
    [
        "",
        "{",
        "{}",
        '{a=~".*"}',
        '{a="b"} |',
        '{a="b"} | c',
        '{a="b"} | logfmt',
        '{a="b"} | c > "d"',
        '{a="b"} | c =~ 1',
        '{a="b"} |~ "("',
        '{a="b"} | line_format "{{.x | upper}}"',
        'quantile_over_time({a="b"} | unwrap c [5m])',
        'quantile_over_time(2, {a="b"} | unwrap c [5m])',
        'avg_over_time({a="b"}[5m])',
        'count_over_time({a="b"} | unwrap c [5m])',
        '{a="b"} | unwrap c',
        'stddev_over_time({a="b"} | unwrap c [5m])',
        'count_over_time({a="b"})',
        'sum by (x) (rate({a="b"}[5m])) / 2',
        '{a="b"} [5m]',
        '{a="b"} | ' + "(" * 4_000,
        "sum(" * 1_000,
    ],
)
def test_a_query_that_is_wrong_or_not_known_is_refused_with_words(query: str) -> None:
    with pytest.raises(QueryError, match=r"\w+"):
        parse(query)


def test_what_came_over_otlp_is_metadata_with_underscores_and_the_service_alone_a_label(sent: Store) -> None:
    stream = _lines(sent, f'{TAP} | gen_ai_request_id="r-1"', loki.CATEGORIZE)[0]
    assert stream["stream"] == {"service_name": "tailkeeper-tap"}
    at_ns, line, beside = stream["values"][0]
    assert at_ns == f"{AT_S + 6}300000000"
    assert '"request_id":"r-1"' in line
    wanted = {
        "trace_id": "0" * 31 + "2",
        "gpu_uuid": GPU,
        "tailkeeper_ttft_s": "4",
        "severity_text": "INFO",
        "detected_level": "info",
    }
    assert wanted.items() <= beside["structuredMetadata"].items()
    assert loki.label_names(sent, WHOLE)["data"] == ["service_name"]
    assert loki.label_values(sent, "service_name", WHOLE)["data"] == ["tailkeeper-tap"]


def test_without_grafanas_header_metadata_are_labels_of_the_stream(sent: Store) -> None:
    stream = _lines(sent, f'{TAP} | gen_ai_request_id="r-1"')[0]
    assert stream["stream"]["trace_id"] == "0" * 31 + "2"
    assert len(stream["values"][0]) == 2


def test_limit_direction_and_range_are_kept(sent: Store) -> None:
    assert _ids(sent, TAP, limit="1") == ["r-1"]
    assert _ids(sent, TAP, limit="1", direction="forward") == ["r-0"]
    assert _ids(sent, TAP, end=f"{AT_S + 3}000000000") == ["r-0"]
    for wrong in ({"limit": "0"}, {"limit": "9999"}, {"start": "yesterday"}):
        with pytest.raises(QueryError, match=r"limit|start"):
            loki.query_range(sent, {"query": TAP, **WHOLE, **wrong})


def test_a_line_can_be_written_anew(sent: Store) -> None:
    stream = _lines(sent, f'{TAP} | gen_ai_request_id="r-1" | line_format "{{{{.tailkeeper_backend}}}}: {{{{ .nothing }}}}!"')[0]
    assert stream["values"][0][1] == "sim-a: !"


def test_lines_are_counted_by_labels_over_a_range(sent: Store) -> None:
    query = f"sum by (tailkeeper_backend) (count_over_time({TAP} [1m]))"
    at = {"query": query, "time": str(AT_S + 30)}
    counted = {r["metric"]["tailkeeper_backend"]: r["value"][1] for r in loki.query_instant(sent, at)["data"]["result"]}
    assert counted == {"sim-a": "1", "sim-b": "2"}
    series = loki.query_range(sent, {"query": f"count(rate({TAP}[4s]))", **WHOLE, "step": "2s"})["data"]
    assert series["resultType"] == "matrix"
    assert [value for _, value in series["result"][0]["values"]] == ["1", "2", "1", "1", "1"]


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("quantile_over_time(0.5, ", "0.2"),
        ("max_over_time(", "4"),
        ("sum_over_time(", "4.4"),
        ("quantile_over_time(0.75, ", "2.1"),
    ],
)
def test_the_numbers_of_a_label_are_taken_over_a_range(sent: Store, function: str, value: str) -> None:
    query = f"{function}{TAP} | unwrap tailkeeper_ttft_s [1m]) by (service_name)"
    result = loki.query_instant(sent, {"query": query, "time": str(AT_S + 30)})["data"]["result"]
    assert [(one["metric"], one["value"][1]) for one in result] == [({"service_name": "tailkeeper-tap"}, value)]
    other = loki.query_instant(sent, {"query": query.replace("ttft_s", "backend"), "time": str(AT_S + 30)})
    assert other["data"]["result"] == [], "what is no number has no value"


def test_lines_alone_are_no_instant_query(sent: Store) -> None:
    with pytest.raises(QueryError, match="instant query"):
        loki.query_instant(sent, {"query": TAP})


def test_a_step_that_gives_too_many_points_is_refused(sent: Store) -> None:
    with pytest.raises(QueryError, match="points"):
        loki.query_range(sent, {"query": f"count_over_time({TAP}[1m])", "start": "0", "end": str(AT_S), "step": "1s"})
