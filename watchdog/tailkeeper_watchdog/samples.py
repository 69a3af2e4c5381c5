"""A backend's counters and histograms at one moment, as one row of numbers. Pure.

A dozen samples are kept of each backend, and numbers that lie scattered are four times as much to keep and to fetch. What stands
where in a row is said once, in its ``Layout``, which all samples of all backends with the same histograms share.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from operator import lt
from types import MappingProxyType

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram

OUTCOME_SLOT: Mapping[str, str] = {outcome: f"{catalog.REQUESTS.name}{{{outcome}}}" for outcome in catalog.OUTCOMES}
"""How an observation names the requests of one outcome."""
SIGNAL_HISTOGRAM: Mapping[str, str] = {
    **{signal: metric.name for signal, metric in catalog.SIGNAL_HISTOGRAMS.items()},
    "preprocess": catalog.PREPROCESS_TIME.name,
}
COUNTERS = (
    *OUTCOME_SLOT.values(),
    catalog.GENERATED_TOKENS.name,
    catalog.PREEMPTIONS.name,
    catalog.KV_QUERIES.name,
    catalog.KV_HITS.name,
)
"""A row begins with its time and these; one that is not told is NaN there."""
COUNTER_PLACE: Mapping[str, int] = MappingProxyType({name: 1 + place for place, name in enumerate(COUNTERS)})
HEAD = 1 + len(COUNTERS)
_WITH_BUCKETS = frozenset(SIGNAL_HISTOGRAM.values())
"""Those of which quantiles are asked: buckets are most of what a sample holds."""
MAX_LAYOUTS = 256
"""Remembered. A fleet has a handful: one for each engine, version and set of metrics."""

Bounds = tuple[float, ...]
Place = tuple[int, int, Bounds]
"""Of a histogram: where its sum and its last count are, and its bounds. Its other counts are between the two."""
NOWHERE: Place = (0, 0, ())
"""Of one that is not told; there are no buckets at it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where what stands in a row behind its head: of each histogram its sum, then its counts, or only the last of them."""

    names: tuple[str, ...]
    bounds: tuple[Bounds, ...]
    """Of the histograms in their order, kept or not."""
    places: Mapping[str, Place]
    width: int

    def fits(self, histograms: Mapping[str, Histogram]) -> bool:
        """Whether these histograms can be put down so."""
        return self.names == tuple(histograms) and self.bounds == tuple([histogram.bounds for histogram in histograms.values()])


@lru_cache(maxsize=MAX_LAYOUTS)
def _layout(names: tuple[str, ...], bounds: tuple[Bounds, ...]) -> Layout:
    """One object for all, so that rows of one layout are known by it."""
    places, at = {}, HEAD
    for name, of_one in zip(names, bounds, strict=True):
        kept = of_one if name in _WITH_BUCKETS else ()
        end = at + max(1, len(kept))
        places[name] = at, end, kept
        at = end + 1
    return Layout(names, bounds, MappingProxyType(places), at)


@dataclass(slots=True)
class Sample:
    """What one backend had counted at monotonic time ``at``, in seconds. Nobody changes it; it is not frozen, because to make a
    frozen one takes three times as long, and one is made for each backend at each tick."""

    at: float
    layout: Layout
    row: array[float]

    def total(self, name: str) -> tuple[float, float] | None:
        """How many were observed of a histogram, and their sum in its unit."""
        place = self.layout.places.get(name)
        return None if place is None else (self.row[place[1]], self.row[place[0]])

    def went_back(self, earlier: Sample) -> bool:
        """Whether a counter is lower than it was: the engine was started anew."""
        return any(map(lt, self.row[1:HEAD], earlier.row[1:HEAD]))


def sample_of(
    at: float, counters: Mapping[str, float], histograms: Mapping[str, Histogram], like: Layout | None = None
) -> Sample:
    """``like`` is the layout that it probably has. Counters that are not of ``COUNTERS`` are left out.

    Raises ValueError where a histogram has not as many counts as bounds.
    """
    if like is None or not like.fits(histograms):
        like = _layout(tuple(histograms), tuple([histogram.bounds for histogram in histograms.values()]))
    row = array("d", [at, *[counters.get(name, nan) for name in COUNTERS]])
    for name, histogram in histograms.items():
        counts = histogram.counts
        row.append(histogram.sum)
        if name in _WITH_BUCKETS and counts:
            row.extend(counts)
        else:
            row.append(counts[-1] if counts else 0.0)
    if len(row) != like.width:
        raise ValueError("a histogram has not as many counts as bounds")
    return Sample(at, like, row)
