"""`tailkeeper replay --records`: recorded ticks computed again, or decided anew by another configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tailkeeper_watchdog.loop import Loop
from tailkeeper_watchdog.model import Backend, TickRecord
from tailkeeper_watchdog.records.file import read
from tailkeeper_watchdog.records.in_force import InForce, RecordedConfigurationError
from tailkeeper_watchdog.records.lines import NewerRecordsError, RecordedTick, RunStart
from tailkeeper_watchdog.replay.recorded import Again
from tailkeeper_watchdog.replay.report import Asked, document
from tailkeeper_watchdog.replay.simulated import Decider, NothingToReplayError, Simulation, step_of
from tailkeeper_watchdog.replay.story import Story

__all__ = ["NOT_SIMULATED", "NothingToReplayError", "again", "decided_by"]

NOT_SIMULATED = (
    "what these decisions would have changed for users: the history is that of the traffic as it was then, and a backend that "
    "would have been drained still has its load in it"
)


async def again(path: Path) -> dict[str, Any]:
    """The recorded decisions, computed again. Raises NothingToReplayError and OSError."""
    story: Story | None = None
    in_force: InForce | None = None

    def told(record: TickRecord, loop: Loop) -> None:
        nonlocal story
        if story is None:
            story = Story(loop.parts.rules.slo, loop.parts.tick_s)
        story.take(record, loop)

    run = Again(told)
    try:
        for step in _readable(path):
            if isinstance(step, RunStart):
                in_force = InForce.of(step.configuration)
            await run.take(step)
    except RecordedConfigurationError as error:
        raise NothingToReplayError(f"{path}: {error}") from error
    if story is None or in_force is None:
        raise NothingToReplayError(_nothing(path))
    asked = Asked("records", str(path), "the configuration that was in force then")
    return document(story, asked, in_force.rules.policies) | {"compared": asdict(run.compared)}


def _readable(path: Path) -> Iterator[RunStart | RecordedTick]:
    """What is recorded. Raises NothingToReplayError where this version cannot read it, and OSError."""
    try:
        yield from read(path)
    except NewerRecordsError as error:
        raise NothingToReplayError(f"{path}: {error}") from error


def _nothing(path: Path) -> str:
    return f"{path}: no tick can be read in it; is it what watchdog.records.path or `state` with .records for its ending names?"


async def decided_by(path: Path, decider: Decider) -> dict[str, Any]:
    """The recorded evidence decided by another configuration. Raises NothingToReplayError and OSError.

    Where it knows a recorded backend, its places at the gateways count.
    """
    rules, fleet = decider.in_force, decider.fleet
    story = Story(rules.rules.slo, rules.tick_s)
    simulation = Simulation(rules, decider.abilities, story.take)
    placed = _Placed(fleet)
    run = ""
    for step in _readable(path):
        if isinstance(step, RunStart):
            if step.run != run or not step.continued:
                simulation.restart()
            run = step.run
            story.pace(_tick_s(step, rules.tick_s))
        elif isinstance(step, RecordedTick) and step.inputs is not None:
            await simulation.take(step_of(step.inputs, placed(step.inputs.backends)))
    if not story.ticks:
        raise NothingToReplayError(_nothing(path))
    absent = sorted(set(fleet) - set(story.backends))
    notes = [NOT_SIMULATED]
    if absent:
        notes.append(f"{', '.join(absent[:10])}: not in the records")
    asked = Asked("records", str(path), decider.name, tuple(notes))
    return document(story, asked, rules.rules.policies)


def _tick_s(start: RunStart, otherwise: float) -> float:
    """How fast the recorded ticks follow each other, whatever the pace of the configuration that decides now."""
    given = start.configuration.get("tick_s")
    return float(given) if isinstance(given, (int, float)) and given > 0 else otherwise


class _Placed:
    """The recorded fleet with the places that another configuration gives it; the same tuple for the same fleet."""

    def __init__(self, fleet: Mapping[str, Backend]) -> None:
        self._fleet = fleet
        self._given: tuple[Backend, ...] | None = None
        self._placed: tuple[Backend, ...] = ()

    def __call__(self, recorded: tuple[Backend, ...]) -> tuple[Backend, ...]:
        if recorded is not self._given:
            self._given = recorded
            self._placed = tuple(self._fleet.get(b.name, b) for b in recorded)
        return self._placed
