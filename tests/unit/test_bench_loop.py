"""The benchmark of the reaction: what its parts say and start with. The programs run in tests/loopback."""

from __future__ import annotations

import json
from math import inf

from tailkeeper import bench_faults, bench_peers, bench_reaction
from tailkeeper.bench_faults import AT_A_TIME, LATE_S, QUICK_S, LatencyPages
from tailkeeper.bench_reaction import NAMES, PageServer
from tailkeeper_exporter.catalog import TTFT
from tailkeeper_exporter.exposition import PageParser
from tailkeeper_watchdog.collect.observe import WANTED, observe
from tailkeeper_watchdog.model import BackendObservation


def seen(page: str) -> dict[str, BackendObservation]:
    return dict(observe(PageParser(WANTED).parse(page.encode()).samples, 0.0, {}))


def test_the_page_says_of_one_that_it_is_hung_and_of_the_others_that_they_serve() -> None:
    pages = PageServer()
    pages.hung = "b"
    assert {name: one.state.value for name, one in seen(pages.page()).items()} == {
        name: "hung" if name == "b" else "serving" for name in NAMES
    }


def test_from_the_first_late_page_on_new_requests_of_that_backend_are_late_and_no_others() -> None:
    pages = LatencyPages(("a", "b"))
    before = seen(pages.page())
    pages.late = "b"
    after = seen(pages.page())
    risen = {}
    for name in ("a", "b"):
        histogram = after[name].histograms[TTFT.name].minus(before[name].histograms[TTFT.name])
        assert histogram is not None
        risen[name] = dict(zip(histogram.bounds, histogram.counts, strict=True))
    assert risen == {
        "a": {QUICK_S: AT_A_TIME, LATE_S: AT_A_TIME, inf: AT_A_TIME},
        "b": {QUICK_S: 0, LATE_S: AT_A_TIME, inf: AT_A_TIME},
    }


def test_every_fault_of_the_peers_is_one_that_the_demos_fleet_knows() -> None:
    from tailkeeper_demo.faults import parse_fault

    for fault in bench_peers.FAULTS.values():
        parse_fault({"engine": "sim-a", "duration_s": 600, **fault})


def test_envoys_configuration_names_every_engine_and_its_outlier_detection() -> None:
    text = json.dumps(bench_peers._envoy_config(1, 2, {"a": "127.0.0.1:8001", "b": "127.0.0.1:8002"}))
    assert '"port_value": 8001' in text
    assert '"port_value": 8002' in text
    assert '"consecutive_5xx": 5' in text


def test_the_parts_share_their_names_with_the_gateway() -> None:
    assert len(bench_reaction.NAMES) == bench_faults.ENGINES == bench_peers.ENGINES
