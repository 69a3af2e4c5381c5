"""Every board, drawn in Chromium with Grafana's libraries from the running demo: data in each panel, and every link leads on.

Prometheus is real; Tempo and Loki are doubles that answer from what the demo sent them. It is not Grafana (tools/board_harness).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Browser

from tailkeeper_dashboards.render import render
from tailkeeper_dashboards.settings import ROOT_CAUSE_UID
from tools.boards.browser import Boards
from tools.boards.checks import board_of, findings
from tools.boards.rightly_empty import RIGHTLY_EMPTY
from tools.boards.server import page_server
from tools.boards.world import World, asked_about

pytestmark = pytest.mark.real
Json = dict[str, Any]
BOARDS: Mapping[str, Json] = {board["uid"]: board for board in map(json.loads, render().values())}
MOST_FOLLOWED = 24
"""Addresses that differ in board or variables; eight boards make some twenty of them."""


@pytest.fixture(scope="module")
def boards(world: World, browser: Browser) -> Iterator[Boards]:
    with page_server(world.sources, list(BOARDS.values())) as served:
        yield Boards(browser, served)


@pytest.fixture(scope="module")
def reports(boards: Boards, unhappy: Mapping[str, Any]) -> Mapping[str, Json]:
    """What each board says of itself over the last minutes, the root-cause board about the unhappy request."""
    return {uid: boards.report(uid, asked_about(uid, unhappy)) for uid in BOARDS}


@pytest.mark.parametrize("uid", BOARDS)
def test_a_board_is_drawn_with_data_in_every_panel(reports: Mapping[str, Json], uid: str) -> None:
    found = findings(reports[uid], BOARDS, RIGHTLY_EMPTY)
    assert not found, "\n".join(found)
    drawn = [panel["title"] for panel in reports[uid]["panels"]]
    assert drawn == [panel["title"] for panel in BOARDS[uid]["panels"] if panel["type"] != "row"]


def test_what_may_be_empty_is_still_asked_by_a_board(reports: Mapping[str, Json]) -> None:
    asked = {
        (uid, f"{query['panel']} {query['refId']}") for uid in reports for query in reports[uid]["queries"] if query.get("panel")
    }
    panels = {(uid, panel["title"]) for uid in reports for panel in reports[uid]["panels"]}
    assert set(RIGHTLY_EMPTY) <= asked | panels


def _addresses(reports: Mapping[str, Json]) -> Iterator[str]:
    """One address for each board with each set of variables that a link gives it."""
    seen = set()
    for report in reports.values():
        for link in report["links"]:
            given = frozenset(name for name, _ in parse_qsl(urlsplit(link["href"]).query, keep_blank_values=True))
            if (uid := board_of(link["href"])) is not None and (uid, given) not in seen:
                seen.add((uid, given))
                yield link["href"]


def test_links_lead_to_boards_that_are_drawn(reports: Mapping[str, Json], boards: Boards) -> None:
    addresses = list(_addresses(reports))
    assert 0 < len(addresses) <= MOST_FOLLOWED
    for address in addresses:
        report = boards.follow(address)
        wrong = [
            *report["errors"],
            *(f"{p['title']}: {p['error']}" for p in report["panels"] if p.get("error") or p.get("crash")),
        ]
        assert wrong == [], address


def test_an_exemplar_leads_to_its_request(reports: Mapping[str, Json]) -> None:
    hrefs = [link["href"] for report in reports.values() for link in report["links"] if link["title"] == "exemplar"]
    assert hrefs
    assert all(board_of(href) == ROOT_CAUSE_UID and dict(parse_qsl(urlsplit(href).query))["var-request_id"] for href in hrefs)
