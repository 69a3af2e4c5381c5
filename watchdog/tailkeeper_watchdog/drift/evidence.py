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
"""Blocks of ten seconds in a week. The evidence for a page starts anew then, so that its mean under no drift is at most this."""


def p_values(baseline_blocks: int, confidence: float) -> FloatArray:
    """p-value by rank k = 0 … N, k being how many baseline blocks are at least as high: an upper bound of Clopper–Pearson."""
    ranks = np.arange(baseline_blocks)
    bounds = betaincinv(ranks + 1, baseline_blocks - ranks, confidence)
    return np.append(np.asarray(bounds, dtype=np.float64), 1.0)


@lru_cache(maxsize=256)
def bet_table(baseline_blocks: int, design: Design) -> tuple[tuple[float, ...], ...]:
    """The factors κ·u^(κ−1) of each rank, in the order of the kappas. Kept, because backends of a fleet often share N."""
    kappas = np.array(design.kappas)[None, :]
    u = p_values(baseline_blocks, design.confidence)[:, None]
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
        self._start()
        self.start_page()

    def _start(self) -> None:
        self._cells = [0.0] * (len(self._sorted) * len(self._bets[0]))
        self.value = 0.0

    def start_page(self) -> None:
        """Begin the evidence for a page anew: after a page, a restart of the engine, and once a week."""
        self._page_cells = [0.0] * (len(self._sorted) * len(self._bets[0]))
        self.page_value = 0.0
        self.page_age_blocks = 0

    def add(self, statistics: Sequence[float]) -> float | None:
        """Take one block in; the evidence at which this raised an alarm, if it did, and the evidence is then 0 again."""
        factors = self._factors(statistics)
        self.blocks += 1
        self._add_page(factors)
        self._cells = [(1.0 + cell) * factor for cell, factor in zip(self._cells, factors, strict=True)]
        self.value = sum(self._cells) / len(self._cells)
        if self.value < self._limit:
            return None
        reached = self.value
        self._start()
        return reached

    def _factors(self, statistics: Sequence[float]) -> list[float]:
        factors: list[float] = []
        for column, statistic in zip(self._sorted, statistics, strict=True):
            factors.extend(self._bets[len(column) - bisect_left(column, statistic)])
        return factors

    def _add_page(self, factors: list[float]) -> None:
        if self.page_age_blocks >= EPOCH_BLOCKS:
            self.start_page()
        self.page_age_blocks += 1
        cells = [(1.0 + cell) * factor for cell, factor in zip(self._page_cells, factors, strict=True)]
        self.page_value = min(sum(cells) / len(cells), MOST_EVIDENCE)
        if self.page_value == MOST_EVIDENCE:
            cells = [min(cell, MOST_EVIDENCE) for cell in cells]
        self._page_cells = cells
