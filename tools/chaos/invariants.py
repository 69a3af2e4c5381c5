"""What must hold whatever breaks. Pure: what was seen goes in with its time, what is wrong comes out in words.

Nothing here asks the watchdog how it is doing: HAProxy, the ledger's file, pages and processes are looked at from outside.
Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from statistics import fmean, median
from typing import Any

from tools.chaos.haproxy_eye import Server
from tools.chaos.ledger_eye import Book, LeaseRow

MAX_FRACTION = 0.3
LEASE_MARGIN_S = 15.0
"""Beside the lease's own length, of time in which it could be ended: half a lease for the renewal that came just before the last
wish went, and what is left of a back-off after failed writes (30 s at most, most of it while nothing can be written)."""


def cap_of(size: int) -> int:
    return max(1, floor(MAX_FRACTION * size))


def beyond_cap(servers: Mapping[str, Server]) -> list[str]:
    """Never more out or cut than the cap, and one left at least."""
    out = sorted(name for name, server in servers.items() if server.acted_on)
    wrong = []
    if len(out) > cap_of(len(servers)):
        wrong.append(f"{len(out)} of {len(servers)} are out or cut ({', '.join(out)}), the cap is {cap_of(len(servers))}")
    if servers and len(out) == len(servers):
        wrong.append("nobody is left")
    return wrong


def uncovered(servers: Mapping[str, Server], before: Book, after: Book, backend: str) -> list[str]:
    """Every server that is not as configured has a lease that says so, in the ledger before or after HAProxy was read."""
    wrong = []
    for name, server in servers.items():
        here = f"{backend}/{name}"
        for knob, value, differs in (
            ("admission", "drain", server.drained),
            ("weight", server.weight / server.configured if server.configured else 0.0, server.weight != server.configured),
        ):
            if differs and not any(_covers(book, here, knob, value) for book in (before, after)):
                leases = [lease for lease in (*before.leases, *after.leases) if lease.server == here]
                wrong.append(f"{name} has {knob} {value} and no lease says so (on that server: {leases or 'none'})")
    return wrong


def _covers(book: Book, server: str, knob: str, value: Any) -> bool:
    for lease in book.leases:
        if (lease.server, lease.knob) == (server, knob):
            known = (lease.written, lease.before, *book.pending.get((server, knob), ()))
            if any(_same(knob, value, one) for one in known if one is not None):
                return True
    return False


def _same(knob: str, a: Any, b: Any) -> bool:
    return abs(float(a) - float(b)) <= 0.02 if knob == "weight" else bool(a == b)


@dataclass
class Leases:
    """A lease that nobody renews ends by its expiry. Only time counts in which it can end: the watchdog runs, HAProxy answers and
    the disk takes writes. By our own clock, because the watchdog's is stepped."""

    lease_s: float
    margin_s: float = LEASE_MARGIN_S
    _since: dict[int, tuple[LeaseRow, float]] = field(default_factory=dict)
    _last_at: float | None = None
    longest_s: float = 0.0
    """The longest such time that was seen."""

    def look(self, at: float, leases: Sequence[LeaseRow], able: bool) -> list[str]:
        passed = at - self._last_at if able and self._last_at is not None else 0.0
        self._last_at = at
        seen: dict[int, tuple[LeaseRow, float]] = {}
        for lease in leases:
            known, waited = self._since.get(lease.id, (lease, 0.0))
            seen[lease.id] = (lease, waited + passed if known == lease else 0.0)
        self._since = seen
        self.longest_s = max([self.longest_s, *(waited for _, waited in seen.values())])
        return [
            f"a lease of {self.lease_s:g} s was neither renewed nor ended in {waited:.0f} s in which it could have been: {lease}"
            for lease, waited in seen.values()
            if waited > self.lease_s + self.margin_s
        ]


NEVER_ZERO = frozenset(
    {
        "llm_gpu_memory_total_bytes",
        "llm_gpu_memory_used_bytes",
        "llm_gpu_temperature_celsius",
        "llm_gpu_power_watts",
        "llm_gpu_sm_clock_hertz",
        "tailkeeper_backend_p99_seconds",
    }
)
"""A real one is never 0, so a 0 is an unknown that was taken for one."""
FROM_THE_PAGE = frozenset(
    {
        "llm_requests_running",
        "llm_requests_waiting",
        "llm_kv_cache_usage_ratio",
        "llm_kv_cache_hit_ratio",
        "llm_vram_pressure_ratio",
        "llm_token_efficiency_tokens_per_second",
        "llm_requests_total",
        "llm_prompt_tokens_total",
        "llm_generated_tokens_total",
        "llm_preemptions_total",
    }
)
"""What only the engine's page can tell. While nobody can read that, they may stay as they were or go, and never become 0."""
COUNTERS = frozenset(name for name in FROM_THE_PAGE if name.endswith("_total"))

Series = Mapping[tuple[str, str], float]
"""Values by metric and by all labels as they were written, of which ``backend`` is one."""


@dataclass
class NotZero:
    """No unknown is shown as 0. ``unreadable`` are backends whose page nobody can read now, and could not for some seconds, each
    with the metrics that only that page can tell."""

    _before: dict[tuple[str, str], float] = field(default_factory=dict)
    watched: int = 0
    """Values that were looked at while their page could not be read."""

    def look(self, values: Series, unreadable: Mapping[str, frozenset[str]]) -> list[str]:
        wrong = [f"{name}{{{labels}}} is 0" for (name, labels), value in values.items() if name in NEVER_ZERO and value == 0]
        kept: dict[tuple[str, str], float] = {}
        marks = [(f'backend="{backend}"', metrics) for backend, metrics in unreadable.items()]
        for key, value in values.items():
            name, labels = key
            if not any(mark in labels and name in metrics for mark, metrics in marks):
                continue
            self.watched += 1
            before = self._before.get(key)
            if value == 0 and before:
                wrong.append(f"{name}{{{labels}}} became 0 from {before:g} while its page could not be read")
            kept[key] = value
        self._before = kept
        return wrong


@dataclass
class Ticks:
    """In each life of a watchdog every beat is a tick that took place, or one that its own metric counts as missed."""

    tick_s: float
    slack_ticks: float = 4.0
    patience: int = 5
    """Looks in a row: a page may be read between the end of a stop and the tick that counts it."""
    _life: int | None = None
    _first: tuple[float, float] = (0.0, 0.0)
    _last_missed: float = 0.0
    _short: int = 0
    took_place: float = 0.0
    missed: float = 0.0

    def look(self, at: float, life: int, ticks: float, missed: float, explained: bool) -> list[str]:
        """``explained``: a fault of these seconds, or the machine itself, says why a tick may have been late."""
        if life != self._life:
            self._life, self._first, self._last_missed, self._short = life, (at, ticks + missed), missed, 0
            return []
        wrong = []
        due = (at - self._first[0]) / self.tick_s
        short = due - (ticks + missed - self._first[1])
        self._short = self._short + 1 if short > self.slack_ticks else 0
        if self._short == self.patience:
            wrong.append(f"{short:.1f} ticks of {due:.0f} neither took place nor were counted as missed")
        if missed > self._last_missed and not explained:
            wrong.append(f"{missed - self._last_missed:g} ticks were missed, and nothing that was done explains it")
        self.missed += missed - self._last_missed
        self._last_missed = missed
        return wrong


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process at one moment."""

    at: float
    rss_bytes: int
    fds: int
    threads: int


WARM_UP_SHARE = 0.25
LEAST_LIFE_S = 240.0
RSS_GROWTH, RSS_SLACK_BYTES = 0.10, 8 * 1024 * 1024
FDS_SLACK, THREADS_SLACK = 6, 3


@dataclass(frozen=True, slots=True)
class Growth:
    """From the second to the last quarter of a life, medians; the slope is of memory after the first quarter."""

    life_s: float
    rss_bytes: tuple[float, float]
    fds: tuple[float, float]
    threads: tuple[float, float]
    slope_bytes_per_hour: float

    @property
    def is_flat(self) -> bool:
        early, late = self.rss_bytes
        return (
            late <= early * (1 + RSS_GROWTH) + RSS_SLACK_BYTES
            and self.fds[1] <= self.fds[0] + FDS_SLACK
            and self.threads[1] <= self.threads[0] + THREADS_SLACK
        )


def growth(life: Sequence[Usage], least_s: float = LEAST_LIFE_S) -> Growth | None:
    """None for a life too short to say anything about."""
    if len(life) < 8 or life[-1].at - life[0].at < least_s:
        return None
    quarter = len(life) // 4
    second, last = life[quarter : 2 * quarter], life[-quarter:]

    def both(read: Any) -> tuple[float, float]:
        return float(median(map(read, second))), float(median(map(read, last)))

    return Growth(
        life[-1].at - life[0].at,
        both(lambda u: u.rss_bytes),
        both(lambda u: u.fds),
        both(lambda u: u.threads),
        3600.0 * _slope([(u.at, float(u.rss_bytes)) for u in life[quarter:]]),
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares."""
    x0, y0 = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - x0) ** 2 for x, _ in points)
    return sum((x - x0) * (y - y0) for x, y in points) / (spread or 1.0)
