"""The console in a real browser: Debian's Chromium over the watchdog's real HTTP server, over a `World` whose time we turn.

Whatever the page asks of another address, and whatever Chromium complains about, is collected and judged at the end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, Request, async_playwright

from tailkeeper_exporter.serving import Server, bind, server_config
from tailkeeper_watchdog.api.live import Live
from tests.e2e.real_programs import free_port
from tests.scenario.world import World
from tests.unit.watchdog_http import gated

ARGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
START_LIMIT_S = 10.0
SEE_LIMIT_MS = 15_000
"""The page hears of a tick within half a second, or asks every two; this is for a loaded machine."""
DESK, WIDE, PHONE, SMALL_PHONE = (1280, 800), (1440, 900), (390, 844), (360, 740)
STREAM = "**/api/v1/stream"
Scheme = Literal["light", "dark"]


def chromium() -> str:
    """The path of the browser, or the end of this test: skipped, or failed under ``TAILKEEPER_REAL=1``."""
    found = shutil.which("chromium")
    if found is not None:
        return found
    message = "chromium is missing; apt-get install -y --no-install-recommends chromium"
    if os.environ.get("TAILKEEPER_REAL") == "1":
        pytest.fail(message)
    pytest.skip(message)


@dataclass
class Console:
    """One served watchdog and one browser. ``complaints`` must be empty in the end."""

    world: World
    url: str
    browser: Browser
    complaints: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    async def open(self, size: tuple[int, int] = DESK, scheme: Scheme = "light") -> Page:
        """The page once it shows backends."""
        page = await self.blank(size, scheme)
        await page.goto(self.url)
        await page.wait_for_selector("#backends tr", timeout=SEE_LIMIT_MS)
        return page

    async def blank(self, size: tuple[int, int] = DESK, scheme: Scheme = "light") -> Page:
        viewport: Any = {"width": size[0], "height": size[1]}
        context = await self.browser.new_context(viewport=viewport, color_scheme=scheme)
        page = await context.new_page()
        page.set_default_timeout(SEE_LIMIT_MS)
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._look)
        return page

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(words in text for words in self.expected):
            self.complaints.append(f"{kind}: {text}")

    def _look(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:,")):
            self.complaints.append(f"asked for {request.url}")


class Served:
    """The watchdog's application on one loopback port, to be stopped and started again."""

    def __init__(self, world: World, token: str | None) -> None:
        self.world, self._token = world, token
        self.port = free_port()
        self.live = Live()

    async def start(self) -> None:
        self.live = Live()
        app = gated(self.world, self._token, live=self.live)
        self._listening = bind(f"127.0.0.1:{self.port}", "listen")
        config = server_config(app)
        config.lifespan = "auto"
        self._server = Server(config, self.live.end)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        async with asyncio.timeout(START_LIMIT_S):
            while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task
        self._listening.close()


@asynccontextmanager
async def console(world: World, token: str | None = None) -> AsyncIterator[tuple[Console, Served]]:
    """A browser before a served watchdog; in the end nobody may have complained."""
    program = chromium()
    served = Served(world, token)
    await served.start()
    try:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program, args=ARGS)
            shown = Console(world, f"http://127.0.0.1:{served.port}/", browser)
            try:
                yield shown, served
            finally:
                await browser.close()
            assert shown.complaints == []
    finally:
        await served.stop()


def with_model(world: World, model: str) -> World:
    """The same world, its backends serving ``model``."""
    parts = world.loop.parts
    backends = tuple(replace(backend, model=model) for backend in parts.fleet())
    world.loop.parts = replace(parts, fleet=lambda: backends)
    return world


async def becomes(page: Page, selector: str, text: str) -> None:
    """Wait until some element of ``selector`` contains ``text``; spaces of any kind are the same."""
    await page.wait_for_function(
        "([selector, text]) => [...document.querySelectorAll(selector)]"
        ".some((node) => node.textContent.replaceAll('\\u00a0', ' ').includes(text))",
        arg=[selector, text],
        timeout=SEE_LIMIT_MS,
    )


async def text_of(page: Page, selector: str) -> str:
    return (await page.inner_text(selector)).replace("\u00a0", " ")


async def overflow(page: Page) -> list[str]:
    """What is wider than its place: the page itself, and every element whose text is cut or hangs out."""
    found: list[str] = await page.evaluate(
        """() => {
          const wide = [];
          if (document.documentElement.scrollWidth > innerWidth) wide.push(`page ${document.documentElement.scrollWidth}`);
          for (const node of document.querySelectorAll("body *")) {
            const box = node.getBoundingClientRect();
            if (!box.width || node.closest("thead, dialog:not([open])")) continue;
            const region = node.closest(".scroll");
            if (box.right <= innerWidth + 1 || (region && region !== node)) continue;
            wide.push(`${node.tagName}.${node.className} to ${box.right}`);
          }
          return wide;
        }"""
    )
    return found


async def sideways(page: Page) -> list[str]:
    """Regions that have to be scrolled sideways to be seen whole, and cells whose words hang out of them over the next one."""
    found: list[str] = await page.evaluate(
        """() => [...document.querySelectorAll(".scroll, .list, td, tbody th")].filter((n) => n.scrollWidth > n.clientWidth + 1)
          .map((n) => `${n.tagName}.${n.className} ${n.textContent.slice(0, 40)}: ${n.scrollWidth} in ${n.clientWidth}`)"""
    )
    return found


async def weak_contrasts(page: Page) -> list[str]:
    """Visible texts whose contrast with what is behind them is below 4.5 : 1 (WCAG 2.2, 1.4.3)."""
    found: list[str] = await page.evaluate(
        """() => {
          const parse = (color) => color.match(/[\\d.]+/g).map(Number);
          const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const behind = (node) => {
            for (let at = node; at; at = at.parentElement) {
              const color = parse(getComputedStyle(at).backgroundColor);
              if (color.length === 3 || color[3] > 0) return color;
            }
            return [255, 255, 255];
          };
          const weak = [];
          for (const node of document.querySelectorAll("body *")) {
            const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
            if (!own || !node.checkVisibility()) continue;
            const [a, b] = [luminance(parse(getComputedStyle(node).color)), luminance(behind(node))].sort((x, y) => y - x);
            const ratio = (a + 0.05) / (b + 0.05);
            const words = node.textContent.slice(0, 30);
            if (ratio < 4.5) weak.push(`${node.tagName}.${node.className} "${words}" ${ratio.toFixed(2)}`);
          }
          return weak;
        }"""
    )
    return found
