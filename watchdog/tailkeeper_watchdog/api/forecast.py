"""``GET /api/v1/forecast`` and its series. Pure: pages in, plain values out; done in a thread for a large fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.api.page import Series
from tailkeeper_watchdog.forecast.book import HORIZON_S, Page, foreseen

Pages = tuple[Page, ...]


def document(pages: Pages, training_error: str | None, time_unix_s: float) -> dict[str, Any]:
    """``GET /api/v1/forecast``."""
    return {
        "time": time_unix_s,
        "horizon_s": HORIZON_S,
        "training_error": training_error,
        "backends": [_row(page) for page in pages],
    }


def _row(page: Page) -> dict[str, Any]:
    made, memory = page.forecast, foreseen(page)
    return {
        "backend": made.backend,
        "state": made.state.value,
        "why": made.why,
        "p99_s": made.p99_s,
        "error_bound_s": made.error_bound_s,
        "last_value_s": made.last_value_s,
        "last_value_error_bound_s": made.last_value_bound_s,
        "matured": made.matured,
        "memory_exhaustion": None if memory is None else {"seconds": memory.seconds, "method": memory.method},
    }


def series(pages: Pages) -> Iterator[Series]:
    """A bound without its forecast would be read as one of something else: both are there, or neither."""
    made = [page.forecast for page in pages]
    yield metrics.FORECAST_P99, [((f.backend,), f.p99_s) for f in made]
    yield metrics.FORECAST_ERROR_BOUND, [((f.backend,), None if f.p99_s is None else f.error_bound_s) for f in made]
    memory = [(page.forecast.backend, foreseen(page)) for page in pages]
    yield metrics.MEMORY_EXHAUSTION, [((name,), None if found is None else found.seconds) for name, found in memory]
