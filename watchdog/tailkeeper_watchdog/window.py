"""What a backend did between two samples of its counters and buckets. Pure; computed only when asked.

A fleet of thousands has two windows a backend a tick, and most of what a window could say is never asked. What is asked of all of
them is worked out for all at once: ``many_windows``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import sub
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Quantile, bucket_quantile
from tailkeeper_watchdog.samples import COUNTER_PLACE, NOWHERE, OUTCOME_SLOT, SIGNAL_HISTOGRAM, Sample

_OK, _ERROR, _REJECTED = OUTCOME_SLOT["ok"], OUTCOME_SLOT["error"], OUTCOME_SLOT["rejected"]
_KV_QUERIES, _KV_HITS = catalog.KV_QUERIES.name, catalog.KV_HITS.name


@dataclass(slots=True)
class Window:
    """The difference of two samples. Everything is None where it is not known, never 0.

    Nobody changes it. It is not frozen, because to make a frozen one takes three times as long.
    """

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
        place = COUNTER_PLACE.get(name)
        if place is None or self.start is None or self.end is None:
            return None
        rise = self.end.row[place] - self.start.row[place]
        return rise if rise == rise else None  # NaN, where one of the two was not told

    def rate(self, name: str) -> float | None:
        """Increase per second."""
        rise, seconds = self.increase(name), self.seconds
        return None if rise is None or seconds <= 0 else rise / seconds

    def histogram(self, name: str) -> Histogram | None:
        """What was observed in the window; None where the two ends cannot be compared."""
        if name not in self._worked_out:
            self._worked_out[name] = None if self.start is None or self.end is None else _between(self.start, self.end, name)
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

    def note_quantile(self, signal: str, q: float, found: Quantile | None) -> None:
        """What ``quantile`` would find, from whoever has worked it out for many windows at once."""
        self._worked_out[signal, q] = found

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


def _between(start: Sample, end: Sample, name: str) -> Histogram | None:
    sum_before, last_before, bounds = start.layout.places.get(name, NOWHERE)
    sum_after, last_after, same = end.layout.places.get(name, NOWHERE)
    if not bounds or (bounds is not same and bounds != same):
        return None
    counts = tuple(map(sub, end.row[sum_after + 1 : last_after + 1], start.row[sum_before + 1 : last_before + 1]))
    return None if min(counts) < 0 else Histogram(bounds, counts, end.row[sum_after] - start.row[sum_before])
