"""The boards' queries on a real Prometheus that scrapes every series of the catalogue, and Prometheus' own rules on it.

It proves that the queries find series of these names and labels and that Prometheus computes something from them; what
Grafana draws of it is another matter.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tailkeeper_alerts.groups import GROUPS
from tailkeeper_alerts.render import RULES_PATH, render
from tailkeeper_dashboards.render import render as render_boards
from tailkeeper_dashboards.settings import FLEET_UID
from tests.e2e.real_programs import HttpProgram, wait_until
from tests.e2e.real_programs import prometheus as real_prometheus
from tools import catalogue_page
from tools.catalogue_page import BACKENDS, HUNG, MODEL, MODELS

BOARDS = {path: json.loads(text) for path, text in render_boards().items()}
FLEET = next(board for board in BOARDS.values() if board["uid"] == FLEET_UID)
ONLY_SOMETIMES = {
    "P99 first token (SLO 1.2 s) B": "asks for a P99 beyond the last bucket, and none of the page is",
    "Canary slower? A": "compares revisions of which there were 100 requests, and the page has one revision",
    "Which revision is worse, and by how much? G": "the same; not a number is its word for too few",
    "Which revision is worse, and by how much? I": "the same",
    "Which alerts? F": "no alert fires within the first seconds",
}
"""Queries that rightly find nothing here, each with why."""
OTHER = next(iter(MODELS))
RATE_WINDOW = "8s"
"""Four scrapes of 1 s would do; a loaded machine misses one now and then."""
WARM_UP_SCRAPES = 10
LIMIT_S = 60.0

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProgram]:
    """Prometheus with our rules, after it has scraped the catalogue's page often enough for rate(). Read only, so shared."""
    rules = {"tailkeeper.rules.yml": render()[RULES_PATH]}
    with catalogue_page.server("127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "catalogue", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
        }
        with real_prometheus(config, rules, tmp_path_factory.mktemp("prometheus")) as running:
            scrapes = "sum(count_over_time(up[1m]))"
            wait_until(lambda: _first(running, scrapes) >= WARM_UP_SCRAPES, "enough scrapes", LIMIT_S)
            yield running
        server.shutdown()


def _result(prometheus: HttpProgram, expr: str) -> list[Any]:
    answer = prometheus.get("/api/v1/query", query=expr, time=f"{time.time():.3f}")
    assert answer["status"] == "success", answer
    result: list[Any] = answer["data"]["result"]
    return result


def _first(prometheus: HttpProgram, expr: str) -> float:
    result = _result(prometheus, expr)
    return float(result[0]["value"][1]) if result else 0.0


def _filled(expr: str, backend: str = ".*", model: str = ".*") -> str:
    """The expression as Grafana would send it: every other list is on All, and every text field empty."""
    given = {"backend": backend, "model": model, "cluster": ".*", "canary": ".*", "gpu": "", "price": "1"}
    expr = expr.replace("$__rate_interval", RATE_WINDOW).replace("$__range", RATE_WINDOW)
    return re.sub(r"\$([a-zA-Z_]\w*)", lambda match: given[match[1]], expr)


def _targets(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Those that ask Prometheus; what asks Tempo and Loki is tried by the tool in tools/board_harness."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            if target["datasource"]["type"] == "prometheus":
                yield f"{panel['title']} {target['refId']}", target["expr"]
    # A board marks firing alerts; none of ours fires within the first seconds, so that one has its own test.
    for annotation in board["annotations"]["list"]:
        if annotation["datasource"]["type"] == "prometheus" and "ALERTS" not in annotation["expr"]:
            yield f"annotation {annotation['name']}", annotation["expr"]


@pytest.mark.parametrize("path", sorted(BOARDS))
def test_every_query_of_a_board_is_answered_with_numbers(prometheus: HttpProgram, path: str) -> None:
    asked = dict(_targets(BOARDS[path]))
    values = {where: [float(s["value"][1]) for s in _result(prometheus, _filled(expr))] for where, expr in asked.items()}
    empty = [where for where, found in values.items() if not found or any(value != value for value in found)]
    assert [where for where in empty if where not in ONLY_SOMETIMES] == [], "no data, or NaN"


def test_what_is_said_to_find_nothing_sometimes_is_still_asked_by_a_board() -> None:
    assert set(ONLY_SOMETIMES) <= {where for board in BOARDS.values() for where, _ in _targets(board)}


def test_the_variables_find_models_and_backends(prometheus: HttpProgram) -> None:
    models = sorted({MODEL, *MODELS.values()})
    expected = {"backend": sorted(BACKENDS), "model": models, "canary_revision": ["v1"], "cluster": []}
    for board in BOARDS.values():
        for variable in (v for v in board["templating"]["list"] if v["type"] == "query"):
            metric, label = variable["query"].removeprefix("label_values(").removesuffix(")").split(", ")
            values = prometheus.get(f"/api/v1/label/{label}/values", **{"match[]": metric})["data"]
            assert values == expected[label], label


def test_the_numbers_say_what_the_page_says(prometheus: HttpProgram) -> None:
    exprs = {where: _filled(expr) for where, expr in _targets(FLEET)}
    assert _first(prometheus, exprs["Serving A"]) == len(BACKENDS) - 1
    assert _first(prometheus, exprs["Serving B"]) == 1
    worst = _result(prometheus, exprs["Worst backend A"])
    assert [(series["metric"]["backend"], float(series["value"][1])) for series in worst] == [(HUNG, 0.0)]
    # A quarter of the requests are on the hung backend, whose first tokens all come after 2.5 s; the others' all come in time.
    good = _first(prometheus, exprs["SLA, last hour A"])
    assert 0.7 < good <= 0.75


def test_choosing_a_model_hides_only_backends_that_serve_another(prometheus: HttpProgram) -> None:
    expr = dict(_targets(FLEET))["How healthy is each backend? HScore, lowest 20 A"]
    shown = {series["metric"]["backend"] for series in _result(prometheus, _filled(expr, model=MODELS[OTHER]))}
    assert shown == {OTHER}
    shown = {series["metric"]["backend"] for series in _result(prometheus, _filled(expr, model=f"({MODEL}|nobody's)"))}
    assert shown == set(BACKENDS) - {OTHER}


def test_choosing_two_backends_shows_these_two(prometheus: HttpProgram) -> None:
    expr = dict(_targets(FLEET))["Which backend, and why? C"]
    shown = {series["metric"]["backend"] for series in _result(prometheus, _filled(expr, backend="(sim-a|sim-b)"))}
    assert shown == {"sim-a", "sim-b"}


def test_the_rules_run_without_errors_and_the_hung_backend_is_alerted(prometheus: HttpProgram) -> None:
    def hung() -> bool:
        firing = _result(prometheus, 'ALERTS{alertstate="firing",alertname="BackendHung"}')
        return [series["metric"]["backend"] for series in firing] == [HUNG]

    wait_until(hung, "BackendHung firing", LIMIT_S)
    groups = prometheus.get("/api/v1/rules")["data"]["groups"]
    assert len(groups) == len(GROUPS)
    failed = {rule["name"]: rule["lastError"] for group in groups for rule in group["rules"] if rule["health"] == "err"}
    assert failed == {}
    recorded = _result(prometheus, "llm:time_to_first_token_seconds:p99_5m")
    assert {series["metric"]["backend"] for series in recorded} == set(BACKENDS)
