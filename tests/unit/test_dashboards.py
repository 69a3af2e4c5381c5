"""Boards: the same bytes each time, every key and value known to Grafana's models, and a lint that can fail."""

from __future__ import annotations

import copy
import json
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_dashboards import boards, style
from tailkeeper_dashboards.render import FOLDER, render
from tailkeeper_dashboards.settings import FLEET_UID, NAMES, ROOT_CAUSE_UID, BoardSettings
from tailkeeper_exporter.catalog import CATALOG, LATENCY, OUTCOMES, REQUESTS, STATE, TTFT, Kind
from tailkeeper_watchdog.metrics import WATCHDOG_CATALOG
from tests.unit.grafana_models import lost_or_changed, needs_schemas, schema_errors, set_at
from tools.board_lint import expected_unit, lint
from tools.promql_walk import read

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
FLEET = f"{FOLDER}/{FLEET_UID}.json"
BOARDS: dict[str, Json] = {json.loads(text)["uid"]: json.loads(text) for text in render().values()}
"""By uid; whoever changes one takes a copy."""


@pytest.fixture
def fleet() -> Json:
    return copy.deepcopy(BOARDS[FLEET_UID])


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render() == render()


@pytest.mark.parametrize("path", sorted(render()))
def test_the_committed_board_is_what_is_generated(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == render()[path]


def test_the_slo_of_the_caller_reaches_lines_columns_and_texts() -> None:
    text = render(BoardSettings(slo_ttft_s=0.8, objective=0.99))[FLEET]
    for part in ("vector(0.8)", "SLO 800 ms", "99.0% is promised", "vector(0.01)", "allowed 1.00%", '"value": 0.99'):
        assert part in text
    assert "1.2" not in text


def test_every_board_has_the_uid_of_the_contract_and_a_name_in_the_menu() -> None:
    uids = [json.loads(text)["uid"] for text in render().values()]
    assert set(uids) <= set(NAMES)


def test_every_module_of_the_boards_folder_is_listed() -> None:
    folder = {module.name for module in pkgutil.iter_modules(boards.__path__)}
    assert folder == {build.__module__.rpartition(".")[2] for build in boards.BOARDS}


def test_states_outcomes_and_colours_cover_the_catalogue() -> None:
    assert all(state.name in STATE.meaning for state in style.STATES)
    assert len(style.STATES) == STATE.bound
    assert sorted(state.rank for state in style.STATES) == list(range(1, STATE.bound + 1))
    assert set(style.OUTCOME_COLORS) == set(OUTCOMES)


@pytest.mark.parametrize("metric", [*CATALOG, *WATCHDOG_CATALOG], ids=lambda metric: metric.name)
def test_every_metric_has_a_unit_and_ratios_are_shares(metric: Any) -> None:
    unit = style.unit_of(metric)
    assert unit
    if metric.name.endswith("_ratio"):
        assert unit == "percentunit"
    if metric.kind is Kind.COUNTER:
        assert style.rate_unit_of(metric)


def test_a_rate_of_a_gauge_or_a_histogram_has_no_unit() -> None:
    with pytest.raises(ValueError, match="rate\\(\\) wants a counter"):
        style.rate_unit_of(TTFT)


# --- what Grafana will make of it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", sorted(BOARDS))
def test_the_sdk_reads_back_what_it_wrote(uid: str) -> None:
    assert lost_or_changed(BOARDS[uid]) == []


@pytest.mark.parametrize("uid", sorted(BOARDS))
def test_a_key_that_grafana_does_not_know_does_not_survive_the_round_trip(uid: str) -> None:
    for path in (
        "panels.0.fieldConfig.defaults.unitt",
        "panels.1.targets.0.exprr",
        "templating.list.4.multii",
        "panels.2.gridPos.q",
    ):
        board = copy.deepcopy(BOARDS[uid])
        set_at(board, path, "x")
        assert any(found.startswith("lost") for found in lost_or_changed(board)), path


@needs_schemas
@pytest.mark.parametrize("uid", sorted(BOARDS))
def test_a_board_follows_grafanas_own_schemas(uid: str) -> None:
    assert list(schema_errors(BOARDS[uid])) == []


@needs_schemas
@pytest.mark.parametrize(
    ("uid", "path", "value"),
    [
        (FLEET_UID, "panels.0.gridPos.w", "six"),
        (FLEET_UID, "panels.0.options.colorMode", "sideways"),
        (FLEET_UID, "panels.7.targets.0.expr", 7),
        (FLEET_UID, "panels.9.options.showValue", "sometimes"),
        (FLEET_UID, "refresh", 10),
        (ROOT_CAUSE_UID, "panels.5.targets.0.tableType", "rows"),
        (ROOT_CAUSE_UID, "panels.6.targets.0.maxLines", "many"),
        (ROOT_CAUSE_UID, "panels.7.options.stacking", "sometimes"),
        (ROOT_CAUSE_UID, "panels.10.options.sortOrder", "Sideways"),
    ],
)
def test_a_value_of_a_wrong_type_or_name_breaks_the_schema(uid: str, path: str, value: object) -> None:
    board = copy.deepcopy(BOARDS[uid])
    set_at(board, path, value)
    assert list(schema_errors(board))


# --- the lint --------------------------------------------------------------------------------------------------------


def test_the_lint_finds_nothing_in_our_boards() -> None:
    assert {path: lint(json.loads(text)) for path, text in render().items()} == {path: [] for path in render()}


def _panel(board: Json, title: str) -> Json:
    return next(panel for panel in board["panels"] if panel["title"].startswith(title))


def _variable(board: Json, name: str) -> Json:
    return next(variable for variable in board["templating"]["list"] if variable["name"] == name)


def _expr(board: Json, title: str, change: Callable[[str], str], index: int = 0) -> None:
    target = _panel(board, title)["targets"][index]
    target["expr"] = change(target["expr"])


MUTATIONS: dict[str, tuple[Callable[[Json], object], str]] = {
    "a metric that nobody emits": (
        lambda b: _expr(b, "Our actions", lambda e: e.replace("tailkeeper_paused", "tailkeeper_is_paused"), 1),
        "not in the catalogue",
    ),
    "an engine's own name": (
        lambda b: _expr(b, "How long", lambda e: e.replace("llm_time_to_first_token_seconds_bucket", "vllm:ttft_bucket")),
        "not in the catalogue",
    ),
    "a histogram without its part": (
        lambda b: _expr(b, "Which", lambda e: e.replace("_seconds_count", "_seconds"), 4),
        "not in the catalogue",
    ),
    "a label that the metric does not have": (
        lambda b: _expr(b, "Worst", lambda e: e.replace('{cluster=~"$cluster",backend', '{model=~"$model",backend', 1)),
        "has no label 'model'",
    ),
    "a grouping by a label that no metric has": (
        lambda b: _expr(b, "How many", lambda e: e.replace("by (outcome)", "by (status)")),
        "by (status)",
    ),
    "a bracket left open": (lambda b: _expr(b, "SLA", lambda e: e[:-1]), "PromQL"),
    "a rate of a gauge": (
        lambda b: _expr(b, "Our actions", lambda e: "sum(rate(tailkeeper_leases_in_force[$__rate_interval]))"),
        "is a gauge",
    ),
    "a counter that is summed": (lambda b: _expr(b, "How many", lambda e: "sum(llm_requests_total)"), "read by rate()"),
    "a window shorter than two scrapes": (
        lambda b: _expr(b, "How long", lambda e: e.replace("$__rate_interval", "$__interval")),
        "unknown window",
    ),
    "a fixed window that nobody is told of": (
        lambda b: _expr(b, "How long", lambda e: e.replace("$__rate_interval", "2m")),
        "must be $__rate_interval",
    ),
    "seconds shown as milliseconds": (
        lambda b: _panel(b, "How long")["fieldConfig"]["defaults"].update(unit="ms"),
        "the query gives 's'",
    ),
    "a share multiplied by 100 twice": (
        lambda b: _panel(b, "Who fails")["fieldConfig"]["defaults"].update(unit="percent"),
        "the query gives 'percentunit'",
    ),
    "a column with the wrong unit": (
        lambda b: next(o for o in _panel(b, "Which")["fieldConfig"]["overrides"] if o["matcher"]["options"] == "KV").update(
            properties=[{"id": "unit", "value": "s"}]
        ),
        "the query gives 'percentunit'",
    ),
    "a missing description": (lambda b: _panel(b, "Worst").pop("description"), "description"),
    "a description of several words and no sentence": (
        lambda b: _panel(b, "Worst").update(description="worst one"),
        "description",
    ),
    "a missing title": (lambda b: _panel(b, "Worst").update(title=""), "title: missing"),
    "no word for no data": (lambda b: _panel(b, "SLA")["fieldConfig"]["defaults"].pop("noValue"), "noValue"),
    "green before there is data": (
        lambda b: _panel(b, "SLA")["fieldConfig"]["defaults"]["thresholds"]["steps"][0].update(color="green"),
        "base colour",
    ),
    "somebody else's data source": (
        lambda b: _panel(b, "SLA")["datasource"].update(uid="P1809F7CD0C75ACF3"),
        "datasource: must be one of ${datasource}",
    ),
    "a query without a data source": (lambda b: _panel(b, "SLA")["targets"][0].pop("datasource"), "query A: datasource: must be"),
    "two panels in one place": (lambda b: _panel(b, "Worst")["gridPos"].update(x=0), "lies over"),
    "a panel beyond the edge": (lambda b: _panel(b, "Our actions")["gridPos"].update(w=6), "24 columns"),
    "a panel without a link": (lambda b: _panel(b, "SLA").pop("links"), "links: missing"),
    "no exemplars on a quantile": (lambda b: _panel(b, "How long")["targets"][0].pop("exemplar"), "exemplar"),
    "an editable board": (lambda b: b.update(editable=True), "editable"),
    "a data source variable of another name": (lambda b: b["templating"]["list"][0].update(name="DS_PROM"), "data source"),
    "a variable of a label that the metric lacks": (
        lambda b: _variable(b, "model").update(query="label_values(llm_backend_up, model)"),
        "label_values",
    ),
    "a variable that drops what has no model": (lambda b: _variable(b, "model").update(allValue=".+"), "allValue"),
    "an annotation of a metric that nobody emits": (
        lambda b: b["annotations"]["list"][0].update(expr="tailkeeper_nothing == 1"),
        "not in the catalogue",
    ),
    "a link to a board that there is not": (
        lambda b: b["links"][0].update(url=b["links"][0]["url"].replace("tailkeeper-", "llm-")),
        "no such board",
    ),
    "a link that loses the data source": (
        lambda b: b["links"][0].update(url=b["links"][0]["url"].replace("${tempo:queryparam}", "")),
        "loses the variable tempo",
    ),
    "a link that loses the time": (
        lambda b: b["links"][0].update(url=b["links"][0]["url"].replace("${__url_time_range}", "")),
        "loses the time",
    ),
    "a board without a variable that others hand on": (
        lambda b: b["templating"].update(list=[v for v in b["templating"]["list"] if v["name"] != "canary"]),
        "each board has",
    ),
    "two panels with one id": (lambda b: b["panels"][1].update(id=1), "id of its own"),
}


ROOT_CAUSE_MUTATIONS: dict[str, tuple[Callable[[Json], object], str]] = {
    "a search in traces that asks Loki": (
        lambda b: _panel(b, "Which request")["targets"][0].update(datasource={"type": "loki", "uid": "${tempo}"}),
        "query A: datasource",
    ),
    "a query of a mixed panel that names no source": (
        lambda b: _panel(b, "Where did its time")["targets"][1].pop("datasource"),
        "query B: datasource",
    ),
    "a log panel with a fixed source": (lambda b: _panel(b, "What was logged")["datasource"].update(uid="loki"), "datasource"),
    "a variable that the board does not have": (
        lambda b: b["templating"].update(list=[v for v in b["templating"]["list"] if v["name"] != "request_id"]),
        "there is no variable request_id",
    ),
    "a row's link that loses the backend": (
        lambda b: _link_of(b, "Which request", lambda url: url.replace("&var-backend=", "&backend=")),
        "loses the variable backend",
    ),
    "a row's link that loses the time": (
        lambda b: _link_of(b, "Which request", lambda url: url.replace("&time=", "&at=")),
        "loses the time",
    ),
    "an annotation from somebody's data source": (
        lambda b: b["annotations"]["list"][2]["datasource"].update(uid="loki"),
        "annotation 'This request': datasource",
    ),
    "a number of requests that is shown in seconds": (
        lambda b: [o["properties"].pop(0) for o in _panel(b, "P99")["fieldConfig"]["overrides"]],
        "query C: unit",
    ),
}


def _link_of(board: Json, title: str, change: Callable[[str], str]) -> None:
    for override in _panel(board, title)["fieldConfig"]["overrides"]:
        for given in override["properties"]:
            if given["id"] == "links":
                given["value"][0]["url"] = change(given["value"][0]["url"])


@pytest.mark.parametrize(
    ("uid", "name"),
    [*((FLEET_UID, name) for name in sorted(MUTATIONS)), *((ROOT_CAUSE_UID, name) for name in sorted(ROOT_CAUSE_MUTATIONS))],
)
def test_the_lint_is_red_for(uid: str, name: str) -> None:
    mutate, message = (MUTATIONS if uid == FLEET_UID else ROOT_CAUSE_MUTATIONS)[name]
    board = copy.deepcopy(BOARDS[uid])
    mutate(board)
    assert board != BOARDS[uid]
    assert any(message in finding for finding in lint(board)), lint(board)


@pytest.mark.parametrize(
    ("expr", "unit"),
    [
        (f"{REQUESTS.name} / {REQUESTS.name}", "percentunit"),
        (f"sum(rate({REQUESTS.name}[$__rate_interval]))", "reqps"),
        (f"increase({LATENCY.name}_count[5m])", "short"),
        ("topk(3, histogram_quantile(0.5, rate(llm_time_to_first_token_seconds_bucket[5m])) and x > 0)", "s"),
        ("count(llm_backend_up == 1)", "short"),
        ("sum(tailkeeper_desired_weight < bool 1)", "short"),
        ("avg(llm_gpu_memory_used_bytes)", "bytes"),
        ("rate(llm_generated_tokens_total[5m])", "count:tok/s"),
        ("vector(1.2)", None),
    ],
)
def test_the_unit_of_a_query_follows_from_the_catalogue(expr: str, unit: str | None) -> None:
    assert expected_unit(read(expr)) == unit
