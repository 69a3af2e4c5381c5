"""Prometheus mode takes what it can read; a bad series costs only itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.collect.prometheus import PrometheusSource


def row(name: str, value: object, **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": name, **labels}, "value": [0, value]}


class FakePrometheus:
    """A fake of the client's one method: series to the first query, times to the second."""

    def __init__(self, bad: dict[str, Any]) -> None:
        self.series = [row(catalog.BACKEND_STATE.name, "1", backend="a", state="serving"), bad]
        self.times = [bad, row("", str(time.time()), backend="a")]

    def custom_query(self, query: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return self.times if "timestamp" in query else self.series


@pytest.mark.parametrize(
    "bad",
    [
        row(f"{catalog.TTFT.name}_bucket", "3", backend="a"),
        row(f"{catalog.TTFT.name}_bucket", "3", backend="a", le="soon"),
        row(f"{catalog.TTFT.name}_bucket", "3", backend="a", le="NaN"),
        {"value": [0, "1"]},
        {"metric": None, "value": [0, "1"]},
        row(catalog.TTFT.name, "many", backend="a"),
    ],
)
async def test_a_series_that_cannot_be_read_costs_only_itself(bad: dict[str, Any]) -> None:
    source = PrometheusSource(FakePrometheus(bad), "http://prometheus", ("a",), 45.0)
    collected = await source.collect(0.0, 2.0)
    assert collected.error is None
    assert collected.observations["a"].state is State.SERVING
    assert collected.observations["a"].histograms == {}
