"""The small world with its ticks recorded, as the watchdog records them, and what has to be the same when they are replayed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tailkeeper_watchdog.loop import Loop
from tailkeeper_watchdog.model import TickRecord
from tailkeeper_watchdog.records.file import Recorder, read
from tailkeeper_watchdog.records.in_force import written_down
from tailkeeper_watchdog.records.lines import Outcome, RecordedTick, RunStart, outcome_of
from tailkeeper_watchdog.replay.recorded import Again
from tests.scenario.world import TICK_S, World

MANY = 100_000
"""Ticks of a test come faster than any disk."""


class RecordedWorld(World):
    """Every tick of it goes to ``file``. ``outcomes`` are what came of them, kept beside the records."""

    def __init__(self, folder: Path, *args: Any, **kwargs: Any) -> None:
        self.file = folder / "ticks.records"
        self.outcomes: list[Outcome] = []
        self.recorder: Recorder | None = None
        super().__init__(folder / "ledger.db", *args, **kwargs)

    def start(self) -> None:
        """A restarted watchdog begins another run in the same file."""
        if self.recorder is not None:
            self.recorder.close()
        super().start()
        parts = self.loop.parts
        configuration = written_down(parts.rules, parts.guards, parts.tick_s)
        self.recorder = Recorder(self.file, 64_000_000, configuration, f"{self.clock.wall()}", lambda: 0.0, MANY)

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            await super().run(TICK_S)
            record = self.loop.latest
            assert record is not None
            self.keep(record)

    def keep(self, record: TickRecord) -> None:
        assert self.recorder is not None
        self.recorder.offer(record, self.loop.inputs)
        self.outcomes.append(outcome_of(record))

    async def replayed(self, steps: Iterable[RunStart | RecordedTick] | None = None) -> tuple[Again, list[Outcome]]:
        """What comes out when the records, or other steps, are computed again."""
        assert self.recorder is not None
        self.recorder.close()
        found: list[Outcome] = []

        def told(record: TickRecord, loop: Loop) -> None:
            found.append(outcome_of(record))

        again = Again(told)
        for step in read(self.file) if steps is None else steps:
            await again.take(step)
        return again, found
