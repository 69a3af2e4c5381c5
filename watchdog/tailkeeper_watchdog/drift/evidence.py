"""Evidence against "no drift", added up block by block. Pure arithmetic.

Each block's statistic is ranked among the baseline's; the rank gives a p-value that is cautious about how few blocks the
baseline has; bets on small p-values multiply evidence that starts anew at every block (Shiryaev and Roberts; e-detectors of
Shin, Ramdas and Rinaldo). Each factor is bounded, so one block alone proves nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import betaincinv

from tailkeeper_watchdog.drift.design import Design
from tailkeeper_watchdog.drift.rows import FloatArray

MOST_EVIDENCE = 1e30
"""Beyond any threshold, and far below where floats end."""
EPOCH_BLOCKS = 60_480
"""Blocks of ten seconds in a week; blocks are never shorter. The evidence for a page starts anew then, so that its mean under
no drift is at most this."""


def p_values(baseline_blocks: int, confidence: float) -> FloatArray:
    """p-value by rank k = 0 … N, k being how many baseline blocks are at least as high: an upper bound of Clopper–Pearson."""
    ranks = np.arange(baseline_blocks)
    bounds = betaincinv(ranks + 1, baseline_blocks - ranks, confidence)
    return np.append(np.asarray(bounds, dtype=np.float64), 1.0)


@lru_cache(maxsize=256)
def bet_table(baseline_blocks: int, design: Design) -> tuple[tuple[float, ...], ...]:
    """The factors κ·u^(κ−1) of each rank, in the order of the kappas. Kept, because backends of a fleet often share N."""
    kappas = np.array(design.kappas)[None, :]
    u = np.maximum(p_values(baseline_blocks, design.confidence), design.least_p)[:, None]
    return tuple(tuple(row) for row in (kappas * u ** (kappas - 1)).tolist())


class Evidence:
    """Two sums of the same bets: ``value`` starts anew after each alarm, ``page_value`` after a page and after a week.

    The first is judged for the backend alone; the second is what a fleet is judged by (`fleet.py`), and must be able to
    grow further than one backend's alarm.
    """

    __slots__ = ("_bets", "_cells", "_limit", "_page_cells", "_sorted", "blocks", "page_age_blocks", "page_value", "value")

    def __init__(self, statistics: Sequence[Sequence[float]], design: Design) -> None:
        self._sorted = [list(column) for column in statistics]
        self._bets = bet_table(len(self._sorted[0]), design)
        self._limit = design.alarm_evidence
        self.blocks = 0
        self._cells = self._no_cells()
        self._page_cells: list[float] | None = None
        """None while they are the same as ``_cells``: until the first alarm, so for nearly all backends nearly always."""
        self.value = self.page_value = 0.0
        self.page_age_blocks = 0

    def _no_cells(self) -> list[float]:
        return [0.0] * (len(self._sorted) * len(self._bets[0]))

    def start_page(self) -> None:
        """Begin the evidence for a page anew: after a page, and once a week."""
        self._page_cells = self._no_cells()
        self.page_value = 0.0
        self.page_age_blocks = 0

    def add(self, statistics: Sequence[float]) -> float | None:
        """Take one block in; the evidence at which this raised an alarm, if it did, and the evidence is then 0 again."""
        factors: tuple[float, ...] = ()
        for column, statistic in zip(self._sorted, statistics, strict=True):
            factors += self._bets[len(column) - bisect_left(column, statistic)]
        if self.page_age_blocks >= EPOCH_BLOCKS:
            self.start_page()
        self.blocks += 1
        self.page_age_blocks += 1
        self._cells = _bet(self._cells, factors)
        self.value = sum(self._cells) / len(self._cells)
        self._add_page(factors)
        if self.value < self._limit:
            return None
        reached = self.value
        self._page_cells = self._page_cells or self._cells
        self._cells = self._no_cells()
        self.value = 0.0
        return reached

    def _add_page(self, factors: tuple[float, ...]) -> None:
        if self._page_cells is None:
            self.page_value = self.value
            return
        cells = _bet(self._page_cells, factors)
        self.page_value = min(sum(cells) / len(cells), MOST_EVIDENCE)
        self._page_cells = cells if self.page_value < MOST_EVIDENCE else [min(cell, MOST_EVIDENCE) for cell in cells]


def _bet(cells: list[float], factors: tuple[float, ...]) -> list[float]:
    return [(1.0 + cell) * factor for cell, factor in zip(cells, factors, strict=True)]
