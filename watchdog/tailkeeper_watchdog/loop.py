"""The loop: collect, score, detect, decide, guard, act, record. The calls in order, and nothing else.

One tick at a time, each phase with a deadline. A tick that raises is recorded, acts on nothing and is not repeated
faster. Without a writable ledger nothing is done at any gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from tailkeeper_watchdog import core, quarantine, unwritten
from tailkeeper_watchdog.actuators.contract import Support
from tailkeeper_watchdog.advice import advised
from tailkeeper_watchdog.beat import Beat
from tailkeeper_watchdog.collect.base import Collected, Source
from tailkeeper_watchdog.core import Memory, Rules
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.detectors import Symptom, block_e
from tailkeeper_watchdog.fleet import Fleet, Server, succeeded, turnover
from tailkeeper_watchdog.guards import GuardContext, holds_up, is_drain
from tailkeeper_watchdog.happenings.names import Step
from tailkeeper_watchdog.leadership import Leadership, NotLeadingError
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.leftover import LeftoverInput, leftovers
from tailkeeper_watchdog.model import (
    DRAIN,
    Backend,
    Decision,
    DesiredState,
    Finding,
    FindingKind,
    FleetSnapshot,
    Knob,
    Lease,
    Refusal,
    Severity,
    Situation,
    TickRecord,
    Verdict,
)
from tailkeeper_watchdog.pending import arrivals, ends_too_early
from tailkeeper_watchdog.plan import Change, ChangeKind, PlanInput, adopted, plan
from tailkeeper_watchdog.quarantine import quarantined
from tailkeeper_watchdog.reconcile import Backoff, Executed, GatewayReport, Reconciler, as_backends, has_arrived
from tailkeeper_watchdog.settings import ACTING_S, GuardsSettings
from tailkeeper_watchdog.switches import Switches
from tailkeeper_watchdog.tick import Laps, TickInputs
from tailkeeper_watchdog.unacted import note_unacted
from tailkeeper_watchdog.weighing import Weighing

log = structlog.get_logger("tailkeeper.watchdog")

COLLECT_DEADLINE_S = 2.0
ACT_DEADLINE_S = ACTING_S / 3
"""2 s, for one call at one gateway. A gateway that needs longer is not one to switch traffic with."""
LEAD_DEADLINE_S = 3.0
"""For saying who leads. Until it is said, nobody acts."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop is put together from."""

    fleet: Callable[[], tuple[Backend, ...]]
    """The backends as of now, asked once a tick; the same tuple while nothing has changed."""
    source: Source
    reconciler: Reconciler
    ledger: Ledger
    decisions: DecisionLog
    switches: Switches
    rules: Rules
    """The weights in it are not looked at: those of ``weighing`` are."""
    weighing: Weighing
    guards: GuardsSettings
    tick_s: float
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    leadership: Leadership | None = None
    """Asked before anything is done; None where nobody else can be there."""
    memory: Memory = field(default_factory=Memory)
    """What is remembered from before the start."""
    elsewhere: Callable[[], frozenset[Server]] = frozenset
    """Gateway servers that are not ours because another shard watches their backends."""
    rest: Callable[[], None] = lambda: None
    """Called after each tick, when everything is done: for what need not be done while a backend waits to be taken out."""


def _in_words(error: BaseException) -> str:
    """The first cause: a task group wraps what happened in one of its tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _removes(change: Change) -> bool:
    """Whether it takes its backend out, or finds that a write of which nobody had heard has done so."""
    lease = change.lease
    if change.kind is not ChangeKind.APPLY:
        return lease is not None and is_drain(lease.knob, lease.written) and has_arrived(change)
    anew = lease is None or (not lease.confirmed and lease.before != DRAIN and not lease.reverts)
    return is_drain(change.knob, change.value) and anew


MAX_NAMES_LOGGED = 10


def _some(names: frozenset[str]) -> list[str]:
    """The first of them in the alphabet: a flood of changes is one line of the log."""
    listed, more = sorted(names)[:MAX_NAMES_LOGGED], len(names) - MAX_NAMES_LOGGED
    return [*listed, f"and {more} more"] if more > 0 else listed


class Loop:
    """Owns the memory. ``on_tick`` is called after each tick with its record, from the same task."""

    def __init__(self, parts: Parts, on_tick: Callable[[TickRecord], None] = lambda record: None) -> None:
        self.parts = parts
        self.memory = parts.memory
        self.latest: TickRecord | None = None
        self.inputs: TickInputs | None = None
        """What the latest tick was computed from; None where it failed before it had read anything."""
        self.laps = Laps(0.0)
        """How long the steps of the latest tick took."""
        self.report = GatewayReport({}, {})
        self.fleet = succeeded(Fleet(), parts.fleet(), (), 0.0)
        self._able: Mapping[tuple[str, Knob], Support] = parts.reconciler.support(self.fleet.backends)
        self.support: Mapping[tuple[str, Knob], Support] = self._able
        self.beat = Beat(parts.tick_s, parts.monotonic())
        self.failed = 0
        """Ticks since the start that ended in an error."""
        self._on_tick = on_tick
        self._tick = 0
        self._changed_at: dict[tuple[str, Knob], float] = {}
        self._released_at: dict[str, float] = {}
        self._contended_until: dict[tuple[str, Knob], float] = {}
        self._backoff = Backoff()
        self._acting = asyncio.Lock()
        self._attribution_error: str | None = None
        self._generation = parts.ledger.generation
        self._unwritten = unwritten.Since()

    async def run(self, stop: asyncio.Event) -> None:
        """Tick on an even beat until ``stop``; a tick that took too long is followed by the next one at once, never by two.

        Those that did not take place meanwhile are counted.
        """
        beat = self.beat = Beat(self.parts.tick_s, self.parts.monotonic())
        while not stop.is_set():
            beat.begin(self.parts.monotonic())
            await self.tick()
            self.parts.rest()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.001, beat.rest_s(self.parts.monotonic())))

    async def tick(self) -> TickRecord:
        """One tick. Never raises: what goes wrong is in the record."""
        self._tick += 1
        started = self.parts.monotonic()
        self.inputs, self.laps = None, Laps(started)
        try:
            async with self._acting:
                record = await self._steps(started)
        except Exception as error:  # the tick boundary: it is recorded and acts on nothing
            with contextlib.suppress(Exception):  # a log on a full disk raises as well
                log.exception("tick failed", tick=self._tick)
            self.failed += 1
            record = self._failed(started, _in_words(error))
        self.latest = record
        self._tell(record)
        return record

    def _tell(self, record: TickRecord) -> None:
        """A listener that fails must not end the loop: nobody would watch any more, and nobody would know."""
        try:
            self._on_tick(record)
        except Exception:
            with contextlib.suppress(Exception):
                log.exception("telling of a tick failed", tick=record.tick)

    async def _steps(self, started: float) -> TickRecord:
        parts = self.parts
        rules = replace(parts.rules, weights=parts.weighing.in_force)
        self._follow(started)
        await self._ask_who_leads()
        self._take_up()
        noted = parts.ledger.leases()
        leases = adopted(noted, self.fleet.backends)
        collected, self.report = await self._collect(started, leases)
        self._learn_support()
        self._lap(Step.COLLECT)
        snapshot = self._snapshot(collected)
        given = self.inputs = self._given(started, snapshot, collected, noted, rules)
        arrived = arrivals(leases, self.report.servers, given.pending)
        leases = tuple(arrived.get(lease.id, lease) for lease in leases)
        owned = tuple(lease for lease in leases if self.fleet.owns(lease))
        memory, situation = core.score_fleet(snapshot, collected.records, self.memory, rules)
        situation = core.with_gateways(situation, self.report.servers, leases)
        self._lap(Step.SCORE)
        memory, symptoms = core.detect_all(situation, memory, self._contended_symptoms(snapshot.time_unix_s))
        self._lap(Step.DETECT)
        memory, desired = core.decide_all(situation, memory, rules)
        self._lap(Step.DECIDE)
        verdicts = core.guard_all(desired, self._guard_context(situation, owned, given))
        kept_out = quarantined(owned, given.attempts, parts.guards)
        told = (*symptoms, *core.common_cause(verdicts, snapshot), *advised(desired, situation), *quarantine.symptoms(kept_out))
        told += unwritten.symptoms(given.unwritten)
        memory = core.keep_book(memory, told, situation)
        memory, changes = self._plan(situation, memory, verdicts, leases, owned, given, kept_out)
        self.memory = memory  # what is known stays known, even where nothing can be done or written
        self._lap(Step.GUARD)
        executed = await self._act(changes, tuple(arrived.values()), given)
        self.memory = replace(memory, returning=replace(memory.returning, no_ramp=memory.returning.no_ramp | executed.no_ramp))
        self._lap(Step.ACT)
        unacted = note_unacted(parts.ledger, parts.decisions, self._tick, desired, verdicts)
        with contextlib.suppress(LedgerError):  # the next tick asks first whether it can be written, and says so
            await parts.ledger.settled()
        decisions = (*unacted, *executed.decisions)
        self._attribute(collected, decisions, situation)
        self._lap(Step.ATTRIBUTE)
        record = self._record(started, situation, desired, verdicts, decisions)
        self._lap(Step.RECORD)
        return record

    def _lap(self, step: Step) -> None:
        self.laps.steps.append((step, self.parts.monotonic()))

    def _what_is_unwritten(self, now: float) -> str | None:
        """Why the ledger cannot be written, once people are to hear of it."""
        self._unwritten = self._unwritten.then(self.parts.ledger.trouble, now)
        return self._unwritten.told(now)

    def _take_up(self) -> None:
        """Where another watchdog has led since we did, what we remember of the ledger is as old as that."""
        if self.parts.ledger.generation != self._generation:
            self.parts.reconciler.take_up()
            self.parts.weighing.take_up()
            self._generation = self.parts.ledger.generation

    async def _ask_who_leads(self) -> str | None:
        """None where we may act; the switches know it from now on, and with them everything that asks them."""
        self.parts.switches.standing_by = await self._not_leading()
        return self.parts.switches.standing_by

    async def _not_leading(self) -> str | None:
        if self.parts.leadership is None:
            return None
        try:
            async with asyncio.timeout(LEAD_DEADLINE_S):
                return await self.parts.leadership.try_lead()
        except Exception as error:  # whatever asks for it: not to know who leads is not to lead
            return f"it cannot be said who leads: {_in_words(error)}"

    def _given(
        self, started: float, snapshot: FleetSnapshot, collected: Collected, leases: tuple[Lease, ...], rules: Rules
    ) -> TickInputs:
        """Everything else that this tick looks at, read once, so that it can be computed again from it."""
        parts = self.parts
        return TickInputs(
            tick=self._tick,
            started=started,
            now=snapshot.now,
            time_unix_s=snapshot.time_unix_s,
            backends=snapshot.backends,
            collected=collected,
            report=self.report,
            leases=leases,
            support=self.support,
            without_doors=parts.reconciler.without_doors,
            weights=rules.weights,
            paused=parts.switches.paused(),
            holds={name: hold.reason for name, hold in parts.switches.holds().items()},
            attempts=parts.ledger.attempts(snapshot.time_unix_s),
            released_at=dict(self._released_at),
            pending=parts.reconciler.pending(),
            unwritten=self._what_is_unwritten(snapshot.now),
        )

    def _learn_support(self) -> None:
        """What the gateways have just shown that they cannot do; the same mapping while nothing of it changes."""
        found = self.parts.reconciler.found_out(self._able, self.fleet.backends, self.report)
        if found is not self.support and found != self.support:
            self.support = found

    def _attribute(self, collected: Collected, decisions: tuple[Decision, ...], situation: Situation) -> None:
        """Causes are for people, and found after acting: without them nothing else of a tick is worth less."""
        error = None
        try:
            self.memory = core.attribute(self.memory, collected.records, decisions, situation)
        except Exception as failure:
            error = _in_words(failure)
            if error != self._attribution_error:
                log.exception("attribution failed", tick=self._tick)
        self._attribution_error = error

    def _follow(self, now: float) -> None:
        """Take the fleet as it is now. Whoever is gone takes along what was known of it; nothing is done at a gateway here.

        The holds of operators end first, because only that can fail: then the same change is found at the next tick. A hold
        is on a name, and stays where the name does.
        """
        parts = self.parts
        backends = parts.fleet()
        if backends is self.fleet.backends:
            return
        leases = parts.ledger.leases()
        changed = turnover(self.fleet, backends)
        if changed.vanished:
            parts.switches.end_holds(changed.vanished)
        self.fleet = succeeded(self.fleet, backends, leases, now)
        self._able = self.support = parts.reconciler.support(backends)
        parts.source.follow(tuple(b.name for b in backends), changed.new, now)
        self._forget(changed.gone, leases)
        log.info("the fleet changed", backends=len(backends), new=_some(changed.new), gone=_some(changed.gone), tick=self._tick)

    def _forget(self, gone: frozenset[str], leases: tuple[Lease, ...]) -> None:
        """Nothing that is remembered by backend outlives its backend, so memory is bounded by the fleet and the leases."""
        names = self.fleet.names - gone
        targets = frozenset(t for b in self.fleet.backends for t in b.targets) | {lease.target for lease in leases}
        self.memory = core.forget(self.memory, gone, targets, self.parts.wall())
        self._changed_at = {key: at for key, at in self._changed_at.items() if key[0] in names}
        self._released_at = {name: at for name, at in self._released_at.items() if name in names}
        self._contended_until = {key: until for key, until in self._contended_until.items() if key[0] in names}
        self._backoff.keep(targets)
        self.parts.decisions.forget_backends(gone)

    async def _collect(self, now: float, leases: tuple[Lease, ...]) -> tuple[Collected, GatewayReport]:
        """Exporters and gateways side by side: the evidence and what is in force are of the same moment.

        Servers that only a lease still knows are read too, or nobody would ever give them back.
        """
        deadline = min(COLLECT_DEADLINE_S, max(0.2, self.parts.tick_s))
        left = tuple(lease for lease in leases if not self.fleet.owns(lease))
        return await asyncio.gather(
            self.parts.source.collect(now, deadline),
            self.parts.reconciler.read((*self.fleet.backends, *as_backends(left)), deadline),
        )

    def _snapshot(self, collected: Collected) -> FleetSnapshot:
        return FleetSnapshot(
            self._tick, self.parts.monotonic(), self.parts.wall(), self.fleet.backends, collected.observations, collected.error
        )

    def _contended_symptoms(self, now: float) -> tuple[Symptom, ...]:
        longest = self.parts.guards.lease_s
        # An end further away than it was ever set is one that a wall clock set back has moved.
        self._contended_until = {k: until for k, until in self._contended_until.items() if now < until <= now + longest}
        return tuple(
            Symptom(
                FindingKind.CONTENDED,
                backend,
                Severity.TICKET,
                f"{backend}: someone else changes its {knob.value} too; left alone",
                {"knob": knob.value, "until": until},
                signal=knob.value,
            )
            for (backend, knob), until in self._contended_until.items()
        )

    def _guard_context(self, situation: Situation, owned: tuple[Lease, ...], given: TickInputs) -> GuardContext:
        return GuardContext(
            snapshot=situation.snapshot,
            settings=self.parts.guards,
            stale_after_s=situation.stale_after_s,
            leases=owned,
            servers=self.report.servers,
            support=self.support,
            paused=given.paused,
            holds=given.holds,
            contended=frozenset(self._contended_until),
            changed_at=self._changed_at,
            released_at=self._released_at,
            pending=given.pending,
            without_doors=given.without_doors,
        )

    def _plan(
        self,
        situation: Situation,
        memory: Memory,
        verdicts: tuple[Verdict, ...],
        leases: tuple[Lease, ...],
        owned: tuple[Lease, ...],
        inputs: TickInputs,
        kept_out: Mapping[str, int],
    ) -> tuple[Memory, tuple[Change, ...]]:
        held = frozenset(inputs.holds)
        given = PlanInput(
            situation=situation,
            settings=self.parts.guards,
            wishes=tuple(v.desired for v in verdicts if v.allowed),
            blocked=frozenset((v.desired.backend, v.desired.knob) for v in verdicts if holds_up(v)),
            leases=owned,
            servers=self.report.servers,
            cooling=frozenset((v.desired.backend, v.desired.knob) for v in verdicts if v.refusal is Refusal.COOLDOWN),
            attempts=inputs.attempts,
            held=held,
            kept_out=kept_out,
        )
        returning, changes = plan(given, memory.returning)
        changes = (*changes, *self._leftovers(situation.snapshot, leases, held))
        changes = tuple(change for change in changes if not ends_too_early(change, inputs.pending))
        return replace(memory, returning=returning), self._backoff.ready(changes, situation.snapshot.now)

    def _leftovers(self, snapshot: FleetSnapshot, leases: tuple[Lease, ...], held: frozenset[str]) -> tuple[Change, ...]:
        if not leases:
            return ()
        return leftovers(
            LeftoverInput(
                self.fleet,
                leases,
                self.report.reach,
                self.parts.guards,
                snapshot.now,
                snapshot.time_unix_s,
                held,
                self.parts.elsewhere(),
            )
        )

    async def _act(self, changes: tuple[Change, ...], arrived: tuple[Lease, ...], given: TickInputs) -> Executed:
        if (changes or arrived) and await self._ask_who_leads() is not None:
            changes, arrived = (), ()  # not even giving back: whoever leads now sees to it
        self.parts.reconciler.note_arrived(arrived)
        executed = await self.parts.reconciler.execute(changes, self._tick, ACT_DEADLINE_S)
        now, wall = self.parts.monotonic(), self.parts.wall()
        self.inputs = replace(given, executed=executed, acted=now, acted_unix_s=wall)
        self._backoff.learn(changes, executed.failed, now)
        self._changed_at.update(dict.fromkeys(executed.changed, now))
        # A foreign hand at a server that nobody owns any more is nobody's trouble.
        ours = {(c.backend, c.knob) for c in changes if c.lease is not None and self.fleet.owns(c.lease)}
        self._contended_until.update(dict.fromkeys(executed.contended & ours, wall + self.parts.guards.lease_s))
        out = {lease.backend for lease in given.leases if lease.confirmed and is_drain(lease.knob, lease.written)}
        drained = {c.backend: None for c in changes if _removes(c) and (c.lease is None or c.backend not in out)}
        removed = [b for b in drained if (b, Knob.ADMISSION) in executed.changed]  # at however many gateways, it is one removal
        if removed:
            with self.parts.ledger.together():
                for backend in removed:
                    self.parts.ledger.count_attempt(backend, wall)
        return executed

    def _record(
        self,
        started: float,
        situation: Situation,
        desired: tuple[DesiredState, ...],
        verdicts: tuple[Verdict, ...],
        decisions: tuple[Decision, ...],
    ) -> TickRecord:
        for decision in decisions:
            log.info(
                decision.verdict.value,
                backend=decision.backend,
                knob=decision.knob.value,
                to=decision.to_value,
                policy=decision.policy,
                reason=decision.reason,
                tick=decision.tick,
            )
        return TickRecord(
            tick=self._tick,
            time_unix_s=situation.snapshot.time_unix_s,
            duration_s=self.parts.monotonic() - started,
            situation=situation,
            findings=self.memory.book.open_findings,
            desired=desired,
            verdicts=verdicts,
            decisions=decisions,
        )

    def _failed(self, started: float, error: str) -> TickRecord:
        snapshot = FleetSnapshot(self._tick, started, self.parts.wall(), self.fleet.backends, {}, error)
        situation = Situation(snapshot, {}, {}, {}, self.parts.rules.slo, self.parts.rules.stale_after_s)
        return TickRecord(
            self._tick, snapshot.time_unix_s, self.parts.monotonic() - started, situation, self.findings(), (), (), (), error
        )

    def findings(self) -> tuple[Finding, ...]:
        return self.memory.book.open_findings

    @property
    def drift(self) -> block_e.Memory:
        """The drift baselines and what is known of those that are gathered."""
        held = self.memory.detectors.get(block_e.DETECTOR.name)
        return held if isinstance(held, block_e.Memory) else block_e.Memory()

    async def release(self, why: str, backend: str | None = None) -> Executed:
        """Give back what we changed, everywhere or at one backend, now. Waits for a tick in progress.

        Raises NotLeadingError where another watchdog leads.
        """
        async with self._acting:
            leader = await self._ask_who_leads()
            if leader is not None:
                raise NotLeadingError(leader)
            leases = tuple(x for x in self.parts.ledger.leases() if backend is None or x.backend == backend)
            names = {lease.backend for lease in leases} | ({backend} if backend else set())
            self._released_at.update(dict.fromkeys(names & self.fleet.names, self.parts.monotonic()))
            self.parts.ledger.forget_attempts(names)
            return await self.parts.reconciler.release(leases, self._tick, why, ACT_DEADLINE_S, self._ask_who_leads)
