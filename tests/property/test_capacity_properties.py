"""Whatever is observed, in whatever order: shares are shares, costs are not negative, nothing raises."""

from __future__ import annotations

from math import inf, isfinite

from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.capacity.book import CapacityBook, capacities
from tailkeeper_watchdog.capacity.fit import coupling
from tailkeeper_watchdog.model import EMPTY, Backend, BackendObservation, FleetSnapshot, Situation, Slo
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tests.unit.test_capacity import gpu

NUMBER = st.floats(0, 1e9)
OBSERVED = st.none() | st.builds(
    lambda ok, running, count, total, queries, hits, use, gpus: BackendObservation(
        "a",
        State.SERVING,
        0.0,
        None,
        {
            k: present(v, 0.0)
            for k, v in {
                OUTCOME_SLOT["ok"]: ok,
                catalog.RUNNING.name: running,
                catalog.KV_QUERIES.name: queries,
                catalog.KV_HITS.name: hits,
            }.items()
            if v is not None
        },
        {catalog.ITL.name: Histogram((1.0, inf), (count, count), total)},
        tuple(gpu(use, uuid=f"GPU-{i}") for i in range(gpus)),
    ),
    ok=st.none() | NUMBER,
    running=st.none() | st.sampled_from((0.0, 1.0, 9.0)),
    count=NUMBER,
    total=NUMBER,
    queries=st.none() | NUMBER,
    hits=st.none() | NUMBER,
    use=st.none() | st.floats(0, 1),
    gpus=st.integers(0, 3),
)


@given(st.lists(st.tuples(OBSERVED, st.sampled_from((-5.0, 0.0, 1.0, 5.0, 29.0, 61.0, 500.0))), min_size=1, max_size=40))
@settings(max_examples=60)
def test_shares_are_shares_and_costs_are_costs(ticks: list[tuple[BackendObservation | None, float]]) -> None:
    book, now = CapacityBook(), 0.0
    for seen, step in ticks:
        now += step
        snapshot = FleetSnapshot(1, now, now, (Backend("a"),), {} if seen is None else {"a": seen})
        last = Situation(snapshot, EMPTY, EMPTY, EMPTY, Slo(), 3.0)
        book.note(last)
    (found,) = capacities(book.view(last))
    for ratio in (found.idle_ratio, found.gpu_use_ratio, found.kv_hit_ratio):
        assert ratio is None or 0 <= ratio <= 1 + 1e-9
    assert found.gpu_seconds_per_request is None or found.gpu_seconds_per_request > 0
    assert found.requests is None or found.requests >= 0


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 100)), max_size=60))
def test_a_fit_is_finite_or_none(points: list[tuple[float, float]]) -> None:
    found = coupling(points)
    assert found is None or (isfinite(found.slope_s_per_rps) and 0 <= found.r2 <= 1 and found.samples == len(points))
