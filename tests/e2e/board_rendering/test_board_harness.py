"""The harness that judges boards is judged itself: it draws what is good, and says what is wrong with each planted fault."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.e2e.board_rendering import small_board
from tests.e2e.board_rendering.small_board import UID, panel_of
from tools.boards.browser import Boards, panel, settle
from tools.boards.checks import findings
from tools.boards.server import page_server
from tools.boards.world import World

pytestmark = pytest.mark.real
Json = dict[str, Any]


@pytest.fixture(scope="module")
def boards(world: World, browser: Browser) -> Iterator[Boards]:
    leads_back = {"url": f"/d/{UID}?var-request_id=${{__value.raw}}", "urlDisplayLabel": "Request"}
    exemplars = [{"name": "request_id", **leads_back}]
    derived = [{"name": "Request", "matcherType": "label", "matcherRegex": "gen_ai_request_id", **leads_back}]
    sources = replace(world.sources, exemplars=exemplars, derived=derived)
    with page_server(sources, [small_board.board()]) as served:
        yield Boards(browser, served)


def _asking(request: Mapping[str, Any]) -> dict[str, str]:
    return {"var-request_id": request["request_id"], "var-trace_id": request["trace_id"], "var-gpu": request["gpu"]}


def test_a_good_board_is_drawn_whole_and_nothing_is_found(boards: Boards, unhappy: Mapping[str, Any]) -> None:
    report = boards.report(UID, _asking(unhappy))
    found = findings(report, boards.served.boards)
    assert not found, "\n".join(found)
    assert {one["type"] for one in report["panels"]} == {one["type"] for one in small_board.board()["panels"]}
    assert report["marks"]["exemplars"] > 0
    assert report["marks"]["annotations"] > 0
    links = {(link["title"], link["href"]) for link in report["links"]}
    assert ("Request", f"/d/{UID}?var-request_id={unhappy['request_id']}") in links, "made of a log line"
    assert any(title == "exemplar" and href.startswith(f"/d/{UID}?var-request_id=load-") for title, href in links)
    texts = {one["title"]: one["text"] for one in report["panels"]}
    assert unhappy["request_id"] in texts["Words"]
    assert unhappy["request_id"] in texts["Logs"]
    assert unhappy["trace_id"] in texts["Trace"]
    assert "prefill" in texts["Trace"]
    assert texts["Running"].index("sim-d") < texts["Running"].index("sim-a"), "sorted as the table asks"


def test_a_textbox_a_row_and_a_click_lead_to_the_trace_and_to_its_gpu(boards: Boards, unhappy: Mapping[str, Any]) -> None:
    page = boards.open(UID)
    box = page.get_by_label("request_id").first
    box.fill(unhappy["request_id"])
    box.press("Enter")
    settle(page)
    row = panel(page, 11)
    row.get_by_role("gridcell").get_by_role("link").first.click()
    settle(page)
    assert unhappy["trace_id"] in panel(page, 12).inner_text()
    assert unhappy["gpu"] in panel(page, 14).inner_text()
    assert "GPU-" + "0" not in panel(page, 14).inner_text()
    middle = page.evaluate("() => (window.report().range.from + window.report().range.to) / 2000")
    assert middle == pytest.approx(unhappy["start"], abs=1.0)
    page.close()


def _wrong_source(board: Json) -> None:
    panel_of(board, "Backends")["datasource"] = panel_of(board, "Backends")["targets"][0]["datasource"] = {
        "type": "prometheus", "uid": "P1809F7CD0C75ACF3",
    }  # fmt: skip


def _input_left_in(board: Json) -> None:
    panel_of(board, "Queues")["datasource"] = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}


def _query(title: str, change: Mapping[str, str]) -> Any:
    return lambda board: panel_of(board, title)["targets"][0].update(change)


def _transformation(board: Json) -> None:
    panel_of(board, "Running")["transformations"][1]["id"] = "organise"


def _override(board: Json) -> None:
    panel_of(board, "Load")["fieldConfig"]["overrides"] = [{"matcher": {"id": "byName", "options": "Value #Z"}, "properties": []}]


def _plugin(board: Json) -> None:
    panel_of(board, "Logs")["type"] = "logz"


def _link(title: str, url: str) -> Any:
    return lambda board: panel_of(board, title).update(links=[{"title": "there", "url": url}])


def _no_time(board: Json) -> None:
    there = {"title": "then", "url": f'/d/{UID}?time=${{__data.fields["Start time"]}}&time.window=60000'}
    panel_of(board, "Up")["fieldConfig"]["defaults"]["links"] = [there]


def _wide(board: Json) -> None:
    everything = {"matcher": {"id": "byRegexp", "options": ".*"}, "properties": [{"id": "custom.width", "value": 400}]}
    panel_of(board, "Request")["fieldConfig"]["overrides"] = [everything]


def _narrow(board: Json) -> None:
    panel = panel_of(board, "Running")
    panel["transformations"].append({"id": "organize", "options": {"renameByName": {"backend": "Backends that run requests"}}})
    panel["fieldConfig"]["overrides"][0]["matcher"]["options"] = "Backends that run requests"
    panel["fieldConfig"]["overrides"][0]["properties"] = [{"id": "custom.width", "value": 60}]


MUTATIONS: tuple[tuple[Any, str], ...] = (
    (_wrong_source, "Datasource P1809F7CD0C75ACF3 was not found"),
    (_input_left_in, "Datasource ${DS_PROMETHEUS} was not found"),
    (_query("P99", {"expr": "sum(llm_backend_up"}), "unclosed left parenthesis"),
    (_query("Busiest GPU", {"expr": 'max(llm_gpu_utilization_ratio{gpu="$gpuu"})'}), "a variable is left in the query"),
    (_query("TTFT", {"expr": "llm:no_such_metric"}), "TTFT A: no data for llm:no_such_metric"),
    (_query("Trace", {"query": "{ span.x > "}), "unexpected the end"),
    (_transformation, "unknown transformation 'organise'"),
    (_override, "override by name 'Value #Z' matches no field"),
    (_plugin, "no panel plugin logz"),
    (_link("Up", "/d/nowhere"), "leads to board 'nowhere', which there is not"),
    (_link("Shares", f"/d/{UID}?var-colour=red"), "sets var-colour, which board 'small' does not have"),
    (_link("GPU", "/d/${uidd}"), "not resolved"),
    (_no_time, "its time is empty"),
    (_wide, "Request: the table scrolls sideways"),
    (_narrow, "Running: 'Backends that run requests' is cut in the table"),
)
"""What is changed, each in a panel of its own, and the words that must be said about it."""


def test_each_planted_fault_is_found(boards: Boards, unhappy: Mapping[str, Any]) -> None:
    bad = {**small_board.board(), "uid": "bad"}
    for mutate, _ in MUTATIONS:
        mutate(bad)
    boards.served.boards["bad"] = bad
    found = findings(boards.report("bad", _asking(unhappy)), {UID: small_board.board()})
    missed = [words for _, words in MUTATIONS if not any(words in finding for finding in found)]
    assert missed == [], "\n".join(found)


def test_a_board_that_is_not_there_is_said(boards: Boards) -> None:
    assert any("Dashboard not found: nowhere" in finding for finding in findings(boards.report("nowhere"), {}))


def test_what_may_be_empty_is_excused_by_board_and_title(boards: Boards) -> None:
    report = copy.deepcopy(boards.report(UID))  # nothing was asked for, so these three have nothing to show
    excuse = {(UID, title): "no request was asked for" for title in ("Request", "Trace", "Logs")}
    found = findings(report, boards.served.boards, excuse)
    assert not found, "\n".join(found)
    assert {finding.partition(":")[0].strip() for finding in findings(report, boards.served.boards)} >= {
        "Request",
        "Trace",
        "Logs",
    }
