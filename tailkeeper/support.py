"""What ``check-config`` prints: what would be enforced at which backend and why, and what discovery finds now."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailkeeper.config import Config

if TYPE_CHECKING:
    from tailkeeper_exporter.discovery import Listing

FIND_S = 5.0
"""For all discoveries at once: somebody waits in front of the terminal."""

MIN_REASON = 24
"""Characters; where a terminal leaves less beside the other columns, lines are longer than it is wide."""


def support_table(config: Config, width: int | None = None) -> str:
    """Lines of text, reasons broken at ``width`` characters if given. Asks no gateway: what a kind can do is known beforehand."""
    from tailkeeper_watchdog.actuators import build_actuator
    from tailkeeper_watchdog.api.documents import support_row
    from tailkeeper_watchdog.app import policy_modes
    from tailkeeper_watchdog.policies import POLICIES
    from tailkeeper_watchdog.reconcile import support_of

    actuators = {g.name: build_actuator(g) for g in config.for_watchdog().gateways}
    modes = policy_modes(config.policies)
    rows = [("policy", "backend", "here", "because")]
    for policy in POLICIES:
        for backend in config.backends:
            gateways = [actuators[ref.name] for ref in backend.gateway]
            row = support_row(modes[policy.name], {knob: support_of(knob, gateways) for knob in policy.knobs})
            rows += support_lines(policy.name, backend.name, row)
    return "\n".join(aligned(rows, width))


def aligned(rows: Sequence[tuple[str, str, str, str]], width: int | None) -> Iterator[str]:
    """The last column goes on below itself where it is wider than what ``width`` leaves."""
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    indent = " " * (sum(widths) + 2 * len(widths))
    for row in rows:
        beside = "".join(f"{cell:<{w}}  " for cell, w in zip(row, widths, strict=False))
        reason = (
            [row[3]] if width is None else textwrap.wrap(row[3], max(MIN_REASON, width - len(indent)), break_long_words=False)
        )
        yield from (
            f"{before}{text}".rstrip() for before, text in zip((beside, *[indent] * len(reason)), reason or [""], strict=False)
        )


def support_lines(policy: str, backend: str, row: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The line of a policy at a backend; where it goes in part, a line for each of its knobs below."""
    here = [(policy, backend, row["actuation"], row["why"])]
    reaches = {name: (knob["actuation"], knob["why"]) for name, knob in row["knobs"].items()}
    if len({reach for reach, _ in reaches.values()}) > 1:
        here += [(f"  {name}", backend, reach, why) for name, (reach, why) in reaches.items()]
    return [(name, where, reach.replace("_", " "), why) for name, where, reach, why in here]


def found_now(config: Config) -> list[str]:
    """A line for each discovery: how many backends it finds now, or why none. A failure here is no fault of the file."""
    if not config.discovery:
        return []
    from tailkeeper_exporter.discovery import DiscoveryError, ask_all, sources_of

    answers = asyncio.run(ask_all(sources_of(config.discovery), FIND_S))
    lines: list[str] = []
    for name, answer in answers.items():
        if isinstance(answer, DiscoveryError):
            lines.append(f"{name}: cannot be asked now: {answer}")
        else:
            lines += [f"{name}: {line}" for line in (_counted(config, answer), *answer.notes)]
    return lines


def _counted(config: Config, listing: Listing) -> str:
    """How many of a list can be watched, with the first problem of those that cannot."""
    problems: list[str] = []
    for found in listing.found:
        try:
            config.compose(found)
        except ValueError as error:
            problems.append(f"{found.name}: {error}")
    left_out = f"; {len(problems)} of them left out: {problems[0]}" if problems else ""
    return f"found {len(listing.found)} backends{left_out}"
