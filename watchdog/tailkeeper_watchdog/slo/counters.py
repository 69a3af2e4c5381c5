"""Compliance where there are no request records: from the buckets of the first token and the counters of failures. Pure.

Conservative: a request is within the limit only where its whole bucket is, and a late one is worth what the upper end of
its bucket is worth. Buckets know no attributes, so everything is in tier ``default``. They hold the first tokens of
aborted requests too, which cannot be told apart.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.model import BackendObservation
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.slo.tiers import NOTHING, Counts, Tier, worth

LONGEST_GAP_S = 90.0
"""Between two samples of a backend; over a longer gap nobody saw when what happened."""
_ERROR, _REJECTED = OUTCOME_SLOT["error"], OUTCOME_SLOT["rejected"]


@dataclass(frozen=True, slots=True)
class Mark:
    """The counters of one backend at monotonic ``at``."""

    at: float
    failed: float | None
    """None where nobody tells which requests failed."""
    refused: float | None
    """None where nobody tells what was refused: an engine may tell of failures alone."""
    first_tokens: Histogram | None
    whole: Histogram | None


def mark(seen: BackendObservation, at: float) -> Mark:
    histograms = seen.histograms
    return Mark(
        at, seen.value(_ERROR), seen.value(_REJECTED), histograms.get(catalog.TTFT.name), histograms.get(catalog.LATENCY.name)
    )


def between(before: Mark, after: Mark, of: Tier) -> Counts:
    """What was counted from one mark to the other; nothing where they cannot be compared, or lie too far apart."""
    if not 0.0 < after.at - before.at <= LONGEST_GAP_S:
        return NOTHING
    failed = NOTHING
    if before.failed is not None and after.failed is not None:
        if after.failed < before.failed:
            return NOTHING
        failed = Counts(after.failed - before.failed + _refused(before.refused, after.refused))
    if after.first_tokens is not None:
        return failed + _rise(before.first_tokens, after.first_tokens, of.limit_s, of.discomfort_s)
    return failed + _rise(before.whole, after.whole, of.whole_limit_s, of.whole_discomfort_s)


def _refused(before: float | None, after: float | None) -> float:
    """What is known to have been refused. A count that appears late is that of all time, and no burst; one that fell lost what
    it had."""
    return 0.0 if before is None or after is None else max(0.0, after - before)


def _rise(before: Histogram | None, after: Histogram | None, limit_s: float, discomfort_s: float) -> Counts:
    if before is None or after is None or before.bounds != after.bounds:
        return NOTHING
    requests = after.count - before.count
    inside = bisect_right(after.bounds, limit_s) - 1
    good = after.counts[inside] - before.counts[inside] if inside >= 0 else 0.0
    if requests <= 0 or not 0.0 <= good <= requests:
        return NOTHING
    late = _late(before, after, limit_s, discomfort_s) if good < requests else 0.0
    return Counts(requests, good, min(requests, good + late))


def _late(before: Histogram, after: Histogram, limit_s: float, discomfort_s: float) -> float:
    """What the requests above the limit were worth, each taken for as slow as its bucket allows."""
    total, below = 0.0, 0.0
    for early, late, worth_each in zip(before.counts, after.counts, _worths(after.bounds, limit_s, discomfort_s), strict=True):
        upto = late - early
        if worth_each and upto > below:
            total += (upto - below) * worth_each
        below = max(below, upto)
    return total


@lru_cache(maxsize=64)
def _worths(bounds: tuple[float, ...], limit_s: float, discomfort_s: float) -> tuple[float, ...]:
    """What a request in each bucket is worth beside the good ones: nothing within the limit, where it is counted already."""
    return tuple(worth(b, limit_s, discomfort_s) if limit_s < b < inf else 0.0 for b in bounds)
