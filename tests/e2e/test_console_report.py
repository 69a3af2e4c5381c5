"""The viewer of replay reports: what a replay writes is shown whole, all else is said to be wrong, nothing leaves."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from playwright.async_api import Page

from tailkeeper_exporter.clients import Clients
from tailkeeper_watchdog.replay import from_prometheus
from tailkeeper_watchdog.replay.words import text
from tests.e2e.console_in_chromium import DESK, SMALL_PHONE, Scheme, becomes, console, overflow, sideways, text_of, weak_contrasts
from tests.loopback.test_replay_history import MemoryPrometheus, replay
from tests.scenario.world import World
from tests.vllm_history import Vllm

pytestmark = pytest.mark.real

HOSTILE = '<img src=x onerror="document.title=1"><script>alert(1)</script>'
SECONDS = 1_800


@pytest.fixture
async def report(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a replay writes about half an hour of four engines, one slow, one that stood still and went silent."""
    server = MemoryPrometheus()
    monkeypatch.setattr(from_prometheus, "Clients", lambda: Clients(httpx.MockTransport(server)))
    engines = (
        Vllm("10.0.0.1:8000"),
        Vllm("10.0.0.2:8000", frozen=(600, 900), silent=(720, 900)),
        Vllm("10.0.0.3:8000", slow=(1_200, 1_500)),
        Vllm("10.0.0.4:8000", restarts_at=605),
    )
    server.engines(*engines, seconds=SECONDS)
    return await replay(SECONDS)


async def _world() -> World:
    world = World(":memory:")
    await world.run(2)
    return world


async def _show(page: Page, content: object, name: str = "report.json") -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    await page.set_input_files("#report-file", {"name": name, "mimeType": "application/json", "buffer": body})


async def _table(page: Page, number: int) -> list[str]:
    rows = await page.locator("#report-parts section").nth(number).locator("tbody tr").all_inner_texts()
    return [row.replace("\u00a0", " ") for row in rows]


async def test_a_report_is_shown_whole_and_stays_in_the_page(report: dict[str, Any]) -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
        await _show(page, report)
        await becomes(page, "#report-head", "Replay of http://prometheus")
        assert "Promise: P99 of the first token 1.2 s, 99.5 % of requests good." in await text_of(page, "#report-head")
        backends, findings, decisions = [await _table(page, i) for i in range(3)]
        assert backends[0].startswith("10.0.0.3:8000\tbroken"), "what was broken comes first"
        assert "16.7 %" in backends[0]
        assert "4.97 s" in backends[0]
        assert len(backends) == 4
        assert len(findings) == len(report["findings"])
        assert any("would have been probed" in row for row in findings)
        assert len(decisions) == min(50, len(report["decisions"]))
        strip = page.locator("#report-parts tbody tr").first.locator("svg")
        assert await strip.locator(".breach").count() == 1
        assert "1 wait over the SLO" in str(await strip.get_attribute("aria-label"))
        assert await page.locator("#report-unknown li").count() == len(report["unknown"])
        assert not [one for one in asked if not one.startswith("GET ")], "nothing is sent"
        await page.click("#report-close")
        assert not await page.is_visible("#report")


async def test_a_report_can_be_dropped_anywhere_on_the_page(report: dict[str, Any]) -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        drop = """(body) => {
          const data = new DataTransfer();
          data.items.add(new File([body], "dropped.json"));
          const given = { dataTransfer: data, bubbles: true, cancelable: true };
          document.querySelector("h1").dispatchEvent(new DragEvent("dragover", given));
          return !document.querySelector("h1").dispatchEvent(new DragEvent("drop", given));
        }"""
        assert await page.evaluate(drop, json.dumps(report)), "the browser would open the file itself"
        await becomes(page, "#report-name", "dropped.json")
        assert len(await _table(page, 0)) == 4


WRONG: list[tuple[str, bytes, str]] = [
    (
        "words",
        b"Replay of http://prometheus\n",
        "cannot be read as JSON; make one with: tailkeeper replay … --json > report.json",
    ),
    ("nothing", b"", "cannot be read as JSON"),
    ("another", b'{"weights": {}}', "is no replay report: it has no source, no period, no backends, no findings, no decisions"),
    ("a list", b"[1, 2]", "is no replay report"),
    ("null", b"null", "is no replay report"),
    ("bytes", b"\xff\xfe\x00{", "cannot be read as JSON"),
    ("deep", b"[" * 200_000, "cannot be read as JSON"),
]


@pytest.mark.parametrize(("name", "body", "said"), WRONG, ids=[name for name, _, _ in WRONG])
async def test_what_is_no_report_is_said_and_what_was_shown_stays(
    name: str, body: bytes, said: str, report: dict[str, Any]
) -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        await _show(page, report)
        await becomes(page, "#report-head", "Replay of http://prometheus")
        await _show(page, body, "wrong.json")
        await becomes(page, "#report-error", f"wrong.json {said}")
        assert len(await _table(page, 0)) == 4
        await _show(page, report)
        await becomes(page, "#report-name", "report.json")
        assert await text_of(page, "#report-error") == ""


async def test_the_words_that_replay_writes_for_people_are_said_to_be_the_wrong_ones(report: dict[str, Any]) -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        await _show(page, text(report).encode(), "report.txt")
        await becomes(page, "#report-error", "--json > report.json")


async def test_what_a_report_holds_is_text_and_of_its_own_shape_whatever_is_in_it() -> None:
    odd = {
        "source": {"where": HOSTILE, "decides": {"a": 1}}, "period": {"start": 1e300, "end": -5, "ticks": "many"},
        "slo": {"ttft_p99_s": HOSTILE, "objective": None}, "compared": {"differences": [HOSTILE, 3]},
        "backends": [None, 7, {"backend": HOSTILE, "sla_kept": "yes", "requests": "NaN", "breaches": [{"since": 1}, {}]}],
        "findings": [{"kind": HOSTILE, "severity": HOSTILE, "summary": HOSTILE, "since": "x", "users_felt": 3}, "x"],
        "decisions": [{"time": 1e9, "to": {"x": 1}, "knob": HOSTILE, "reason": "y" * 100_000}, {"__proto__": {"x": 1}}],
        "policies": [{"policy": HOSTILE, "verdicts": {HOSTILE: 1, "x": HOSTILE}, "refusals": []}],
        "unknown": [HOSTILE, {"a": 1}], "decisions_left_out": -1,
    }  # fmt: skip
    async with console(await _world()) as (shown, _):
        for size in (DESK, SMALL_PHONE):
            page = await shown.open(size)
            await _show(page, odd)
            await becomes(page, "#report-head", HOSTILE)
            for number in (0, 1, 3):
                assert any(HOSTILE in row for row in await _table(page, number)), number
            assert HOSTILE in await text_of(page, "#report-unknown")
            assert await text_of(page, "#report-differs-title") == "What came out differently (1)"
            await page.click("#report-differs-title")
            assert HOSTILE in await text_of(page, "#report-differences")
            assert await page.locator("main img, main script").count() == 0
            assert "serving" in await page.title()
            assert await overflow(page) == []


async def test_a_report_leaves_nothing_of_the_one_before_it_even_where_that_said_something_twice(report: dict[str, Any]) -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        for said in (["twice", "twice"], ["twice", "twice"], ["once"]):
            await _show(page, {**report, "unknown": said}, f"{said[0]}.json")
            await becomes(page, "#report-name", f"{said[0]}.json")
            assert await page.locator("#report-unknown li").all_inner_texts() == said


async def test_ten_thousand_decisions_are_turned_by_pages(report: dict[str, Any]) -> None:
    one = {"time": 1.78e9, "policy": "p", "backend": "b", "knob": "weight", "from": 1, "to": 0.5, "verdict": "applied"}
    many = [{**one, "time": 1.78e9 + i, "reason": f"reason {i}"} for i in range(10_000)]
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        await _show(page, {**report, "decisions": many, "decisions_left_out": 321})
        await becomes(page, "#report-left-out", "321 more decisions are not in the report.")
        section = page.locator("#report-parts section").nth(2)
        assert await section.locator("h3").inner_text() == "What was decided (10,000)"
        assert await section.locator("tbody tr").count() == 50
        await section.get_by_role("button", name="Next").click()
        assert "51–100 of 10,000" in await section.locator("nav").inner_text()
        assert "reason 50" in (await _table(page, 2))[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, SMALL_PHONE])
async def test_a_report_fits_and_can_be_read(size: tuple[int, int], scheme: Scheme, report: dict[str, Any]) -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open(size, scheme)
        await _show(page, report)
        await becomes(page, "#report-head", "Replay of")
        assert await overflow(page) == []
        assert await sideways(page) == []
        assert await weak_contrasts(page) == []
