"""After everything was healed: is it all as before, by itself, within the time that the guards' own waits may take?"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tools.chaos import haproxy_eye, ledger_eye
from tools.chaos.eye import Eye
from tools.chaos.town import BACKEND, COOLDOWN_S, LEASE_S, RAMP_S, Town

MAX_RETURN_WAIT_S = 600.0
"""The longest wait before a return (docs/policies.md): doubled for each removal within the hour."""
SLACK_S = 90.0
EXPLAINED = {
    "slo_burn": "what was spent of the error budget stays spent for an hour",
    "growth": "its window holds what was measured during faults",
    "distortion": "its window holds what was measured during faults",
    "zscore": "its window holds what was measured during faults",
    "block_e": "closes by evidence of as much traffic as it was found by",
    "improved_but_broken": "its window holds what was measured during faults",
}
"""Findings that may stay open for a while, and why."""


@dataclass(frozen=True, slots=True)
class Settled:
    """``left`` is what is not as before, empty where all is; ``after_s`` how long it took, ``limit_s`` how long it might."""

    after_s: float
    limit_s: float
    left: tuple[str, ...]
    explained: dict[str, int] = field(default_factory=dict)


def settle(town: Town, eye: Eye, beside: Callable[[], None]) -> Settled:
    """Wait until all is as before. Not to come back within the limit is a violation."""
    limit_s = limit_for(town)
    began = time.monotonic()
    print(f"{eye.faults.now_s:8.1f}  settling, {limit_s:.0f} s at most", flush=True)
    known: set[str] = set()
    while True:
        left, explained = not_as_before(town)
        after_s = time.monotonic() - began
        for words in sorted({_plain(one) for one in left} - known):
            print(f"{eye.faults.now_s:8.1f}    not yet: {words}", flush=True)
        known = {_plain(one) for one in left}
        if not left or after_s > limit_s:
            break
        beside()
        time.sleep(0.5)
    for words in left:
        eye.wrong("all is as before in the end", words)
    return Settled(after_s, limit_s, tuple(left), explained)


def _plain(words: str) -> str:
    """Without figures that change while one waits."""
    return re.sub(r"\d+(\.\d+)?", "#", words)


def limit_for(town: Town) -> float:
    """By the removals that the ledger remembers."""
    with contextlib.suppress(sqlite3.Error, ValueError):
        attempts = ledger_eye.read_book(town.at.ledger).attempts
        return min(MAX_RETURN_WAIT_S, COOLDOWN_S * 2.0 ** max(0, attempts - 1)) + RAMP_S + LEASE_S + SLACK_S
    return MAX_RETURN_WAIT_S + RAMP_S + LEASE_S + SLACK_S


def not_as_before(town: Town) -> tuple[list[str], dict[str, int]]:
    """In words; and the open findings that are explained, by kind."""
    left: list[str] = []
    explained: dict[str, int] = {}
    try:
        servers = haproxy_eye.servers(town.at.haproxy, BACKEND)
        left += [f"{s.name} is not as configured: {s}" for s in servers.values() if not s.as_configured]
        left += [f"HAProxy finds {s.name} down" for s in servers.values() if not s.up]
        left += [f"a lease is left: {lease}" for lease in ledger_eye.read_book(town.at.ledger).leases]
        for row in _ask(town, "fleet")["backends"]:
            if row["state"] not in ("serving", "busy"):
                left.append(f"{row['backend']} is {row['state']}")
        for finding in _ask(town, "findings?open=true"):
            kind = finding["kind"]
            if kind in EXPLAINED:
                explained[kind] = explained.get(kind, 0) + 1
            else:
                left.append(f"an open finding: {kind} of {finding['backend']}: {finding['summary']}")
    except (OSError, ValueError, sqlite3.Error, httpx.HTTPError) as error:
        left.append(f"somebody does not answer: {type(error).__name__}: {error}")
    return left, explained


def _ask(town: Town, path: str) -> Any:
    return town.client.get(f"{town.at.watchdog}/api/v1/{path}").raise_for_status().json()
