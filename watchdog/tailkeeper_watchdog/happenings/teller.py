"""From a tick's record to what happened in it. No I/O and no clock; one task calls it.

Said is what changed: decisions as the decision log takes them, findings as they open and close. A change keeps its trigger until
it is given back, so that the three phases of one matter carry the same words. After a restart the trigger of a change from before
it is that of its policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from tailkeeper_watchdog.happenings import names, triggers
from tailkeeper_watchdog.happenings.names import NO_STRATEGY, Phase, Step, Trigger
from tailkeeper_watchdog.knob_words import shown
from tailkeeper_watchdog.model import (
    EMPTY,
    Decision,
    DesiredState,
    Finding,
    Knob,
    Mode,
    Outcome,
    Refusal,
    Severity,
    Situation,
    TickRecord,
)
from tailkeeper_watchdog.plan import RETURN_POLICY

MAX_DECISIONS = 1_000
"""Of one tick: 200 of what was not done, and what a large release gives back. The rest is counted as missed."""
MAX_FINDINGS = 500
"""Of one tick, opened and closed each: a fleet with more has one cause, and the first ones say so."""
MAX_REMEMBERED = 20_000
"""Changes in force whose trigger is remembered, the oldest forgotten first: two knobs of every backend of the largest fleet."""

Values = Mapping[str, str | int | float | None]
_ENDS = frozenset({Outcome.RELEASED, Outcome.EXPIRED, Outcome.CONTENDED})
_SEVERITIES: Mapping[Outcome, Severity] = {
    Outcome.FAILED: Severity.TICKET,
    Outcome.CONTENDED: Severity.TICKET,
    Outcome.REFUSED: Severity.TICKET,
}


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened. ``sentence`` is for people; everything else is from a closed set or a name of ours."""

    at_unix_s: float
    strategy: str
    trigger: Trigger
    phase: Phase
    backend: str
    sentence: str
    step: Step
    severity: Severity
    values: Values = field(default_factory=lambda: EMPTY)
    gateway: str = ""
    server: str = ""
    in_tick: bool = True
    """Whether it is of the tick that is told, and not of a release between two ticks."""

    @property
    def attributes(self) -> dict[str, str | int | float | None]:
        """By the names that logs, traces and events share."""
        return {
            names.STRATEGY: self.strategy,
            names.TRIGGER: self.trigger.value,
            names.PHASE: self.phase.value,
            names.BACKEND: self.backend,
            **self.values,
        }


@dataclass(frozen=True, slots=True)
class Heard:
    """A decision as it was noted, with the server it is about, where it is about one."""

    decision: Decision
    gateway: str = ""
    server: str = ""


_WishKey = tuple[str, str, Knob]


@dataclass(frozen=True, slots=True)
class _Context:
    """One tick's record, looked up by what decisions name."""

    record: TickRecord
    wishes: Mapping[_WishKey, DesiredState]
    refusals: Mapping[_WishKey, Refusal]
    strategies: Mapping[str, str]
    """Backend → the first policy that enforces something on it, as its alerts have it."""
    open: Mapping[tuple[str, str], Finding]
    """By backend and trigger."""


def _context(record: TickRecord) -> _Context:
    strategies: dict[str, str] = {}
    for wish in record.desired:
        if wish.mode is Mode.ENFORCE:
            strategies.setdefault(wish.backend, wish.policy)
    return _Context(
        record,
        {(wish.policy, wish.backend, wish.knob): wish for wish in record.desired},
        {(v.desired.policy, v.desired.backend, v.desired.knob): v.refusal for v in record.verdicts if v.refusal is not None},
        strategies,
        {(found.backend, found.kind.value): found for found in record.findings},
    )


class Teller:
    """``hear`` what is decided, at any time; ``tell`` once a tick. ``missed`` counts what was too much for one tick."""

    def __init__(self) -> None:
        self._heard: list[Heard] = []
        self._open: dict[str, Finding] = {}
        self._in_force: dict[tuple[str, Knob], Trigger] = {}
        self.missed = 0

    def hear(self, decision: Decision, gateway: str, server: str) -> None:
        if len(self._heard) < MAX_DECISIONS:
            self._heard.append(Heard(decision, gateway, server))
        else:
            self.missed += 1

    def tell(self, record: TickRecord, closed: tuple[Finding, ...]) -> tuple[Happening, ...]:
        """What happened since the last call. ``closed`` are findings that have closed, newest last, as the book keeps them."""
        heard, self._heard = self._heard, []
        now_open = {found.id: found for found in record.findings}
        opened = [found for key, found in now_open.items() if key not in self._open]
        over = {key: found for key, found in self._open.items() if key not in now_open}
        self._open = now_open
        if not heard and not opened and not over:
            return ()
        context = _context(record)
        return (
            *self._within(_opened(found, context) for found in opened),
            *self._within(_over(found, context) for found in _with_ends(over, closed)),
            *(self._decision(one, context) for one in heard),
        )

    def _within(self, told: Iterable[Happening]) -> Iterator[Happening]:
        told = iter(told)
        yield from islice(told, MAX_FINDINGS)
        self.missed += sum(1 for _ in told)

    def _decision(self, heard: Heard, context: _Context) -> Happening:
        decision = heard.decision
        key = (decision.policy, decision.backend, decision.knob)
        wish = context.wishes.get(key)
        phase = _phase(decision, wish, context.record)
        trigger = self._trigger(decision, wish, phase, context.record.situation)
        refusal = context.refusals.get(key) if decision.verdict is Outcome.REFUSED else None
        finding = context.open.get((decision.backend, trigger.value))
        return Happening(
            decision.time_unix_s,
            decision.policy,
            trigger,
            phase,
            decision.backend,
            _sentence(decision),
            triggers.STEPS.get(decision.verdict, Step.ACT),
            _SEVERITIES.get(decision.verdict, Severity.INFO),
            {
                names.VERDICT: decision.verdict.value,
                names.KNOB: decision.knob.value,
                names.FROM: None if decision.from_value is None else shown(decision.from_value),
                names.TO: shown(decision.to_value),
                names.REFUSAL: None if refusal is None else refusal.name.lower(),
                names.GATEWAY: heard.gateway,
                names.SERVER: heard.server,
                names.DECISION_ID: decision.id,
                names.FINDING_ID: None if finding is None else finding.id,
                names.LEASE_EXPIRES: decision.lease_expires_unix_s,
            },
            heard.gateway,
            heard.server,
            decision.tick == context.record.tick,
        )

    def _trigger(self, decision: Decision, wish: DesiredState | None, phase: Phase, situation: Situation) -> Trigger:
        """Of a change in force what set it off; of a new one what its wish rests on."""
        key = (decision.backend, decision.knob)
        if phase is Phase.RESOLVED or wish is None:
            known = self._in_force.get(key, triggers.of_policy(decision.policy))
            if decision.verdict in _ENDS:
                self._in_force.pop(key, None)
            return known if decision.policy != RETURN_POLICY else Trigger.RECOVERED
        seen = situation.snapshot.observations.get(decision.backend)
        trigger = triggers.of_wish(wish, None if seen is None else seen.state)
        if phase is Phase.APPLIED:
            self._remember(key, trigger)
        return trigger

    def _remember(self, key: tuple[str, Knob], trigger: Trigger) -> None:
        self._in_force.pop(key, None)
        self._in_force[key] = trigger
        while len(self._in_force) > MAX_REMEMBERED:
            del self._in_force[next(iter(self._in_force))]


def _phase(decision: Decision, wish: DesiredState | None, record: TickRecord) -> Phase:
    """A step back to normal is applied too, but nobody wants it restricted any more: it belongs to the end of the matter."""
    if decision.verdict is Outcome.APPLIED and (decision.policy == RETURN_POLICY or (wish is None and record.error is None)):
        return Phase.RESOLVED
    return triggers.PHASES[decision.verdict]


def _sentence(decision: Decision) -> str:
    before = "" if decision.from_value is None else f"{shown(decision.from_value)} → "
    change = f"{decision.knob.value} {before}{shown(decision.to_value)}"
    return f"{decision.backend}: {decision.policy} {decision.verdict.value} {change}: {decision.reason}"


def _with_ends(over: Mapping[str, Finding], closed: tuple[Finding, ...]) -> Iterator[Finding]:
    """The findings that are over, with their last words where the book still has them."""
    ends: dict[str, Finding] = {}
    for found in reversed(closed):
        if len(ends) == len(over):
            break
        if found.id in over:
            ends.setdefault(found.id, found)
    for key, found in over.items():
        yield ends.get(key, found)


def _opened(found: Finding, context: _Context) -> Happening:
    return _finding(found, context, found.since_unix_s, Phase.TRIGGERED, found.severity, found.summary)


def _over(found: Finding, context: _Context) -> Happening:
    ended = context.record.time_unix_s if found.until_unix_s is None else found.until_unix_s
    return _finding(found, context, ended, Phase.RESOLVED, Severity.INFO, f"over: {found.summary}")


def _finding(found: Finding, context: _Context, at_unix_s: float, phase: Phase, severity: Severity, sentence: str) -> Happening:
    return Happening(
        at_unix_s,
        context.strategies.get(found.backend, NO_STRATEGY),
        triggers.of_finding(found.kind),
        phase,
        found.backend,
        sentence,
        Step.DETECT,
        severity,
        {
            names.FINDING_ID: found.id,
            names.KIND: found.kind.value,
            names.SEVERITY: found.severity.value,
            names.SIGNAL: found.signal,
        },
    )
