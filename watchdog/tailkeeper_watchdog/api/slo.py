"""``GET /api/v1/slo`` and its series: what came of each promise. Pure: the book in, plain values out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.api.page import Series
from tailkeeper_watchdog.slo.bins import SPANS
from tailkeeper_watchdog.slo.compliance import Compliance, SloBook
from tailkeeper_watchdog.slo.tiers import Tier

NOTES = {
    None: "nothing has been counted since the watchdog started",
    "records": "counted request by request",
    "histograms": "no request records: everything is in tier default, counted from buckets, each request taken for as slow"
    " as its bucket allows",
    "mixed": "backends without request records are in tier default only, counted from buckets, each request taken for as slow"
    " as its bucket allows",
}


def document(book: SloBook, now_unix_s: float) -> dict[str, Any]:
    """``GET /api/v1/slo``."""
    windows = book.windows(now_unix_s)
    return {
        "time": now_unix_s,
        "objective": book.objective,
        "source": book.source,
        "note": NOTES[book.source],
        "coverage": {span.name: book.coverage(span, now_unix_s) for span in SPANS},
        "tiers": [_tier(tier, book.objective, windows[tier.name]) for tier in book.tiers],
    }


def _tier(tier: Tier, objective: float, windows: tuple[Compliance, ...]) -> dict[str, Any]:
    return {
        "tier": tier.name,
        "match": dict(tier.match),
        "objective": objective,
        "limit_s": tier.limit_s,
        "discomfort_s": tier.discomfort_s,
        "whole_answer_limit_s": tier.whole_limit_s,
        "windows": [_window(found) for found in windows],
    }


def _window(found: Compliance) -> dict[str, Any]:
    return {
        "window": found.span.name,
        "seconds": found.span.seconds,
        "requests": found.requests,
        "good": found.good,
        "compliance": found.compliance,
        "weighted": found.weighted,
        "budget_left": found.budget_left,
        "budget_used": found.budget_used,
        "coverage": found.coverage,
    }


def series(book: SloBook, now_unix_s: float) -> Iterator[Series]:
    """A tier without a request in a window has no series of it: nothing is known, and that is not 100 %."""
    found = [(tier, window) for tier, windows in book.windows(now_unix_s).items() for window in windows]
    yield metrics.SLO_COMPLIANCE, [((tier, w.span.name), w.compliance) for tier, w in found]
    yield metrics.SLO_WEIGHTED, [((tier, w.span.name), w.weighted) for tier, w in found]
    yield metrics.SLO_BUDGET_LEFT, [((tier, w.span.name), w.budget_left) for tier, w in found]
    yield metrics.SLO_FIRST_OUTPUT, [((tier,), waited) for tier, waited in book.waits().items()]
    yield metrics.SLO_COVERAGE, [((span.name,), book.coverage(span, now_unix_s)) for span in SPANS]
