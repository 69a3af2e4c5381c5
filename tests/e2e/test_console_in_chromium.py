"""The console, seen with Chromium: what it shows in every state of a fleet, and what it lets people do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import Mode
from tests.e2e.console_in_chromium import (
    DESK,
    PHONE,
    SMALL_PHONE,
    STREAM,
    WIDE,
    Console,
    Scheme,
    becomes,
    console,
    overflow,
    sideways,
    text_of,
    weak_contrasts,
    with_model,
)
from tests.scenario.world import World
from tests.unit.watchdog_http import TOKEN

pytestmark = pytest.mark.real

STATES = {
    "sim-b": State.HUNG,
    "sim-e": State.BUSY,
    "sim-f": State.STARTING,
    "sim-g": State.MISCONFIGURED,
}
NAMES = tuple(f"sim-{letter}" for letter in "abcdefgh")
HOSTILE = '<img src=x onerror="document.title=1"><script>alert(1)</script>'


async def _sick(**more: Any) -> World:
    """b hung and drained, c slow at half weight, d silent, e busy, f starting, g misconfigured, a and h well."""
    world = with_model(World(":memory:", NAMES, **more), "llama-3-8b")
    for at, name in enumerate(NAMES):
        world.sick[name].extra = {catalog.KV_USAGE.name: 0.1 * at}
    await world.run(60)
    for name, state in STATES.items():
        world.sick[name].state = state
    world.sick["sim-c"].itl_s, world.sick["sim-c"].ttft_s = 0.2, 1.8
    world.sick["sim-d"].silent = True
    await world.run(20)
    return world


async def _quiet() -> World:
    world = with_model(World(":memory:", NAMES[:4]), "llama-3-8b")
    await world.run(60)
    return world


async def _row(page: Page, name: str) -> str:
    row = page.locator("#backends tr", has=page.locator("th.name button", has_text=name))
    return (await row.inner_text()).replace("\u00a0", " ")


async def test_every_state_of_the_fleet_is_told_in_words() -> None:
    async with console(await _sick()) as (shown, _):
        page = await shown.open()
        now = await text_of(page, "#now")
        assert now.startswith("4 of 8 backends serving. Users of llama-3-8b wait 1.9")
        assert "SLO 1.2 s" in now
        assert now.endswith("sim-b does not answer and gets no new requests.")
        states = (await text_of(page, "#states")).split("\n")
        assert states == ["3 serving", "1 busy", "1 starting", "1 hung", "1 misconfigured", "1 unknown"]
        assert await page.title() == "4 of 8 serving · Tailkeeper"
        findings = await text_of(page, "#findings")
        assert "PAGE · hung" in findings
        assert "sim-d: nothing is known" in findings
        leases = await text_of(page, "#leases")
        assert "sim-b: drained" in leases
        assert "sim-c: weight 50 %" in leases
        assert "lease ends in" in leases
        assert "applied sim-b: drained" in await text_of(page, "#decisions")
        hung, slow, silent, well = [await _row(page, name) for name in ("sim-b", "sim-c", "sim-d", "sim-a")]
        for words in ("hung", "0.00", "drained"):
            assert words in hung
        for words in ("serving", "50 %", "SLO 1.2 s", "n = "):
            assert words in slow
        for words in ("unknown", "old", "the exporter does not answer"):
            assert words in silent
        for words in ("serving", "1.00", "100 %", "496 ms"):
            assert words in well
        assert "sim-d: the exporter does not answer" in await text_of(page, "#nothing")
        assert "gpu health gate" in await text_of(page, "#policies")


async def test_the_weights_of_the_score_are_told_with_who_changed_them_and_how_much_a_score_rests_on() -> None:
    world = await _quiet()
    async with console(world) as (shown, _):
        page = await shown.open()
        await becomes(page, "#weights", "HScore weighs latency 35 %, error rate 40 %, cpu usage 15 %, uptime 10 %.")
        assert "Changed" not in await text_of(page, "#weights")
        assert "known" not in await _row(page, "sim-a")
        world.loop.parts.weighing.change({"latency": 0.3, "error_rate": 0.2, "cpu_usage": 0.5, "uptime": 0.0}, HOSTILE)
        await world.run(1)
        page = await shown.open()
        await becomes(page, "#weights", "latency 30 %, error rate 20 %, cpu usage 50 %, uptime 0 %. Changed ")
        assert (await text_of(page, "#weights")).endswith(f"by {HOSTILE}.")
        assert "50 % known" in await _row(page, "sim-a"), "this fleet tells nothing of its CPU"
        assert await overflow(page) == []


async def test_a_quiet_fleet_is_called_quiet() -> None:
    async with console(await _quiet()) as (shown, _):
        page = await shown.open()
        assert (await text_of(page, "#now")).startswith("All 4 backends serving. Users wait at most 496 ms for the first token")
        assert await text_of(page, "#quiet") == "All quiet: nothing is wrong that the watchdog can see."
        assert "nothing of ours is in force" in await text_of(page, "#leases-count")
        assert await text_of(page, "#nothing") == "Nothing was wanted: no policy asks for a change."


async def test_a_fleet_without_findings_is_not_called_quiet_while_users_wait() -> None:
    world = await _quiet()
    world.sick["sim-c"].ttft_s = 1.8
    await world.run(90)
    async with console(world) as (shown, _):
        page = await shown.open()
        assert await text_of(page, "#quiet") == "No open finding explains why sim-c is over the SLO."


async def test_the_page_follows_the_fleet_without_a_reload_and_keeps_its_nodes() -> None:
    world = await _quiet()
    async with console(world) as (shown, _):
        page = await shown.open()
        await page.evaluate("window.stays = [...document.querySelectorAll('#backends tr')]")
        world.sick["sim-a"].state = State.HUNG
        await world.run(2)
        await becomes(page, "#now", "sim-a does not answer and gets no new requests.")
        await becomes(page, "#leases", "sim-a: drained")
        world.sick["sim-a"].state = State.SERVING
        await world.run(30)
        await becomes(page, "#decisions", "released")
        await becomes(page, "#quiet", "All quiet")
        assert await page.evaluate("window.stays.every((row, i) => row === document.querySelectorAll('#backends tr')[i])")
        assert "100 %" in await _row(page, "sim-a")


async def test_the_trend_starts_with_what_was_seen_before_the_page_was_opened() -> None:
    world = await _quiet()
    async with console(world) as (shown, _):
        page = await shown.open()
        await world.run(1)
        await becomes(page, "#clock", f"tick {world.loop.latest.tick if world.loop.latest else 0}")
        await page.wait_for_selector("svg.spark polyline", state="attached")
        await page.wait_for_timeout(4_500)  # the watchdog notes a point each two seconds
        again = await shown.open()
        await again.wait_for_selector("svg.spark polyline", state="attached")
        points = str(await again.get_attribute("svg.spark polyline", "points")).split()
        assert len(points) >= 2, "no tick has come since it was opened"


# Releasing


async def test_release_asks_for_the_token_once_and_keeps_it_in_memory_only() -> None:
    world = await _sick()
    async with console(world, TOKEN) as (shown, _):
        shown.expected.append("401")
        page = await shown.open()
        await page.click("button[aria-label='Release sim-b']")
        assert "It is hung now" in await text_of(page, "#change-text")
        await page.click("#change-do")
        await becomes(page, "#change-error", "The watchdog asks for its token.")
        await page.fill("#token", "wrong")
        await page.keyboard.press("Enter")
        await becomes(page, "#change-error", "This token is not accepted.")
        assert world.admission("sim-b") == "drain"
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await becomes(page, "#told", "sim-b was released")
        assert world.admission("sim-b") == "serve"
        await page.click("button[aria-label='Release sim-c']")
        await page.click("#change-do")
        await becomes(page, "#told", "sim-c was released")
        assert world.weight("sim-c") == 1.0
        await becomes(page, "#leases-count", "nothing of ours is in force")
        kept = await page.evaluate(
            "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href, document.body.innerHTML])"
        )
        assert TOKEN not in kept
        assert await page.input_value("#token") == ""


async def test_without_a_token_file_release_asks_for_none() -> None:
    world = await _sick()
    async with console(world) as (shown, _):
        page = await shown.open()
        await page.click("button[aria-label='Release sim-b']")
        await page.click("#change-do")
        await becomes(page, "#told", "sim-b was released")
        assert world.admission("sim-b") == "serve"


async def test_what_could_not_be_released_is_said() -> None:
    world = await _sick()
    world.gateway.lies = True
    async with console(world) as (shown, _):
        page = await shown.open()
        await page.click("button[aria-label='Release sim-b']")
        await page.click("#change-do")
        await becomes(page, "#change-error", "Not everything was released: 1 change still in force")
        await page.click("#change-cancel")
        assert not await page.is_visible("#change")


async def test_everything_can_be_done_with_the_keyboard_and_the_focus_is_seen() -> None:
    async with console(await _sick()) as (shown, _):
        page = await shown.open()
        focused = (
            "document.activeElement.getAttribute('aria-label') || document.activeElement.id || document.activeElement.className"
        )
        seen = []
        for _tab in range(12):
            await page.keyboard.press("Tab")
            seen.append(await page.evaluate(focused))
            outline = await page.evaluate(
                "(({outlineStyle: style, outlineWidth: width}) => [style, parseFloat(width)])"
                "(getComputedStyle(document.activeElement))"
            )
            if seen[-1]:
                assert outline[0] == "solid", seen
                assert outline[1] >= 2, seen
            if seen[-1] == "Release sim-b":
                break
        assert seen[-1] == "Release sim-b", seen
        await page.keyboard.press("Enter")
        assert await page.is_visible("#change")
        await page.keyboard.press("Escape")
        assert not await page.is_visible("#change")
        assert await page.evaluate(focused) == "Release sim-b"


# What goes wrong


async def test_a_watchdog_that_does_not_answer_is_said_until_it_does() -> None:
    world = await _sick()
    async with console(world) as (shown, served):
        shown.expected.append("ERR_CONNECTION_REFUSED")
        page = await shown.open()
        assert not await page.is_visible("#banner")
        await served.stop()
        await becomes(page, "#banner", "The watchdog does not answer")
        assert "Our changes stay in force until it is back" in await text_of(page, "#banner")
        assert await text_of(page, "#mode") == "no answer"
        assert "sim-b" in await text_of(page, "#backends"), "what was known stays"
        await served.start()
        await becomes(page, "#mode", "mode enforce")
        assert not await page.is_visible("#banner")


async def test_a_watchdog_that_no_longer_ticks_is_said() -> None:
    world = await _quiet()
    async with console(world) as (shown, _):
        page = await shown.open()
        world.clock.now += 40
        await becomes(page, "#banner", "The last tick was 40 s ago: the watchdog answers, but looks at nothing.")


async def test_before_the_first_tick_the_page_waits_and_then_shows() -> None:
    world = World(":memory:", NAMES)
    async with console(world) as (shown, _):
        shown.expected.append("503")
        page = await shown.blank()
        await page.goto(shown.url)
        await becomes(page, "#banner", "The watchdog cannot say: the first tick has not ended yet.")
        await world.run(2)
        await becomes(page, "#now", "All 8 backends serving. Too few requests")


async def test_pause_hold_and_observe_answer_why_nothing_happened() -> None:
    world = await _sick(mode=Mode.OBSERVE)
    world.switches.pause("maintenance")
    world.switches.hold("sim-h", "disk swap", 600)
    await world.run(1)
    async with console(world) as (shown, _):
        page = await shown.open()
        assert await text_of(page, "#mode") == "paused: maintenance"
        nothing = await text_of(page, "#nothing")
        assert "Paused (maintenance)" in nothing
        assert "No policy is in mode enforce" in nothing
        assert "sim-h is held by an operator until" in nothing
        assert "sim-b: would be drained (observe only): hung" in nothing
        assert "sim-b does not answer and still gets requests." in await text_of(page, "#now")
        assert "wanted: drained" in await _row(page, "sim-b")


async def test_what_a_guard_let_through_in_part_is_not_called_done() -> None:
    async with console(await _sick()) as (shown, _):
        shown.expected.append("ERR_FAILED")
        page = await shown.blank()
        await page.route(STREAM, lambda route: route.abort())

        async def in_part(route: Route) -> None:
            answer = await route.fetch()
            fleet = await answer.json()
            row = next(row for row in fleet["backends"] if row["leases"])
            row["desired"] |= {"weight": 0.4, "admission": "serve"}
            row["actual"] |= {"weight": 0.6, "admission": "serve"}
            await route.fulfill(response=answer, json=fleet)

        await page.route("**/api/v1/fleet", in_part)
        await page.goto(shown.url)
        await becomes(page, "#nothing", "sim-b: only in part, wanted: 40 %. Open it to see why.")


@pytest.mark.parametrize("size", [DESK, SMALL_PHONE])
async def test_a_shard_says_which_it_is_and_what_it_leaves_to_others(size: tuple[int, int]) -> None:
    async with console(await _quiet()) as (shown, _):
        shown.expected.append("ERR_FAILED")
        page = await shown.open(size)
        assert await page.locator("#shard").is_hidden(), "a watchdog for all is no shard"
        await page.route(STREAM, lambda route: route.abort())

        async def of_three(route: Route) -> None:
            answer = await route.fetch()
            part = {"index": 1, "of": 3, "elsewhere": 1_250, "split_pools": []}
            await route.fulfill(response=answer, json={**await answer.json(), "shard": part})

        await page.route("**/api/v1/fleet", of_three)
        await page.goto(shown.url)
        await becomes(page, "#shard", "shard 1/3 · 1,250 backends elsewhere")
        assert await overflow(page) == []


async def test_names_and_reasons_are_text_and_never_markup() -> None:
    world = with_model(World(":memory:", (HOSTILE, "b", "c", "d")), HOSTILE)
    await world.run(30)
    world.sick[HOSTILE].state = State.HUNG
    await world.run(2)
    world.switches.hold("b", HOSTILE, 600)
    world.switches.pause(HOSTILE)
    await world.run(1)
    async with console(world) as (shown, _):
        shown.expected.append("ERR_FAILED")
        page = await shown.blank()
        await page.route(STREAM, lambda route: route.abort())
        shares = [{"dimension": HOSTILE, "value": HOSTILE, "said": HOSTILE, "share": 0.71, "confidence": 0.9}]
        finding = {
            "id": HOSTILE, "kind": HOSTILE, "backend": HOSTILE, "severity": "page", "since": 1.7e9, "until": None,
            "summary": HOSTILE, "signal": None, "evidence": {"telemetry_lost": True}, "shares": shares,
        }  # fmt: skip
        await page.route("**/api/v1/findings*", lambda route: route.fulfill(json=[finding]))
        await page.goto(shown.url)
        await becomes(page, "#findings", HOSTILE)
        for selector in ("#mode", "#now", "#leases", "#decisions", "#backends", "#nothing"):
            assert HOSTILE in await text_of(page, selector), selector
        await page.click("#leases button")
        assert HOSTILE in await text_of(page, "#change-title")
        assert await page.locator("main img, main script, dialog img, dialog script").count() == 0
        assert await page.title() == "3 of 4 serving · Tailkeeper"


# How it looks


async def _looks_good(shown: Console, size: tuple[int, int], scheme: Scheme, tmp_path: Path) -> Page:
    page = await shown.open(size, scheme)
    assert await overflow(page) == []
    assert await sideways(page) == []
    assert await weak_contrasts(page) == []
    picture = await page.screenshot(path=tmp_path / f"{size[0]}-{scheme}.png")
    blank = await shown.blank(size, scheme)
    assert len(picture) > 4 * len(await blank.screenshot()), "an empty page is a few kilobytes"
    await blank.close()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, WIDE, PHONE, SMALL_PHONE])
async def test_nothing_overflows_and_every_text_can_be_read(size: tuple[int, int], scheme: Scheme, tmp_path: Path) -> None:
    async with console(await _sick()) as (shown, _):
        page = await _looks_good(shown, size, scheme, tmp_path)
        columns = await page.evaluate(
            "new Set([...document.querySelectorAll('.columns:first-child > *')].map((n) => n.offsetLeft)).size"
        )
        assert columns == (1 if size in (PHONE, SMALL_PHONE) else 3)
        await page.click("button[aria-label='Release sim-b']")
        assert await overflow(page) == []
        assert await weak_contrasts(page) == []


async def test_long_names_break_inside_their_place(tmp_path: Path) -> None:
    names = tuple(f"{letter}-{'x' * 120}" for letter in "abc")
    world = with_model(World(":memory:", names), "m" * 100)
    await world.run(30)
    world.sick[names[0]].state = State.HUNG
    await world.run(2)
    async with console(world) as (shown, _):
        for size in (DESK, PHONE):
            await _looks_good(shown, size, "light", tmp_path)


async def test_it_says_what_was_promised_and_that_nobody_asked_is_not_kept() -> None:
    async with console(await _quiet()) as (shown, _):
        page = await shown.open(DESK)
        await becomes(page, "#promises td", "no requests")
        await becomes(page, "#promises-note", "nothing has been counted since the watchdog started")
        assert await text_of(page, "#promises tr td:nth-child(2)") == "1.2 s"
