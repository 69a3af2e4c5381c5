"""Pictures of all boards from the demo under faults, for the documentation.

    python -m tools.boards.shoot [--out docs/images/boards]

A laptop's width for all, a wall's for those that hang on one. Exit code 1 where a board has something wrong (said on standard
error); its picture is written all the same, because it shows what.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailkeeper_dashboards.render import render
from tailkeeper_dashboards.settings import FLEET_UID, HEALING_UID
from tools.boards.browser import LAPTOP, WALL, Boards, chromium
from tools.boards.checks import findings
from tools.boards.rightly_empty import RIGHTLY_EMPTY
from tools.boards.server import Json, page_server
from tools.boards.world import World, asked_about, demo, unhappiest

OUT = Path("docs/images/boards")
ON_A_WALL = (FLEET_UID, HEALING_UID)
STORY: tuple[tuple[float, str, str, float], ...] = (
    (30.0, "sim-b", "hang", 15.0),
    (35.0, "sim-d", "errors", 12.0),
    (35.0, "sim-c", "throttle", 75.0),
)
"""Seconds after the fault before, engine, fault, how long: one after the other, so that each is found and acted on by itself."""
AFTER_S = 60.0
"""The last fault is still there in the pictures."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out: Path = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, it takes the demo along
    boards: dict[str, Json] = {board["uid"]: board for board in map(json.loads, render().values())}
    with tempfile.TemporaryDirectory(prefix="tailkeeper-boards-") as folder, demo(Path(folder)) as world:
        _play(world)
        with page_server(world.sources, list(boards.values())) as served, chromium() as browser:
            wrong = _shoot(Boards(browser, served), boards, unhappiest(world), out)
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


def _play(world: World) -> None:
    for after_s, engine, fault, duration_s in STORY:
        time.sleep(after_s)
        world.inject(engine, fault, duration_s)
        print(f"{engine}: {fault} for {duration_s:g} s", flush=True)
    time.sleep(AFTER_S)


def _shoot(shown: Boards, boards: Mapping[str, Json], request: Mapping[str, Any], out: Path) -> list[str]:
    wrong = []
    for uid in boards:
        for width in (LAPTOP, WALL) if uid in ON_A_WALL else (LAPTOP,):
            picture = out / f"{uid.removeprefix('tailkeeper-')}{'-wall' if width == WALL else ''}.png"
            report = shown.report(uid, asked_about(uid, request), picture, width)
            wrong += [f"{uid}: {finding}" for finding in findings(report, boards, RIGHTLY_EMPTY)]
            print(picture, flush=True)
    return list(dict.fromkeys(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
