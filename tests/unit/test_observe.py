"""The exporter's page as observations: what of the exporter's own affairs is taken over, and what is not."""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.exposition import PageParser
from tailkeeper_exporter.readings import Status
from tailkeeper_watchdog.collect.observe import WANTED, observe

PAGE = """\
tailkeeper_exporter_scrape_age_seconds{backend="a",source="engine"} 7.5
tailkeeper_exporter_scrape_age_seconds{backend="a",source="gpu"} 99
tailkeeper_exporter_scrape_success{backend="a",source="engine"} 0
llm_backend_state{backend="a",state="serving"} 1
tailkeeper_exporter_scrape_age_seconds{backend="b",source="probe"} 3
llm_backend_state{backend="b",state="serving"} 1
"""


def test_the_age_of_the_engines_own_page_is_known_and_no_other_sources() -> None:
    seen = observe(PageParser(WANTED).parse(PAGE.encode()).samples, 0.0, {})
    assert {slot: reading.value for slot, reading in seen["a"].readings.items()} == {catalog.SCRAPE_AGE.name: 7.5}
    assert seen["b"].readings == {}


def test_buckets_of_the_same_bounds_share_them_from_page_to_page() -> None:
    page = "".join(
        f'llm_time_to_first_token_seconds_bucket{{backend="{name}",model="m",le="{le}"}} {count}\n'
        for name in "ab"
        for le, count in (("0.1", 1), ("+Inf", 2))
    )
    sums = "".join(f'llm_time_to_first_token_seconds_sum{{backend="{name}",model="m"}} 0.5\n' for name in "ab")
    pages = [observe(PageParser(WANTED).parse((page + sums).encode()).samples, at, {}) for at in (0.0, 1.0)]
    found = [seen.histograms[catalog.TTFT.name] for one in pages for seen in one.values()]
    assert len(found) == 4
    assert len({id(histogram.bounds) for histogram in found}) == 1
    assert [list(histogram.counts) for histogram in found] == [[1.0, 2.0]] * 4


def test_models_that_count_beyond_every_number_together_tell_nothing() -> None:
    counts = "".join(
        f'llm_requests_total{{backend="a",model="{model}",outcome="ok"}} 1.7e308\n'
        f'llm_time_to_first_token_seconds_bucket{{backend="a",model="{model}",le="+Inf"}} 1.7e308\n'
        f'llm_time_to_first_token_seconds_sum{{backend="a",model="{model}"}} 1\n'
        f'llm_requests_running{{backend="a",model="{model}"}} 2\n'
        for model in ("m", "n")
    )
    seen = observe(PageParser(WANTED).parse(counts.encode()).samples, 0.0, {})["a"]
    assert seen.readings[f"{catalog.REQUESTS.name}{{ok}}"].status is Status.INVALID
    assert seen.values == {catalog.RUNNING.name: 4.0}
    assert seen.histograms == {}
