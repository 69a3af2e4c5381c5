"""``tailkeeper status``: one question to the watchdog, one table for a person, and why nothing happens where nothing does."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import httpx

from tailkeeper_exporter.counted import plural
from tailkeeper_exporter.hiding import hidden
from tailkeeper_exporter.settings import check_url

DEADLINE_S = 5.0
HEAD = ("backend", "state", "hscore", "P99 TTFT", "weight", "why")
MIN_WIDTH = 60
MAX_ROWS = 50
"""Backends at a glance: of a larger fleet those that need a look, and how many others there are."""
MAX_HELD_BACK = 20
LATE_TICKS = 3
"""As the console has it: a watchdog whose last tick is older answers, and looks at nothing."""


class UrlError(ValueError):
    """No address of a watchdog. The message says why."""


def fetch_fleet(url: str) -> dict[str, Any]:
    """The fleet document. Raises OSError where nobody answers, ValueError for what is no fleet document, and ``UrlError``."""
    try:
        check_url(url)
    except ValueError as error:
        raise UrlError(f"{error} (given: {hidden(url)!r})") from None
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/v1/fleet", timeout=DEADLINE_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(f"no answer from the watchdog: {error}") from error
    if answer.status_code != 200:
        raise ValueError(f"answered {answer.status_code}: {_detail(answer)}")
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("backends"), list):
        raise ValueError("this is not a watchdog's fleet document")
    return document


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])[:400]
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


def fleet_table(fleet: dict[str, Any], width: int = 200, *, every: bool = True) -> str:
    """Lines of text, at most ``width`` characters where words can be broken: a sentence, what keeps the whole fleet from being
    acted on, then a line for each backend; the reason stands below it where it does not fit beside it. Without ``every``, a large
    fleet is told by those that need a look."""
    mode = f"paused: {fleet['paused_because']}" if fleet["paused"] else f"mode {fleet['mode']}"
    able = sum(1 for b in fleet["backends"] if b["state"] in ("serving", "busy"))
    first = f"{able:,} of {plural(len(fleet['backends']), 'backend')} serving, {mode}, tick {fleet['tick']}"
    first += _part(fleet.get("shard"))
    width = max(width, MIN_WIDTH)
    shown, left_out = (fleet["backends"], []) if every else _worth_a_look(fleet)
    return "\n".join([first, *_held_back(fleet, width, every=every), *_table(shown, width), *left_out])


def _part(shard: dict[str, Any] | None) -> str:
    if shard is None:
        return ""
    return f"; shard {shard['index']}/{shard['of']}, {plural(shard['elsewhere'], 'backend')} watched by the others"


def _worth_a_look(fleet: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The backends to show, and a line about the others."""
    backends: list[dict[str, Any]] = fleet["backends"]
    if len(backends) <= MAX_ROWS:
        return backends, []
    odd = [backend for backend in backends if not _is_plain(backend, fleet)]
    plain = len(backends) - len(odd)
    more = [f"{len(odd) - MAX_ROWS:,} more that need a look"] if len(odd) > MAX_ROWS else []
    more += [f"{plain:,} serving within the SLO with nothing to do"] if plain else []
    return odd[:MAX_ROWS], [f"and {', '.join(more)}; --all shows all"]


def _is_plain(backend: dict[str, Any], fleet: dict[str, Any]) -> bool:
    p99_s, wanted, actual = backend["p99_s"], backend["desired"], backend["actual"]
    is_over = p99_s is not None and (p99_s > fleet["slo_ttft_p99_s"] or backend["p99_saturated"])
    as_wanted = all(wanted[knob] in (None, actual[knob]) for knob in ("weight", "admission") if actual[knob] is not None)
    return backend["state"] == "serving" and not backend["leases"] and not backend["hold"] and not is_over and as_wanted


def _held_back(fleet: dict[str, Any], width: int, *, every: bool) -> Iterator[str]:
    """Whatever keeps the watchdog from acting at all, or for one backend whatever its state."""
    reasons = _reasons(fleet)
    more = len(reasons) - MAX_HELD_BACK
    if more > 0 and not every:
        reasons = [*reasons[:MAX_HELD_BACK], f"and {more:,} more like these; --all shows all"]
    for reason in reasons:
        yield from _wrapped(reason, "  ! ", "    ", width)


def _reasons(fleet: dict[str, Any]) -> list[str]:
    reasons = []
    late_s = fleet["now"] - fleet["time"]
    if late_s > LATE_TICKS * max(1.0, fleet["tick_s"]):
        reasons.append(f"the last tick was {late_s:.0f} s ago: the watchdog answers, but looks at nothing; its log tells why")
    if fleet["paused"]:
        reasons.append("nothing is changed while it is paused; POST /api/v1/resume ends that, or remove the pause file")
    elif fleet["mode"] != "enforce":
        reasons.append(f"nothing is changed in mode {fleet['mode']}: what would be done stands below; docs/policies.md")
    if fleet.get("error"):
        reasons.append(f"no fresh evidence, so nothing is decided: {fleet['error']}")
    reasons += [f"gateway {name}: {why}" for name, why in sorted((fleet.get("gateway_errors") or {}).items())]
    for pool in (fleet.get("shard") or {}).get("split_pools", ()):
        reasons.append(f"pool {pool} is watched by several shards, each with caps for its part; docs/scale.md")
    for backend in fleet["backends"]:
        if backend.get("hold"):
            reasons.append(f"{backend['backend']} is on hold: {backend['hold']['reason']}; nothing is done to it until that ends")
        if backend["actual"].get("doubt"):
            reasons.append(f"{backend['backend']}: {backend['actual']['doubt']}")
    return reasons


def _table(backends: list[dict[str, Any]], width: int) -> Iterator[str]:
    rows = [HEAD, *(_row(b) for b in backends)] if backends else []
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(5)]
    beside = sum(widths) + 2 * len(widths)
    below = any(beside + len(row[5]) > width for row in rows)
    for number, row in enumerate(rows):
        cells = "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False))
        if not below:
            yield f"{cells}  {row[5]}".rstrip()
            continue
        yield cells.rstrip()
        if number:
            yield from _wrapped(row[5], "    ", "    ", width)


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _row(backend: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    score = backend["hscore"]
    actual = backend["actual"]
    share = "unknown" if actual["weight"] is None else f"{actual['weight']:.0%}"
    weight = "drained" if actual["admission"] == "drain" else share
    return (
        backend["backend"],
        backend["state"],
        "unknown" if score is None else f"{score:.2f}",
        _p99(backend),
        weight,
        backend["why"],
    )


def _p99(backend: dict[str, Any]) -> str:
    value = backend["p99_s"]
    if value is None:
        return "unknown" if backend["state"] == "unknown" else "no traffic"
    text = f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{'≥ ' if backend['p99_saturated'] else ''}{text} (n={backend['samples']})"
