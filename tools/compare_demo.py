"""The demo's faults twice, with the same load and the same seed: with the watchdog looking on, and with it acting.

    python tools/compare_demo.py [FAULT …] [--side observe|enforce] [--rows FILE]

Each run is one story of the demo in real time, one after the other: 35 minutes for all eight. What users got is taken from the
load's own record of each request, never from what Tailkeeper says of itself. ``--rows`` keeps a line of JSON for each run and
adds to what is there; the table is made of all that it has, the latest run of each fault and side.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from tailkeeper_demo.faults import FaultKind
from tailkeeper_demo.mix import Mix
from tailkeeper_demo.policy_modes import ENFORCED, OBSERVED, Policies
from tailkeeper_demo.processes import Processes, free_port
from tailkeeper_demo.stack import Addresses, start
from tailkeeper_demo.story import ONE_STORY_S, SEED, STORY_S, WARM_UP_S, Plan

SIDES: dict[str, Policies] = {"observe": OBSERVED, "enforce": ENFORCED}
VICTIM = 1
"""The engine that falls ill, as in the demo's first story."""
POLL_S = 0.5
GIVE_BACK_S = 60.0
"""After a story leases get so much longer to come back before they count as left."""


AFTER_S = 1.0
"""So much longer the load goes on, so that nothing is counted that its own end has cut."""
AT_THE_END_S = 4.0
"""As long as the demo wants to see no miss before it calls the SLA back."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run. Counts and times from the fault to the end of the story; None: it did not happen."""

    fault: str
    side: str
    requests: int
    within: int
    failed: int
    """Got an error or a cut answer, or the client's patience ended."""
    ttft_p99_s: float | None
    """Of those that got a first token or waited for one until the client's patience ended."""
    missing_until_s: float | None
    """Seconds from the fault to the last request that missed the SLA."""
    to_the_end: bool
    """Requests still missed in the last seconds of the story."""
    changes: int
    """Writes that reached a gateway, in the whole run."""
    leases_left: int
    given_back_s: float | None
    """Seconds from the fault until nothing was on lease any more."""
    load_average: float


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the load's record. Wall-clock seconds; ``judged_s`` when it was known to keep or to miss the SLA."""

    start_s: float
    end_s: float
    judged_s: float
    ttft_s: float | None
    within: bool
    outcome: str


def requests_of(lines: Iterable[str]) -> Iterator[Request]:
    """What the load wrote; a line that is being written is left out."""
    for line in lines:
        if line.endswith("\n"):
            yield Request(**json.loads(line))


def p99(values: Sequence[float]) -> float | None:
    """Nearest rank from above: a value really observed."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] if values else None


@dataclass(slots=True)
class _Story:
    """One run while it goes on."""

    fault: FaultKind
    addresses: Addresses
    client: httpx.Client
    processes: Processes
    injected_unix_s: float = 0.0
    given_back_s: float | None = None
    leases: int = 0

    def play(self, length_s: float) -> None:
        """The whole story: the quiet beginning, the fault, and what comes of it."""
        self.watch(WARM_UP_S)
        self.injected_unix_s = time.time()
        victim, seconds = self.addresses.backends[VICTIM], Plan(self.fault, Mix.ONLINE, None).fault_s
        body = {"engine": victim, "fault": self.fault.value, "duration_s": seconds}
        self.client.post(f"{self.addresses.admin}/faults", json=body).raise_for_status()
        self.watch(length_s - WARM_UP_S)

    def wait_for_leases(self) -> None:
        ends_at = time.monotonic() + GIVE_BACK_S
        while self.leases and time.monotonic() < ends_at:
            self.watch(POLL_S)

    def changes(self) -> int:
        decisions = self.client.get(f"{self.addresses.console}/api/v1/decisions", params={"limit": 1000}).json()
        return sum(d["verdict"] in ("applied", "released", "expired") for d in decisions)

    def watch(self, seconds: float) -> None:
        """Let it go on so long, and see when the last lease was back."""
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            self.processes.check()
            fleet = self.client.get(f"{self.addresses.console}/api/v1/fleet").raise_for_status().json()
            self.leases = sum(len(b["leases"]) for b in fleet["backends"])
            if self.leases:
                self.given_back_s = None
            elif self.given_back_s is None:
                self.given_back_s = time.time() - self.injected_unix_s
            time.sleep(min(POLL_S, left_s))


def run(fault: FaultKind, side: str) -> Row:
    """One story in real time. Raises ProcessEndedError where a part ends by itself."""
    with tempfile.TemporaryDirectory(prefix="compare-demo-") as name:
        folder, processes = Path(name), Processes(Path(name))
        try:
            addresses = start(processes, folder, free_port(), SEED, {}, Mix.ONLINE, SIDES[side])
            with httpx.Client(timeout=5.0, trust_env=False) as client:
                story = _Story(fault, addresses, client, processes)
                story.play(STORY_S.get(fault, ONE_STORY_S))
                ended_unix_s = time.time()
                story.watch(AFTER_S)
                story.wait_for_leases()
                changes, load_average = story.changes(), os.getloadavg()[0]
        finally:
            processes.stop()
        with (folder / "requests.jsonl").open() as lines:  # only now has the load written down what was still under way
            return _row(story, side, list(requests_of(lines)), ended_unix_s, changes, load_average)


def _row(story: _Story, side: str, seen: Sequence[Request], ended_unix_s: float, changes: int, load_average: float) -> Row:
    return Row(
        fault=story.fault.value,
        side=side,
        **figures(seen, story.injected_unix_s, ended_unix_s),
        changes=changes,
        leases_left=story.leases,
        given_back_s=story.given_back_s if changes else None,
        load_average=round(load_average, 1),
    )


def figures(seen: Sequence[Request], since_s: float, until_s: float) -> dict[str, Any]:
    """What users got: of the requests that began after the fault and kept or missed the SLA within the story."""
    mine = [r for r in seen if since_s <= r.start_s and r.judged_s <= until_s]
    missed = [r.judged_s for r in mine if not r.within]
    return {
        "requests": len(mine),
        "within": sum(r.within for r in mine),
        "failed": sum(r.outcome in ("error", "timeout") and r.end_s <= until_s for r in mine),
        "ttft_p99_s": p99([wait for r in mine if (wait := _waited_s(r, until_s)) is not None]),
        "missing_until_s": max(missed) - since_s if missed else None,
        "to_the_end": bool(missed) and until_s - max(missed) < AT_THE_END_S,
    }


def _waited_s(request: Request, until_s: float) -> float | None:
    """For the first token, or in vain, to the end of the story at most; None where an error came instead."""
    if request.ttft_s is not None:
        return request.ttft_s
    return min(request.end_s, until_s) - request.start_s if request.outcome in ("timeout", "aborted") else None


def table(rows: Iterable[Row]) -> str:
    """Markdown: one line a fault, what users got before and after the arrow."""
    by = {(row.fault, row.side): row for row in rows}
    lines = [
        "| fault | requests within SLA | P99 of the first token | failed | last miss after the fault | changes, leases left |",
        "|---|---|---|---|---|---|",
    ]
    for fault in FaultKind:
        sides = [by.get((fault.value, side)) for side in SIDES]
        if any(sides):
            cells = (" → ".join(_cell(row, column) for row in sides) for column in range(4))
            lines.append(f"| {fault} | {' | '.join(cells)} | {_acted(sides[1])} |")
    return "\n".join(lines)


def _cell(row: Row | None, column: int) -> str:
    if row is None:
        return "not run"
    until = "none" if row.missing_until_s is None else f"{row.missing_until_s:.0f} s"
    return (
        f"{row.within / row.requests:.2%}" if row.requests else "no requests",
        "none" if row.ttft_p99_s is None else f"{row.ttft_p99_s:.2f} s",
        f"{row.failed} of {row.requests}",
        f"{until}, to the end" if row.to_the_end else until,
    )[column]


def _acted(row: Row | None) -> str:
    if row is None:
        return "not run"
    back = "" if row.given_back_s is None else f", all back after {row.given_back_s:.0f} s"
    return f"{row.changes}, {row.leases_left} left{back}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The demo's faults with the watchdog looking on, and with it acting.")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FaultKind))
    parser.add_argument("--side", choices=list(SIDES), action="append", help="only this side; default both")
    parser.add_argument("--rows", type=Path, help="keep the rows here, as lines of JSON")
    given = parser.parse_args(argv)
    unknown = set(given.faults) - set(FaultKind)
    if unknown:
        parser.error(f"{sorted(unknown)[0]!r} is no fault; there are: {', '.join(FaultKind)}")
    rows = [Row(**json.loads(line)) for line in given.rows.read_text().splitlines()] if given.rows and given.rows.exists() else []
    # Told to end in whatever way, it takes its programs along.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"gateway: {'HAProxy' if shutil.which('haproxy', path=_PATHS) else 'the small one of the demo'}", flush=True)
    for fault in [FaultKind(name) for name in given.faults] or list(FaultKind):
        for side in given.side or list(SIDES):
            row = run(fault, side)
            rows.append(row)
            line = json.dumps(asdict(row))
            print(line, flush=True)
            if given.rows:
                with given.rows.open("a") as out:
                    out.write(line + "\n")
    print(table(rows))
    return 0


_PATHS = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"

if __name__ == "__main__":
    sys.exit(main())
