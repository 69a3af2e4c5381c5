"""24 hours of a fleet in a few minutes: thousands of faults, and after every tick what is promised.

    python -m tests.soak.day [--hours 24] [--every-s 15] [--seed 1] [--out DIR]

Prints the figures as JSON, or writes soak_day.json in DIR; exit 1 where anything was violated or is not as before at the end.
See `day_world` for what is asked, `day_faults` for what happens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from tailkeeper_watchdog.guards import cap_of
from tests.scenario.full_world import GUARDS, TICK_S
from tests.soak.day_faults import Befalls
from tests.soak.day_world import NAMES, DayWorld
from tools.results import envelope

HOUR_S = 3_600.0
SETTLE_S = 1_500.0
"""The longest wait before a return (600 s), the steps of a guardian that restores, and the leases."""
OPERATOR_S = 600.0
"""So often a person looks whether somebody is in quarantine, and releases him."""
RSS_GROWTH, RSS_SLACK_BYTES = 0.10, 10e6


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def live(day: DayWorld, befalls: Befalls, hours: float) -> list[int]:
    """The whole day; memory at every ten minutes of it."""
    memory: list[int] = []
    person_s = mark_s = OPERATOR_S
    while day.day_s < hours * HOUR_S:
        befalls.carry_on()
        await day.tick()
        if day.day_s >= mark_s:
            mark_s += 600.0
            memory.append(rss_bytes())
            if len(memory) % 6 == 0:
                words = f"{day.day_s / HOUR_S:5.1f} h: {memory[-1] / 1e6:.0f} MB, {sum(befalls.begun.values())} faults"
                print(
                    f"{words}, {day.counts['changes']} changes, {day.counts['violations']} violations",
                    file=sys.stderr,
                    flush=True,
                )
        if day.day_s >= person_s:
            person_s += OPERATOR_S
            await release_quarantined(day)
    return memory


async def release_quarantined(day: DayWorld) -> None:
    """What a person does about a finding that says so."""
    if day.ledger_fails or day.gateway.fails is not None:
        return
    attempts = day.ledger.attempts(day.clock.wall())
    for name, count in attempts.items():
        if count >= GUARDS.quarantine_after:
            day.counts["released by a person"] += 1
            await day.loop.release("by a person", name)


async def settle(day: DayWorld) -> tuple[float, list[str]]:
    """How long until all is as before, and what is left where that does not come."""
    began_s = day.day_s
    while day.day_s - began_s < SETTLE_S:
        await day.tick()
        if int(day.day_s) % 60 < TICK_S:
            await release_quarantined(day)
        if not day.leftovers():
            break
    return day.day_s - began_s, day.leftovers()


def flat(memory: list[int]) -> dict[str, Any]:
    """The second quarter of the day beside the last one."""
    quarter = len(memory) // 4
    if quarter == 0:
        return {"is_flat": True}
    early, late = max(memory[quarter : 2 * quarter]), max(memory[-quarter:])
    is_flat = late <= early * (1 + RSS_GROWTH) + RSS_SLACK_BYTES
    return {"rss_second_quarter_mb": round(early / 1e6, 1), "rss_last_quarter_mb": round(late / 1e6, 1), "is_flat": is_flat}


async def day_of(folder: Path, hours: float, every_s: float, seed: int) -> dict[str, Any]:
    """The figures."""
    day = DayWorld(folder / "ledger.db", seed)
    befalls = Befalls(day, every_s, random.Random(seed))
    started = time.process_time()
    memory = await live(day, befalls, hours)
    befalls.end_all()
    after_s, left = await settle(day)
    return {
        "hours": hours,
        "seed": seed,
        "backends": len(NAMES),
        "tick_s": TICK_S,
        "ticks": day.counts["ticks"],
        "ticks_that_failed_for_a_full_disk": day.counts["ticks that failed"],
        "faults": {"all": sum(befalls.begun.values()), "by_kind": dict(sorted(befalls.begun.items()))},
        "changes": day.counts["changes"],
        "decisions": day.counts["decisions"],
        "released_by_a_person": day.counts["released by a person"],
        "unknown_backends_looked_at": day.counts["unknown backends looked at"],
        "cap": cap_of(len(NAMES), GUARDS),
        "most_out": day.most_out,
        "violations": day.counts["violations"],
        "told": day.wrong,
        "memory": flat(memory),
        "settled_after_s": after_s,
        "left": left,
        "cpu_s": round(time.process_time() - started, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.day", description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--every-s", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # else the same seed is another day, by the order of sets
        os.execve(sys.executable, [sys.executable, "-m", "tests.soak.day", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # a line for each of a million decisions
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(day_of(Path(folder), given.hours, given.every_s, given.seed))
    if given.out is None:
        print(json.dumps(figures, indent=1))
    else:
        print(envelope.write("soak_day", f"make soak-day ARGS='--hours {given.hours:g} --seed {given.seed}'", figures, given.out))
    return 0 if not figures["violations"] and not figures["left"] and figures["memory"]["is_flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
