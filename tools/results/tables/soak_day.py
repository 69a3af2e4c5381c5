"""The simulated day: what befell the fleet, and what was asked at every tick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown


def table(figures: Mapping[str, Any]) -> str:
    memory = figures["memory"]
    seen = [
        ("ticks, each with a record and each looked at", f"{figures['ticks']:,}"),
        ("of them failed, all while the disk was full", f"{figures['ticks_that_failed_for_a_full_disk']:,}"),
        ("faults", f"{figures['faults']['all']:,}"),
        ("changes at the gateway, each with its lease before it", f"{figures['changes']:,}"),
        ("most backends out at once, and the cap", f"{figures['most_out']}, {figures['cap']} of {figures['backends']}"),
        ("times that a backend was unknown, and its score with it", f"{figures['unknown_backends_looked_at']:,}"),
        ("releases by a person, out of quarantine", f"{figures['released_by_a_person']:,}"),
        ("**violations**", f"**{figures['violations']}**"),
        ("left behind at the end", "nothing" if not figures["left"] else f"**{len(figures['left'])} things**"),
        ("memory, second and last quarter of the day", _memory(memory)),
        ("CPU", f"{figures['cpu_s']:,.0f} s"),
    ]
    kinds = [(kind, f"{n:,}") for kind, n in figures["faults"]["by_kind"].items()]
    return "\n\n".join(
        (
            f"{figures['hours']:g} hours of {figures['backends']} backends, a tick every {figures['tick_s']:g} s, "
            f"seed {figures['seed']}.",
            markdown(("seen", "figure"), seen),
            markdown(("what befell it", "times"), kinds),
        )
    )


def _memory(memory: Mapping[str, Any]) -> str:
    if "rss_last_quarter_mb" not in memory:
        return "too short to tell"
    return f"{memory['rss_second_quarter_mb']:.0f} MB, {memory['rss_last_quarter_mb']:.0f} MB"
