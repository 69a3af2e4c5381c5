"""Queries for single requests: they ask for what our spans and log lines really carry, and an empty field chooses nobody."""

from __future__ import annotations

import json
import re

import pytest

from tailkeeper_dashboards import requests, style
from tailkeeper_dashboards.render import render
from tailkeeper_dashboards.request_tables import AROUND_MS, LINE_FIELDS, SPAN_FIELDS, Fields, request_url
from tailkeeper_exporter.otlp.attributes import read
from tailkeeper_exporter.otlp.spans import log_of, spans_of
from tests.unit.otlp_messages import an_exchange

ROOT_CAUSE = json.loads(render()["dashboards/generated/tailkeeper-root-cause.json"])
SENT = spans_of(an_exchange(), "GPU-1", "vllm")
LOGGED = log_of(an_exchange(), "GPU-1")


def test_every_attribute_that_traces_are_asked_for_is_one_that_our_spans_have() -> None:
    assert SENT is not None
    whole, *stages = SENT.resource_spans[0].scope_spans[0].spans
    asked = set(re.findall(r"span\.([a-z_.]+)", requests.slow_spans(1.2) + requests.stages_of_request()))
    assert asked == set(requests.SHOWN)
    assert asked <= set(read(whole.attributes))
    assert re.findall('name = "([a-z_]+)"', requests.slow_spans(1.2)) == [whole.name]
    assert re.findall(r'name =~ "(.+?)" }$', requests.stages_of_request()) == ["|".join(stage.name for stage in stages)]


def test_every_label_that_logs_are_asked_for_is_one_that_loki_makes_of_our_records() -> None:
    group = LOGGED.resource_logs[0]
    labels = {requests.label(name) for name in read(group.scope_logs[0].log_records[0].attributes)} | {"trace_id"}
    asked = set(re.findall(r"([a-z_]+) (?:=~|!=|>|=) ", requests.slow_lines(1.2) + requests.lines_of_request()))
    assert asked <= labels
    assert f'service_name="{read(group.resource.attributes)["service.name"]}"' in requests.slow_lines(1.2)


@pytest.mark.parametrize(
    ("typed", "request_id", "found"),
    [
        ("", "req-1", False),
        ("", "", True),  # which no request has, and the log's query says so besides
        ("req-1", "req-1", True),
        ("req-1", "cmpl-req-1", True),
        ("req-1", "chatcmpl-req-1", True),
        ("req-1", "req-12", False),
        ("cmpl-req-1", "cmpl-req-1", True),
    ],
)
def test_a_typed_id_chooses_its_request_with_and_without_an_engines_prefix(typed: str, request_id: str, found: bool) -> None:
    pattern = requests.TYPED.replace("$request_id", typed)
    assert bool(re.fullmatch(pattern, request_id)) is found


def test_while_nothing_is_typed_no_line_is_a_requests() -> None:
    assert requests.lines_of_request().count('!= ""') == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.2, "1.2"), (0.00001, "0.00001"), (30.0, "30"), (1e6, "1000000"), (0.25, "0.25")]
)
def test_a_promise_in_a_query_has_no_exponent(seconds: float, text: str) -> None:
    assert style.seconds_in_query(seconds) == text


@pytest.mark.parametrize("fields", [SPAN_FIELDS, LINE_FIELDS], ids=["traces", "log"])
def test_a_row_chooses_its_request_trace_backend_and_gpu_and_the_minutes_around_it(fields: Fields) -> None:
    url = request_url(fields)
    own = {variable["name"] for variable in ROOT_CAUSE["templating"]["list"]}
    set_by_row = dict(re.findall(r'&var-(\w+)=\$\{__data\.fields\["([^"]+)"\]', url))
    assert set_by_row == {
        "request_id": fields.request,
        "trace_id": fields.trace,
        "backend": fields.backend,
        "gpu": fields.gpu,
    }
    assert set(set_by_row) <= own
    assert url.endswith(f'&time=${{__data.fields["{fields.when}"].numeric}}&time.window={AROUND_MS}')
    assert "${__url_time_range}" not in url


def test_an_empty_gpu_means_every_gpu_of_the_backend_and_a_whole_uuid_that_one() -> None:
    asked = [t["expr"] for p in ROOT_CAUSE["panels"] for t in p.get("targets", []) if "llm_gpu_" in t.get("expr", "")]
    assert len(asked) == 5
    assert all('gpu=~"$gpu.*"' in expr for expr in asked)
