"""``bench ledger``: what writing a change down costs, beside bare SQLite on the same disk in the same run.

A change is two commits: the intent before the call to the gateway, the confirmation after it was read back. Beside it, in turns,
bare SQLite inserts a row of the same texts with the ledger's own settings (WAL, ``synchronous=FULL``), and with
``synchronous=OFF``: the difference is the waiting for the disk, without which a power cut loses what was noted. All files have
been written to before, because a log that still grows waits longer for the disk.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tailkeeper.bench import summary
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Knob, Outcome, Target

ROUNDS = 60
A_ROUND = 10
"""Changes of one writer before it is the next one's turn."""
TOGETHER = 100
"""Lines of the log in one commit, as of a tick that decided about a hundred."""
HELD = 1_000
"""Leases in force that all of it is done beside."""
USED_BEFORE = 3_000
"""Rows in the bare files before the clock runs: by then SQLite writes over its log instead of behind it."""
NOW_UNIX_S = 1_767_225_600.0
LEASE_S = 300.0
REASON = "KV cache 82% in use: weight = 1 - kv_usage_ratio, at least 0.1"

Timed = Callable[[int], float]
"""Does the thing with this number and gives the seconds that it took."""


def ledger_bench(folder: Path | None, rounds: int = ROUNDS, open_ledger: Callable[[Path], Ledger] = Ledger) -> dict[str, Any]:
    """Latencies in milliseconds and rates a second. Files lie in a folder of their own in ``folder``, by default the system's
    for temporary files. Raises LedgerError and OSError."""
    with tempfile.TemporaryDirectory(prefix="tk-ledger-", dir=folder) as name:
        place = Path(name)
        with (
            closing(open_ledger(place / "ledger.db")) as ledger,
            closing(_bare(place / "full.db", "FULL")) as full,
            closing(_bare(place / "off.db", "OFF")) as off,
        ):
            _fill(ledger)
            ways: dict[str, Timed] = {
                "intent": lambda number: _change(ledger, number)[0],
                "change": lambda number: sum(_change(ledger, number)),
                "log_lines_together": lambda number: _lines(ledger, number),
                "sqlite_full": lambda number: _insert(full, number),
                "sqlite_off": lambda number: _insert(off, number),
            }
            seconds = _in_turns(ways, rounds)
            return {"filesystem": filesystem(place), "leases_in_force": HELD, **_figures(seconds), **_reading(ledger)}


def _fill(ledger: Ledger) -> None:
    with ledger.together():
        for number in range(HELD):
            _intend(ledger, f"held-{number}")
    for number in range(A_ROUND):
        _change(ledger, number)
        _lines(ledger, number)


def _intend(ledger: Ledger, backend: str) -> int:
    target, expires = Target("edge", f"llm/{backend}", "llm"), NOW_UNIX_S + LEASE_S
    return ledger.intend(backend, target, Knob.WEIGHT, "context_length_routing", 1.0, 0.18, REASON, NOW_UNIX_S, expires).id


def _change(ledger: Ledger, number: int) -> tuple[float, float]:
    """Seconds of the intent and of its confirmation. Ended outside the clock, so that the leases stay as many."""
    started = time.perf_counter()
    lease = _intend(ledger, f"backend-{number}")
    intended = time.perf_counter()
    ledger.confirm(lease, 0.18)
    confirmed = time.perf_counter()
    ledger.end(lease, Outcome.RELEASED, NOW_UNIX_S)
    return intended - started, confirmed - intended


def _lines(ledger: Ledger, number: int) -> float:
    started = time.perf_counter()
    with ledger.together():
        for line in range(TOGETHER):
            name, reason = f"backend-{line}", REASON
            ledger.record(NOW_UNIX_S, number, "slo_guardian", name, Knob.WEIGHT, 1.0, 0.18, Outcome.OBSERVED, reason)
    return time.perf_counter() - started


def _bare(file: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute(
        "CREATE TABLE changes (id INTEGER PRIMARY KEY, backend TEXT, server TEXT, value TEXT, reason TEXT, at REAL)"
    )
    for number in range(USED_BEFORE):
        _insert(connection, number)
    connection.execute(f"PRAGMA synchronous={synchronous}")
    return connection


def _insert(connection: sqlite3.Connection, number: int) -> float:
    started = time.perf_counter()
    values = (f"backend-{number}", f"llm/backend-{number}", json.dumps(0.18), REASON, NOW_UNIX_S)
    connection.execute("INSERT INTO changes (backend, server, value, reason, at) VALUES (?,?,?,?,?)", values)
    return time.perf_counter() - started


def _in_turns(ways: dict[str, Timed], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name, way in ways.items():
            seconds[name] += [way(turn * A_ROUND + number) for number in range(A_ROUND)]
    return seconds


def _figures(seconds: dict[str, list[float]]) -> dict[str, Any]:
    def row(name: str, a_time: int = 1) -> dict[str, float]:
        of_it = {key: round(1_000 * value, 4) for key, value in summary(seconds[name]).items()}
        return {f"{key}_ms": value for key, value in of_it.items()} | {
            "per_second": round(a_time * len(seconds[name]) / sum(seconds[name]), 1)
        }

    rows = {name: row(name, TOGETHER if name == "log_lines_together" else 1) for name in seconds}
    intent_ms = rows["intent"]["p50_ms"]
    return {
        **rows,
        "lines_in_a_commit": TOGETHER,
        "intent_against_sqlite_full": round(intent_ms / rows["sqlite_full"]["p50_ms"], 2),
        "intent_against_sqlite_off": round(intent_ms / rows["sqlite_off"]["p50_ms"], 1),
    }


def _reading(ledger: Ledger) -> dict[str, Any]:
    """All leases in force, as every tick asks for them."""
    times = []
    for _ in range(101):
        started = time.perf_counter()
        ledger.leases()
        times.append(time.perf_counter() - started)
    return {"read_leases_ms": round(1_000 * summary(times)["p50"], 4)}


def filesystem(place: Path) -> str | None:
    """The kind of file system that a folder is on, because waiting for it is most of what is measured. None where unknown."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    inside = [(len(at), kind) for _, at, kind, *_ in mounts if place.is_relative_to(at)]
    return max(inside)[1] if inside else None
