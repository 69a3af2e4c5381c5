"""Baselines: gathering, fitting, saving, loading, and refusing what cannot be one."""

from __future__ import annotations

import copy
import json
from math import nan
from typing import Any

import numpy as np
import pytest

from tailkeeper_watchdog.drift import BlockE, Collector, Rows, fit, from_document
from tests.drift_streams import joined, loaded, small_baseline, without_load


@pytest.mark.parametrize("raw", [False, True])
def test_a_baseline_survives_json_and_judges_the_same(raw: bool) -> None:
    baseline = small_baseline(raw)
    loaded_again = from_document(json.loads(json.dumps(baseline.document(), allow_nan=False)))
    assert loaded_again == baseline
    drift = loaded(3_000, 20, 1.5)
    assert BlockE(loaded_again).update_many(drift) == BlockE(baseline).update_many(drift)


DAMAGE = {
    "old version": ("version", 0),
    "other kind": ("kind", "bucket_e"),
    "unknown design": ("design", "block_f"),
    "infinite block": ("block_s", float("inf")),
    "shorter block": ("block_s", 5.0),
    "NaN created": ("created_at_s", nan),
    "true for a number": ("requests", True),
    "long name": ("model_id", "x" * 501),
    "no anchors": ("anchors", []),
    "anchors fall": ("anchors", [3.0, 2.0, 1.0]),
    "NaN anchor": ("anchors", [nan, 1.0, 2.0]),
    "two columns": ("statistics", [[0.1] * 30] * 2),
    "short columns": ("statistics", [[0.1] * 3] * 3),
    "unequal columns": ("statistics", [[0.1] * 30, [0.1] * 31, [0.1] * 30]),
    "unsorted column": ("statistics", [[0.2, 0.1] * 15] * 3),
    "statistic above the cap": ("statistics", [[9.0] * 30] * 3),
    "text for a column": ("statistics", "abc"),
    "no rows": ("min_rows", 0),
    "fit above one": ("fit_ratio", 1.5),
    "model is a list": ("model", []),
    "weights too few": ("model.weights", [1.0]),
    "infinite weight": ("model.weights", [float("inf")] * 6),
    "weights and no ceiling": ("model.ceiling_s", None),
    "scale of zero": ("model.scales", [0.0] * 12),
    "medians too many": ("model.medians", [0.0] * 13),
    "edges fall": ("model.edges_s", [float(x) for x in range(11, 0, -1)]),
    "floor of zero": ("model.floor_s", 0.0),
}


@pytest.mark.parametrize(("path", "value"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_document_names_its_field(path: str, value: Any) -> None:
    document = copy.deepcopy(small_baseline().document())
    *parents, name = path.split(".")
    inner = document
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    with pytest.raises(ValueError, match=rf"baseline\.{path}|baseline\.model"):
        from_document(document)


@pytest.mark.parametrize("name", sorted(small_baseline().document()))
def test_a_missing_field_is_named(name: str) -> None:
    document = small_baseline().document()
    del document[name]
    with pytest.raises(ValueError, match=rf"baseline\.{name}"):
        from_document(document)


@pytest.mark.parametrize("document", [None, [], "x", 3.0])
def test_what_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="must be an object"):
        from_document(document)


def test_too_short_a_baseline_says_how_much_is_needed() -> None:
    with pytest.raises(ValueError, match="whole blocks of 10 s is too short: at least 20"):
        fit(loaded(1_000, 21), model_id="m", created_at_s=0.0)
    with pytest.raises(ValueError, match="0 usable requests"):
        fit(Rows.of([]), model_id="m", created_at_s=0.0)


def test_constant_latency_can_be_a_baseline() -> None:
    rows = loaded(6_000, 22)
    rows.table[:, 1] = 0.1
    test = BlockE(fit(rows, model_id="m", created_at_s=0.0))
    assert test.update_many(rows) == ()
    rows.table[:, 1] = 0.2
    assert test.update_many(rows)


def test_a_collector_wants_requests_and_time_and_says_what_is_missing() -> None:
    collector = Collector()
    collector.add(loaded(20_500, 23, rate_per_s=100.0))
    assert not collector.is_ready
    assert collector.missing() == "a baseline needs 20,000 requests and 40 min; so far 20,500 and 3 min"
    with pytest.raises(ValueError, match="so far 20,500"):
        collector.fit(model_id="m", created_at_s=0.0)
    collector.add(loaded(20_000, 24, start_s=210.0))
    assert collector.missing() is None
    assert collector.fit(model_id="m", created_at_s=5.0).created_at_s == 5.0


@pytest.mark.parametrize("step_s", [-1e6, 1e6])
def test_a_step_of_the_clock_is_no_time_observed(step_s: float) -> None:
    collector = Collector()
    for batch in range(10):
        collector.add(loaded(80, batch, start_s=10.0 * batch))
    collector.add(loaded(80, 99, start_s=100.0 + step_s))
    collector.add(loaded(80, 99, start_s=110.0 + step_s))
    assert collector.observed_s == pytest.approx(110, abs=10)


def test_a_collector_holds_no_more_than_its_capacity_and_thins_evenly() -> None:
    collector = Collector(capacity=1_000)
    for batch in range(40):
        collector.add(loaded(777, batch, start_s=100.0 * batch))
        assert len(collector.rows()) <= 1_000
    at_s = collector.rows().table[:, 0]
    assert collector.requests == 40 * 777
    assert np.diff(at_s).max() < 30, "no part of the time is left out"


def test_a_thinned_baseline_is_silent_without_drift_and_still_finds_it() -> None:
    collector = Collector(requests=10_000, seconds=600, capacity=4_000)
    collector.add(loaded(12_000, 25))
    baseline = collector.fit(model_id="m", created_at_s=0.0)
    assert BlockE(baseline).update_many(loaded(30_000, 26)) == ()
    assert BlockE(baseline).update_many(loaded(3_000, 27, 1.5))


def test_a_collector_counts_what_it_cannot_use() -> None:
    collector = Collector()
    bad = loaded(10, 28)
    bad.table[:4, 1] = nan
    collector.add(joined(bad, without_load(loaded(5, 29))))
    assert (collector.requests, collector.unusable, collector.with_load) == (11, 4, 6)
