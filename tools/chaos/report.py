"""The figures of a run: what was done, what was seen, and whether it is what is promised."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.chaos.eye import Eye
from tools.chaos.faults import Faults, counts
from tools.chaos.invariants import Growth, growth
from tools.chaos.receiver import Receiver
from tools.chaos.settling import Settled
from tools.chaos.town import COOLDOWN_S, ENGINES, LEASE_S, TICK_S, Town

INVARIANTS = (
    "cap",
    "the lease is there before the change",
    "every change has a lease",
    "leases end",
    "no unknown as zero",
    "no tick is lost without a record",
    "an exporter answers whatever hangs",
    "nobody ends by itself",
    "memory, files and threads are flat",
    "all is as before in the end",
)
LIVES_S = 1_200.0
"""Shorter lives are not judged: buffers of requests and windows of measurements fill meanwhile."""


@dataclass
class Run:
    town: Town
    faults: Faults
    eye: Eye
    settled: Settled
    receiver: Receiver
    seed: int
    every_s: float
    seconds: float

    @property
    def good(self) -> bool:
        return not self.eye.violations


def figures(run: Run) -> dict[str, Any]:
    """Judges the growth of our own processes, too."""
    grown = {name: growths(run.eye, name) for name in run.town.programs}
    for name, found in grown.items():
        if run.town.programs[name].ours:
            for one in found:
                if not one.is_flat:
                    run.eye.wrong("memory, files and threads are flat", f"{name}: {_grown(one)}")
    eye = run.eye
    return {
        "minutes": round(run.seconds / 60, 1),
        "every_s": run.every_s,
        "seed": run.seed,
        "backends": ENGINES,
        "tick_s": TICK_S,
        "lease_s": LEASE_S,
        "cooldown_s": COOLDOWN_S,
        "faults": {"all": len(run.faults.log), "by_kind": dict(sorted(counts(run.faults.log).items()))},
        "left_out": run.town.left_out,
        "violations": {name: eye.counts[f"violations: {name}"] for name in (*INVARIANTS, "the eye itself")},
        "told": [violation.document() for violation in eye.violations],
        "looks": {name: n for name, n in sorted(eye.counts.items()) if not name.startswith("violations: ")},
        "values_watched_while_unreadable": sum(one.watched for one in eye.not_zero.values()),
        "most_out": eye.most_out,
        "longest_lease_not_renewed_s": round(eye.leases.longest_s, 1),
        "ticks_missed": {name: ticks.missed for name, ticks in eye.ticks.items()},
        "exporter_healthz_ms": quantiles([1e3 * s for s in eye.answer_s]),
        "machine_most_late_s": round(eye.late_s, 2),
        "lives": {name: len(program.lives) for name, program in run.town.programs.items()},
        "growth": {name: [_grown(one) for one in found] for name, found in grown.items() if found},
        "log_errors": log_errors(run.town),
        "notifications": {"posts": run.receiver.posts, "firing": run.receiver.counts()},
        "requests": _requests(run.town),
        "settled": {
            "after_s": round(run.settled.after_s, 1),
            "limit_s": round(run.settled.limit_s, 1),
            "left": list(run.settled.left),
            "findings_explained": run.settled.explained,
        },
        "log": [fault.line() for fault in run.faults.log],
    }


def growths(eye: Eye, name: str) -> list[Growth]:
    """Of each life of a program that was long enough."""
    found = [growth(life, LIVES_S) for (program, _), life in eye.usage.items() if program == name]
    return [one for one in found if one is not None]


def _grown(one: Growth) -> dict[str, Any]:
    return {
        "life_s": round(one.life_s),
        "rss_mb": [round(value / 1e6, 1) for value in one.rss_bytes],
        "fds": list(one.fds),
        "threads": list(one.threads),
        "slope_mb_per_hour": round(one.slope_bytes_per_hour / 1e6, 2),
    }


def quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {name: round(ordered[int(q * (len(ordered) - 1))], 2) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def log_errors(town: Town) -> dict[str, dict[str, int]]:
    """What our own programs logged as errors, by event and exception; numbers left out."""
    found: dict[str, dict[str, int]] = {}
    for name in ("exporter-1", "exporter-2", "watchdog", "shadow"):
        words: Counter[str] = Counter()
        for line in (town.folder / f"{name}.log").read_text(errors="replace").splitlines():
            words.update(_error(line))
        found[name] = dict(words.most_common(20))
    return found


def _error(line: str) -> list[str]:
    try:
        document = json.loads(line)
    except ValueError:
        return [_plain(line)] if "Traceback" in line or "Error" in line else []
    if not isinstance(document, dict) or document.get("level") not in ("error", "critical"):
        return []
    last = str(document.get("exception", document.get("error", ""))).strip().splitlines()
    return [_plain(f"{document.get('event')}: {last[-1] if last else ''}")]


def _plain(words: str) -> str:
    """Without numbers and folders, which differ from run to run."""
    return re.sub(r"\d+", "#", re.sub(r"/\S*/", "", words))[:200]


def _requests(town: Town) -> Mapping[str, Any]:
    try:
        totals = json.loads((town.folder / "load.json").read_text())["totals"]
    except (OSError, ValueError, LookupError):
        return {}
    return {name: totals[name] for name in ("sent", "ok", "errors", "timeouts", "within_slo", "missed_slo")}
