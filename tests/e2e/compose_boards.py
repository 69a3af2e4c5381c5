"""Every board's queries to Prometheus and every rule, on the compose stack. Standard library only; run by compose_probe.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.compose_stack import published, query
from tools.boards.rightly_empty import RIGHTLY_EMPTY

ROOT = Path(__file__).parents[2]
BOARDS, RULES = ROOT / "dashboards/generated", ROOT / "alerts/generated"
ONE_REVISION = "compares revisions, and the stack's engines are all of one"
EMPTY_HERE = {
    ("tailkeeper-backend", "What held its clocks back? A"): "the probe freezes an engine; no GPU is held back",
    ("tailkeeper-canary", "Canary slower? A"): ONE_REVISION,
    ("tailkeeper-watchdog", "Whose changes were refused? Last hour A"): "one policy enforces one change, and no guard minds it",
}
"""What finds nothing here and does in the demo that RIGHTLY_EMPTY is about; by board and query, each with why."""
Where = tuple[str, str]
"""A board's uid, and its query: the title of the panel and the letter."""


def _value(name: str) -> str:
    """What Grafana puts in for a variable when a board is opened: every list is on All, every text field empty."""
    return {"rate_interval": "30s", "range": "5m", "gpu": "", "price": "1"}.get(name.removeprefix("__"), ".*")


def filled(expr: str) -> str:
    return re.sub(r"\$([a-zA-Z_]\w*)", lambda match: _value(match[1]), expr)


def _asked(board: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(panel, panel and letter, expression) of everything that a board asks Prometheus for its panels."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            if target["datasource"]["type"] == "prometheus":
                yield panel["title"], f"{panel['title']} {target['refId']}", filled(target["expr"])


def board_queries() -> dict[Where, str]:
    """Of all boards; what is known to find nothing here is left out."""
    excused = RIGHTLY_EMPTY.keys() | EMPTY_HERE.keys()
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(BOARDS.glob("*.json"))]
    return {
        (board["uid"], where): expr
        for board in boards
        for title, where, expr in _asked(board)
        if not {(board["uid"], title), (board["uid"], where)} & excused
    }


def boards_have_data() -> tuple[bool, object]:
    """Each query finds a series with a number; NaN is Prometheus' word for nothing to divide by."""
    empty = [where for where, expr in board_queries().items() if not any(value == value for value in _values(expr))]
    return not empty, empty


def _values(expr: str) -> list[float]:
    return [float(series["value"][1]) for series in query(expr)]


def rules_run() -> tuple[bool, object]:
    """Every group of the mounted files was evaluated, and no rule failed."""
    groups = published("prometheus", 9090, "/api/v1/rules")["data"]["groups"]
    missing = group_names() - {group["name"] for group in groups}
    rules = [rule for group in groups for rule in group["rules"]]
    unwell = [(rule["name"], rule["health"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"]
    return not missing and not unwell, (sorted(missing), unwell)


def group_names() -> set[str]:
    """Of all rule files that the stack mounts. Read as text: PyYAML is not in the standard library."""
    texts = [path.read_text(encoding="utf-8") for path in RULES.glob("*.rules.yml")]
    return {name for text in texts for name in re.findall(r'^  - name: "(.+)"$', text, flags=re.M)}
