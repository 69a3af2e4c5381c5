"""Ticks as lines that say only what has changed, and lines as ticks again. Pure; one writer and one reader a run.

A run begins with a line ``run`` (configuration in force, no secrets are in it), and every line carries its number. From time
to time a ``run`` line with ``continued`` begins anew with everything, so that a reader that has lost a line finds in again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.model import (
    EMPTY,
    Backend,
    BackendObservation,
    Knob,
    Lease,
    Pending,
    RequestRecord,
    Target,
    TickRecord,
)
from tailkeeper_watchdog.reconcile import Executed, GatewayReport
from tailkeeper_watchdog.records.observations import difference, patched
from tailkeeper_watchdog.records.plain import from_plain, to_plain
from tailkeeper_watchdog.tick import TickInputs

FORMAT = 2
"""2 says of each change which knob it turned."""


class NewerRecordsError(Exception):
    """A later version wrote these, in a format that this one cannot read."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """The begin of a run, or of a part that can be read by itself. ``configuration`` is what was in force, as plain values."""

    run: str
    configuration: Mapping[str, Any]
    continued: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a tick, as plain values: what a replay has to arrive at."""

    findings: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """By their id."""
    desired: tuple[Any, ...] = ()
    verdicts: tuple[Any, ...] = ()
    decisions: tuple[Any, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """One tick as it was. ``inputs`` is None where it failed before it had read anything; ``lost`` ticks before it were not."""

    tick: int
    time_unix_s: float
    inputs: TickInputs | None
    outcome: Outcome
    lost: int = 0


def outcome_of(record: TickRecord) -> Outcome:
    """What is kept of a tick's outcome. A decision's number and time are those of its line in the log, and stay out."""
    decisions = [{k: v for k, v in to_plain(d).items() if k not in ("id", "time_unix_s")} for d in record.decisions]
    return Outcome(
        {finding.id: to_plain(finding) for finding in record.findings},
        tuple(to_plain(wish) for wish in record.desired),
        tuple(to_plain(verdict) for verdict in record.verdicts),
        tuple(decisions),
        record.error,
    )


_LISTS: Mapping[str, tuple[str, Any]] = {
    "l": ("leases", tuple[Lease, ...]),
    "wd": ("without_doors", frozenset[str]),
    "w": ("weights", Mapping[str, float]),
    "p": ("paused", str | None),
    "o": ("holds", Mapping[str, str]),
    "n": ("attempts", Mapping[str, int]),
    "ra": ("released_at", Mapping[str, float]),
    "pe": ("pending", Pending),
    "uw": ("unwritten", str | None),
}
"""Inputs that are written whole when they change: key of the line, field, type."""


class Encoder:
    """Remembers what was written last. ``lines`` gives the next tick's; ``restart`` makes the next one complete."""

    def __init__(self, run: str, configuration: Mapping[str, Any]) -> None:
        self._run, self._configuration = run, dict(configuration)
        self._begun = False
        self.restart()

    def restart(self) -> None:
        self._fresh = True
        self._number = 0
        self._inputs: TickInputs | None = None
        self._servers: dict[Target, ServerState] = {}
        self._seen: dict[str, BackendObservation] = {}
        self._outcome = Outcome()

    def lines(self, record: TickRecord, inputs: TickInputs | None, lost: int = 0) -> Iterator[dict[str, Any]]:
        if self._fresh:
            yield self._start()
        line: dict[str, Any] = {"i": self._number, "t": record.tick, "u": record.time_unix_s}
        if lost:
            line["lost"] = lost
        if inputs is not None:
            line.update(self._given(inputs))
        line.update(self._came_of(outcome_of(record)))
        self._number += 1
        yield line

    def _start(self) -> dict[str, Any]:
        self._fresh = False
        continued, self._begun = self._begun, True
        return {"run": self._run, "format": FORMAT, "continued": continued, "configuration": self._configuration}

    def _given(self, inputs: TickInputs) -> dict[str, Any]:
        before, self._inputs = self._inputs, inputs
        line: dict[str, Any] = {"m": [inputs.started, inputs.now, inputs.acted, inputs.acted_unix_s]}
        if before is None or inputs.backends is not before.backends:
            line["f"] = to_plain(inputs.backends)
        if before is None or inputs.support is not before.support:
            line["k"] = _support(inputs.support)
        for key, (name, _) in _LISTS.items():
            if before is None or getattr(inputs, name) != getattr(before, name):
                line[key] = to_plain(getattr(inputs, name))
        line.update(self._collected(inputs.collected))
        line.update(self._gateways(inputs.report))
        if inputs.executed is None:
            line["x"] = None
        elif inputs.executed != _NOTHING:
            line["x"] = to_plain(inputs.executed)
        return line

    def _collected(self, collected: Collected) -> dict[str, Any]:
        seen = collected.observations
        line: dict[str, Any] = {"s": {name: difference(now, self._seen.get(name)) for name, now in seen.items()}}
        self._seen = dict(seen)
        if collected.records:
            line["r"] = [to_plain(record) for record in collected.records]
        return line | ({"e": collected.error} if collected.error is not None else {})

    def _gateways(self, report: GatewayReport) -> dict[str, Any]:
        changed = {t: s for t, s in report.servers.items() if self._servers.get(t) != s}
        gone = [t for t in self._servers if t not in report.servers]
        self._servers = dict(report.servers)
        line: dict[str, Any] = {"g": to_plain(changed)} if changed else {}
        if gone:
            line["gx"] = to_plain(gone)
        if report.gone:
            line["gg"] = to_plain(report.gone)
        return line | ({"ge": dict(report.errors)} if report.errors else {})

    def _came_of(self, outcome: Outcome) -> dict[str, Any]:
        before, self._outcome = self._outcome, outcome
        line: dict[str, Any] = {}
        changed = {k: v for k, v in outcome.findings.items() if before.findings.get(k) != v}
        closed = [k for k in before.findings if k not in outcome.findings]
        for key, value in (("F", changed), ("Fx", closed), ("D", list(outcome.decisions)), ("E", outcome.error)):
            if value:
                line[key] = value
        for key, now, was in (("W", outcome.desired, before.desired), ("V", outcome.verdicts, before.verdicts)):
            if now != was:
                line[key] = list(now)
        return line


_NOTHING = Executed((), frozenset(), frozenset(), frozenset(), frozenset())


def _support(support: Mapping[tuple[str, Knob], Support]) -> dict[str, Any]:
    """Thousands of backends have a handful of gateways: the distinct answers once, and which backend has which."""
    by_backend: dict[str, dict[str, list[Any]]] = {}
    for (backend, knob), answer in support.items():
        by_backend.setdefault(backend, {})[knob.value] = [answer.enforceable, answer.why_not]
    kinds: list[dict[str, list[Any]]] = []
    places: dict[str, int] = {}
    for backend, answers in by_backend.items():
        if answers not in kinds:
            kinds.append(answers)
        places[backend] = kinds.index(answers)
    return {"kinds": kinds, "of": places}


def _supported(line: Mapping[str, Any]) -> dict[tuple[str, Knob], Support]:
    kinds = [{Knob(k): Support(bool(a[0]), str(a[1])) for k, a in kind.items()} for kind in line["kinds"]]
    return {(backend, knob): answer for backend, place in line["of"].items() for knob, answer in kinds[place].items()}


class Decoder:
    """Lines in their order, ticks out. A line that does not follow the last one is passed over, up to the next complete one."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._lost = 0
        self.unreadable = 0
        """Lines that were passed over."""

    def take(self, line: Any) -> RunStart | RecordedTick | None:
        """The next step of a run, or None where the line says nothing that can be used. Raises NewerRecordsError."""
        try:
            return self._start(line) if "run" in line else self._tick(line)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            self._pass_over()
            return None

    def _pass_over(self) -> None:
        self._number = None
        self.unreadable += 1
        self._lost += 1

    def _start(self, line: Mapping[str, Any]) -> RunStart:
        written = line["format"]
        if isinstance(written, int) and written > FORMAT:
            raise NewerRecordsError(f"a newer version wrote it, in format {written}; this one reads format {FORMAT}")
        if written != FORMAT:
            raise ValueError(f"format {written!r}, known is {FORMAT}")
        self._number = 0
        self._inputs: TickInputs | None = None
        self._servers: dict[Target, ServerState] = {}
        self._seen: dict[str, BackendObservation] = {}
        self._outcome = Outcome()
        return RunStart(str(line["run"]), dict(line["configuration"]), bool(line["continued"]))

    def _tick(self, line: Mapping[str, Any]) -> RecordedTick | None:
        if self._number is None or line["i"] != self._number:
            self._pass_over()
            return None
        inputs = self._given(line) if "m" in line else None
        self._outcome = self._came_of(line)
        self._number += 1
        lost, self._lost = self._lost + int(line.get("lost", 0)), 0
        return RecordedTick(int(line["t"]), float(line["u"]), inputs, self._outcome, lost)

    def _given(self, line: Mapping[str, Any]) -> TickInputs:
        started, now, acted, acted_unix_s = line["m"]
        before = self._inputs
        changed: dict[str, Any] = {name: from_plain(kind, line[key]) for key, (name, kind) in _LISTS.items() if key in line}
        if "f" in line:
            changed["backends"] = from_plain(tuple[Backend, ...], line["f"])
        if "k" in line:
            changed["support"] = _supported(line["k"])
        executed = _NOTHING if "x" not in line else from_plain(Executed | None, line["x"])
        changed |= {
            "tick": line["t"], "time_unix_s": line["u"], "started": started, "now": now, "acted": acted,
            "acted_unix_s": acted_unix_s, "collected": self._collected(line), "report": self._gateways(line),
            "executed": executed,
        }  # fmt: skip
        self._inputs = TickInputs(**changed) if before is None else replace(before, **changed)
        return self._inputs

    def _collected(self, line: Mapping[str, Any]) -> Collected:
        self._seen = {name: patched(name, part, self._seen.get(name)) for name, part in line["s"].items()}
        records = tuple(from_plain(RequestRecord, row) for row in line.get("r", ()))
        return Collected(self._seen, records, line.get("e"))

    def _gateways(self, line: Mapping[str, Any]) -> GatewayReport:
        gone = from_plain(frozenset[Target], line.get("gx", []))
        kept = {target: state for target, state in self._servers.items() if target not in gone}
        self._servers = kept | from_plain(Mapping[Target, ServerState], line.get("g", []))
        return GatewayReport(self._servers, line.get("ge", {}), from_plain(frozenset[str], line.get("gg", [])))

    def _came_of(self, line: Mapping[str, Any]) -> Outcome:
        before, closed = self._outcome, frozenset(line.get("Fx", ()))
        return Outcome(
            {k: v for k, v in before.findings.items() if k not in closed} | line.get("F", {}),
            tuple(line["W"]) if "W" in line else before.desired,
            tuple(line["V"]) if "V" in line else before.verdicts,
            tuple(line.get("D", ())),
            line.get("E"),
        )
