"""The eye: looks at HAProxy, the ledger, pages and processes by itself, in threads of its own, and holds what it sees against
the invariants. It knows which faults go on, for what can be asked of whom; what is wrong it writes down with what came before.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tools.chaos import haproxy_eye, ledger_eye
from tools.chaos.faults import Fault, Faults
from tools.chaos.invariants import COUNTERS, FROM_THE_PAGE, NEVER_ZERO, Leases, NotZero, Ticks, Usage, beyond_cap, uncovered
from tools.chaos.town import BACKEND, FIRST_EXPORTER, LEASE_S, SHADOW_TICK_S, TICK_S, Town

FAST_S, PAGES_S, USAGE_S, LATE_S = 0.25, 1.0, 5.0, 0.05
UNREADABLE_AFTER_S = 4.0
"""An exporter reads every half second and waits for two: so long after a page was spoilt its last good reading may still come."""
EXPLAINS_FOR_S = 25.0
"""A fault explains a late tick while it goes on and so long after: a stopped gateway's calls, and those that wait for them."""
LATE_MACHINE_S = 0.2
"""Our own thread that wakes so much too late, or a process that waited so long for a core (``/proc/PID/schedstat``), says that
the machine was busy with others; then a tick may be late too."""
BEFORE_S = 60.0
MAX_VIOLATIONS = 200
_LINE = re.compile(r"^([a-z0-9_]+)\{([^}]*)\} (\S+)", re.M)


@dataclass(frozen=True, slots=True)
class Violation:
    at_s: float
    invariant: str
    words: str
    before: tuple[str, ...]

    def document(self) -> dict[str, object]:
        return {"at_s": round(self.at_s, 1), "invariant": self.invariant, "words": self.words, "before": list(self.before)}


@dataclass
class Eye:
    """``start`` it, ``close`` it; then ``violations`` and the figures are complete."""

    town: Town
    faults: Faults
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    usage: dict[tuple[str, int], list[Usage]] = field(default_factory=dict)
    """By program and pid."""
    answer_s: list[float] = field(default_factory=list)
    """How long an exporter's /healthz took that was neither stopped nor killed."""
    most_out: int = 0
    late_s: float = 0.0
    leases: Leases = field(default_factory=lambda: Leases(LEASE_S))
    not_zero: dict[tuple[str, int | None], NotZero] = field(default_factory=dict)
    ticks: dict[str, Ticks] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _late: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=4_000))
    _waits: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)
    _said: dict[tuple[str, str], float] = field(default_factory=dict)
    _events_read: int = 0
    _client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=2.0, trust_env=False))

    def start(self) -> None:
        works = ((FAST_S, self.look_at_doors), (PAGES_S, self.look_at_pages), (USAGE_S, self.look_at_processes))
        for period_s, work in (*works, (LATE_S, self._note_lateness)):
            thread = threading.Thread(target=self._again, args=(period_s, work), daemon=True, name=work.__name__)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _again(self, period_s: float, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except Exception as error:  # the eye must not close: its own mistake fails the run
                self.wrong("the eye itself", f"{work.__name__}: {type(error).__name__}: {error}")
            self._stop.wait(period_s)

    def _note_lateness(self) -> None:
        now = time.monotonic()
        if self._late:
            late_s = now - self._late[-1][0] - LATE_S
            self.late_s = max(self.late_s, late_s)
            self._late.append((now, late_s))
        else:
            self._late.append((now, 0.0))

    def lateness_s(self, within_s: float) -> float:
        """The most that our own thread was late in these seconds."""
        since = time.monotonic() - within_s
        return max((late for at, late in tuple(self._late) if at >= since), default=0.0)

    def waited_s(self, pid: int, within_s: float) -> float:
        """How long the main thread of a process waited for a core in these seconds, by the kernel's account."""
        now = time.monotonic()
        with contextlib.suppress(OSError, ValueError):
            waits = self._waits.setdefault(pid, deque(maxlen=120))
            waits.append((now, int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9))
            return waits[-1][1] - next(waited for at, waited in waits if at >= now - within_s - PAGES_S)
        return 0.0

    def wrong(self, invariant: str, words: str) -> None:
        """Write it down, the same once a minute."""
        with self._lock:
            at_s = self.faults.now_s
            key = (invariant, re.sub(r"[0-9.]+", "#", words))
            self.counts[f"violations: {invariant}"] += 1
            if at_s - self._said.get(key, -BEFORE_S) < BEFORE_S or len(self.violations) >= MAX_VIOLATIONS:
                return
            self._said[key] = at_s
            before = tuple(_in_words(fault, at_s) for fault in tuple(self.faults.log) if fault.until_s >= at_s - BEFORE_S)
            self.violations.append(Violation(at_s, invariant, words, before))
            print(f"{at_s:8.1f}  VIOLATION {invariant}: {words}", flush=True)

    # Doors: HAProxy and the ledger

    def look_at_doors(self) -> None:
        before = self._book()
        servers = self._servers()
        after = self._book()
        now = time.monotonic()
        self._read_events()
        if servers is not None:
            self.counts["looks at HAProxy"] += 1
            self.most_out = max(self.most_out, sum(server.acted_on for server in servers.values()))
            for words in beyond_cap(servers):
                self.wrong("cap", words)
        if servers is not None and before is not None and after is not None:
            for words in uncovered(servers, before, after, BACKEND):
                self.wrong("every change has a lease", words)
        if after is not None:
            able = servers is not None and not self._at_work("watchdog", "haproxy", "state")
            for words in self.leases.look(now, after.leases, able):
                self.wrong("leases end", words)

    def _at_work(self, *targets: str) -> bool:
        """Whether a fault goes on at one of these, or did a moment ago."""
        now_s = self.faults.now_s
        return any(f.target in targets and f.until_s >= now_s - 3.0 for f in self._recent())

    def _recent(self) -> tuple[Fault, ...]:
        return tuple(self.faults.log)[-40:]

    def _servers(self) -> dict[str, haproxy_eye.Server] | None:
        try:
            return haproxy_eye.servers(self.town.at.haproxy, BACKEND)
        except (OSError, ValueError):
            self.counts["HAProxy did not answer"] += 1
            return None

    def _book(self) -> ledger_eye.Book | None:
        try:
            return ledger_eye.read_book(self.town.at.ledger)
        except (sqlite3.Error, ValueError):
            self.counts["the ledger could not be read"] += 1
            return None

    def _read_events(self) -> None:
        """What went through to HAProxy's socket."""
        path = self.town.folder / "events.jsonl"
        if not path.exists():
            return
        with path.open() as file:
            file.seek(self._events_read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._events_read += len(whole.encode())
        for line in whole.splitlines():
            event = json.loads(line)
            self.counts["changes sent to HAProxy"] += 1
            if event["covered"] is None:
                self.counts["changes whose lease could not be looked up"] += 1
            elif not event["covered"]:
                self.wrong("the lease is there before the change", f"{event['command']}, and on that server {event['leases']}")

    # Pages

    def look_at_pages(self) -> None:
        half = FIRST_EXPORTER
        for number, url in enumerate(self.town.at.exporters, 1):
            names = self.town.names[:half] if number == 1 else self.town.names[half:]
            self._healthz(f"exporter-{number}", url)
            self._exporter_page(f"exporter-{number}", url, names)
        self._watchdog_page(
            "watchdog", self.town.at.watchdog, TICK_S, ("watchdog", "state", "haproxy", "exporter-1", "exporter-2")
        )
        self._watchdog_page(
            "shadow", self.town.at.shadow, SHADOW_TICK_S, ("shadow", "prometheus", "haproxy", "exporter-1", "exporter-2")
        )
        self._scores()

    def _get(self, url: str) -> httpx.Response | None:
        with contextlib.suppress(httpx.HTTPError):
            return self._client.get(url)
        return None

    def _healthz(self, name: str, url: str) -> None:
        if self._at_work(name):
            return
        started = time.monotonic()
        answer = self._get(f"{url}/healthz")
        if self._at_work(name):
            return
        took_s = time.monotonic() - started
        if answer is None or answer.status_code not in (200, 503):
            if self.lateness_s(5.0) < LATE_MACHINE_S and not self._just_started(name):
                self.wrong("an exporter answers whatever hangs", f"{name}: /healthz gave nothing within {took_s:.1f} s")
        else:
            self.answer_s.append(took_s)

    def _just_started(self, name: str, within_s: float = 20.0) -> bool:
        life = self.town.programs[name].life
        return life is None or time.monotonic() - life.started < within_s

    def _unreadable(self, names: tuple[str, ...]) -> dict[str, frozenset[str]]:
        """Backends whose page nobody can read, and could not for a while, with the metrics that must not become 0 meanwhile.

        A page that was cut tells a part: of it only the counters are held to this, which lie behind the cut.
        """
        now_s, wait_s = self.faults.now_s, UNREADABLE_AFTER_S + 2 * self.lateness_s(10.0)
        kinds = ("engine: metrics page", "engine: killed", "engine: stopped")
        going_on = [f for f in self.faults.now if f.kind in kinds and f.at_s <= now_s - wait_s and f.until_s > now_s]
        return {f.target: COUNTERS if f.detail == "cut" else FROM_THE_PAGE for f in going_on if f.target in names}

    def _exporter_page(self, name: str, url: str, names: tuple[str, ...]) -> None:
        unreadable = self._unreadable(names)
        answer = self._get(f"{url}/metrics")
        if answer is None or answer.status_code != 200:
            return
        self.counts["exporter pages read"] += 1
        still = {one: metrics for one, metrics in unreadable.items() if one in self._unreadable(names)}
        for words in self._zeros(name).look(series(answer.text), still):
            self.wrong("no unknown as zero", f"{name}: {words}")

    def _zeros(self, name: str) -> NotZero:
        """One for each life: whoever starts anew knows nothing of before, and its counters begin at 0."""
        return self.not_zero.setdefault((name, self.town.programs[name].pid), NotZero())

    def _watchdog_page(self, name: str, url: str, tick_s: float, explaining: tuple[str, ...]) -> None:
        life = self.town.programs[name].life
        answer = self._get(f"{url}/metrics")
        now = time.monotonic()
        if answer is None or life is None or life is not self.town.programs[name].life or answer.status_code != 200:
            return
        self.counts[f"pages of the {name} read"] += 1
        for words in self._zeros(name).look(series(answer.text), {}):
            self.wrong("no unknown as zero", f"{name}: {words}")
        ticks, missed = (
            plain(answer.text, "tailkeeper_tick_duration_seconds_count"),
            plain(answer.text, "tailkeeper_ticks_missed_total"),
        )
        if ticks is None or missed is None:
            self.wrong("no tick is lost without a record", f"{name}: its page has no counts of ticks")
            return
        now_s = self.faults.now_s
        done = any(f.target in explaining and f.until_s >= now_s - EXPLAINS_FOR_S for f in self._recent())
        busy = max(self.lateness_s(10.0), self.waited_s(life.pid, 10.0)) > min(LATE_MACHINE_S, tick_s / 4)
        explained = done or self._just_started(name) or busy
        if busy:
            self.counts[f"looks at the {name} while it waited for a core"] += 1
        for words in self.ticks.setdefault(name, Ticks(tick_s)).look(now, life.pid, ticks, missed, explained):
            self.wrong("no tick is lost without a record", f"{name}: {words}")
        self.counts[f"ticks of the {name}, this life"] = int(ticks)

    def _scores(self) -> None:
        answer = self._get(f"{self.town.at.watchdog}/api/v1/fleet")
        if answer is None or answer.status_code != 200:
            return
        for row in answer.json()["backends"]:
            if row["hscore"] == 0 and row["state"] not in ("hung", "down"):
                self.wrong("no unknown as zero", f"{row['backend']} is {row['state']} and its score is 0")
            if row["p99_s"] == 0:
                self.wrong("no unknown as zero", f"{row['backend']} has a P99 of 0")

    # Processes

    def look_at_processes(self) -> None:
        for name, program in self.town.programs.items():
            pid = program.pid
            if pid is None:
                continue
            with contextlib.suppress(OSError, ValueError):
                self.usage.setdefault((name, pid), []).append(usage_of(pid))


def series(text: str) -> dict[tuple[str, str], float]:
    """Of a page, what the invariants look at."""
    wanted = NEVER_ZERO | FROM_THE_PAGE
    return {(m[1], m[2]): float(m[3]) for m in _LINE.finditer(text) if m[1] in wanted}


def plain(text: str, name: str) -> float | None:
    """The value of a series without labels."""
    found = re.search(rf"^{name} (\S+)$", text, re.M)
    return None if found is None else float(found[1])


def usage_of(pid: int) -> Usage:
    """Raises OSError for a process that is gone."""
    proc = Path(f"/proc/{pid}")
    rss = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    threads = int(re.findall(r"^Threads:\s+(\d+)", (proc / "status").read_text(), re.M)[0])
    return Usage(time.monotonic(), rss, len(os.listdir(proc / "fd")), threads)


def _in_words(fault: Fault, at_s: float) -> str:
    over = "goes on" if fault.until_s > at_s else f"over {at_s - fault.until_s:.1f} s before"
    return f"{fault.kind} at {fault.target} ({fault.detail}), began {at_s - fault.at_s:.1f} s before, {over}"
