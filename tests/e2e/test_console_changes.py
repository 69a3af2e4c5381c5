"""What people do at the console beside a release: pause and resume, hold, give everything back, look at one backend whole."""

from __future__ import annotations

import time

import pytest
from playwright.async_api import Page

from tailkeeper_exporter.state import State
from tests.e2e.console_in_chromium import STREAM, becomes, console, overflow, text_of, with_model
from tests.scenario.world import World
from tests.unit.watchdog_http import TOKEN

pytestmark = pytest.mark.real

NAMES = ("sim-a", "sim-b", "sim-c", "namespace/pod-1")


async def _world() -> World:
    """sim-b hung and drained, sim-c slow at half weight."""
    world = with_model(World(":memory:", NAMES), "llama-3-8b")
    await world.run(60)
    world.sick["sim-b"].state = State.HUNG
    world.sick["sim-c"].itl_s, world.sick["sim-c"].ttft_s = 0.2, 1.8
    await world.run(20)
    return world


async def _open(page: Page, backend: str) -> None:
    await page.click(f"#backends button:text-is('{backend}')")
    await becomes(page, "#details-title", backend)


async def test_pausing_and_resuming_asks_for_the_token_once_and_says_what_it_means() -> None:
    world = await _world()
    async with console(world, TOKEN) as (shown, _):
        shown.expected.append("401")
        page = await shown.open()
        await page.click("#pause")
        assert "nothing new is done until it is resumed" in await text_of(page, "#change-text")
        await page.click("#change-do")
        await becomes(page, "#change-error", "The watchdog asks for its token.")
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await becomes(page, "#told", "Paused, at ")
        await becomes(page, "#mode", "paused: paused by API")
        assert world.switches.paused() == "paused by API"
        await becomes(page, "#nothing", "Paused (paused by API)")
        assert await text_of(page, "#pause") == "Resume…"
        await page.click("#pause")
        await page.click("#change-do")
        await becomes(page, "#told", "Resumed, at ")
        await becomes(page, "#mode", "mode enforce")
        assert world.switches.paused() is None


async def test_everything_is_given_back_at_one_click_and_one_question() -> None:
    world = await _world()
    async with console(world) as (shown, _):
        page = await shown.open()
        assert world.out() == {"sim-b"}
        await page.click("#release-all")
        assert "whether it is well or not" in await text_of(page, "#change-text")
        await page.click("#change-do")
        await becomes(page, "#told", "Everything was released")
        await becomes(page, "#leases-count", "nothing of ours is in force")
        assert (world.admission("sim-b"), world.weight("sim-c")) == ("serve", 1.0)
        assert not await page.is_visible("#release-all")


async def test_a_hold_has_a_reason_and_an_end_and_can_be_ended() -> None:
    world = await _world()
    name = "namespace/pod-1"
    async with console(world) as (shown, _):
        page = await shown.open()
        await _open(page, name)
        await page.click("#details-hold")
        assert await page.is_visible("#hold-reason")
        await page.click("#change-do")
        assert await page.is_visible("#change"), "a hold without a reason helps nobody"
        assert world.switches.holds() == {}
        await page.fill("#hold-reason", "disk swap <b>1</b>")
        await page.select_option("#hold-for", "900")
        await page.click("#change-do")
        await becomes(page, "#told", f"{name} is held until")
        held = world.switches.holds()[name]
        assert held.reason == "disk swap <b>1</b>"
        assert held.until_unix_s == pytest.approx(world.clock.wall() + 900)
        await becomes(page, "#details-facts", "disk swap <b>1</b>")
        await becomes(page, "#details-hold", "End the hold")
        await page.click("#details-hold")
        assert not await page.is_visible("#hold-reason")
        await page.click("#change-do")
        await becomes(page, "#details-hold", "Hold…")
        assert world.switches.holds() == {}
        assert await page.is_visible("#details"), "the question closes, and not what it was asked from"


async def test_one_backend_is_shown_whole_and_closed_with_escape() -> None:
    world = await _world()
    async with console(world) as (shown, _):
        page = await shown.open()
        await _open(page, "sim-c")
        assert "serving" in await text_of(page, "#details-state")
        assert "50 % of its traffic" in await text_of(page, "#details-facts")
        assert "mean step time" in await text_of(page, "#details-why")
        assert "most of what is missing by latency" in await text_of(page, "#details-score")
        factors = await text_of(page, "#details-factors")
        for words in ("latency", "0.65", "41 %", "1.8", "error rate", "uptime"):
            assert words in factors
        assert "Not known: cpu usage." in await text_of(page, "#details-unknown")
        assert "SLO 1.2 s" in await text_of(page, "#details-p99")
        assert "weight 50 % at edge (sim-c), before weight 100 %" in await text_of(page, "#details-leases")
        await becomes(page, "#details-decisions", "applied sim-c: weight 50 %")
        assert "sim-b" not in await text_of(page, "#details-decisions")
        assert await overflow(page) == []
        await page.click("#details-release")
        assert await text_of(page, "#change-title") == "Release sim-c?"
        await page.keyboard.press("Escape")
        assert not await page.is_visible("#change")
        assert await page.is_visible("#details")
        await page.keyboard.press("Escape")
        assert not await page.is_visible("#details")
        assert await page.evaluate("document.activeElement.textContent") == "sim-c"


async def test_a_backend_that_goes_while_it_is_looked_at_is_said_to_be_gone() -> None:
    world = World(":memory:", ("a", "b", "c"))
    await world.run(10)
    async with console(world) as (shown, _):
        page = await shown.open()
        await _open(page, "b")
        world.find("a", "c")
        await world.run(0.5)
        await becomes(page, "#details-gone", "b is no longer in the fleet.")
        assert not await page.is_visible("#details-body")


async def test_drift_is_marked_where_the_p99_stands_in_words_and_on_the_line() -> None:
    world = await _world()
    now = world.clock.wall()
    async with console(world) as (shown, _):
        shown.expected.append("ERR_FAILED")
        page = await shown.blank()
        await page.route(STREAM, lambda route: route.abort())
        row = {
            "id": "f-1", "kind": "growth", "backend": "sim-a", "severity": "ticket", "since": now - 60,
            "until": None, "summary": "P99 is 40 % over its baseline", "signal": "ttft", "evidence": {}, "shares": [],
        }  # fmt: skip
        await page.route("**/api/v1/findings*", lambda route: route.fulfill(json=[row]))
        await page.goto(shown.url)
        await becomes(page, "#backends tr[data-key='sim-a'] div.drift", "drift: growth")
        mark = page.locator("#backends tr[data-key='sim-a'] svg line.drift")
        assert float(await mark.get_attribute("x1") or 0) == pytest.approx(80, abs=1)
        assert "drift: growth since" in str(await page.get_attribute("#backends tr[data-key='sim-a'] svg", "aria-label"))
        assert await page.locator("#backends tr[data-key='sim-b'] svg line.drift").count() == 0


async def test_times_go_on_between_two_ticks() -> None:
    world = await _world()
    async with console(world) as (shown, _):
        page = await shown.open()
        first = await text_of(page, "#leases li:first-child p")
        began = time.monotonic()
        while await text_of(page, "#leases li:first-child p") == first:
            assert time.monotonic() - began < 5
            await page.wait_for_timeout(100)


async def test_screen_readers_are_told_another_story_and_not_every_number() -> None:
    world = await _world()
    async with console(world) as (shown, _):
        page = await shown.open()
        await becomes(
            page, "#announce", "3 of 4 backends serving. sim-b does not answer and gets no new requests. 1 finding to page for."
        )
        await page.evaluate(
            """() => {
              window.told = 0;
              const node = document.getElementById("announce");
              const noted = new MutationObserver(() => { window.told += 1; });
              noted.observe(node, { childList: true, characterData: true, subtree: true });
            }"""
        )
        tick = world.loop.latest.tick if world.loop.latest else 0
        await world.run(3)
        await becomes(page, "#clock", f"tick {tick + 6}")
        assert await page.evaluate("window.told") == 0
        living = await page.evaluate(
            "[...document.querySelectorAll('[aria-live], [role=status], [role=alert]')].map((n) => n.id)"
        )
        assert sorted(living) == ["announce", "banner", "change-error", "report-error", "shown", "told"]
