"""``tailkeeper status``: one question to the watchdog, one table for a person, and why nothing happens where nothing does."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import httpx

DEADLINE_S = 5.0
HEAD = ("backend", "state", "hscore", "P99 TTFT", "weight", "why")
MIN_WIDTH = 60


def fetch_fleet(url: str) -> dict[str, Any]:
    """The fleet document. Raises OSError where nobody answers and ValueError for what is no fleet document."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/v1/fleet", timeout=DEADLINE_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(f"no answer from the watchdog: {error}") from error
    if answer.status_code != 200:
        raise ValueError(f"answered {answer.status_code}: {answer.text[:200]}")
    document = answer.json()
    if not isinstance(document, dict) or not isinstance(document.get("backends"), list):
        raise ValueError("this is not a watchdog's fleet document")
    return document


def fleet_table(fleet: dict[str, Any], width: int = 200) -> str:
    """Lines of text, at most ``width`` characters where words can be broken: a sentence, what keeps the whole fleet from being
    acted on, then a line for each backend; the reason stands below it where it does not fit beside it."""
    mode = f"paused: {fleet['paused_because']}" if fleet["paused"] else f"mode {fleet['mode']}"
    able = sum(1 for b in fleet["backends"] if b["state"] in ("serving", "busy"))
    first = f"{able} of {len(fleet['backends'])} backends serving, {mode}, tick {fleet['tick']}{_part(fleet.get('shard'))}"
    return "\n".join([first, *_held_back(fleet, max(width, MIN_WIDTH)), *_table(fleet, max(width, MIN_WIDTH))])


def _part(shard: dict[str, Any] | None) -> str:
    if shard is None:
        return ""
    return f"; shard {shard['index']}/{shard['of']}, {shard['elsewhere']} backends are watched by the others"


def _held_back(fleet: dict[str, Any], width: int) -> Iterator[str]:
    """Whatever keeps the watchdog from acting at all, or for one backend whatever its state."""
    reasons = []
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
    for reason in reasons:
        yield from _wrapped(reason, "  ! ", "    ", width)


def _table(fleet: dict[str, Any], width: int) -> Iterator[str]:
    rows = [HEAD, *(_row(b) for b in fleet["backends"])]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
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
