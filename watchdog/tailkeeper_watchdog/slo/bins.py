"""Counts by time, for one hour, one day and thirty days. Bounded: 924 bins a tier, whatever the load. Pure.

A bin is named by the whole number of its length that fit between the epoch and its start, so that bins mean the same
after a restart. Wall clock, because a month must outlive the process; a clock that was set back finds no bin of the future.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tailkeeper_watchdog.slo.tiers import NOTHING, Counts


@dataclass(frozen=True, slots=True)
class Span:
    """A window of compliance: ``bins`` bins of ``bin_s`` seconds, the running one included."""

    name: str
    bin_s: int
    bins: int

    @property
    def seconds(self) -> int:
        return self.bin_s * self.bins

    def number(self, at_unix_s: float) -> int:
        return int(at_unix_s // self.bin_s)


SPANS: tuple[Span, ...] = (Span("1h", 60, 60), Span("1d", 600, 144), Span("30d", 3_600, 720))


@dataclass(frozen=True, slots=True)
class Row:
    """One bin as it is kept on disk."""

    key: str
    span: str
    number: int
    counts: Counts


class Bins:
    """The counts of one key over all spans. Written by the loop's task only."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._counts: dict[str, dict[int, Counts]] = {span.name: {} for span in SPANS}
        self._changed: set[tuple[str, int]] = set()

    def add(self, counts: Counts, at_unix_s: float, now_unix_s: float) -> None:
        """Count what happened at ``at_unix_s``. What is older than a span is not in it."""
        for span in SPANS:
            number, newest = span.number(at_unix_s), span.number(now_unix_s)
            if newest - span.bins < number <= newest:
                bins = self._counts[span.name]
                if number not in bins:
                    _drop_outside(bins, newest, span)
                bins[number] = bins.get(number, NOTHING) + counts
                self._changed.add((span.name, number))

    def restore(self, row: Row) -> None:
        """Put back a bin from disk; one of a span that is not known any more is left out."""
        if row.span in self._counts:
            self._counts[row.span][row.number] = row.counts

    def total(self, span: Span, now_unix_s: float) -> Counts:
        newest = span.number(now_unix_s)
        inside = [c for number, c in self._counts[span.name].items() if newest - span.bins < number <= newest]
        return Counts(sum(c.requests for c in inside), sum(c.good for c in inside), sum(c.worth for c in inside))

    def take_changed(self) -> tuple[Row, ...]:
        """The bins that changed since the last call."""
        rows = tuple(self._rows())
        self._changed.clear()
        return rows

    def put_back(self, rows: tuple[Row, ...]) -> None:
        """These could not be saved."""
        self._changed.update((row.span, row.number) for row in rows)

    def _rows(self) -> Iterator[Row]:
        for span, number in sorted(self._changed):
            counts = self._counts[span].get(number)
            if counts is not None:
                yield Row(self._key, span, number, counts)


def _drop_outside(bins: dict[int, Counts], newest: int, span: Span) -> None:
    """What has left the span, and what a clock that was set back has made future; so at most ``span.bins`` stay."""
    for number in [n for n in bins if not newest - span.bins < n <= newest]:
        del bins[number]


def oldest_kept(now_unix_s: float) -> Mapping[str, int]:
    """The first bin of each span that is still in it."""
    return {span.name: span.number(now_unix_s) - span.bins + 1 for span in SPANS}
