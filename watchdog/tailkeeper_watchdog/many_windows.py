"""Many windows side by side: a line of numbers for each. Pure.

One by one, what everybody asks of every backend's window is most of what a tick of thousands of backends costs. The numbers are
the same to the last bit: the same operations on the same doubles. Where that is not plain (buckets that do not rise, two ends of
other layouts), the window itself is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Quantile
from tailkeeper_watchdog.samples import (
    COUNTER_PLACE,
    COUNTERS,
    HEAD,
    NOWHERE,
    OUTCOME_SLOT,
    SIGNAL_HISTOGRAM,
    Bounds,
    Layout,
    Sample,
)
from tailkeeper_watchdog.table import Matrix
from tailkeeper_watchdog.window import Window

Column = NDArray[np.float64]
Mask = NDArray[np.bool_]
_OK, _ERROR, _REJECTED = OUTCOME_SLOT["ok"], OUTCOME_SLOT["error"], OUTCOME_SLOT["rejected"]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """One quantile of each backend: NaN, 0 and False where it is not known."""

    value: Column
    samples: Column
    """Whole numbers, and as large as a hostile page may count: a double has room for them, an integer has not."""
    saturated: Mask

    def copy(self) -> Quantiles:
        return Quantiles(self.value.copy(), self.samples.copy(), self.saturated.copy())

    def at(self, place: int) -> Quantile | None:
        """That of one of them, as its window has it."""
        value = float(self.value[place])
        return Quantile(value, int(self.samples[place]), bool(self.saturated[place])) if value == value else None

    def put(self, place: int, found: Quantile | None) -> None:
        known = (nan, 0, False) if found is None else (found.value, found.samples, found.saturated)
        self.value[place], self.samples[place], self.saturated[place] = known


@dataclass(frozen=True, slots=True)
class _Rows:
    """Samples of one layout, or windows whose two ends have it: their places, and their rows, or by how much these rose."""

    layout: Layout
    places: list[int]
    lines: Matrix

    def counts(self, name: str) -> tuple[Matrix, Bounds]:
        """Of a histogram; without bounds where it has no buckets here."""
        total, last, bounds = self.layout.places.get(name, NOWHERE)
        return self.lines[:, total + 1 : last + 1], bounds


class Standing:
    """Counters and histograms as they stand in the samples that there are. Unknown is NaN."""

    def __init__(self, samples: Sequence[Sample | None]) -> None:
        self._size = len(samples)
        places = [place for place, sample in enumerate(samples) if sample is not None]
        known = [sample for sample in samples if sample is not None]
        self._rows = [
            _Rows(layout, [places[which] for which in of_it], _matrix([known[which] for which in of_it]))
            for layout, of_it in _by_layout([sample.layout for sample in known])
        ]
        self._heads = np.full((self._size, HEAD), nan)
        for rows in self._rows:
            self._heads[rows.places] = rows.lines[:, :HEAD]

    def of(self, counter: str) -> Column:
        return self._heads[:, COUNTER_PLACE[counter]]

    def above(self, name: str, limit: float) -> tuple[Column, Column]:
        """How many of a histogram's observations are surely above ``limit``, and how many there are: those above the upper end of
        the bucket that it is in. Unknown where no bucket ends between it and infinity: then nobody can tell."""
        above, counted = np.full(self._size, nan), np.full(self._size, nan)
        for rows in self._rows:
            counts, bounds = rows.counts(name)
            index = bisect_left(bounds, limit)
            if index < len(bounds) - 1:
                counted[rows.places] = counts[:, -1]
                above[rows.places] = counts[:, -1] - counts[:, index]
        return above, counted


_NO_WINDOW, _ODD = -1, -2


def number_or_none(value: float) -> float | None:
    """One number of a column, None where it is not known."""
    return float(value) if value == value else None


def or_none(column: Column) -> list[float | None]:
    """The numbers of a column, with None where they are not known."""
    return [value if value == value else None for value in column.tolist()]


class Rises:
    """By how much counters and histograms rose in each window. Unknown is NaN."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows
        self._rows = [
            _Rows(layout, places, _rise([windows[place] for place in places]))
            for layout, places in _by_layout(map(_common, windows))
        ]
        plain = {place for rows in self._rows for place in rows.places}
        self._odd = [p for p, w in enumerate(windows) if p not in plain and w.start is not None and w.end is not None]
        """Those that are asked one by one."""
        self._heads = np.full((len(windows), HEAD), nan)
        self._row_at: list[tuple[int, int]] = [(_NO_WINDOW, 0)] * len(windows)
        """In which of ``_rows`` each is, and at which line."""
        for number, rows in enumerate(self._rows):
            self._heads[rows.places] = rows.lines[:, :HEAD]
            for line, place in enumerate(rows.places):
                self._row_at[place] = number, line
        for place in self._odd:
            window, self._row_at[place] = windows[place], (_ODD, 0)
            self._heads[place] = [window.seconds, *(_number(window.increase(name)) for name in COUNTERS)]
        self._quantiles: dict[tuple[str, float], Quantiles] = {}

    @property
    def seconds(self) -> Column:
        """As ``Window.seconds``, and NaN instead of 0 where there is no window."""
        return self._heads[:, 0]

    def of(self, counter: str) -> Column:
        """As ``Window.increase``."""
        return self._heads[:, COUNTER_PLACE[counter]]

    def mean_s(self, name: str) -> Column:
        """As ``Window.mean_s``."""
        means = np.full(len(self._windows), nan)
        for rows in self._rows:
            total, last, _ = rows.layout.places.get(name, NOWHERE)
            if last:
                counted = np.where(rows.lines[:, last] > 0, rows.lines[:, last], nan)
                means[rows.places] = rows.lines[:, total] / counted
        for place in self._odd:
            means[place] = _number(self._windows[place].mean_s(name))
        return means

    def taken(self) -> tuple[Column, Column]:
        """As ``Window.taken``: requests that were taken in and finished, and how many of them failed."""
        ok, failed = self.of(_OK), self.of(_ERROR)
        return ok + failed, np.where(np.isnan(ok), nan, failed)

    def finished(self) -> tuple[Column, Column]:
        """As ``Window.finished``: with those that were refused."""
        taken, failed = self.taken()
        rejected = np.where(np.isnan(self.of(_REJECTED)), 0.0, self.of(_REJECTED))
        return taken + rejected, failed + rejected

    def kv_miss_ratio(self) -> Column:
        """As ``Window.kv_miss_ratio``."""
        queries = np.where(self.of(catalog.KV_QUERIES.name) != 0, self.of(catalog.KV_QUERIES.name), nan)
        return np.minimum(1.0, np.maximum(0.0, 1.0 - self.of(catalog.KV_HITS.name) / queries))

    def quantile(self, signal: str, q: float) -> Quantiles:
        """As ``Window.quantile``; worked out once."""
        found = self._quantiles.get((signal, q))
        if found is None:
            found = self._quantiles[signal, q] = self._quantile(signal, q)
        return found

    def _quantile(self, signal: str, q: float) -> Quantiles:
        size = len(self._windows)
        found = Quantiles(np.full(size, nan), np.zeros(size), np.zeros(size, dtype=bool))
        for rows in self._rows:
            counts, bounds = rows.counts(SIGNAL_HISTOGRAM[signal])
            if len(bounds) < 2:
                continue
            places, plain = np.array(rows.places), _is_plain(counts)
            _put_quantiles(found, places[plain], counts[plain], bounds, q)
            for place in places[~plain].tolist():
                found.put(place, self._windows[place].quantile(signal, q))
        for place in self._odd:
            found.put(place, self._windows[place].quantile(signal, q))
        return found

    def merged(self, places: Sequence[int], name: str) -> Histogram | None:
        """How many were observed in these windows together, of those whose buckets are those of most. Their sum is left NaN."""
        of_one = {int(self._row_at[place][0]) for place in places} - {_NO_WINDOW}
        if len(of_one) != 1 or _ODD in of_one:
            return _merged([self._windows[place].histogram(name) for place in places])
        rows = self._rows[of_one.pop()]
        counts, bounds = rows.counts(name)
        counts = counts[[int(self._row_at[place][1]) for place in places if self._row_at[place][0] != _NO_WINDOW]]
        counts = counts[(counts >= 0).all(axis=1)]
        return Histogram(bounds, tuple(counts.sum(axis=0).tolist()), nan) if bounds and len(counts) else None


def _merged(histograms: Iterable[Histogram | None]) -> Histogram | None:
    by_bounds: dict[Bounds, list[Histogram]] = {}
    for histogram in histograms:
        if histogram is not None:
            by_bounds.setdefault(histogram.bounds, []).append(histogram)
    if not by_bounds:
        return None
    bounds, same = max(by_bounds.items(), key=lambda item: sum(h.count for h in item[1]))
    return Histogram(bounds, tuple(map(sum, zip(*(h.counts for h in same), strict=True))), nan)


def _by_layout(layouts: Iterable[Layout | None]) -> list[tuple[Layout, list[int]]]:
    """The places of each. Layouts are known by identity: equal ones are one object."""
    found: dict[int, tuple[Layout, list[int]]] = {}
    for place, layout in enumerate(layouts):
        if layout is not None:
            known = found.get(id(layout))
            if known is None:
                known = found[id(layout)] = layout, []
            known[1].append(place)
    return list(found.values())


def _common(window: Window) -> Layout | None:
    """The layout of both ends; None where there is none."""
    start, end = window.start, window.end
    return end.layout if start is not None and end is not None and start.layout is end.layout else None


def _matrix(samples: Sequence[Sample]) -> Matrix:
    """The rows of samples of one layout."""
    return np.frombuffer(b"".join([sample.row for sample in samples])).reshape(len(samples), -1)


def _rise(windows: Sequence[Window]) -> Matrix:
    """By how much everything rose in windows of one layout."""
    starts, ends = [w.start for w in windows if w.start is not None], [w.end for w in windows if w.end is not None]
    return _matrix(ends) - _matrix(starts)


def _number(value: float | None) -> float:
    return nan if value is None else value


def _is_plain(counts: Matrix) -> Mask:
    """Whether the buckets of each line rise, as they should."""
    return np.asarray((counts[:, 0] >= 0) & (counts[:, 1:] >= counts[:, :-1]).all(axis=1), dtype=np.bool_)


def _put_quantiles(found: Quantiles, places: NDArray[np.int64], counts: Matrix, bounds: Bounds, q: float) -> None:
    """As ``bucket_quantile`` of each line, whose counts rise and whose bounds are two at least."""
    some = (counts[:, -1] > 0) & np.isfinite(counts[:, -1])
    places, counts = places[some], counts[some]
    totals = counts[:, -1]
    ranks = q * totals
    index = (counts >= ranks[:, None]).argmax(axis=1)  # the first bucket in which so many are
    saturated = index >= len(bounds) - 1
    index = np.minimum(index, len(bounds) - 2)
    limits, lines = np.array(bounds), np.arange(len(counts))
    is_first = index == 0
    below_s, below = np.where(is_first, 0.0, limits[index - 1]), np.where(is_first, 0.0, counts[lines, index - 1])
    inside = counts[lines, index] - below
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.where(inside > 0, (ranks - below) / inside, 1.0)
        found.value[places] = np.where(saturated, bounds[-2], below_s + (limits[index] - below_s) * share)
    found.samples[places] = np.trunc(totals)
    found.saturated[places] = saturated
