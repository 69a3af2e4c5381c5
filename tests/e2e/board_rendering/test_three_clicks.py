"""From the id that an angry user sends to the GPU at that second, as a person does it: type, click, look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page

from tailkeeper_dashboards.settings import FLEET_UID, ROOT_CAUSE_UID
from tailkeeper_exporter.catalog import GPU_UTILIZATION
from tests.e2e.board_rendering.test_boards_in_chromium import BOARDS
from tools.boards.browser import Boards, panel, report_of, settle
from tools.boards.server import page_server
from tools.boards.world import World

pytestmark = pytest.mark.real
MOST_CLICKS = 3


@dataclass
class Person:
    """Counts what a person does with the mouse. A page that is left is waited for."""

    page: Page
    clicks: int = field(default=0)

    def click(self, what: Locator, leaves: bool = False) -> None:
        self.clicks += 1
        if leaves:
            with self.page.expect_navigation():
                what.click()
        else:
            what.click()
        settle(self.page)

    def types(self, text: str) -> None:
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        settle(self.page)


@pytest.fixture(scope="module")
def boards(world: World, browser: Browser) -> Iterator[Boards]:
    with page_server(world.sources, list(BOARDS.values())) as served:
        yield Boards(browser, served)


def _panel(uid: str, kind: str, *words: str) -> int:
    """The id of the first panel of this kind whose queries hold these words."""
    asked: dict[int, str] = {
        panel["id"]: " ".join(target.get("query") or target.get("expr", "") for target in panel["targets"])
        for panel in BOARDS[uid]["panels"]
        if panel["type"] == kind
    }
    return next(number for number, text in asked.items() if all(word in text for word in words))


def _shows_trace_and_gpu(page: Page, request: Mapping[str, Any]) -> None:
    """What the person came for is on the page: this trace, and its GPU alone, over the time of the trace."""
    trace = panel(page, _panel(ROOT_CAUSE_UID, "traces"))
    assert request["trace_id"] in trace.inner_text()
    assert trace.locator("[data-span=prefill]").is_visible()
    utilisation = _panel(ROOT_CAUSE_UID, "timeseries", GPU_UTILIZATION.name)
    report = report_of(page)
    asked = [
        query
        for query in report["queries"]
        if query.get("panel") == _title(utilisation) and GPU_UTILIZATION.name in query["expr"]
    ]
    assert request["gpu"] in asked[-1]["expr"]
    assert asked[-1]["rows"] > 0
    others = {f"sim-{letter}" for letter in "abcd"} - {request["backend"]}
    text = panel(page, utilisation).inner_text()
    assert panel(page, utilisation).is_visible()
    assert request["backend"] in text
    assert not any(other in text for other in others)
    assert report["range"]["from"] < request["start"] * 1_000
    assert report["range"]["to"] > (request["start"] + request["e2e_s"]) * 1_000


def _title(number: int) -> str:
    return next(str(panel["title"]) for panel in BOARDS[ROOT_CAUSE_UID]["panels"] if panel["id"] == number)


def _label(variable: str) -> str:
    variables = BOARDS[ROOT_CAUSE_UID]["templating"]["list"]
    return next(str(one["label"]) for one in variables if one["name"] == variable)


def test_a_request_id_is_three_clicks_from_its_gpu_at_that_second(boards: Boards, unhappy: Mapping[str, Any]) -> None:
    person = Person(boards.open(FLEET_UID))
    person.click(person.page.get_by_role("link", name="Root cause", exact=True), leaves=True)
    person.click(person.page.get_by_label(_label("request_id")).first)
    person.types(unhappy["request_id"])
    rows = panel(person.page, _panel(ROOT_CAUSE_UID, "table", "gen_ai.request.id"))
    person.click(rows.get_by_role("link", name=unhappy["request_id"], exact=True).first, leaves=True)
    _shows_trace_and_gpu(person.page, unhappy)
    assert person.clicks <= MOST_CLICKS
    person.page.close()


def test_the_same_from_the_access_log_where_no_trace_was_kept(boards: Boards, unhappy: Mapping[str, Any]) -> None:
    person = Person(boards.open(ROOT_CAUSE_UID, {"var-request_id": unhappy["request_id"]}))
    rows = panel(person.page, _panel(ROOT_CAUSE_UID, "table", "gen_ai_request_id"))
    person.click(rows.get_by_role("link", name=unhappy["request_id"], exact=True).first, leaves=True)
    _shows_trace_and_gpu(person.page, unhappy)
    assert person.clicks < MOST_CLICKS
    person.page.close()


def test_without_an_id_the_worst_request_is_the_first_row(boards: Boards, unhappy: Mapping[str, Any]) -> None:
    start_ms = int(unhappy["start"] * 1_000)
    person = Person(boards.open(ROOT_CAUSE_UID, {"from": str(start_ms - 30_000), "to": str(start_ms + 60_000)}))
    rows = panel(person.page, _panel(ROOT_CAUSE_UID, "table", "gen_ai.request.id"))
    first = rows.get_by_role("gridcell").get_by_role("link").first
    assert first.inner_text() == unhappy["request_id"]
    person.click(first, leaves=True)
    _shows_trace_and_gpu(person.page, unhappy)
    person.page.close()
