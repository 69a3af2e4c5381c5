"""Whether everybody can use the console: axe-core's rules over every part of it, and what the keyboard alone can do."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tests.e2e.console_in_chromium import (
    DESK,
    SMALL_PHONE,
    Console,
    Scheme,
    becomes,
    console,
    overflow,
    sideways,
    weak_contrasts,
    with_model,
)
from tests.scenario.world import World

pytestmark = pytest.mark.real

AXE = Path(__file__).parents[2] / "tools" / "board_harness" / "node_modules" / "axe-core" / "axe.min.js"
MISSING = "axe-core is missing; run: make board-harness"
NAMES = tuple(f"sim-{letter}" for letter in "abcdefghijkl")


def axe() -> str:
    """The library's text, or the end of this test: skipped, or failed under ``TAILKEEPER_REAL=1``."""
    if AXE.exists():
        return AXE.read_text()
    if os.environ.get("TAILKEEPER_REAL") == "1":
        pytest.fail(MISSING)
    pytest.skip(MISSING)


async def violations(page: Page) -> list[str]:
    """Every rule of axe-core that the page breaks, of whatever gravity, with where it does."""
    await page.evaluate(axe())
    found: list[dict[str, Any]] = await page.evaluate(
        "axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations)"
    )
    return [
        f"{rule['impact']} {rule['id']}: {node['html'][:160]} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


async def _world() -> World:
    """Every state there is, a hold, two changes of ours."""
    world = with_model(World(":memory:", NAMES), "llama-3-8b")
    for at, name in enumerate(NAMES):
        world.sick[name].extra = {catalog.KV_USAGE.name: 0.05 * at}
    await world.run(60)
    states = {"b": State.HUNG, "e": State.BUSY, "f": State.STARTING, "g": State.MISCONFIGURED, "i": State.DOWN}
    for letter, state in states.items():
        world.sick[f"sim-{letter}"].state = state
    world.sick["sim-c"].itl_s, world.sick["sim-c"].ttft_s = 0.2, 1.8
    world.sick["sim-d"].silent = True
    world.switches.hold("sim-h", "disk swap", 600)
    await world.run(20)
    return world


async def _as_it_is(page: Page) -> None:
    await becomes(page, "#promises td", "1.2 s")


async def _details(page: Page) -> None:
    await page.click("#backends tr[data-key='sim-c'] button")
    await becomes(page, "#details-decisions", "applied")


async def _hold(page: Page) -> None:
    await page.click("#backends tr[data-key='sim-a'] button")
    await page.click("#details-hold")


async def _token(page: Page) -> None:
    await page.click("button[aria-label='Release sim-c']")
    await page.click("#change-do")
    await becomes(page, "#change-error", "asks for its token")


async def _found_nobody(page: Page) -> None:
    await page.fill("#filter", "nobody")


async def _report(page: Page) -> None:
    kinds = (True, False, None) * 20
    backends = [{"backend": "a", "sla_kept": kept, "breaches": ()} for kept in kinds]
    findings = [{"kind": "hung", "backend": "a", "severity": s, "since": 1e9, "summary": "x"} for s in ("page", "ticket", "info")]
    report = {
        "source": {"where": "x"},
        "period": {},
        "backends": backends,
        "findings": findings,
        "decisions": [],
        "compared": {"differences": ["x"]},
    }
    given: Any = {"name": "r.json", "mimeType": "application/json", "buffer": json.dumps(report).encode()}
    await page.set_input_files("#report-file", given)
    await becomes(page, "#report-head", "Replay of x")


async def _wrong_report(page: Page) -> None:
    await page.set_input_files("#report-file", {"name": "r.txt", "mimeType": "text/plain", "buffer": b"words"})
    await becomes(page, "#report-error", "cannot be read")


PARTS: list[Callable[[Page], Awaitable[None]]] = [_as_it_is, _details, _hold, _token, _found_nobody, _report, _wrong_report]


async def _part_is_right(shown: Console, part: Callable[[Page], Awaitable[None]], size: tuple[int, int], scheme: Scheme) -> None:
    page = await shown.open(size, scheme)
    await part(page)
    assert await violations(page) == [], part.__name__
    assert await overflow(page) == [], part.__name__
    assert await sideways(page) == [], part.__name__
    assert await weak_contrasts(page) == [], part.__name__
    await page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, SMALL_PHONE])
async def test_no_part_of_the_console_breaks_a_rule_of_axe(size: tuple[int, int], scheme: Scheme) -> None:
    axe()
    async with console(await _world(), "token") as (shown, _):
        shown.expected.append("401")
        for part in PARTS:
            await _part_is_right(shown, part, size, scheme)


async def test_without_a_watchdog_nothing_breaks_a_rule_either() -> None:
    axe()
    async with console(await _world()) as (shown, served):
        shown.expected.append("ERR_CONNECTION_REFUSED")
        page = await shown.open()
        await served.stop()
        await becomes(page, "#banner", "The watchdog does not answer")
        assert await violations(page) == []
        await served.start()


async def test_axe_would_find_what_is_wrong() -> None:
    """A test that cannot fail proves nothing."""
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        await page.evaluate(
            "document.documentElement.lang = ''; document.getElementById('order').closest('label').firstChild.remove()"
        )
        found = await violations(page)
        assert any("html-has-lang" in one for one in found)
        assert any("select-name" in one for one in found)


# The keyboard


async def test_the_first_key_leads_past_the_columns_to_the_backends() -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the backends"
        assert await page.evaluate("document.activeElement.getBoundingClientRect().top >= 0"), "it is seen once it has the focus"
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.id") == "filter"


async def test_every_table_and_list_that_scrolls_is_reached_and_named() -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open(SMALL_PHONE)
        unreached = await page.evaluate(
            """() => [...document.querySelectorAll("main *")]
              .filter((n) => /auto|scroll/.test(getComputedStyle(n).overflowX + getComputedStyle(n).overflowY) && n.clientHeight)
              .filter((n) => n.tabIndex !== 0 || !(n.ariaLabel || n.getAttribute("aria-labelledby")))
              .map((n) => `${n.tagName}.${n.className}#${n.id}`)"""
        )
        assert unreached == []


async def test_a_dialog_keeps_the_focus_and_gives_it_back() -> None:
    async with console(await _world()) as (shown, _):
        page = await shown.open()
        await page.focus("#backends tr[data-key='sim-c'] button")
        await page.keyboard.press("Enter")
        await becomes(page, "#details-title", "sim-c")
        for _ in range(12):
            await page.keyboard.press("Tab")
            inside = "document.activeElement === document.body || document.activeElement.closest('#details') !== null"
            assert await page.evaluate(inside)
        await page.keyboard.press("Escape")
        assert await page.evaluate("document.activeElement.textContent") == "sim-c"


async def test_turning_to_the_last_page_leaves_the_focus_on_a_button_that_works() -> None:
    world = World(":memory:", tuple(f"v-{i:02}" for i in range(60)))
    await world.run(1)
    async with console(world) as (shown, _):
        page = await shown.open()
        pages = page.locator("#backends-foot nav")
        await pages.get_by_role("button", name="Next").focus()
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.textContent") == "Previous"
        assert await page.locator("#backends tr").count() == 10
