"""What is wrong with a board that was drawn, from its report: sentences, empty when all is well. Pure.

A report is what the harness's page says of a board (`browser.report_of`). An empty panel is wrong unless its board and title are
among the ``empty`` ones, each with a reason: "no data" is how a board fails when nobody looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from tools.boards.server import Json

Empty = Mapping[tuple[str, str], str]
"""Board and query, or board and panel → why it may find nothing. A query is named by its panel's title and its letter."""
_LEFT_OVER = re.compile(r"\$\{?[a-zA-Z_]")
_UNRESOLVED = re.compile(r"\$\{|%24%7B|\bundefined\b|\[object")
_TIMES = ("from", "to", "time", "time.window")
"""An empty one is passed over in silence, and the board shows another time than the row that was clicked. The last two may both
be empty beside a range: so Grafana writes them once it has made one of them.
"""


def findings(report: Json, boards: Mapping[str, Json], empty: Empty | None = None) -> list[str]:
    """Everything wrong with one drawn board; ``boards`` by uid are those that a link may lead to."""
    excused = {title for uid, title in empty or {} if uid == report.get("uid")}
    return [
        *(f"page: {error}" for error in report["errors"]),
        *report["problems"],
        *(finding for panel in report["panels"] for finding in _panel(panel, excused)),
        *(finding for query in report["queries"] for finding in _query(query, excused)),
        *_variables(report),
        *dict.fromkeys(finding for link in report["links"] for finding in _link(link, boards)),
    ]


def _panel(panel: Json, excused: set[str]) -> Iterator[str]:
    title = panel["title"]
    if panel.get("pluginError"):
        yield f"{title}: {panel['pluginError']}"
    if panel.get("error"):
        yield f"{title}: {panel['error']}"
    if panel.get("crash"):
        yield f"{title}: could not be drawn: {panel['crash']}"
    if panel.get("sideways"):
        yield f"{title}: the table scrolls sideways; a column takes 50 px at least, whatever its width says"
    for text in panel.get("cut", ()):
        yield f"{title}: {text!r} is cut in the table; its column is too narrow"
    if panel.get("noData") and title not in excused:
        yield f"{title}: no data"


def _query(query: Json, excused: set[str]) -> Iterator[str]:
    title = query.get("panel")
    where = f"{title} {query['refId']}" if title else query.get("annotation") or query.get("variable") or "?"
    if query.get("error") and not title:  # a panel says it itself
        yield f"{where}: {query['error']}"
    if _LEFT_OVER.search(query["expr"]):
        yield f"{where}: a variable is left in the query: {query['expr']}"
    if title and not query.get("error") and not query.get("rows") and not {title, where} & excused:
        yield f"{where}: no data for {query['expr'] or 'an empty query'}"


def _variables(report: Json) -> Iterator[str]:
    for variable in report["variables"]:
        if variable.get("error"):
            yield f"variable {variable['name']}: {variable['error']}"


def board_of(href: str) -> str | None:
    """The uid of the board that an address leads to; None for another address."""
    match = re.match(r"^/d/([^/?]+)", urlsplit(href).path)
    return unquote(match[1]) if match else None


def _link(link: Json, boards: Mapping[str, Json]) -> Iterator[str]:
    where, href = f"{link['where']}, link {link['title']!r}", link["href"]
    if _UNRESOLVED.search(href):
        yield f"{where}: not resolved: {href}"
    given = parse_qsl(urlsplit(href).query, keep_blank_values=True)
    times = {name: value for name, value in given if name in _TIMES}
    if (times.get("time.window") and not times.get("time")) or "" in (times.get("from"), times.get("to")):
        yield f"{where}: its time is empty: {href}"
    uid = board_of(href)
    if uid is None:
        return
    if uid not in boards:
        yield f"{where}: leads to board {uid!r}, which there is not"
        return
    known = {variable["name"] for variable in boards[uid].get("templating", {}).get("list", [])}
    for name, _ in given:
        if name.startswith("var-") and name.removeprefix("var-") not in known:
            yield f"{where}: sets {name}, which board {uid!r} does not have"
