"""Gathers the rows of a baseline until there are enough of them, in bounded memory. Pure.

Enough is a number of requests and a length of time that was really observed: a gap or a step of the clock counts for
nothing. Above the capacity every second row is dropped, of those held and of those to come: blocks of the baseline then
have fewer rows than the ones they are compared with, vary more, and so make the test more careful, never less.
"""

from __future__ import annotations

import numpy as np

from tailkeeper_watchdog.drift.baseline import Baseline, fit
from tailkeeper_watchdog.drift.design import BLOCK_E, Design
from tailkeeper_watchdog.drift.rows import AT, COLUMNS, FloatArray, Rows, has_latency, has_load

REQUESTS = 20_000
SECONDS = 2_400.0
CAPACITY = 50_000
"""Rows held at most, 2.4 MB: twenty requests a second for the forty minutes; a busier backend is thinned."""
GAP_S = 60.0
"""Nothing for longer than this is a gap, and was not observed."""


class Collector:
    """One backend's baseline in the making. A restart of the engine opens a new one."""

    def __init__(
        self, *, design: Design = BLOCK_E, requests: int = REQUESTS, seconds: float = SECONDS, capacity: int = CAPACITY
    ) -> None:
        self._design, self._need, self._need_s, self._capacity = design, requests, seconds, capacity
        self._parts: list[FloatArray] = []
        self._held = 0
        self._stride = 1
        self._newest_s: float | None = None
        self.requests = 0
        self.with_load = 0
        self.observed_s = 0.0
        self.unusable = 0

    def add(self, rows: Rows) -> None:
        """Take rows in; what has no true time or latency is counted in ``unusable``."""
        table = rows.table[has_latency(rows.table)]
        self.unusable += len(rows) - len(table)
        if not len(table):
            return
        self._observe(table[:, AT])
        self.with_load += int(has_load(table).sum())
        kept = table[(-self.requests) % self._stride :: self._stride]
        self.requests += len(table)
        self._parts.append(kept.copy())
        self._held += len(kept)
        while self._held > self._capacity:
            self._thin()

    def _observe(self, at_s: FloatArray) -> None:
        start_s = at_s[0] if self._newest_s is None else self._newest_s
        newest_s = np.maximum.accumulate(np.concatenate([[start_s], at_s]))
        gains_s = np.diff(newest_s)
        self.observed_s += float(gains_s[gains_s <= GAP_S].sum())
        was_set_back = at_s[-1] < newest_s[-1] - GAP_S
        self._newest_s = float(at_s[-1] if was_set_back else newest_s[-1])

    def _thin(self) -> None:
        table = np.concatenate(self._parts)[::2].copy()
        self._parts, self._held = [table], len(table)
        self._stride *= 2

    @property
    def is_ready(self) -> bool:
        return self.requests >= self._need and self.observed_s >= self._need_s

    def missing(self) -> str | None:
        """What is still missing, in words; None when nothing is."""
        if self.is_ready:
            return None
        return (
            f"a baseline needs {self._need:,} requests and {self._need_s / 60:.0f} min; "
            f"so far {self.requests:,} and {self.observed_s / 60:.0f} min"
        )

    def rows(self) -> Rows:
        """The rows held."""
        return Rows(np.concatenate(self._parts) if self._parts else np.empty((0, len(COLUMNS))))

    def fit(self, *, model_id: str, created_at_s: float) -> Baseline:
        """Raises ValueError with what is missing, or where what there is makes too few blocks."""
        missing = self.missing()
        if missing is not None:
            raise ValueError(missing)
        return fit(self.rows(), model_id=model_id, created_at_s=created_at_s, design=self._design)
