"""Every query of every board and rule is what its language's own grammar takes; and what is not, is found."""

from __future__ import annotations

import json

import pytest
import yaml

from tailkeeper_alerts.render import render as render_rules
from tailkeeper_dashboards.render import render as render_boards
from tests.e2e.board_rendering.conftest import missing
from tools.board_grammar import Expression, expressions, wrong

pytestmark = pytest.mark.real

WRONG = (
    ("promql", "sum(rate(x[5m])"),
    ("promql", "x{a=~}"),
    ("logql", '{a="b"} | c='),
    ("logql", 'sum by (a (rate({a="b"}[5m]))'),
    ("traceql", '{ span.a = "b" && }'),
    ("traceql", '{ span.a = "b" | select(span.c)'),
)


def _wrong(found: list[Expression]) -> list[str]:
    try:
        return wrong(found)
    except FileNotFoundError as error:
        missing(str(error))


def _rules() -> list[Expression]:
    documents = [(path, yaml.safe_load(text)) for path, text in render_rules().items() if path.endswith(".rules.yml")]
    groups = [(path, group) for path, document in documents for group in document["groups"]]
    return [Expression(f"{path}, {group['name']}", "promql", rule["expr"]) for path, group in groups for rule in group["rules"]]


def test_every_query_of_boards_and_rules_is_of_its_language() -> None:
    found = [one for text in render_boards().values() for one in expressions(json.loads(text))]
    assert {one.lang for one in found} == {"promql", "logql", "traceql"}
    assert _wrong([*found, *_rules()]) == []


def test_what_is_not_of_its_language_is_found_and_where() -> None:
    found = _wrong([Expression(text, lang, text) for lang, text in WRONG])
    assert len(found) == len(WRONG), found
    assert all("wrong at character" in sentence for sentence in found)
