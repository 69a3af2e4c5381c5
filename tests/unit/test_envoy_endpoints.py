"""Endpoints in an EDS file: what is written is read, and what was there comes back, whoever dumped the file in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.document_text import edited, parsed
from tailkeeper_watchdog.actuators.envoy_endpoints import edits, endpoints_of_file, pool_of, wanted
from tailkeeper_watchdog.actuators.file_weights import Pool, changed
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, KnobValue

SHARE = 0.01
"""Units are whole, so a share is met within a hundredth of the configured weight."""


def text_of(*rows: Mapping[str, Any]) -> str:
    found = [
        {"endpoint": {"address": {"socket_address": {"address": f"10.0.0.{n}", "port_value": 80}}}, **row}
        for n, row in enumerate(rows)
    ]
    return yaml.safe_dump({"resources": [{"cluster_name": "llm", "endpoints": [{"lb_endpoints": found}]}]}, sort_keys=False)


def pool_in(text: str) -> Pool:
    return pool_of(endpoints_of_file(parsed(text, is_json=False), "llm"))


def written(text: str, server: str, values: Mapping[Knob, KnobValue]) -> str:
    document = parsed(text, is_json=False)
    endpoints = endpoints_of_file(document, "llm")
    pool, refusal = changed(pool_of(endpoints), server, values, frozenset({"10.0.0.0:80"}))
    assert refusal is None
    return edited(text, edits(endpoints, wanted(endpoints, pool)), False, document)


@pytest.mark.parametrize("row", [{}, {"load_balancing_weight": 1}, {"load_balancing_weight": 3}, {"load_balancing_weight": 50}])
def test_a_hundredth_of_a_weight_is_not_taken_for_the_whole_of_it(row: Mapping[str, Any]) -> None:
    before = text_of({}, row)
    there = written(before, "10.0.0.1:80", {Knob.WEIGHT: 0.01})
    assert pool_in(there)["10.0.0.1:80"].share == 0.01
    assert written(there, "10.0.0.1:80", {Knob.WEIGHT: 1.0}) == before


def test_weight_0_at_an_endpoint_that_somebody_drained_is_read_as_0() -> None:
    there = written(text_of({}, {"health_status": "DRAINING"}), "10.0.0.1:80", {Knob.WEIGHT: 0.0})
    entry = pool_in(there)["10.0.0.1:80"]
    assert (entry.share, entry.drained) == (0.0, True)


def test_a_health_that_is_a_number_is_refused_for_it_would_come_back_as_a_text() -> None:
    with pytest.raises(CallError, match="is not an endpoint that can be read"):
        written(text_of({}, {"health_status": 1}), "10.0.0.1:80", {Knob.ADMISSION: DRAIN})


ROWS = st.fixed_dictionaries(
    {},
    optional={
        "load_balancing_weight": st.sampled_from([1, 2, 7, 100, 300]),
        "health_status": st.sampled_from(["HEALTHY", "UNHEALTHY", "DEGRADED"]),
        "metadata": st.builds(lambda: {"filter_metadata": {"envoy.lb": {"canary": True}}}),
    },
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        Knob.WEIGHT: st.sampled_from([0.0, 0.01, 0.18, 0.5, 1.0, 2.0]),
        Knob.ADMISSION: st.sampled_from([SERVE, DRAIN]),
    },
)


@settings(max_examples=40)
@given(
    rows=st.lists(ROWS, min_size=2, max_size=2), steps=st.lists(st.tuples(st.integers(1, 2), VALUES, st.booleans()), max_size=5)
)
def test_what_is_written_is_read_and_what_was_there_comes_back(
    rows: list[dict[str, Any]], steps: list[tuple[int, dict[Knob, KnobValue], bool]]
) -> None:
    before = text = text_of({}, *rows)
    for n, values, is_dumped in steps:
        server = f"10.0.0.{n}:80"
        was = pool_in(text)[server]
        text = written(text, server, values)
        entry = pool_in(text)[server]
        assert entry.share == pytest.approx(values.get(Knob.WEIGHT, was.share), abs=SHARE)
        assert entry.drained == (values.get(Knob.ADMISSION, DRAIN if was.drained else SERVE) == DRAIN)
        text = yaml.safe_dump(yaml.safe_load(text), sort_keys=False) if is_dumped else text
    for n in (1, 2):
        text = written(text, f"10.0.0.{n}:80", {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE})
    assert yaml.safe_load(text) == yaml.safe_load(before)
    if not any(is_dumped for *_, is_dumped in steps):
        assert text == before
