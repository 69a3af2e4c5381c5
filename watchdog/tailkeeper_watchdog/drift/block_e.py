"""``block_e`` over request rows: one backend, one signal. No I/O and no clock; the caller owns the object.

rows → usable ones → scores (`load.py`) → blocks (`blocks.py`) → evidence (`evidence.py`) → alarms.
Bad input is counted and left out; it never raises and is never evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from tailkeeper_watchdog.drift import load
from tailkeeper_watchdog.drift.baseline import Baseline
from tailkeeper_watchdog.drift.blocks import OpenBlock, block_number, cut, excess
from tailkeeper_watchdog.drift.design import LATE_BLOCKS
from tailkeeper_watchdog.drift.evidence import Evidence
from tailkeeper_watchdog.drift.rows import (
    AT,
    LATENCY,
    MAX_AT_S,
    MAX_LATENCY_S,
    MAX_LOAD,
    PROMPT,
    BoolArray,
    FloatArray,
    Rows,
    has_latency,
    has_load,
)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Evidence reached the limit with the block that the row at index ``row`` of the batch closed."""

    row: int
    evidence: float


@dataclass(slots=True)
class Counts:
    """Of rows since the start."""

    scored: int = 0
    abstained: int = 0
    """Scored as nothing, because the baseline never saw such a load. Part of ``scored``."""
    unusable: int = 0
    """Without a time or a latency that can be true."""
    without_load: int = 0
    """Of unknown load, which a load-normalised baseline cannot judge."""


class BlockE:
    """The running test of one backend against its baseline."""

    __slots__ = ("_anchors", "_block", "_one", "baseline", "counts", "evidence")

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.counts = Counts()
        self.evidence = Evidence(baseline.statistics, baseline.design)
        self._anchors = np.array(baseline.anchors)
        self._block = OpenBlock(len(baseline.anchors), baseline.min_rows, baseline.design.most_abstained_share)
        self._one = load.OneRow(baseline.model, baseline.design.dead_band)

    @property
    def open_block(self) -> OpenBlock:
        """The block being filled; `fleet.py` fills many at once."""
        return self._block

    def usable(self, table: FloatArray) -> BoolArray:
        """Which rows can be scored; the others are counted."""
        timed = has_latency(table)
        kept = timed if self.baseline.is_raw else timed & has_load(table)
        self.counts.unusable += len(table) - int(timed.sum())
        self.counts.without_load += int(timed.sum()) - int(kept.sum())
        return kept

    def update_many(self, rows: Rows) -> tuple[Alarm, ...]:
        """Rows in the order in which they became known. Any split into batches gives the same alarms."""
        kept = np.flatnonzero(self.usable(rows.table))
        if not len(kept):
            return ()
        table = rows.table[kept]
        design = self.baseline.design
        scores, abstained = load.score(self.baseline.model, table, design.dead_band)
        self.counts.scored += len(table)
        self.counts.abstained += int(abstained.sum())
        runs = cut(table[:, AT], self.baseline.block_s, self._block.number)
        totals = np.add.reduceat(excess(scores, self._anchors, design), runs.starts, axis=1).T.tolist()
        beyond = np.add.reduceat(abstained.astype(np.int64), runs.starts).tolist()
        alarms: list[Alarm] = []
        rows_at, numbers, counts = kept[runs.starts].tolist(), runs.numbers.tolist(), runs.counts.tolist()
        for run in zip(rows_at, numbers, counts, beyond, totals, runs.set_back, strict=True):
            alarms.extend(self.take(*run))
        return tuple(alarms)

    def take(self, row: int, number: int, count: int, abstained: int, sums: list[float], set_back: bool) -> tuple[Alarm, ...]:
        """One run of ``count`` rows of the block ``number``, with their summed excess over each anchor."""
        statistics = self._block.turn(number, set_back)
        self._block.add(count, abstained, sums)
        reached = None if statistics is None else self.evidence.add(statistics)
        return () if reached is None else (Alarm(row, reached),)

    def update(self, row: tuple[float | None, ...]) -> Alarm | None:
        """One row, in the order of ``COLUMNS``: the same as a batch of one, and some ten times as fast."""
        known = [float("nan") if value is None else value for value in row]
        if not self._is_usable(known):
            return None
        at_s, latency_s, prompt, backlog, running, waiting = known
        score = self._one.score(latency_s, (prompt, backlog, running, waiting))
        self.counts.scored += 1
        abstained = score == -inf
        self.counts.abstained += abstained
        cap = self.baseline.design.cap
        sums = [min(max(score - anchor, 0.0), cap) for anchor in self.baseline.anchors]
        number, newest = block_number(at_s, self.baseline.block_s), self._block.number
        set_back = newest is not None and newest - number > LATE_BLOCKS
        if newest is not None and not set_back:
            number = max(number, newest)
        return next(iter(self.take(0, number, 1, int(abstained), sums, set_back)), None)

    def _is_usable(self, row: list[float]) -> bool:
        if not (abs(row[AT]) < MAX_AT_S and 0 < row[LATENCY] < MAX_LATENCY_S):
            self.counts.unusable += 1
            return False
        if not self.baseline.is_raw and not all(0 <= value < MAX_LOAD for value in row[PROMPT:]):
            self.counts.without_load += 1
            return False
        return True

    def missing(self) -> str | None:
        """What keeps this test from saying anything, in words; None where it can speak."""
        counts = self.counts
        if counts.without_load > counts.scored:
            return f"{counts.without_load:,} of {counts.without_load + counts.scored:,} requests do not say their load"
        if counts.abstained > 0.5 * counts.scored:
            return f"the load is beyond the baseline's in {counts.abstained:,} of {counts.scored:,} requests"
        if not self.evidence.blocks:
            return f"no block is complete yet: {self._block.rows} of at least {self._block.min_rows} requests"
        return None
