"""The benchmark of reading through Prometheus: its pages are whole fleets, and its server is told of all of them."""

from __future__ import annotations

import threading
import urllib.request

import pytest

from tailkeeper.bench_prometheus import _configuration, sizes_of
from tailkeeper.bench_prometheus_pages import A_PAGE, STAND_IN, name_of, server
from tailkeeper_exporter.exposition import PageParser
from tailkeeper_watchdog.collect.observe import WANTED, observe

LINES = f'llm_backend_state{{backend="{STAND_IN}",state="serving"}} 1\nllm_backend_up{{backend="{STAND_IN}"}} 1\n'.encode()


def test_each_page_has_the_backends_of_its_exporter_and_the_last_one_the_rest() -> None:
    backends = A_PAGE + 2
    with server(backends, LINES) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        try:
            open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
            pages = [open_url(f"http://127.0.0.1:{running.server_port}/{number}").read() for number in range(2)]
        finally:
            running.shutdown()
    seen = [observe(PageParser(WANTED).parse(page).samples, 0.0, {}) for page in pages]
    assert [name for of_page in seen for name in of_page] == [name_of(number) for number in range(backends)]
    assert {one.state.value for of_page in seen for one in of_page.values()} == {"serving"}


@pytest.mark.parametrize(("backends", "paths"), [(1, ["/0"]), (A_PAGE, ["/0"]), (A_PAGE + 1, ["/0", "/1"])])
def test_the_server_scrapes_as_many_pages_as_hold_the_fleet(backends: int, paths: list[str]) -> None:
    (job,) = _configuration(1, backends)["scrape_configs"]
    assert [target["labels"]["__metrics_path__"] for target in job["static_configs"]] == paths


def test_sizes_are_numbers_with_commas_in_order_and_once() -> None:
    assert sizes_of("1000, 10,10") == (10, 1_000)


@pytest.mark.parametrize("text", ["", "0", "ten", "10,,20", "-1", "100001", "1.5", "١٠٠٠٠٠٠"])
def test_other_sizes_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed are numbers from 1 to"):
        sizes_of(text)


def test_the_names_are_as_long_as_the_one_in_whose_place_they_stand() -> None:
    """The length of a page is said before it is written."""
    assert {len(name_of(number)) for number in (0, 99_999)} == {len(STAND_IN)}
