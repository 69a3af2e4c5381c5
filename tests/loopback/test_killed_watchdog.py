"""SIGKILL at every step that writes: after the next start nothing of ours is left beyond its lease, nothing of others touched.

The process, its death, the ledger and the gateways' sockets are real (`killed_watchdog`); the webhook's gateway lives here, in
another process. `tests/loopback/test_killed_at_any_step.py` does the same in one process, at the reads too.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.contract.webhook_gateway import NORMAL, WebhookGateway, webhook_gateway
from tests.e2e.real_programs import HaproxyServer, RealPrograms, programs
from tests.loopback.killed_watchdog import GUARDS, NAMES

__all__ = ["gateway", "programs"]

START = 1_000.0
STORY = [
    (0.5, {}, dict.fromkeys(NAMES, 0.0), ""),
    (0.5, {"b": "hung"}, {"c": 0.6}, ""),  # a drain, a weight
    (0.5, {}, {"c": 0.3}, ""),  # another weight
    (3.0, {"b": "serving"}, {}, ""),  # back by the ramp
    (0.5, {"b": "hung"}, {}, ""),  # the second time: quarantined
    (2.5, {"b": "serving"}, {"c": 0.0}, ""),  # the weight is given back, the quarantine holds
    (0.5, {}, {}, "b"),  # a person releases
]
LENGTH_S = sum(part[0] for part in STORY)
WELL = [(11.0, {"b": "serving"}, dict.fromkeys(NAMES, 0.0), ""), (0.5, {}, {}, "b")]
"""Everybody is well: what returns by itself does so, and a person ends a quarantine."""
OTHERS = {"x": NORMAL | {"weight": 0.25, "admission": "drain"}}
"""A server that is none of ours, as somebody left it."""
DOCUMENTS = {**{name: NORMAL | {"owner": "team x"} for name in NAMES}, "d": NORMAL | {"weight": 0.8}, **OTHERS}


class Zygote:
    """Starts watchdogs that die when told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, **told: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(told)}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert not answer.get("failed"), "the watchdog ended by itself, see stderr"
        return answer


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    command = [sys.executable, "-m", "tests.loopback.killed_watchdog"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        with process:
            yield Zygote(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(10)
    finally:
        process.kill()


Rows = list[tuple[Any, ...]]


def leased(ledger: Path) -> Rows:
    """The leases after the death, as another process reads them: server, knob, until when, and what was written."""
    db = sqlite3.connect(ledger)
    try:
        sql = "SELECT server, knob, expires, written, prior, before, confirmed, reverts FROM leases WHERE ended IS NULL"
        return [*db.execute(f"{sql} ORDER BY server, knob"), *db.execute("SELECT backend, count FROM attempts ORDER BY backend")]
    finally:
        db.close()


def check_after_death(documents: dict[str, dict[str, Any]], rows: Rows, step: int) -> None:
    """What differs from how it was is in the ledger, with an end."""
    leases = {(row[0], row[1]): row[2] for row in rows if len(row) > 2}
    latest = 1_700_000_000.0 + START + LENGTH_S + GUARDS.lease_s
    for server, document in documents.items():
        changed = {key for key, value in document.items() if value != DOCUMENTS[server].get(key)}
        assert {(server, knob) for knob in changed} <= set(leases), f"step {step}: changed, and not in the ledger"
    assert all(expires <= latest for expires in leases.values()), f"step {step}"


@contextmanager
def gateway() -> Iterator[WebhookGateway]:
    with webhook_gateway(deepcopy(DOCUMENTS)) as made:
        yield made


def test_a_kill_at_every_write_leaves_nothing_behind(zygote: Zygote, tmp_path: Path) -> None:
    """Kill at step 0, 1, 2, … until a story ends by itself; start again at once, or once every lease has run out."""
    step, killed = 0, 0
    seen: set[str] = set()
    while True:
        ledger = tmp_path / f"{step}.db"
        with gateway() as made:
            given = {"ledger": str(ledger), "gateway": made.url, "servers": {}}
            ended = zygote(**given, now=START, story=STORY, step=step)
            rows = leased(ledger)
            check_after_death(made.documents, rows, step)
            state = repr((made.documents, rows))
            if state not in seen:  # a new start begins with what the ledger and the gateway hold, and with nothing else
                seen.add(state)
                late = GUARDS.lease_s + 1 if len(seen) % 2 else 0.0
                after = zygote(**given, now=START + LENGTH_S + late, story=WELL)
                assert (after["left"], made.documents) == (0, DOCUMENTS), f"killed at step {step}"
        if "killed" not in ended:
            break
        step, killed = step + 1, killed + 1
    assert killed > 30, "the story has become short; does it still act?"


@pytest.mark.real
def test_the_same_at_a_real_haproxy(zygote: Zygote, tmp_path: Path, programs: RealPrograms) -> None:
    haproxy = programs.haproxy([HaproxyServer(name, 9, "weight 100") for name in (*NAMES, "x")])
    haproxy.ask("set server llm/x state drain")
    haproxy.ask("set server llm/d weight 80")

    def servers() -> list[tuple[str, str]]:
        rows = haproxy.ask(f"show stat {haproxy.backend} 4 -1").splitlines()
        header = rows[0].lstrip("# ").split(",")
        return [(row.split(",")[header.index("status")], row.split(",")[header.index("weight")]) for row in rows[1:] if row]

    before = servers()
    given = {"gateway": haproxy.socket, "servers": {name: f"llm/{name}" for name in NAMES}}
    for step in (3, 5, 7, 8, 12, 20, 30, 40):
        ledger = str(tmp_path / f"h{step}.db")
        assert zygote(**given, ledger=ledger, now=START, story=STORY, step=step)["killed"]
        assert zygote(**given, ledger=ledger, now=START + LENGTH_S, story=WELL)["left"] == 0
        assert servers() == before, f"killed at step {step}"
