"""What every policy and detector asks of every backend, side by side: a column for each question, a line for each backend. Pure.

A backend's page, window and memory are scattered objects, and to fetch them for each question is most of what a tick of
thousands of backends costs. A column is one piece of memory: whoever looks for the few that are not well finds them in it, and
fetches only theirs. Unknown is NaN, which is neither above nor below any limit.

The numbers are those that observations and windows give when they are asked one by one, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.many_windows import by_layout, rises
from tailkeeper_watchdog.model import WORST_OF_GPUS, BackendObservation, Situation
from tailkeeper_watchdog.samples import COUNTER_PLACE, COUNTERS, NOWHERE, OUTCOME_SLOT
from tailkeeper_watchdog.window import Window

Column = NDArray[np.float64]
Mask = NDArray[np.bool_]

GAUGES = tuple(
    metric.name
    for metric in (
        catalog.RUNNING,
        catalog.WAITING,
        catalog.KV_USAGE,
        catalog.VRAM_PRESSURE,
        catalog.SCRAPE_AGE,
    )
)
_TOLD = (*GAUGES, *WORST_OF_GPUS, *COUNTERS)
_PLACE = {name: place for place, name in enumerate(_TOLD)}
_SILENT = (nan,) * len(_TOLD)
_OK, _ERROR = OUTCOME_SLOT["ok"], OUTCOME_SLOT["error"]
_NO_WINDOW = Window()


class Rises:
    """By how much counters and histograms rose in a window of each backend."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows
        self._rows = [(layout, places, rises(same, layout)) for layout, places, same in by_layout(windows)]
        plain = {place for _, places, _ in self._rows for place in places}
        self._odd = [place for place, w in enumerate(windows) if place not in plain and w.start is not None and w.end is not None]
        self._counters = np.full((len(windows), len(COUNTERS)), nan)
        for _, places, rows in self._rows:
            self._counters[places] = rows[:, : len(COUNTERS)]
        for place in self._odd:
            self._counters[place] = [_number(windows[place].increase(name)) for name in COUNTERS]

    def of(self, counter: str) -> Column:
        """As ``Window.increase``."""
        return self._counters[:, COUNTER_PLACE[counter]]

    def telling(self, name: str) -> list[int]:
        """The places of those that may have quantiles of a histogram."""
        rows = [place for layout, places, _ in self._rows if layout.places.get(name, NOWHERE)[2] for place in places]
        return sorted((*rows, *self._odd))

    def mean_s(self, name: str) -> Column:
        """As ``Window.mean_s``."""
        means = np.full(len(self._windows), nan)
        for layout, places, rows in self._rows:
            total, last, _ = layout.places.get(name, NOWHERE)
            if last:
                counted = np.where(rows[:, last] > 0, rows[:, last], nan)
                means[places] = rows[:, total] / counted
        for place in self._odd:
            means[place] = _number(self._windows[place].mean_s(name))
        return means

    @property
    def taken(self) -> tuple[Column, Column]:
        """As ``Window.taken``: requests that were taken in and finished, and how many of them failed."""
        failed = self.of(_ERROR)
        return self.of(_OK) + failed, np.where(np.isnan(self.of(_OK)), nan, failed)

    @property
    def kv_miss_ratio(self) -> Column:
        """As ``Window.kv_miss_ratio``."""
        queries = np.where(self.of(catalog.KV_QUERIES.name) != 0, self.of(catalog.KV_QUERIES.name), nan)
        return np.minimum(1.0, np.maximum(0.0, 1.0 - self.of(catalog.KV_HITS.name) / queries))


def _number(value: float | None) -> float:
    return nan if value is None else value


@dataclass(frozen=True, slots=True)
class Columns:
    """One line for each of ``names``, which are the fleet's in its order."""

    names: tuple[str, ...]
    seen: tuple[BackendObservation | None, ...]
    """Fresh observations, as ``Situation.fresh`` has them."""
    heard: Mask
    dead: Mask
    minute: Rises
    """Over the windows of the last minute."""
    lately: Rises
    """Over those of the last moments."""
    _told: Column

    def told(self, name: str) -> Column:
        """A gauge of ``GAUGES`` or ``WORST_OF_GPUS``, or a counter as it stands."""
        return self._told[:, _PLACE[name]]


def columns(situation: Situation) -> Columns:
    """Made once of each situation."""
    return situation.worked_out("columns", _columns)


def _columns(situation: Situation) -> Columns:
    heard, windows, recent = situation.heard, situation.windows, situation.recent
    names = tuple([backend.name for backend in situation.snapshot.backends])
    seen = tuple(map(heard.get, names))
    told = [_SILENT if one is None else [one.values.get(name, nan) for name in _TOLD] for one in seen]
    return Columns(
        names,
        seen,
        np.array([one is not None for one in seen], dtype=bool),
        np.array([one is not None and one.state.is_dead for one in seen], dtype=bool),
        Rises([windows.get(name, _NO_WINDOW) for name in names]),
        Rises([recent.get(name, _NO_WINDOW) for name in names]),
        np.array(told).reshape(-1, len(_TOLD)),
    )
