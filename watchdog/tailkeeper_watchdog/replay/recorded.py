"""Recorded ticks computed again by the same loop, and compared with what came of them then.

Everything that the loop asks of the world is answered from the record, so every finding, wish, verdict and decision must come
out the same, bit for bit. One that does not is a difference, and means that another version of the watchdog made the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tailkeeper_watchdog.actuators.contract import Support
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.loop import Loop, Parts
from tailkeeper_watchdog.model import Backend, Knob, Lease, Pending, TickRecord
from tailkeeper_watchdog.plan import Change
from tailkeeper_watchdog.reconcile import AskLeader, Executed, GatewayReport, Reconciler
from tailkeeper_watchdog.records.in_force import InForce
from tailkeeper_watchdog.records.lines import Outcome, RecordedTick, RunStart, outcome_of
from tailkeeper_watchdog.switches import Hold, Switches
from tailkeeper_watchdog.tick import TickInputs
from tailkeeper_watchdog.weighing import Weighing

MAX_DIFFERENCES = 20
"""Told in words; the others are counted."""


class UnreadTickError(Exception):
    """That tick failed before it had read anything."""


@dataclass(slots=True)
class Now:
    """The tick that is being computed again, and the time as it was then: before acting and after it."""

    step: RecordedTick
    acted: bool = False
    backends: tuple[Backend, ...] = ()
    """The fleet as last known: a tick that read nothing says nothing about it."""

    def turn_to(self, step: RecordedTick) -> None:
        self.step, self.acted = step, False
        if step.inputs is not None:
            self.backends = step.inputs.backends

    @property
    def inputs(self) -> TickInputs:
        if self.step.inputs is None:
            raise UnreadTickError(self.step.outcome.error or "nothing was read")
        return self.step.inputs

    def monotonic(self) -> float:
        given = self.step.inputs
        return 0.0 if given is None else given.acted if self.acted else given.now

    def wall(self) -> float:
        given = self.step.inputs
        return self.step.time_unix_s if given is None or not self.acted else given.acted_unix_s


class _Source:
    """Says what was collected."""

    def __init__(self, now: Now) -> None:
        self._now = now

    async def collect(self, now: float, deadline_s: float) -> Collected:
        return self._now.inputs.collected

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        return None

    async def close(self) -> None:
        return None


class _Gateways(Reconciler):
    """Says what the gateways reported, and what came of acting."""

    def __init__(self, now: Now, ledger: Ledger, log: DecisionLog, lease_s: float) -> None:
        super().__init__({}, ledger, log, lease_s, now.wall)
        self._now = now

    def support(self, backends: tuple[Backend, ...]) -> dict[tuple[str, Knob], Support]:
        given = self._now.step.inputs
        return {} if given is None else dict(given.support)

    def found_out(
        self, support: Mapping[tuple[str, Knob], Support], backends: tuple[Backend, ...], report: GatewayReport
    ) -> Mapping[tuple[str, Knob], Support]:
        """The record has it as it had been found out."""
        return self._now.inputs.support

    async def read(self, backends: tuple[Backend, ...], deadline_s: float) -> GatewayReport:
        self.without_doors = self._now.inputs.without_doors
        return self._now.inputs.report

    def pending(self) -> Pending:
        return self._now.inputs.pending

    async def execute(
        self, changes: tuple[Change, ...], tick: int, deadline_s: float, leader: AskLeader | None = None
    ) -> Executed:
        executed = self._now.inputs.executed
        if executed is None:
            raise LedgerError(self._now.step.outcome.error or "nothing could be noted")
        self._now.acted = True
        return executed


class _Ledger(Ledger):
    """Says which leases there were; what is noted now is kept in memory and forgotten."""

    def __init__(self, now: Now) -> None:
        super().__init__(":memory:")
        self._now = now

    def leases(self) -> tuple[Lease, ...]:
        given = self._now.step.inputs
        return () if given is None else given.leases

    def attempts(self, now: float) -> dict[str, int]:
        return dict(self._now.inputs.attempts)

    def count_attempt(self, backend: str, now: float) -> int:
        return 0


class _Switches(Switches):
    """Says what was paused and held."""

    def __init__(self, now: Now, ledger: Ledger) -> None:
        super().__init__(ledger, None, now.wall)
        self._now = now

    def paused(self) -> str | None:
        return self._now.inputs.paused

    def holds(self) -> dict[str, Hold]:
        return {name: Hold(reason, inf) for name, reason in self._now.inputs.holds.items()}

    def end_holds(self, backends: frozenset[str]) -> None:
        return None


class _Weights(Weighing):
    """Says which weights held; those of the start where the record does not say."""

    def __init__(self, now: Now, ledger: Ledger, at_start: Mapping[str, float]) -> None:
        super().__init__(ledger, at_start, now.wall)
        self._now = now
        self._at_start = at_start

    @property
    def in_force(self) -> Mapping[str, float]:
        given = self._now.step.inputs
        return given.weights if given is not None and given.weights else self._at_start


class _Again(Loop):
    """The loop, with the numbers of its ticks and the releases by hand taken from the record."""

    _recorded_unwritten: str | None = None

    async def again(self, step: RecordedTick) -> TickRecord:
        self._tick = step.tick - 1
        if step.inputs is not None:
            self._released_at = dict(step.inputs.released_at)
            self._recorded_unwritten = step.inputs.unwritten
        return await self.tick()

    def _what_is_unwritten(self, now: float) -> str | None:
        return self._recorded_unwritten


@dataclass(slots=True)
class Comparison:
    """How many ticks came out the same, and what did not."""

    ticks: int = 0
    same: int = 0
    warming_up: int = 0
    """Ticks of a run whose begin is not in the records: what was remembered then is not known, so they need not be the same."""
    lost: int = 0
    differences: list[str] = field(default_factory=list)


def differences(then: Outcome, again: Outcome) -> Iterator[str]:
    """In which parts two outcomes differ."""
    for name in ("findings", "desired", "verdicts", "decisions"):
        old, new = _plain(getattr(then, name)), _plain(getattr(again, name))
        if old != new:
            yield f"{name}: {json.dumps(old)[:300]} then, {json.dumps(new)[:300]} again"
    if (then.error is None) != (again.error is None):
        yield f"error: {then.error} then, {again.error} again"


def _plain(value: Any) -> Any:
    """As it is after having been written and read."""
    return json.loads(json.dumps(value if not isinstance(value, Mapping) else dict(value)))


class Again:
    """Computes runs again. ``take`` every step in its order; ``compared`` says how it went."""

    def __init__(self, told: Callable[[TickRecord, Loop], None]) -> None:
        self._told = told
        self._loop: _Again | None = None
        self._now: Now | None = None
        self._rules: InForce | None = None
        self._run = ""
        self._whole = False
        self.compared = Comparison()

    async def take(self, step: RunStart | RecordedTick) -> None:
        if isinstance(step, RunStart):
            self._begin(step)
        else:
            await self._tick(step)

    def _begin(self, start: RunStart) -> None:
        if start.continued and self._loop is not None and start.run == self._run:
            return
        self._run, self._whole = start.run, not start.continued
        self._rules, self._loop = InForce.of(start.configuration), None

    async def _tick(self, step: RecordedTick) -> None:
        if self._rules is None:
            return
        self.compared.lost += step.lost
        self._whole = self._whole and not step.lost
        if self._loop is None or self._now is None:
            self._now = Now(step)
            self._now.turn_to(step)
            self._loop = self._build(self._rules, self._now)
        self._now.turn_to(step)
        record = await self._loop.again(step)
        self._compare(step, record)
        self._told(record, self._loop)

    def _compare(self, step: RecordedTick, record: TickRecord) -> None:
        compared, found = self.compared, list(differences(step.outcome, outcome_of(record)))
        compared.ticks += 1
        if not found:
            compared.same += 1
        elif not self._whole:
            compared.warming_up += 1
        elif len(compared.differences) < MAX_DIFFERENCES:
            compared.differences.append(f"tick {step.tick}: {found[0]}")

    def _build(self, rules: InForce, now: Now) -> _Again:
        ledger = _Ledger(now)
        log = DecisionLog(ledger, now.wall)
        return _Again(
            Parts(
                fleet=lambda: now.backends,
                source=_Source(now),
                reconciler=_Gateways(now, ledger, log, rules.guards.lease_s),
                ledger=ledger,
                decisions=log,
                switches=_Switches(now, ledger),
                rules=rules.rules,
                weighing=_Weights(now, ledger, rules.rules.weights),
                guards=rules.guards,
                tick_s=rules.tick_s,
                monotonic=now.monotonic,
                wall=now.wall,
            )
        )
