"""Boards in a real browser: open one, wait until every panel has its answer, take the report and the picture.

Chromium by playwright's synchronous interface. A page is as tall as its board, because tables draw only the rows in the window.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

from tools.boards.server import Json, Served

LAPTOP, WALL = 1280, 1920
"""Widths in pixels: a laptop beside a chat window, and a wall."""
ARGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
SETTLE_LIMIT_MS = 30_000
"""A board takes one or two seconds; this is for a loaded machine."""
DRAW_MS = 400
"""From the last answer to the last pixel: graphs draw in the next frames, and measure their text first."""
_ROW_PX, _HEAD_PX, MARGIN_PX = 38, 200, 14
MISSING = "chromium is missing; apt-get install -y --no-install-recommends chromium fonts-dejavu-core"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium. Raises FileNotFoundError where there is none."""
    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGS)
        try:
            yield browser
        finally:
            browser.close()


class Boards:
    """The boards of one server in one browser."""

    def __init__(self, browser: Browser, served: Served) -> None:
        # One context, so that the page's ten megabytes of scripts are read and compiled once.
        self._context = browser.new_context()
        self._context.set_default_timeout(SETTLE_LIMIT_MS)
        self.served = served

    def open(self, uid: str, variables: Mapping[str, str] | None = None, width: int = LAPTOP) -> Page:
        """The board once every panel has its answer. ``variables`` are parts of the address, such as ``var-x`` or ``from``."""
        page = self._context.new_page()
        page.set_viewport_size({"width": width, "height": self._height(uid)})
        page.goto(f"{self.served.url}/d/{uid}?{urlencode(variables or {})}")
        settle(page)
        return page

    def report(
        self, uid: str, variables: Mapping[str, str] | None = None, picture: Path | None = None, width: int = LAPTOP
    ) -> Json:
        """What the board says of itself, and its picture at ``picture``."""
        page = self.open(uid, variables, width)
        try:
            if picture is not None:
                page.screenshot(path=picture, full_page=True, clip=_whole_board(page, width))
            return report_of(page)
        finally:
            page.close()

    def follow(self, address: str) -> Json:
        """The report of the board at an address such as links give, with or without the server before it."""
        page = self._context.new_page()
        try:
            page.goto(address if "://" in address else self.served.url + address)
            settle(page)
            return report_of(page)
        finally:
            page.close()

    def _height(self, uid: str) -> int:
        panels = [panel for one in self.served.boards.get(uid, {}).get("panels", []) for panel in (one, *one.get("panels", []))]
        rows: int = max([10, *(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels if "gridPos" in panel)])
        return _HEAD_PX + _ROW_PX * rows


def settle(page: Page) -> None:
    """Wait until every panel has its answer and is drawn."""
    page.wait_for_function("() => window.settled?.()")
    page.wait_for_timeout(DRAW_MS)
    page.wait_for_function("() => window.settled?.()")


def report_of(page: Page) -> Json:
    found: dict[str, Any] = page.evaluate("() => window.report()")
    return found


def _whole_board(page: Page, width: int) -> FloatRect:
    """From the title to the lowest panel: the page is taller, so that its tables have room."""
    panels = page.locator("[data-viz-panel-key]")
    lowest: float = panels.evaluate_all("(found) => Math.max(...found.map((one) => one.getBoundingClientRect().bottom))")
    return {"x": 0, "y": 0, "width": width, "height": lowest + MARGIN_PX}


def panel(page: Page, panel_id: int) -> Any:
    """The element of the panel with this id."""
    return page.locator(f'[data-viz-panel-key="panel-{panel_id}"]').first
