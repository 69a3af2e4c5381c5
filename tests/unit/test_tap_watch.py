"""What a tap adds to a backend's view: whose name is whose over several pages, and when a status is news."""

from __future__ import annotations

from typing import Any

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.engines import engine_named
from tailkeeper_exporter.evidence import TAP_STALE_S
from tailkeeper_exporter.normalise import Normalised
from tailkeeper_exporter.page import Labels
from tailkeeper_exporter.readings import Histogram, Reading, Status
from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.tap.watch import REPEAT_S, TapWatch
from tests.unit.tap_exchanges import LocalTaps, exchange, status


def watched(engine: str = "vllm") -> tuple[TapWatch, LocalTaps]:
    document = {"name": "a", "engine": engine, "url": "http://h:1", "model": "configured", "tap": {"listen": "127.0.0.1:9500"}}
    settings = BackendSettings.model_validate(document)
    taps = LocalTaps((settings,), lambda finished: None)
    return TapWatch(settings, engine_named(engine), engine != "generic", taps), taps


def page(*histograms: Metric, models: tuple[str, ...] = ("tiny",)) -> Normalised:
    """A page that offers these and nothing else; that they are invalid on it makes no difference."""
    invalid: Reading[Histogram] = Reading(Status.INVALID, reason="not_monotone")
    offered: dict[tuple[str, Labels], Reading[Histogram]] = {
        (metric.name, (("model", "tiny"),)): invalid for metric in histograms
    }
    return Normalised({}, offered, (), {}, None, None, models)


def names(watch: TapWatch) -> set[str]:
    numbers = watch.numbers()
    return {name for name, _ in (*numbers.counters, *numbers.histograms, *numbers.gauges)}


def test_what_a_page_offers_late_leaves_the_tap_at_once() -> None:
    watch, _ = watched()
    watch.take_page(page(catalog.LATENCY))
    assert catalog.TTFT.name in names(watch)
    watch.take_page(page(catalog.LATENCY, catalog.TTFT))
    assert catalog.TTFT.name not in names(watch)


def test_what_a_page_has_offered_once_stays_the_pages() -> None:
    watch, _ = watched()
    watch.take_page(page(catalog.LATENCY))
    watch.take_page(page(catalog.TTFT))
    assert not names(watch) & {catalog.LATENCY.name, catalog.TTFT.name}


@pytest.mark.parametrize(
    ("engine", "of_the_tap"),
    [("sglang", {"error", "rejected"}), ("trtllm", {"rejected"}), ("vllm", set()), ("generic", set(catalog.OUTCOMES))],
)
def test_an_outcome_that_no_page_of_the_engine_tells_is_the_taps_though_the_page_counts_requests(
    engine: str, of_the_tap: set[str]
) -> None:
    watch, _ = watched(engine)
    watch.take_page(page(catalog.REQUESTS))
    watch.take(exchange(outcome="error"))
    watch.take(exchange(outcome="ok"))
    told = {dict(labels)["outcome"]: v for (name, labels), v in watch.numbers().counters.items() if name == catalog.REQUESTS.name}
    assert set(told) == of_the_tap
    assert told.get("error") == (1.0 if "error" in of_the_tap else None)


def test_numbers_are_the_same_object_until_something_is_counted_or_reported() -> None:
    watch, taps = watched("generic")
    first = watch.numbers()
    assert watch.numbers() is first
    watch.take(exchange())
    second = watch.numbers()
    assert second is not first
    taps.statuses["a"] = status(1.0)
    third = watch.numbers()
    assert third is not second
    assert third.counters is second.counters


def test_a_status_is_news_when_it_says_something_new_or_has_to_be_confirmed() -> None:
    watch, taps = watched("generic")

    def news(at_s: float, now: float | None = None, **counts: Any) -> bool:
        taps.statuses["a"] = status(at_s, **counts)
        return watch.news(at_s if now is None else now) is not None

    assert watch.news(0.0) is None
    assert news(1.0)
    assert not news(1.25)
    assert news(1.5, running=1)
    assert not news(1.5 + REPEAT_S / 2, running=1)
    assert news(1.5 + REPEAT_S, running=1)
    assert not news(10.0, now=10.1 + TAP_STALE_S, running=2)
