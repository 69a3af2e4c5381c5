"""Compliance by tier: counted every tick, summed up when somebody asks. Pure: values and times in, values out.

A backend whose requests are told one by one is counted from them, any other from its counters; never from both. Time in
which nothing was seen of a backend is neither kept nor broken: ``coverage`` says how much of a window was seen, and is
to be read beside every figure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.metrics import SLO_FIRST_OUTPUT
from tailkeeper_watchdog.model import BackendObservation, RequestRecord, Situation
from tailkeeper_watchdog.slo.bins import SPANS, Bins, Row, Span
from tailkeeper_watchdog.slo.counters import Mark, between, mark
from tailkeeper_watchdog.slo.tiers import DEFAULT, FAILED, NOTHING, Counts, Tier, first_output_s, judged, tier_of

COVERAGE = ""
"""Key of the bins that hold seconds: those that passed, as far as the fleet was seen in them."""
COUNTED_EVERY_S = 30.0
"""Counters are compared this often: the finest bin is a minute, and a comparison costs 7 µs a backend."""
RECORDS_FOR_S = 3_600.0
"""A backend that told a request one by one is counted so for this long after; it may only have been idle."""
LONGEST_STEP_S = 30.0
"""A longer time between two ticks was not watched."""


@dataclass(frozen=True, slots=True)
class Compliance:
    """A tier over a span. ``weighted`` counts a late answer for what it was worth; None without a request."""

    span: Span
    requests: float
    good: float
    compliance: float | None
    weighted: float | None
    budget_used: float | None
    """Share of the error budget that is spent; above 1 when more than all of it is."""
    coverage: float

    @property
    def budget_left(self) -> float | None:
        return None if self.budget_used is None else max(0.0, 1.0 - self.budget_used)


def compliance(span: Span, counts: Counts, objective: float, coverage: float) -> Compliance:
    if counts.requests <= 0:
        return Compliance(span, 0.0, 0.0, None, None, None, coverage)
    kept = min(1.0, counts.good / counts.requests)
    weighted = min(1.0, max(kept, counts.worth / counts.requests))
    return Compliance(span, counts.requests, counts.good, kept, weighted, (1.0 - kept) / (1.0 - objective), coverage)


class Waits:
    """How long one tier's requests waited, since the start. Written by the loop's task only."""

    BOUNDS = (*SLO_FIRST_OUTPUT.buckets, inf)

    def __init__(self) -> None:
        self._counts, self._sum = [0] * len(self.BOUNDS), 0.0

    def add(self, waited_s: float) -> None:
        self._counts[bisect_left(self.BOUNDS, waited_s)] += 1
        self._sum += waited_s

    def histogram(self) -> Histogram:
        return Histogram(self.BOUNDS, tuple(accumulate(self._counts)), self._sum)


class SloBook:
    """All counts. ``note`` each tick's situation; ``windows`` for what came of it. One task writes, others read snapshots.

    ``counted_until_unix_s`` is how far a process before this one has counted: records that ended by then are in ``rows``.
    """

    def __init__(
        self, tiers: tuple[Tier, ...], objective: float, rows: Iterable[Row] = (), counted_until_unix_s: float | None = None
    ) -> None:
        self.tiers, self.objective = tiers, objective
        self._bins = {key: Bins(key) for key in (COVERAGE, *(t.name for t in tiers))}
        self._waits = {t.name: Waits() for t in tiers}
        for row in rows:
            if row.key in self._bins:
                self._bins[row.key].restore(row)
        self._counted_until = counted_until_unix_s
        self._marks: dict[str, Mark] = {}
        self._told_at: dict[str, float] = {}
        self._last_at: float | None = None
        self._compared_at = float("-inf")

    def note(self, situation: Situation) -> None:
        """Count one tick."""
        snapshot = situation.snapshot
        now, wall = snapshot.now, snapshot.time_unix_s
        heard = situation.heard
        fresh = {b.name: seen for b in snapshot.backends if (seen := heard.get(b.name)) is not None}
        self._cover(len(fresh) / len(snapshot.backends) if snapshot.backends else 0.0, now, wall)
        self._count_records(situation.records, now, wall)
        if now - self._compared_at >= COUNTED_EVERY_S:
            self._compared_at = now
            self._count_counters(fresh, now, wall)

    def forget(self, gone: frozenset[str]) -> None:
        """What these backends did stays counted; what they would be compared with goes."""
        for name in gone:
            self._marks.pop(name, None)
            self._told_at.pop(name, None)

    def _cover(self, seen_share: float, now: float, wall: float) -> None:
        step = 0.0 if self._last_at is None else now - self._last_at
        self._last_at = now
        if 0.0 < step <= LONGEST_STEP_S:
            self._bins[COVERAGE].add(Counts(step * seen_share), wall, wall)

    def _count_records(self, records: Mapping[str, tuple[RequestRecord, ...]], now: float, wall: float) -> None:
        found: dict[tuple[str, int], tuple[Counts, float]] = {}
        for name, of_one in records.items():
            self._told_at[name] = now
            for record in of_one:
                if self._is_counted(record):
                    continue
                of, ended = tier_of(record, self.tiers), _ended(record, wall)
                counts = judged(record, of)
                if counts is not NOTHING:
                    waited_s = first_output_s(record)
                    if counts is not FAILED and waited_s is not None:
                        self._waits[of.name].add(waited_s)
                    key = (of.name, SPANS[0].number(ended))
                    known, _ = found.get(key, (NOTHING, ended))
                    found[key] = (known + counts, ended)
        for (tier, _), (counts, ended) in found.items():
            self._bins[tier].add(counts, ended, wall)

    def _is_counted(self, record: RequestRecord) -> bool:
        if self._counted_until is None or record.start_unix_s is None or record.e2e_s is None:
            return False
        return record.start_unix_s + record.e2e_s <= self._counted_until

    def _count_counters(self, fresh: Mapping[str, BackendObservation], now: float, wall: float) -> None:
        default, total = self.tiers[-1], NOTHING
        for name, seen in fresh.items():
            if now - self._told_at.get(name, float("-inf")) <= RECORDS_FOR_S:
                self._marks.pop(name, None)
                continue
            before = self._marks.get(name)
            if seen.age_s is None:
                continue
            taken_at = now - seen.age_s
            if before is not None and taken_at <= before.at:
                continue
            self._marks[name] = after = mark(seen, taken_at)
            if before is not None:
                total += between(before, after, default)
        if total.requests > 0:
            self._bins[DEFAULT].add(total, wall, wall)

    @property
    def source(self) -> str | None:
        """Where the figures of now come from: ``records``, ``histograms``, ``mixed``; None before anything was told."""
        both = (bool(self._told_at), bool(self._marks))
        return {(True, True): "mixed", (True, False): "records", (False, True): "histograms"}.get(both)

    def windows(self, now_unix_s: float) -> Mapping[str, tuple[Compliance, ...]]:
        """By tier, over each span."""
        coverages = {span.name: self.coverage(span, now_unix_s) for span in SPANS}
        return {
            tier.name: tuple(
                compliance(span, self._bins[tier.name].total(span, now_unix_s), self.objective, coverages[span.name])
                for span in SPANS
            )
            for tier in self.tiers
        }

    def waits(self) -> Mapping[str, Histogram]:
        """How long each tier's answered requests waited for their first output, of those that are told one by one."""
        return {name: waits.histogram() for name, waits in self._waits.items()}

    def coverage(self, span: Span, now_unix_s: float) -> float:
        """Share of the span in which the fleet was seen, in [0, 1]; half of it where half of the fleet was."""
        possible = span.seconds - span.bin_s + now_unix_s % span.bin_s
        return min(1.0, self._bins[COVERAGE].total(span, now_unix_s).requests / possible) if possible > 0 else 0.0

    def take_changed(self) -> tuple[Row, ...]:
        """What is to be saved since the last call."""
        return tuple(row for bins in self._bins.values() for row in bins.take_changed())

    def put_back(self, rows: tuple[Row, ...]) -> None:
        """These could not be saved: they stay to be saved."""
        for key, bins in self._bins.items():
            bins.put_back(tuple(row for row in rows if row.key == key))


def _ended(record: RequestRecord, wall: float) -> float:
    """When a request ended, epoch seconds; now where it is not said, and never later than now."""
    if record.start_unix_s is None or record.e2e_s is None:
        return wall
    return min(wall, record.start_unix_s + record.e2e_s)
