"""Rows cut into blocks of time, and the statistic of a block. Pure.

A block is ``block_s`` of the rows' own time. A late row counts where it arrives; where the clock was set back, what the open
block held is thrown away, because nobody knows what time it was. A gap makes no block: no requests are no evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailkeeper_watchdog.drift.design import LATE_BLOCKS, Design
from tailkeeper_watchdog.drift.rows import BoolArray, FloatArray, IntArray

DECIMALS = 9
"""Block statistics are rounded here, so that the order of adding never decides a tie."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Consecutive rows of one block each: where they start, how many there are, and whether the clock fell back before."""

    starts: IntArray
    counts: IntArray
    numbers: IntArray
    set_back: tuple[bool, ...]


def block_number(at_s: float, block_s: float) -> int:
    return int(at_s // block_s)


def cut(at_s: FloatArray, block_s: float, open_number: int | None) -> Runs:
    """Runs over rows at ``at_s``, going on from the block ``open_number``."""
    raw = np.floor_divide(at_s, block_s).astype(np.int64)
    first = int(raw[0]) if open_number is None else open_number
    newest = np.maximum(np.maximum.accumulate(raw), first)
    if (newest - raw <= LATE_BLOCKS).all():
        starts = np.flatnonzero(np.diff(newest, prepend=newest[0] - 1))
        return _runs(starts, newest, (False,) * len(starts))
    return _with_steps(raw, first)


def _with_steps(raw: IntArray, first: int) -> Runs:
    """Row by row, for the rare batch in which the clock was set back."""
    numbers, starts, steps = raw.copy(), [], []
    current, previous = first, None
    for row, number in enumerate(raw.tolist()):
        stepped = current - number > LATE_BLOCKS
        current = number if stepped else max(current, number)
        if stepped or current != previous:
            starts.append(row)
            steps.append(stepped)
        numbers[row] = previous = current
    return _runs(np.array(starts, dtype=np.int64), numbers, tuple(steps))


def _runs(starts: IntArray, numbers: IntArray, set_back: tuple[bool, ...]) -> Runs:
    return Runs(starts, np.diff(starts, append=len(numbers)), numbers[starts], set_back)


def excess(scores: FloatArray, anchors: FloatArray, design: Design) -> FloatArray:
    """How far each score is above each anchor, at most the cap: one line for each anchor."""
    return np.clip(scores[None, :] - anchors[:, None], 0.0, design.cap)


class OpenBlock:
    """The block that is being filled: its number, how many rows it has, and their summed excess for each anchor."""

    __slots__ = ("_most_abstained", "abstained", "min_rows", "number", "rows", "skipped", "sums")

    def __init__(self, anchors: int, min_rows: int, most_abstained_share: float) -> None:
        self.number: int | None = None
        self.rows = self.abstained = 0
        self.sums = [0.0] * anchors
        self.min_rows = min_rows
        self._most_abstained = most_abstained_share
        self.skipped = 0
        """Blocks that were no evidence, because too many of their rows abstained."""

    def turn(self, number: int, set_back: bool) -> tuple[float, ...] | None:
        """Go on to the block ``number``; the statistics of the one that this closes, if it does close one."""
        closed = None
        if set_back:
            self._clear()
        elif number != self.number and self.rows >= self.min_rows:
            closed = self._close()
            self._clear()
        self.number = number
        return closed

    def _close(self) -> tuple[float, ...] | None:
        if self.abstained > self._most_abstained * self.rows:
            self.skipped += 1
            return None
        return tuple(round(total / self.rows, DECIMALS) for total in self.sums)

    def add(self, rows: int, abstained: int, sums: list[float]) -> None:
        self.rows += rows
        self.abstained += abstained
        self.sums = sums if self.rows == rows else [a + b for a, b in zip(self.sums, sums, strict=True)]

    def _clear(self) -> None:
        self.rows = self.abstained = 0
        self.sums = [0.0] * len(self.sums)


def pace(at_s: FloatArray, design: Design) -> float:
    """How long a block lasts, in seconds, at the rate of these rows."""
    usual_rows = float(np.median(cut(at_s, design.block_s, None).counts))
    return round(design.block_s * max(1.0, design.block_rows / usual_rows), 1)


def whole_blocks(
    at_s: FloatArray, sums: FloatArray, abstained: BoolArray, block_s: float, design: Design
) -> tuple[list[tuple[float, ...]], int]:
    """The statistics of the baseline's whole blocks, and the least rows of a block. The first and the last are cut off."""
    runs = cut(at_s, block_s, None)
    least = max(1, int(design.min_block_share * float(np.median(runs.counts))))
    block, closed = OpenBlock(len(sums), least, design.most_abstained_share), []
    totals = np.add.reduceat(sums, runs.starts, axis=1).T.tolist()
    beyond = np.add.reduceat(abstained.astype(np.int64), runs.starts).tolist()
    for number, rows, out, total, set_back in zip(
        runs.numbers.tolist(), runs.counts.tolist(), beyond, totals, runs.set_back, strict=True
    ):
        statistics = block.turn(number, set_back)
        if statistics is not None:
            closed.append(statistics)
        block.add(rows, out, total)
    return closed[1:], least
