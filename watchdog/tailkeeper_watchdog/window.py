"""What a backend did between two samples of its counters and buckets. Pure; computed only when asked.

Nobody changes a sample or a window. They are not frozen, because to make a frozen one takes three times as long, and three are
made for each backend at each tick.

A fleet of thousands has two windows a backend a tick, and most of what a window could say is never asked.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Quantile, bucket_quantile

OUTCOME_SLOT: Mapping[str, str] = {outcome: f"{catalog.REQUESTS.name}{{{outcome}}}" for outcome in catalog.OUTCOMES}
"""How an observation names the requests of one outcome."""
_OK, _ERROR, _REJECTED = OUTCOME_SLOT["ok"], OUTCOME_SLOT["error"], OUTCOME_SLOT["rejected"]
_KV_QUERIES, _KV_HITS = catalog.KV_QUERIES.name, catalog.KV_HITS.name
SIGNAL_HISTOGRAM: Mapping[str, str] = {
    **{signal: metric.name for signal, metric in catalog.SIGNAL_HISTOGRAMS.items()},
    "preprocess": catalog.PREPROCESS_TIME.name,
}


def packed(histogram: Histogram) -> Histogram:
    """The same with its counts in one piece of memory: a dozen of them are kept of each backend, and numbers that lie scattered
    are four times as much to keep and to fetch."""
    return Histogram(histogram.bounds, array("d", histogram.counts), histogram.sum)


_NONE: Mapping[str, tuple[float, float]] = MappingProxyType({})


@dataclass(slots=True)
class Sample:
    """Counters and histograms of one backend at monotonic time ``at``, in seconds."""

    at: float
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    """Those of which quantiles are asked: a dozen samples are kept of each backend, and buckets are most of what they hold."""
    totals: Mapping[str, tuple[float, float]] = field(default_factory=lambda: _NONE)
    """Of the other histograms only how many, and their sum."""

    def total(self, name: str) -> tuple[float, float] | None:
        """How many were observed of a histogram, and their sum in its unit."""
        histogram = self.histograms.get(name)
        return self.totals.get(name) if histogram is None else (histogram.count, histogram.sum)


@dataclass(slots=True)
class Window:
    """The difference of two samples. Everything is None where it is not known, never 0."""

    start: Sample | None = None
    end: Sample | None = None
    uptime_ratio: float | None = None
    """Share of the observed part of the last hour in which the backend took work."""
    _worked_out: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Worked out once a window, because many ask for the same: histograms by name, quantiles by signal and rank."""

    @property
    def seconds(self) -> float:
        return 0.0 if self.start is None or self.end is None else self.end.at - self.start.at

    def increase(self, name: str) -> float | None:
        """By how much a counter rose."""
        if self.start is None or self.end is None:
            return None
        before, after = self.start.counters.get(name), self.end.counters.get(name)
        return None if before is None or after is None else after - before

    def rate(self, name: str) -> float | None:
        """Increase per second."""
        rise, seconds = self.increase(name), self.seconds
        return None if rise is None or seconds <= 0 else rise / seconds

    def histogram(self, name: str) -> Histogram | None:
        """What was observed in the window; None where the two ends cannot be compared."""
        if self.start is None or self.end is None:
            return None
        if name not in self._worked_out:
            before, after = self.start.histograms.get(name), self.end.histograms.get(name)
            self._worked_out[name] = None if before is None or after is None else after.minus(before)
        found: Histogram | None = self._worked_out[name]
        return found

    def quantile(self, signal: str, q: float) -> Quantile | None:
        """Quantile ``q`` of ttft, itl, e2e or preprocess, in seconds."""
        key = signal, q
        if key not in self._worked_out:
            histogram = self.histogram(SIGNAL_HISTOGRAM[signal])
            self._worked_out[key] = None if histogram is None else bucket_quantile(histogram, q)
        found: Quantile | None = self._worked_out[key]
        return found

    def mean_s(self, name: str) -> float | None:
        """Mean of a histogram of the catalogue, in seconds."""
        if self.start is None or self.end is None:
            return None
        before, after = self.start.total(name), self.end.total(name)
        if before is None or after is None or after[0] <= before[0]:
            return None
        return (after[1] - before[1]) / (after[0] - before[0])

    @property
    def finished(self) -> tuple[float, float] | None:
        """Requests that finished, and how many of them failed or were refused; None where nobody tells which failed.

        Aborted ones are the client's choice: neither good nor bad, and not counted. An engine that tells of failures and not of
        refusals counts these among them, or gives none.
        """
        taken = self.taken
        if taken is None:
            return None
        rejected = self.increase(_REJECTED) or 0.0
        return taken[0] + rejected, taken[1] + rejected

    @property
    def taken(self) -> tuple[float, float] | None:
        """Requests that were taken in and finished, and how many of them failed; None where nobody tells which failed.

        What is refused, by us or for want of room, is no sign of illness.
        """
        if "taken" not in self._worked_out:
            ok, failed = self.increase(_OK), self.increase(_ERROR)
            self._worked_out["taken"] = None if ok is None or failed is None else (ok + failed, failed)
        found: tuple[float, float] | None = self._worked_out["taken"]
        return found

    @property
    def requests(self) -> float | None:
        """Finished requests, as far as they are told."""
        ok = self.increase(_OK)
        return None if ok is None else ok + (self.increase(_ERROR) or 0.0) + (self.increase(_REJECTED) or 0.0)

    @property
    def error_ratio(self) -> float | None:
        """Share of finished requests that failed or were refused; None without a finished request."""
        finished = self.finished
        return finished[1] / finished[0] if finished is not None and finished[0] > 0 else None

    @property
    def failure_ratio(self) -> float | None:
        """Share of the requests taken in that failed; None without one."""
        taken = self.taken
        return taken[1] / taken[0] if taken is not None and taken[0] > 0 else None

    @property
    def kv_miss_ratio(self) -> float | None:
        if "miss" not in self._worked_out:
            queries, hits = self.increase(_KV_QUERIES), self.increase(_KV_HITS)
            self._worked_out["miss"] = None if not queries or hits is None else min(1.0, max(0.0, 1.0 - hits / queries))
        found: float | None = self._worked_out["miss"]
        return found
