"""Lints Grafana boards: the rules of Grafana's own dashboard-linter that fit here, and ours about names and units.

    python -m tools.board_lint dashboards/generated/*.json

Reads JSON only, so it judges what Grafana will load and not how it was made. Every message names the panel and says what
is allowed. `job` and `instance` variables and matchers, which dashboard-linter wants, are left out on purpose: the unit
of these boards is the backend, wherever its exporter runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tailkeeper_alerts.promql import CLUSTER
from tailkeeper_dashboards.panels import KEPT_VARIABLES
from tailkeeper_dashboards.prometheus_own import PROMETHEUS_OWN, RECORDED
from tailkeeper_dashboards.settings import NAMES
from tailkeeper_dashboards.variables import SOURCES
from tailkeeper_exporter.catalog import BACKEND, CATALOG, Kind, Metric
from tailkeeper_watchdog.metrics import WATCHDOG_CATALOG
from tools.promql_units import grafana_unit
from tools.promql_walk import Expression, read

Json = dict[str, Any]
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in (*CATALOG, *WATCHDOG_CATALOG, *PROMETHEUS_OWN)}
UIDS = {kind: f"${{{name}}}" for name, _, kind in SOURCES}
"""Each type of data source is named by its variable."""
DATASOURCE_UID = UIDS["prometheus"]
WORDS_ALONE = ("text",)
"""Types of panels that ask nothing."""
COUNTER_FUNCTIONS = ("rate", "irate", "increase")
"""Of a gauge they give nonsense."""
FIXED_WINDOWS = ("last hour", "5 minutes", "this time range")
"""A fixed window is allowed where the title or the description says which."""


def lint(board: Json) -> list[str]:
    """Everything that is wrong with a board; empty when it is good."""
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    findings = [*_board(board), *_variables(board), *_grid(panels)]
    for panel in panels:
        findings.extend(f"panel {panel.get('title')!r}: {finding}" for finding in _panel(panel))
    findings.extend(_links(board))
    for annotation in board["annotations"]["list"]:
        findings.extend(f"annotation {annotation['name']!r}: {finding}" for finding in _annotation(annotation))
    findings.extend(_unknown_variables(board))
    return findings


def _annotation(annotation: Json) -> Iterator[str]:
    yield from _source(annotation)
    if annotation.get("datasource", {}).get("type") == "prometheus":
        yield from _names(read(annotation["expr"]))


def _unknown_variables(board: Json) -> Iterator[str]:
    """A query that names a variable which the board does not have asks for that text itself, and finds nothing."""
    known = {variable["name"] for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            asked = target.get("expr") or target.get("query") or ""
            for name in re.findall(r"\$\{?([a-zA-Z_]\w*)", asked):
                if name not in known and not name.startswith("__"):
                    yield f"panel {panel['title']!r}: query {target['refId']}: there is no variable {name}"


def _board(board: Json) -> Iterator[str]:
    if not re.fullmatch(r"[a-z0-9-]{1,40}", board.get("uid", "")):
        yield "uid: must be 1 to 40 characters of a-z, 0-9 and -"
    if board.get("editable"):
        yield "editable: a generated board is read-only, or its edits are lost at the next start"
    if board.get("id") is not None or "__inputs" in board:
        yield "id and __inputs: must be absent in a provisioned board"
    ids = [panel.get("id") for panel in board["panels"]]
    if None in ids or len(set(ids)) != len(ids):
        yield "panels: each needs an id of its own"


def _variables(board: Json) -> Iterator[str]:
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    sources = [variable for variable in variables.values() if variable["type"] == "datasource"]
    if [(source["name"], source.get("label"), source["query"]) for source in sources] != list(SOURCES):
        yield f"variables: the data sources must be {', '.join(name for name, _, _ in SOURCES)}, with their labels and types"
    if not set(KEPT_VARIABLES) <= set(variables):
        yield f"variables: each board has {', '.join(KEPT_VARIABLES)}, or links lose them"
    for name, variable in variables.items():
        if variable["type"] != "query":
            continue
        if variable.get("datasource", {}).get("uid") != DATASOURCE_UID:
            yield f"variable {name}: its data source must be {DATASOURCE_UID}"
        if variable.get("refresh") != 2 or not variable.get("multi") or variable.get("allValue") != ".*":
            yield f"variable {name}: must refresh on time range, take several values, and have allValue .*"
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("query", ""))
        if not match or match[1] not in BY_NAME or match[2] not in (*BY_NAME[match[1]].label_names, CLUSTER.name):
            yield f"variable {name}: must be label_values(a metric of the catalogue, one of its labels)"


def _links(board: Json) -> Iterator[str]:
    """Every link to a board names one that there is, and carries what all boards have."""
    for uid, query in (found for text in _texts(board) for found in re.findall(r"^/d/([a-z0-9-]+)(.*)$", text)):
        if uid not in NAMES:
            yield f"link to {uid}: there is no such board"
        for name in KEPT_VARIABLES:
            if f"${{{name}:queryparam}}" not in query and f"var-{name}=" not in query:
                yield f"link to {uid}: loses the variable {name}"
        if "${__url_time_range}" not in query and not re.search("[?&](from|time)=", query):
            yield f"link to {uid}: loses the time"


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, (dict, list)):
        for item in node.values() if isinstance(node, dict) else node:
            yield from _texts(item)


def _grid(panels: list[Json]) -> Iterator[str]:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            yield f"panel {panel['title']!r}: reaches beyond the 24 columns"
        for cell in (
            (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
        ):
            if taken.setdefault(cell, panel["title"]) != panel["title"]:
                yield f"panel {panel['title']!r}: lies over {taken[cell]!r}"
                break


def _panel(panel: Json) -> Iterator[str]:
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    if not panel.get("title"):
        yield "title: missing"
    if not re.fullmatch(r"[A-Z].*[^.]\.", panel.get("description", "")):
        yield "description: must be one sentence"
    if not defaults.get("noValue"):
        yield "noValue: missing; an empty panel must say why"
    if not panel.get("links"):
        yield "links: missing"
    yield from _source(panel)
    if defaults.get("thresholds", {}).get("steps", [{}])[0].get("color") not in ("text", "#8e8e8e"):
        yield "thresholds: the base colour must be neutral; green is earned by data"
    if not panel.get("targets") and panel["type"] not in WORDS_ALONE:
        yield "targets: none"
    for target in panel.get("targets", []):
        yield from (f"query {target['refId']}: {finding}" for finding in _target(panel, target))


def _source(asking: Json) -> Iterator[str]:
    """A panel or a query asks the data source that its variable names. One panel may ask several (``-- Mixed --``)."""
    found = asking.get("datasource", {})
    allowed = {**UIDS, "datasource": "-- Mixed --"}
    if found.get("uid") != allowed.get(found.get("type", ""), ""):
        yield f"datasource: must be one of {', '.join(UIDS.values())}, of its type"


def _target(panel: Json, target: Json) -> Iterator[str]:
    yield from _source(target)
    if target.get("datasource", {}).get("type") != "prometheus":
        return  # The grammars of LogQL and TraceQL are checked by the tool in tools/board_harness.
    try:
        expression = read(target["expr"])
    except ValueError as error:
        yield f"PromQL: {error}"
        return
    yield from _names(expression)
    yield from _windows(panel, expression)
    yield from _unit(panel, target, expression)
    over_time = not target.get("instant") and "histogram_quantile" in expression.functions
    if over_time and not any(other.get("exemplar") for other in panel["targets"]):
        yield "exemplar: a quantile over time shows single requests; set exemplar"


def _names(expression: Expression) -> Iterator[str]:
    for selector in expression.selectors:
        labels = _labels(selector.name)
        if labels is None:
            yield f"{selector.name}: is not in the catalogue"
            continue
        for label in selector.labels:
            if label not in labels:
                yield f"{selector.name}: has no label {label!r}; it has {', '.join(labels)}"
    known = {label for selector in expression.selectors for label in _labels(selector.name) or ()}
    for label in expression.grouping:
        if label not in known:
            yield f"by ({label}): none of its metrics has this label"


def _labels(name: str) -> tuple[str, ...] | None:
    metric = metric_of(name)
    if metric is None:
        return (CLUSTER.name, BACKEND.name) if name == RECORDED else None
    names = (*metric.label_names, CLUSTER.name)
    return (*names, "le") if name.endswith("_bucket") else names


def metric_of(name: str) -> Metric | None:
    """The catalogue's metric behind a series name; a histogram is only ever read by its parts."""
    if name in BY_NAME:
        return BY_NAME[name] if BY_NAME[name].kind is not Kind.HISTOGRAM else None
    base = re.sub("_(bucket|count|sum)$", "", name)
    metric = BY_NAME.get(base)
    return metric if base != name and metric is not None and metric.kind is Kind.HISTOGRAM else None


def _windows(panel: Json, expression: Expression) -> Iterator[str]:
    said = f"{panel.get('title')} {panel.get('description')}"
    for call in expression.windows:
        name = call.metric
        metric = metric_of(name)
        if metric is not None and metric.kind is Kind.GAUGE and call.function in COUNTER_FUNCTIONS:
            yield f"{call.function}({name}): is a gauge"
        if call.window != "$__rate_interval" and not any(window in said for window in FIXED_WINDOWS):
            yield f"[{call.window}]: must be $__rate_interval, or the title must say the window"
    ranged = {call.metric for call in expression.windows}
    for name in sorted(expression.valued - ranged):
        metric = metric_of(name)
        if metric is not None and metric.kind is not Kind.GAUGE:
            yield f"{name}: a counter is read by rate() or increase()"


def _unit(panel: Json, target: Json, expression: Expression) -> Iterator[str]:
    wanted = expected_unit(expression)
    unit = _declared_unit(panel, target)
    if unit is None:
        yield "unit: missing"
    elif wanted is not None and unit != wanted:
        yield f"unit: is {unit!r}; the query gives {wanted!r}"


def _declared_unit(panel: Json, target: Json) -> str | None:
    """The unit of the column that a table's query fills, else the panel's."""
    fallback: str | None = panel["fieldConfig"]["defaults"].get("unit")
    fallback = _override(panel, {"id": "byFrameRefID", "options": target["refId"]}) or fallback
    organize = [t["options"] for t in panel.get("transformations", []) if t["id"] == "organize"]
    if not organize:
        return fallback
    header = organize[0]["renameByName"].get(f"Value #{target['refId']}")
    return _override(panel, {"id": "byName", "options": header}) or fallback


def _override(panel: Json, matcher: Json) -> str | None:
    """The unit that an override gives what ``matcher`` matches."""
    units = (
        str(given["value"])
        for override in panel["fieldConfig"].get("overrides", [])
        if override["matcher"] == matcher
        for given in override["properties"]
        if given["id"] == "unit"
    )
    return next(units, None)


def expected_unit(expression: Expression) -> str | None:
    """The unit that a query's values have by the catalogue; None where it says nothing (constants)."""
    return grafana_unit(expression.text, BY_NAME)


def main(paths: list[str]) -> int:
    found = [f"{path}: {finding}" for path in paths for finding in lint(json.loads(Path(path).read_text(encoding="utf-8")))]
    print("\n".join(found) or f"{len(paths)} boards, nothing found")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
