"""One source per name: whether a metric is the page's or the tap's, and that it changes hands once at the most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.engines import ENGINES, engine_named
from tailkeeper_exporter.tap.ownership import TAP_METRICS, tap_supplies

ENGINE_NAMES = [engine.name for engine in ENGINES]


def supplies(engine: str, *given_by_page: Metric, read: bool = True, has_page: bool = True) -> set[str]:
    return set(tap_supplies(engine_named(engine), has_page, read, frozenset(metric.name for metric in given_by_page)))


def test_a_backend_without_a_page_is_the_taps_alone() -> None:
    assert supplies("generic", has_page=False) == TAP_METRICS


def test_until_the_first_good_page_the_engines_table_says_what_is_the_pages() -> None:
    assert supplies("vllm", read=False) == set()
    assert supplies("llamacpp", read=False) == {
        metric.name
        for metric in (
            catalog.LATENCY,
            catalog.TTFT,
            catalog.ITL,
            catalog.QUEUE_TIME,
            catalog.PREFILL_TIME,
            catalog.DECODE_TIME,
            catalog.REQUESTS,
        )
    }


def test_what_a_good_page_lacks_is_the_taps_whatever_the_table_says() -> None:
    found = supplies("vllm", catalog.REQUESTS, catalog.RUNNING)
    assert catalog.TTFT.name in found
    assert catalog.REQUESTS.name not in found


@pytest.mark.parametrize(
    ("by_page", "kept_from_the_tap"),
    [
        (catalog.QUEUE_TIME, {catalog.QUEUE_TIME, catalog.PREFILL_TIME}),
        (catalog.PREFILL_TIME, {catalog.QUEUE_TIME, catalog.PREFILL_TIME}),
        (catalog.WAITING, {catalog.WAITING, catalog.RUNNING}),
        (catalog.RUNNING, {catalog.WAITING, catalog.RUNNING}),
        (catalog.TTFT, {catalog.TTFT}),
    ],
)
def test_what_would_be_counted_twice_comes_from_one_source(by_page: Metric, kept_from_the_tap: set[Metric]) -> None:
    assert TAP_METRICS - supplies("generic", by_page) == {metric.name for metric in kept_from_the_tap}


@given(st.sampled_from(ENGINE_NAMES), st.lists(st.sets(st.sampled_from(list(catalog.CATALOG))), max_size=8))
def test_a_name_changes_hands_once_at_the_most_after_the_first_good_page(engine: str, pages: list[set[Metric]]) -> None:
    given_so_far: frozenset[str] = frozenset()
    mine = None
    for offered in pages:
        given_so_far |= {metric.name for metric in offered}
        now = tap_supplies(engine_named(engine), True, True, given_so_far)
        assert not now & given_so_far, "never both under one name"
        assert mine is None or now <= mine, "the tap never takes back what the page once gave"
        mine = now
