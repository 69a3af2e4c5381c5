"""What ``check-config`` prints: what would be enforced at which backend and why, and what discovery finds now."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailkeeper.config import Config, example
from tailkeeper_exporter.counted import plural, some

if TYPE_CHECKING:
    from tailkeeper_exporter.discovery import Listing
    from tailkeeper_watchdog.actuators.contract import Support
    from tailkeeper_watchdog.model import Knob

FIND_S = 5.0
"""For all discoveries at once: somebody waits in front of the terminal."""
MAX_NAMED = 3
"""Backends by name where many have the same answer."""
MAX_NAMES_WIDTH = 24
"""Characters of the names beside each other in a terminal; a single longer name has its whole width."""
MIN_REASON = 24
"""Characters; where a terminal leaves less beside the other columns, lines are longer than it is wide."""

HEAD = ("policy", "backend", "here", "because")
FOUND = "(found ones)"
"""In the place of a name: what ``defaults`` makes of whatever discovery finds."""

Row = tuple[str, str, str, str]


def policies(config: Config) -> list[dict[str, Any]]:
    """As ``GET /api/v1/policies``; ``FOUND`` is the last backend where there is discovery. Asks no gateway: what a kind can do is
    known beforehand."""
    from tailkeeper_watchdog.actuators import build_actuator
    from tailkeeper_watchdog.api import documents
    from tailkeeper_watchdog.app import policy_modes
    from tailkeeper_watchdog.model import Backend, Knob
    from tailkeeper_watchdog.reconcile import support_of

    actuators = {g.name: build_actuator(g) for g in config.for_watchdog().gateways}
    places = {b.name: tuple(ref.name for ref in b.gateway) for b in config.backends}
    if config.discovery:
        places[FOUND] = tuple(ref.name for ref in example(config).gateway)
    known: dict[tuple[str, ...], dict[Knob, Support]] = {}  # a fleet of thousands has a handful of gateways
    for names in places.values():
        if names not in known:
            known[names] = {knob: support_of(knob, [actuators[name] for name in names]) for knob in Knob}
    support = {(name, knob): answer for name, names in places.items() for knob, answer in known[names].items()}
    return documents.policies(tuple(Backend(name) for name in places), support, policy_modes(config.policies))


def support_table(table: Sequence[Mapping[str, Any]], width: int | None = None, *, every: bool = False) -> str:
    """Lines of text, broken at ``width`` characters if given. Backends of which all the same is true share a line, unless
    ``every`` one is to have its own."""
    return "\n".join(aligned([HEAD, *_rows(table, every=every)], width))


def _rows(table: Sequence[Mapping[str, Any]], *, every: bool) -> Iterator[Row]:
    for policy in table:
        alike: dict[str, list[Mapping[str, Any]]] = {}
        for backend in policy["backends"]:
            own = backend["backend"] if every else None
            alike.setdefault(json.dumps({**backend, "backend": own}), []).append(backend)
        for group in alike.values():
            names = [backend["backend"] for backend in group]
            yield from support_lines(policy["policy"], _named(names, len(policy["backends"])), group[0])


def _named(names: list[str], total: int) -> str:
    """All, or a few by name. Found ones have no number, so they are named beside."""
    if len(names) < total or total <= MAX_NAMED:
        return some([*names[-1:], *names[:-1]] if names[-1] == FOUND else names, MAX_NAMED)
    return f"all {total - 1:,}, {FOUND}" if names[-1] == FOUND else f"all {total:,}"


def aligned(rows: Sequence[Row], width: int | None) -> Iterator[str]:
    """Names and reasons go on below themselves where they are wider than what ``width`` leaves."""
    first, second, third = (max(len(row[i]) for row in rows) for i in range(3))
    if width is not None:
        second = min(second, max(MAX_NAMES_WIDTH, *(len(word) for row in rows for word in row[1].split())))
    room = None if width is None else max(MIN_REASON, width - (first + second + third + 6))
    for row in rows:
        names, reason = _broken(row[1], None if width is None else second), _broken(row[3], room)
        for number in range(max(len(names), len(reason), 1)):
            policy, here = (row[0], row[2]) if number == 0 else ("", "")
            name, why = (column[number] if number < len(column) else "" for column in (names, reason))
            yield f"{policy:<{first}}  {name:<{second}}  {here:<{third}}  {why}".rstrip()


def _broken(text: str, width: int | None) -> list[str]:
    return [text] if width is None else textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def support_lines(policy: str, backend: str, row: Mapping[str, Any]) -> list[Row]:
    """The line of a policy at a backend; where it goes in part, what is said of its knobs stands below."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, knob in row["knobs"].items():
        alike.setdefault((knob["actuation"], knob["why"]), []).append(name)
    here = row["actuation"].replace("_", " ")
    if len({reach for reach, _ in alike}) < 2:
        return [(policy, backend, here, row["why"])]
    able = [name for name, knob in row["knobs"].items() if knob["actuation"] == row["actuation"]]
    parts = [(f"  {', '.join(names)}", "", reach.replace("_", " "), why) for (reach, why), names in alike.items()]
    return [(policy, backend, here, f"in part: {', '.join(able)}"), *parts]


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
    return f"found {plural(len(listing.found), 'backend')}{left_out}"
