"""What every policy and detector asks of every backend, side by side: a column for each question, a line for each backend. Pure.

A backend's page, window and memory are scattered objects, and to fetch them for each question is most of what a tick of
thousands of backends costs. A column is one piece of memory: whoever looks for the few that are not well finds them in it, and
fetches only theirs. Unknown is NaN, which is neither above nor below any limit.

The numbers are those that observations and windows give when they are asked one by one, to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import nan

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Quantile
from tailkeeper_watchdog.many_windows import Column, Mask, Quantiles, Rises, Standing
from tailkeeper_watchdog.model import WORST_OF_GPUS, BackendObservation, Situation
from tailkeeper_watchdog.samples import Sample, sample_of
from tailkeeper_watchdog.window import Window

GAUGES = tuple(
    metric.name
    for metric in (
        catalog.RUNNING,
        catalog.WAITING,
        catalog.KV_USAGE,
        catalog.VRAM_PRESSURE,
        catalog.SCRAPE_AGE,
        catalog.CPU_USAGE,
    )
)
_TOLD = (*GAUGES, *WORST_OF_GPUS)
_PLACE = {name: place for place, name in enumerate(_TOLD)}
_SILENT = [nan] * len(_TOLD)
_NO_WINDOW = Window()


@dataclass(frozen=True, slots=True)
class Columns:
    """One line for each of ``names``, which are the fleet's in its order."""

    names: tuple[str, ...]
    seen: tuple[BackendObservation | None, ...]
    """Fresh observations, as ``Situation.fresh`` has them."""
    heard: Mask
    dead: Mask
    epoch: Column
    """The number of each one's life, as ``Situation.epoch`` has it."""
    minute: Rises
    """Over the windows of the last minute."""
    lately: Rises
    """Over those of the last moments."""
    standing: Standing
    _told: Column

    def places(self, names: Collection[str]) -> list[int]:
        """Where these are, in the order of the fleet."""
        return [place for place, name in enumerate(self.names) if name in names] if names else []

    def told(self, name: str) -> Column:
        """A gauge of ``GAUGES`` or ``WORST_OF_GPUS``."""
        return self._told[:, _PLACE[name]]


def columns(situation: Situation) -> Columns:
    """Made once of each situation."""
    return situation.worked_out("columns", _columns)


def _columns(situation: Situation) -> Columns:
    heard, windows, recent = situation.heard, situation.windows, situation.recent
    names = tuple([backend.name for backend in situation.snapshot.backends])
    seen = tuple(map(heard.get, names))
    told, taken = situation.worked_out(GAUGES_TOLD, _gauges), situation.worked_out(SAMPLES, _samples)
    return Columns(
        names,
        seen,
        np.array([one is not None for one in seen], dtype=bool),
        np.array([one is not None and one.state.is_dead for one in seen], dtype=bool),
        np.array([situation.epoch(name).number for name in names], dtype=float),
        Rises([windows.get(name, _NO_WINDOW) for name in names]),
        Rises([recent.get(name, _NO_WINDOW) for name in names]),
        Standing([taken.get(name) for name in names]),
        np.array([told.get(name, _SILENT) for name in names]).reshape(-1, len(_TOLD)),
    )


GAUGES_TOLD, SAMPLES = "gauges", "samples"
"""What whoever goes through the fleet's pages anyway has at hand, for ``Situation.knowing``: by name, of those heard of."""


def gauges_of(seen: BackendObservation) -> list[float]:
    """A line of the columns that ``told`` has."""
    values = seen.values
    return [values.get(name, nan) for name in _TOLD]


def _gauges(situation: Situation) -> Mapping[str, list[float]]:
    return {name: gauges_of(seen) for name, seen in situation.heard.items()}


def _samples(situation: Situation) -> Mapping[str, Sample]:
    return {name: sample_of(0.0, seen.values, seen.histograms) for name, seen in situation.heard.items()}


def p99(situation: Situation, signal: str) -> Quantiles:
    """As ``Situation.p99``: from request records where there are any, else from the buckets of the last minute."""
    return situation.worked_out(f"p99 {signal}", lambda it: _p99(it, signal))


def _p99(situation: Situation, signal: str) -> Quantiles:
    fleet = columns(situation)
    found = fleet.minute.quantile(signal, 0.99).copy()
    exact = {name: quantile for (name, of), quantile in situation.exact.items() if of == signal}
    for place in fleet.places(exact):
        found.put(place, exact[fleet.names[place]])
    return found


def p99_by_backend(situation: Situation, signal: str) -> Mapping[str, Quantile]:
    """As ``Situation.p99`` of every backend, where it is known: for whoever tells of all of them."""
    return situation.worked_out(f"p99 by backend {signal}", lambda it: _by_backend(it, signal))


def _by_backend(situation: Situation, signal: str) -> Mapping[str, Quantile]:
    names, found = columns(situation).names, p99(situation, signal)
    told = zip(names, found.value.tolist(), map(int, found.samples.tolist()), found.saturated.tolist(), strict=True)
    return {name: Quantile(value, samples, saturated) for name, value, samples, saturated in told if value == value}
