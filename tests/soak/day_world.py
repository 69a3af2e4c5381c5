"""A day of a fleet in memory: the product's own core, loop and ledger on time that we turn, under load that follows the sun, with
faults, deploys and restarts; after every tick what is promised is held against what the gateway and the ledger's file have.

The gateway and the engines are fakes (see tests.scenario.world). What is asked after each tick: never more out than the cap;
every change in a lease that was there before it; leases end; what is not known is not shown as a number; every tick has a record.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailkeeper_demo.trace import load_trace
from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.guards import cap_of
from tailkeeper_watchdog.ledger import LedgerError
from tailkeeper_watchdog.model import DRAIN, Knob, KnobValue, Lease, TickRecord
from tailkeeper_watchdog.pending import MAY_COME_S
from tailkeeper_watchdog.plan import same, written
from tests.scenario.full_world import GUARDS, KNOBS, REQUESTS_PER_TICK, TICK_S, USAGE, WELL, FullWorld
from tests.scenario.world import FakeGateway, Sick

DAY_S = 86_400.0
NAMES = tuple(f"b{number:02}" for number in range(12))
LEASE_MARGIN_S = 40.0
"""Of time in which a lease could be ended: the longest back-off after failed writes is 30 s, and some ticks."""
LATEST_S = 9.0
"""A write that comes later than 10 s after its call is a foreign hand's (docs/architecture.md)."""
PUBLISHED = USAGE.partition("=")[0]
"""What is only published of a backend that is well is a lease too, and not waited for."""
MAX_TOLD = 200
INCIDENT_S, LINES_BEFORE = 120.0, 40
"""Violations that follow each other sooner are of one incident; so many lines of its story are kept."""


class CheckedGateway(FakeGateway):
    """The fake gateway, which looks before each write whether a lease says so, and fails as it is told."""

    def __init__(self, day: DayWorld, servers: tuple[str, ...]) -> None:
        super().__init__(servers, KNOBS)
        self._day = day
        self.loses = False
        """Writes are answered with yes and not done."""
        self.late = False
        """Writes are not answered, and done some seconds later."""
        self._to_do: list[tuple[float, str, Mapping[Knob, KnobValue]]] = []

    @property
    def is_honest(self) -> bool:
        """Whether what it is told is done, at once."""
        return self.fails is None and not self.loses and not self.late and not self._to_do

    def do_what_is_due(self) -> None:
        now = self._day.clock.now
        for due in sorted((one for one in self._to_do if one[0] <= now), key=lambda one: one[0]):
            self._to_do.remove(due)
            if due[1] in self.values:
                self._day.note(f"{due[1]} is set to {dict(due[2])}, late")
                self.values[due[1]].update(due[2])

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        for knob, value in values.items():
            self._day.before_write(server, knob, value)
        if self.late and server in self.values and self.fails is None:
            self._to_do.append((self._day.clock.now + self._day.rng.uniform(0.0, LATEST_S), server, dict(values)))
            raise ActuatorError(ErrorKind.TIMEOUT, self.name, server, "no answer")
        self.lies = self.loses
        await super().write(server, values, deadline_s)

    def begin_anew(self) -> None:
        """As after a reload of its configuration: every server as configured, and what was under way is lost."""
        self._to_do.clear()
        for server in self.values:
            self.values[server] = dict(self.normal)


@dataclass
class Load:
    """Requests a tick: the curve of a real trace stretched over the day, under a sun that sets."""

    shape: tuple[float, ...]

    @classmethod
    def of_the_trace(cls, pieces: int = 288) -> Load:
        """288 pieces are five minutes each."""
        rows = load_trace()
        span_s = rows[-1].at_s - rows[0].at_s
        found = Counter(min(pieces - 1, int((row.at_s - rows[0].at_s) / span_s * pieces)) for row in rows)
        mean = len(rows) / pieces
        return cls(tuple(found[n] / mean for n in range(pieces)))

    def at(self, day_s: float) -> float:
        """A share of the usual load, 0.05 to 2."""
        sun = 0.55 - 0.45 * math.cos(2 * math.pi * day_s / DAY_S)
        return min(2.0, max(0.05, sun * self.shape[int(day_s / DAY_S * len(self.shape)) % len(self.shape)]))


class DayWorld(FullWorld):
    """``wrong`` are violations in words. ``by_hand`` is what somebody else has set, by server and knob."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledger_fails = False
        self.ledger_failed = False
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.by_hand: dict[tuple[str, Knob], KnobValue] = {}
        self.put_back: set[str] = set()
        """Servers whose weight that somebody has is to end, which he does as soon as he finds it there."""
        self.story: deque[str] = deque(maxlen=2_000)
        """What happened lately, a line each."""
        self._said_s = -INCIDENT_S
        self._written_at: dict[str, float] = {}
        self.most_out = 0
        self._load = Load.of_the_trace()
        self._out_before: set[str] = set()
        self._last_tick = 0
        self._waited: dict[int, tuple[Lease, float]] = {}
        self._began = 0.0
        super().__init__(path, NAMES)
        self._began = self.clock.now
        self.gateway = CheckedGateway(self, NAMES)
        self.actuators = {"edge": self.gateway}
        self.start()

    @property
    def day_s(self) -> float:
        return self.clock.now - self._began

    @property
    def checked(self) -> CheckedGateway:
        assert isinstance(self.gateway, CheckedGateway)
        return self.gateway

    def start(self) -> None:
        """Also what a kill and a new start of the watchdog is: it has what the ledger and the gateway hold."""
        if hasattr(self, "ledger"):
            self.ledger.close()
        super().start()
        self.loop.parts.ledger._run("PRAGMA synchronous=OFF")  # what the kernel has taken outlives a process
        self._run_sql, self.ledger._run = self.ledger._run, self._maybe_full  # type: ignore[method-assign]
        self._last_tick = 0

    def _maybe_full(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self.ledger_fails and not sql.startswith(("SELECT", "PRAGMA", "BEGIN")):
            self.ledger_failed = True
            raise LedgerError("database or disk is full")
        return self._run_sql(sql, values)

    def say(self, words: str) -> None:
        """Of the first of an incident, what went before: of a server that is named, only what concerns it or everybody."""
        self.counts["violations"] += 1
        if len(self.wrong) >= MAX_TOLD:
            return
        self.wrong.append(f"at {self.day_s:.0f} s: {words}")
        if self.day_s - self._said_s > INCIDENT_S:
            named = next((name for name in NAMES if words.startswith(name)), "")
            before = [line for line in self.story if not named or named in line or line.endswith("…")]
            self.wrong += [f"  {line}" for line in before[-LINES_BEFORE:]]
        self._said_s = self.day_s

    def note(self, words: str) -> None:
        self.story.append(f"{self.day_s:.0f} s: {words}")

    # The day

    async def tick(self) -> TickRecord:
        """Two seconds of it."""
        self.clock.now += TICK_S
        self._carry_on()
        self.checked.do_what_is_due()
        self.people_put_back()
        self.ledger_failed = False
        record = await self.loop.tick()
        self.loop.parts.rest()
        self.counts["ticks"] += 1
        self.counts["decisions"] += len(record.decisions)
        for d in record.decisions:
            self.note(f"{d.backend} {d.knob.value} from {d.from_value!r} to {d.to_value!r} {d.verdict.value}: {d.reason[:120]}")
        self._look(record)
        return record

    def _carry_on(self) -> None:
        load = self._load.at(self.day_s)
        for sick in self.sick.values():
            if sick.errors_per_tick:
                sick.errors_per_tick = REQUESTS_PER_TICK * load
            elif sick.ok_per_tick:
                sick.ok_per_tick = REQUESTS_PER_TICK * load
            if not sick.preemptions_per_tick:
                sick.extra[catalog.KV_USAGE.name] = WELL[catalog.KV_USAGE.name] * (1 + load)

    async def collect(self, now: float, deadline_s: float) -> Collected:
        return await super().collect(now, deadline_s)

    def is_quiet(self, server: str) -> bool:
        """Whether no write of ours can still come there: what a person does sooner after one may be written over by it."""
        return self.clock.now - self._written_at.get(server, -MAY_COME_S) > MAY_COME_S

    def people_put_back(self) -> None:
        """Where we have turned the same knob meanwhile, the prior value that we give back is theirs, and they wait for it."""
        ours = {lease.target.server for lease in self.ledger.leases() if lease.knob is Knob.WEIGHT} if self.put_back else set()
        for server in {one for one in self.put_back - ours if self.is_quiet(one)}:
            values = self.gateway.values[server]
            if values[Knob.WEIGHT] == self.by_hand.get((server, Knob.WEIGHT)):
                values[Knob.WEIGHT] = self.gateway.normal[Knob.WEIGHT]
            if values[Knob.WEIGHT] == self.gateway.normal[Knob.WEIGHT]:
                self.by_hand.pop((server, Knob.WEIGHT), None)
                self.put_back.remove(server)

    # What is promised

    def before_write(self, server: str, knob: Knob, value: KnobValue) -> None:
        self.counts["changes"] += 1
        self._written_at[server] = self.clock.now
        self.note(f"{server} {knob.value} is set to {value!r}")
        here = [lease for lease in self.ledger.leases() if (lease.target.server, lease.knob) == (server, knob)]
        if any(written(knob, value, lease.written) or same(knob, value, lease.prior) for lease in here):
            return
        self.say(f"{server} {knob.value} is set to {value!r}, and no lease says so")

    def _look(self, record: TickRecord) -> None:
        self._look_at_tick(record)
        self._look_at_cap()
        if not self.ledger_fails:
            leases = self.ledger.leases()
            self._look_at_leases(leases)
            self._look_at_ends(leases)
        self._look_at_unknowns(record)

    def _look_at_tick(self, record: TickRecord) -> None:
        if record.tick != self._last_tick + 1:
            self.say(f"tick {record.tick} follows {self._last_tick}")
        self._last_tick = record.tick
        if record.error is not None:
            self.counts["ticks that failed"] += 1
            if not self.ledger_failed:
                self.say(f"a tick failed although the ledger could be written: {record.error}")

    def _look_at_cap(self) -> None:
        names = {backend.name for backend in self.backends}
        out = {name for name in self.out() if name in names}
        self.most_out = max(self.most_out, len(out))
        if len(out) > cap_of(len(names), GUARDS) and out - self._out_before:
            self.say(
                f"{len(out)} of {len(names)} are out: {', '.join(sorted(out))}; new: {', '.join(sorted(out - self._out_before))}"
            )
        if len(out) == len(names):
            self.say("nobody is left")
        self._out_before = out

    def _look_at_leases(self, leases: tuple[Lease, ...]) -> None:
        """What is not normal and not by somebody's hand is as a lease says, or as it was before that lease's last write."""
        pending = self.loop.parts.reconciler.pending()
        known: dict[tuple[str, Knob], list[KnobValue]] = {}
        for lease in leases:
            values = [lease.written, *([] if lease.before is None else [lease.before]), *pending.get(lease.place, ())]
            known.setdefault((lease.target.server, lease.knob), []).extend(values)
        for (server, knob), value in self.differs().items():
            theirs = self.by_hand.get((server, knob))
            if same(knob, value, self.gateway.normal[knob]):
                continue  # within what a gateway may round
            if value != theirs and not any(same(knob, value, one) for one in known.get((server, knob), ())):
                self.say(f"{server} has {knob.value} {value!r} and no lease says so ({known.get((server, knob))})")

    def _look_at_ends(self, leases: tuple[Lease, ...]) -> None:
        """A lease that is not renewed ends; only time counts in which the gateway answers and does what it says."""
        able = self.checked.is_honest
        seen = {}
        for lease in leases:
            before, waited = self._waited.get(lease.id, (lease, 0.0))
            seen[lease.id] = (lease, waited + TICK_S * able if before == lease else 0.0)
            if seen[lease.id][1] > GUARDS.lease_s + LEASE_MARGIN_S:
                self.say(f"a lease was neither renewed nor ended in {seen[lease.id][1]:.0f} s: {lease}")
                seen[lease.id] = (lease, 0.0)
        self._waited = seen

    def _look_at_unknowns(self, record: TickRecord) -> None:
        situation = record.situation
        for name, seen in situation.snapshot.observations.items():
            if seen.state is not State.UNKNOWN:
                continue
            self.counts["unknown backends looked at"] += 1
            score = situation.scores.get(name)
            if score is not None and score.hscore is not None:
                self.say(f"{name} is unknown and has a score of {score.hscore}")
            if any(
                name == wish.backend and wish.knob is Knob.ADMISSION and wish.value == DRAIN and wish.evidence_age_s is None
                for wish in record.desired
            ):
                self.say(f"{name} is unknown and somebody wants it out without evidence")

    def leftovers(self) -> list[str]:
        """What is not as before, in words; what is only published is."""
        differs = {key: value for key, value in self.differs().items() if not _is_published(value)}
        left = [
            f"{server} has {knob.value} {value!r}"
            for (server, knob), value in differs.items()
            if not same(knob, value, self.gateway.normal[knob])
        ]
        return left + [f"a lease is left: {lease}" for lease in self.ledger.leases() if not _is_published(lease.written)]


def _is_published(value: KnobValue) -> bool:
    return str(value).startswith(PUBLISHED)


def heal(sick: Sick) -> None:
    sick.state, sick.itl_s, sick.ttft_s, sick.preemptions_per_tick = State.SERVING, 0.02, 0.2, 0.0
    sick.ok_per_tick, sick.errors_per_tick, sick.silent = REQUESTS_PER_TICK, 0.0, False
    sick.extra |= WELL


ERRORS = (ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT, ErrorKind.PROTOCOL, ErrorKind.UNAUTHORIZED)
__all__ = ["ERRORS", "NAMES", "ActuatorError", "DayWorld", "heal"]
