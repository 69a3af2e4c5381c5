"""``block_e`` over a fleet: the rows of many backends in one NumPy call, and which backends are a page. Pure.

A call for each backend costs some 50 µs whatever it is given; two thousand backends with a few rows each are scored
together here, in the same steps and with the same results. Pages are decided by e-BH (Wang and Ramdas) over the backends'
evidence: `docs/drift.md` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from tailkeeper_watchdog.drift.block_e import Alarm, BlockE
from tailkeeper_watchdog.drift.blocks import cut
from tailkeeper_watchdog.drift.design import LATE_BLOCKS, Design
from tailkeeper_watchdog.drift.evidence import EPOCH_BLOCKS
from tailkeeper_watchdog.drift.load import TINY, LoadModel
from tailkeeper_watchdog.drift.rows import (
    AT,
    LATENCY,
    PROMPT,
    BoolArray,
    FloatArray,
    IntArray,
    Rows,
    features,
    has_latency,
    has_load,
)

FALSE_PAGES_PER_WEEK = 0.5
"""Over the whole fleet, by the arithmetic; one is the promise, and half of it is kept for what arithmetic leaves out."""
_APART = 10**11
"""Between the block numbers of two backends, so that one array sorts them all; block numbers stay below a tenth of it."""


def discoveries(e_values: Mapping[str, float | None], alpha: float) -> frozenset[str]:
    """e-BH: the backends whose e-values reject at level ``alpha``; the expected share of false ones among them is below it.

    Backends without an e-value count as one of them that says nothing.
    """
    known = sorted(((value, name) for name, value in e_values.items() if value is not None and value > 0), reverse=True)
    found = 0
    for rank, (value, _) in enumerate(known, 1):
        if value * rank * alpha >= len(e_values):
            found = rank
    return frozenset(name for _, name in known[:found])


def pages(
    page_values: Mapping[str, float | None], fleet_backends: int, false_pages_per_week: float = FALSE_PAGES_PER_WEEK
) -> frozenset[str]:
    """The backends of one pool that are a page, from their ``Evidence.page_value``.

    Under no drift its mean is at most ``EPOCH_BLOCKS`` in a week, whatever moment is looked at, so divided by that it is an
    e-value. A pool gets the share of the fleet's false pages that it has of the fleet's backends, and so its size cancels:
    k backends of it must each reach ``EPOCH_BLOCKS`` × fleet / (k × false pages).
    """
    if not page_values:
        return frozenset()
    e_values = {name: None if value is None else value / EPOCH_BLOCKS for name, value in page_values.items()}
    share = len(page_values) / max(fleet_backends, len(page_values))
    return discoveries(e_values, false_pages_per_week * share)


def page_evidence(fleet_backends: int, found: int = 1, false_pages_per_week: float = FALSE_PAGES_PER_WEEK) -> float:
    """The evidence that each of ``found`` backends of one pool needs for a page."""
    return EPOCH_BLOCKS * fleet_backends / (found * false_pages_per_week)


@dataclass(frozen=True, slots=True)
class _Models:
    """The load models of many backends, one line each; raw ones as a constant prediction, short ones padded."""

    weights: FloatArray
    floor_s: FloatArray
    ceiling_s: FloatArray
    edges_s: FloatArray
    medians: FloatArray
    scales: FloatArray


def _stack(models: Sequence[LoadModel]) -> _Models:
    bins = max(len(model.medians) for model in models)

    def lines(values: list[tuple[float, ...]], width: int, fill: float) -> FloatArray:
        return np.array([(*line, *(fill,) * (width - len(line))) for line in values], dtype=np.float64)

    return _Models(
        lines([model.weights or (model.floor_s,) for model in models], 6, 0.0),
        np.array([model.floor_s for model in models]),
        np.array([model.ceiling_s for model in models]),
        lines([model.edges_s for model in models], bins - 1, inf),
        lines([model.medians for model in models], bins, 0.0),
        lines([model.scales for model in models], bins, 1.0),
    )


class FleetE:
    """Many ``BlockE``, those of ``design`` updated together. Theirs are the state and the counts: each can also be used alone.

    A baseline from a file may be of another design; its backend is updated by itself, with the same results.
    """

    def __init__(self, tests: Mapping[str, BlockE], design: Design) -> None:
        self._alone = {name: test for name, test in tests.items() if test.baseline.design != design}
        together = {name: test for name, test in tests.items() if name not in self._alone}
        self._names = tuple(together)
        self._tests = tuple(together.values())
        self._place = {name: place for place, name in enumerate(self._names)}
        self._design = design
        if together:
            self._models = _stack([test.baseline.model for test in self._tests])
            self._anchors = np.array([test.baseline.anchors for test in self._tests])
            self._block_s = np.array([test.baseline.block_s for test in self._tests])
            self._raw = np.array([test.baseline.is_raw for test in self._tests])

    def update(self, batches: Mapping[str, Rows]) -> dict[str, tuple[Alarm, ...]]:
        """The alarms of each backend that has any. Rows of backends that are not in the fleet are left out."""
        alone = {name: test.update_many(batches[name]) for name, test in self._alone.items() if name in batches}
        alarms = {name: raised for name, raised in alone.items() if raised}
        parts = [(self._place[name], rows.table) for name, rows in batches.items() if name in self._place and len(rows)]
        return (alarms | self._together(parts)) if parts else alarms

    def _together(self, parts: list[tuple[int, FloatArray]]) -> dict[str, tuple[Alarm, ...]]:
        parts.sort(key=lambda part: part[0])
        table = np.concatenate([rows for _, rows in parts])
        owners = np.repeat([place for place, _ in parts], [len(rows) for _, rows in parts])
        return self._update(table, owners)

    def _update(self, table: FloatArray, owners: IntArray) -> dict[str, tuple[Alarm, ...]]:
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        kept = self._usable(table, owners)
        if not kept.all():
            lines = np.flatnonzero(kept)
            table, owners = table[lines], owners[lines]
        else:
            lines = np.arange(len(table))
        if not len(table):
            return {}
        rows = lines - firsts[np.searchsorted(firsts, lines, side="right") - 1]
        scores, beyond = self._score(table, owners)
        over = np.clip(scores[:, None] - self._anchors[owners], 0.0, self._design.cap)
        starts, numbers, counts, set_back = self._runs(table[:, AT], owners)
        totals = np.add.reduceat(over, starts, axis=0).tolist()
        alarms: dict[str, tuple[Alarm, ...]] = {}
        abstained = np.add.reduceat(beyond.astype(np.int64), starts).tolist()
        runs = zip(owners[starts].tolist(), rows[starts].tolist(), numbers, counts, abstained, totals, set_back, strict=True)
        for owner, *run in runs:
            raised = self._tests[owner].take(*run)
            if raised:
                alarms[self._names[owner]] = alarms.get(self._names[owner], ()) + raised
        return alarms

    def _usable(self, table: FloatArray, owners: IntArray) -> BoolArray:
        timed = has_latency(table)
        kept = timed & (self._raw[owners] | has_load(table))
        if not kept.all():
            for owner in np.unique(owners[~kept]).tolist():
                own = owners == owner
                self._tests[owner].counts.unusable += int((own & ~timed).sum())
                self._tests[owner].counts.without_load += int((own & timed & ~kept).sum())
        return np.asarray(kept, dtype=np.bool_)

    def _score(self, table: FloatArray, owners: IntArray) -> tuple[FloatArray, BoolArray]:
        """As `load.score`, with each row by its owner's model."""
        models = self._models
        if self._raw.any():
            table = np.where(self._raw[owners, None] & (np.arange(table.shape[1]) >= PROMPT), 0.0, table)
        predicted_s = np.einsum("ji,ij->i", features(table), models.weights[owners])
        predicted_s = np.maximum(predicted_s, models.floor_s[owners])
        bins = (models.edges_s[owners] < predicted_s[:, None]).sum(axis=1)
        excess = np.log(np.maximum(table[:, LATENCY] / predicted_s, TINY)) - self._design.dead_band - models.medians[owners, bins]
        scores = excess / models.scales[owners, bins]
        beyond = predicted_s > models.ceiling_s[owners]
        scores[beyond] = -inf
        self._count(owners, beyond)
        return scores, beyond

    def _count(self, owners: IntArray, beyond: BoolArray) -> None:
        scored = np.bincount(owners, minlength=len(self._tests)).tolist()
        abstained = np.bincount(owners[beyond], minlength=len(self._tests)).tolist()
        for test, rows, left_out in zip(self._tests, scored, abstained, strict=True):
            test.counts.scored += rows
            test.counts.abstained += left_out

    def _runs(self, at_s: FloatArray, owners: IntArray) -> tuple[IntArray, list[int], list[int], list[bool]]:
        """As `blocks.cut` for each owner in turn."""
        raw = np.floor_divide(at_s, self._block_s[owners]).astype(np.int64)
        opened = [test.open_block.number for test in self._tests]
        least = np.array([-_APART // 2 if number is None else number for number in opened], dtype=np.int64)
        apart = owners * _APART
        newest = np.maximum.accumulate(np.maximum(raw, least[owners]) + apart) - apart
        late = newest - raw > LATE_BLOCKS
        if late.any():
            return self._runs_one_by_one(at_s, owners, opened)
        starts = np.flatnonzero(np.diff(newest + apart, prepend=-(10**18)))
        counts = np.diff(starts, append=len(newest)).tolist()
        return starts, newest[starts].tolist(), counts, [False] * len(starts)

    def _runs_one_by_one(
        self, at_s: FloatArray, owners: IntArray, opened: list[int | None]
    ) -> tuple[IntArray, list[int], list[int], list[bool]]:
        """For the rare batch in which somebody's clock was set back."""
        starts: list[int] = []
        numbers: list[int] = []
        counts: list[int] = []
        set_back: list[bool] = []
        firsts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
        for first, end in zip(firsts, [*firsts[1:], len(owners)], strict=True):
            runs = cut(at_s[first:end], float(self._block_s[owners[first]]), opened[int(owners[first])])
            starts.extend((runs.starts + first).tolist())
            numbers.extend(runs.numbers.tolist())
            counts.extend(runs.counts.tolist())
            set_back.extend(runs.set_back)
        return np.array(starts, dtype=np.int64), numbers, counts, set_back
