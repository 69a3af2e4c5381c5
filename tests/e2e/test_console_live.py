"""The console's way to what it shows: the stream while there is one, asking where there is none, and what a large fleet costs."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from playwright.async_api import Page

from tailkeeper_exporter.state import State
from tests.e2e.console_in_chromium import STREAM, becomes, console, text_of, with_model
from tests.scenario.world import World

pytestmark = pytest.mark.real

NAMES = ("sim-a", "sim-b", "sim-c", "sim-d")
WATCH_RENDERS = """
  window.renders = [];
  window.pictures = 0;
  const measured = (list) => list.getEntriesByName("render").map((entry) => entry.duration);
  new PerformanceObserver((list) => window.renders.push(...measured(list))).observe({ type: "measure" });
  const Real = window.EventSource;
  window.EventSource = function (...given) {
    const stream = new Real(...given);
    stream.addEventListener("picture", () => { window.pictures += 1; });
    return stream;
  };
"""


async def _world() -> World:
    world = with_model(World(":memory:", NAMES), "llama-3-8b")
    await world.run(30)
    return world


async def _asked(page: Page) -> Counter[str]:
    """What the page asks for from now on, by path."""
    seen: Counter[str] = Counter()
    page.on("request", lambda request: seen.update([request.url.partition("?")[0].partition("/api/")[2]]))
    return seen


async def test_a_tick_comes_by_the_stream_and_nothing_is_asked_for_meanwhile() -> None:
    world = await _world()
    async with console(world) as (shown, served):
        page = await shown.open()
        await becomes(page, "#clock", "live")
        assert served.live.open == 1
        asked = await _asked(page)
        for _ in range(3):
            tick = world.loop.latest.tick if world.loop.latest else 0
            await world.run(0.5)
            await becomes(page, "#clock", f"tick {tick + 1}")
        world.sick["sim-a"].state = State.HUNG
        await world.run(2)
        await becomes(page, "#now", "sim-a does not answer and gets no new requests.")
        await page.wait_for_timeout(2_500)
        assert not {"v1/fleet", "v1/findings", "v1/decisions", "v1/stream"} & set(asked), asked


async def test_after_a_restart_of_the_watchdog_the_page_streams_again() -> None:
    world = await _world()
    async with console(world) as (shown, served):
        shown.expected.append("ERR_CONNECTION_REFUSED")
        page = await shown.open()
        await becomes(page, "#clock", "live")
        await served.stop()
        await becomes(page, "#banner", "The watchdog does not answer")
        await becomes(page, "#clock", "asked every 2 s")
        await page.wait_for_timeout(3_000)  # it has tried in vain more than once
        await served.start()
        await becomes(page, "#clock", "live")
        await world.run(0.5)
        await becomes(page, "#mode", "mode enforce")
        assert not await page.is_visible("#banner")
        assert served.live.open == 1


async def test_a_watchdog_that_starts_with_an_empty_ledger_tells_its_own_decisions() -> None:
    world = await _world()
    world.sick["sim-a"].state = State.HUNG
    await world.run(2)
    other = await _world()
    await other.run(30)
    other.sick["sim-b"].state = State.HUNG
    await other.run(2)
    assert [w.ledger.decisions()[0].id for w in (world, other)] == [1, 1]
    async with console(world) as (shown, served):
        shown.expected.append("ERR_")
        page = await shown.open()
        await becomes(page, "#decisions", "sim-a: drained")
        await served.stop()
        served.world = other
        await served.start()
        await becomes(page, "#decisions", "sim-b: drained")
        assert "sim-a" not in await text_of(page, "#decisions")


@pytest.mark.parametrize("back_s", [20, 3_600])
async def test_a_clock_that_is_set_back_stops_neither_the_page_nor_its_lines(back_s: float) -> None:
    world = await _world()
    async with console(world) as (shown, _):
        page = await shown.open()
        await becomes(page, "#clock", "live")
        world.clock.step_s = -back_s
        for tick in (61, 62):
            await world.run(0.5)
            await becomes(page, "#clock", f"tick {tick}")
        drawn = page.locator("#backends tr").nth(1).locator("polyline.line").last
        ends = [float(point.split(",")[0]) for point in (await drawn.get_attribute("points") or "").split()]
        assert max(ends) == 100, "the newest point is now, and none is after it"


async def test_more_windows_of_one_browser_than_it_has_connections_all_work() -> None:
    world = await _world()
    async with console(world) as (shown, served):
        first = await shown.open()
        pages = [first, *[await first.context.new_page() for _ in range(7)]]
        for page in pages[1:]:
            await page.goto(shown.url)
            await becomes(page, "#clock", "tick")
        assert 1 <= served.live.open <= 3
        await becomes(pages[-1], "#clock", "asked every 2 s")
        await pages[-1].click("#pause")
        await pages[-1].click("#change-do")
        await becomes(pages[-1], "#told", "Paused")
        await world.run(0.5)
        for page in pages:
            await becomes(page, "#mode", "paused: paused by API")
        assert served.live.open == 3


async def test_times_are_told_with_the_zone_that_they_are_of() -> None:
    async with console(await _world()) as (shown, _):
        context = await shown.browser.new_context(timezone_id="America/St_Johns")
        page = await context.new_page()
        await page.goto(shown.url)
        await becomes(page, "#clock", "2023-11-14 19:00:30 UTC\u221203:30")


@pytest.mark.parametrize("way", ["refused", "gone", "silent", "no stream"])
async def test_where_there_is_no_stream_the_page_asks(way: str) -> None:
    """Too many streams; a proxy that cuts it; one that gathers it for ever; one that answers with a page of its own."""
    world = await _world()
    async with console(world) as (shown, served):
        shown.expected += ["503", "ERR_FAILED", "MIME type"]
        page = await shown.blank()
        answers = {
            "refused": lambda route: route.fulfill(status=503, json={"detail": "64 streams are open"}),
            "gone": lambda route: route.abort(),
            "silent": lambda route: None,
            "no stream": lambda route: route.fulfill(body="<p>Log in</p>", content_type="text/html"),
        }
        await page.route(STREAM, answers[way])
        await page.goto(shown.url)
        await becomes(page, "#clock", "asked every 2 s")
        world.sick["sim-a"].state = State.HUNG
        await world.run(2)
        await becomes(page, "#now", "sim-a does not answer and gets no new requests.")
        assert served.live.open == 0


async def test_a_page_that_nobody_sees_holds_no_stream_and_takes_it_up_when_it_is_seen() -> None:
    world = await _world()
    async with console(world) as (shown, served):
        page = await shown.open()
        await becomes(page, "#clock", "live")
        turn = (
            "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
            " document.dispatchEvent(new Event('visibilitychange')); }"
        )
        await page.evaluate(turn, True)
        await becomes(page, "#clock", "asked every 2 s")
        await page.wait_for_timeout(500)
        assert served.live.open == 0
        await world.run(1)
        await page.evaluate(turn, False)
        await becomes(page, "#clock", f"tick {world.loop.latest.tick if world.loop.latest else 0}")
        await becomes(page, "#clock", "live")
        assert served.live.open == 1


async def test_a_picture_from_before_a_release_does_not_undo_it_on_the_screen() -> None:
    world = await _world()
    world.sick["sim-a"].state = State.HUNG
    await world.run(2)
    async with console(world) as (shown, _):
        page = await shown.blank()
        api = page.request
        old = {
            "fleet": await (await api.get(f"{shown.url}api/v1/fleet")).json(),
            "findings": [],
            "decisions": [],
        }
        world.clock.now += 1
        body = f"event: picture\ndata: {json.dumps(old)}\n\n"
        await page.route(STREAM, lambda route: route.fulfill(body=body, content_type="text/event-stream"))
        await page.goto(shown.url)
        await page.click("button[aria-label='Release sim-a']")
        await page.click("#change-do")
        await becomes(page, "#leases-count", "nothing of ours is in force")
        await page.evaluate(
            """() => {
              window.told = [];
              const node = document.getElementById("leases-count");
              new MutationObserver(() => window.told.push(node.textContent)).observe(node, { childList: true, subtree: true });
            }"""
        )
        async with page.expect_request(STREAM):  # it comes again
            pass
        await page.wait_for_timeout(1_000)
        assert await page.evaluate("window.told") == []


# A large fleet


async def test_two_thousand_backends_are_shown_in_pages_found_and_put_in_order() -> None:
    world = World(":memory:", tuple(f"vllm-{i:04}" for i in range(2_000)))
    world.sick["vllm-1500"].ttft_s, world.sick["vllm-1500"].ok_per_tick = 1.8, 20.0
    await world.run(4)
    world.sick["vllm-0777"].state = State.HUNG
    await world.run(1)
    async with console(world) as (shown, _):
        page = await shown.open()
        rows = page.locator("#backends tr")
        assert await rows.count() == 50
        first = [await rows.nth(i).inner_text() for i in (0, 1)]
        assert "vllm-0777" in first[0]
        assert "vllm-1500" in first[1]
        assert await text_of(page, "#shown") == "those that need attention first"
        pages = page.locator("#backends-foot nav")
        assert "1–50 of 2,000" in await pages.inner_text()
        assert await pages.get_by_role("button", name="Previous").is_disabled()
        await pages.get_by_role("button", name="Next").click()
        assert "51–100 of 2,000" in await pages.inner_text()
        await page.fill("#filter", "012")
        assert await text_of(page, "#shown") == "12 of 2,000 found"
        assert await rows.count() == 12
        assert not await pages.is_visible()
        await page.fill("#filter", "hung")
        assert await rows.count() == 1
        await page.fill("#filter", "<nobody>")
        assert await page.is_visible("#none")
        await page.press("#filter", "Escape")
        assert await rows.count() == 50
        await page.select_option("#order", "p99")
        assert "vllm-1500" in await rows.first.inner_text()
        await page.select_option("#order", "listed")
        assert "vllm-0000" in await rows.first.inner_text()


async def test_two_thousand_backends_cost_one_short_rendering_a_tick() -> None:
    world = World(":memory:", tuple(f"vllm-{i:04}" for i in range(2_000)))
    await world.run(5)
    async with console(world) as (shown, _):
        page = await shown.blank()
        await page.add_init_script(WATCH_RENDERS)
        await page.goto(shown.url)
        await becomes(page, "#clock", "live")
        await page.wait_for_timeout(1_000)
        before = await page.evaluate("[window.pictures, window.renders.length]")
        for at in range(6):
            for i in range(0, 2_000, 40):
                world.sick[f"vllm-{i:04}"].state = State.BUSY if at % 2 else State.SERVING
            await world.run(0.5)
            tick = world.loop.latest.tick if world.loop.latest else 0
            await becomes(page, "#clock", f"tick {tick}")
        pictures, renders = await page.evaluate("[window.pictures, window.renders]")
        new = renders[before[1] :]
        assert len(new) == pictures - before[0] >= 6, "one rendering for each picture"
        print(f"rendered 2,000 backends in ms: {sorted(round(ms, 1) for ms in renders)}")
        assert sorted(new)[len(new) // 2] < 200, new
        # Whoever types meanwhile is not held up.
        typed_ms = await page.evaluate(
            """async () => {
              const field = document.getElementById("filter");
              const begun = performance.now();
              field.value = "vllm-19";
              field.dispatchEvent(new Event("input"));
              await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
              return performance.now() - begun;
            }"""
        )
        assert typed_ms < 500
        assert re.fullmatch("100 of 2,000 found", await text_of(page, "#shown"))
