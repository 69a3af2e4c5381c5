"""One demo under two faults, and one browser, for all tests of this folder: the boards are looked at while it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import pytest
from playwright.sync_api import Browser

from tests.e2e.real_programs import binary
from tools.boards.browser import MISSING, chromium
from tools.boards.server import NOT_BUILT, PAGE
from tools.boards.world import World, demo, unhappiest

HUNG, HANG_S = "sim-b", 14.0
HOT, HEAT_S = "sim-c", 40.0
WARM_UP_S, UNTIL_SEEN_S = 12.0, 26.0
"""A hang of this length is found, acted on and over before the GPU of another one overheats; then its requests are finished."""


def missing(what: str) -> NoReturn:
    """The end of these tests: skipped, or failed under ``TAILKEEPER_REAL=1``."""
    if os.environ.get("TAILKEEPER_REAL") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with this folder: while it runs, no test can have an event loop of its own."""
    if not (PAGE / "main.js").exists():
        missing(NOT_BUILT)
    try:
        with chromium() as running:
            yield running
    except FileNotFoundError:
        missing(MISSING)


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[World]:
    """The demo after a hang, while a GPU is too hot. ``browser`` first: without one there is nothing to look with."""
    for name in ("prometheus", "prometheus-alertmanager", "haproxy"):
        binary(name)
    with demo(tmp_path_factory.mktemp("demo")) as running:
        time.sleep(WARM_UP_S)
        running.inject(HUNG, "hang", HANG_S)
        time.sleep(HANG_S)
        running.inject(HOT, "throttle", HEAT_S)
        time.sleep(UNTIL_SEEN_S)
        yield running


@pytest.fixture(scope="package")
def unhappy(world: World) -> Mapping[str, Any]:
    """The request that waited longest for its first token: somebody was angry about it."""
    return unhappiest(world)
