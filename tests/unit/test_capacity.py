"""Capacity and cost: what an hour of each backend says, and what it must not say."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, absent, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.api.capacity import document
from tailkeeper_watchdog.capacity.book import MINUTES, Capacity, CapacityBook, capacities, free_memory
from tailkeeper_watchdog.capacity.fit import MIN_SAMPLES, coupling
from tailkeeper_watchdog.model import EMPTY, Backend, BackendObservation, FleetSnapshot, GpuObservation, Situation, Slo
from tailkeeper_watchdog.samples import OUTCOME_SLOT

STEP_S = 5.0
GIB = 2.0**30


def gpu(use: float | None = 0.5, used: float = 60 * GIB, uuid: str = "GPU-1") -> GpuObservation:
    unknown = absent()
    reading = unknown if use is None else present(use, 0.0)
    memory = present(used, 0.0), present(80 * GIB, 0.0)
    return GpuObservation(uuid, present(0.1, 0.0), reading, *memory, unknown, unknown, unknown, unknown)


def observation(
    name: str = "a", *, requests: float = 0.0, tokens: float = 0.0, tpot_s: float = 0.02, **more: Any
) -> BackendObservation:
    """``tokens`` and their whole time since the start; ``tpot_s`` is their mean."""
    values = {OUTCOME_SLOT["ok"]: requests, **more.get("values", {})}
    gaps = Histogram((1.0, inf), (tokens, tokens), tokens * tpot_s)
    readings = {key: present(value, 0.0) for key, value in values.items()}
    return BackendObservation(name, State.SERVING, 0.0, None, readings, {catalog.ITL.name: gaps}, more.get("gpus", ()))


def situation(at: float, *seen: BackendObservation, backends: tuple[Backend, ...] = (Backend("a"),)) -> Situation:
    snapshot = FleetSnapshot(1, at, at, backends, {s.backend: s for s in seen})
    return Situation(snapshot, EMPTY, EMPTY, EMPTY, Slo(), 30.0)


def hour(of: Callable[[float], BackendObservation | None], seconds: float = 3_600) -> Capacity:
    book, at = CapacityBook(), 0.0
    while at <= seconds:
        seen = of(at)
        last = situation(at, *(() if seen is None else (seen,)))
        book.note(last)
        at += STEP_S
    return capacities(book.view(last))[0]


def test_idle_share_is_that_of_the_time_in_which_it_was_seen_whether_anything_ran() -> None:
    def of(at: float) -> BackendObservation | None:
        if at > 1_800:
            return None  # nobody knows
        return observation(values={catalog.RUNNING.name: 0.0 if at <= 600 else 4.0})

    found = hour(of)
    assert found.observed_s == pytest.approx(1_800)
    assert found.idle_ratio == pytest.approx(1 / 3, abs=0.01)


def test_gpu_hours_per_thousand_requests_are_devices_times_hours_over_requests() -> None:
    found = hour(lambda at: observation(requests=at / 2, gpus=(gpu(uuid="GPU-1"), gpu(uuid="GPU-2"))))
    assert found.gpus == 2
    assert found.requests == pytest.approx(1_800, rel=0.03)
    assert found.gpu_seconds_per_request == pytest.approx(4.0, rel=0.01)  # 2 devices, 0.5 requests a second


def test_without_devices_without_requests_and_without_counters_nothing_is_made_up() -> None:
    silent = hour(lambda at: BackendObservation("a", State.SERVING, 0.0))
    assert [silent.idle_ratio, silent.requests, silent.gpu_seconds_per_request, silent.gpus, silent.coupling] == [None] * 5
    assert [silent.kv_hit_ratio, silent.gpu_use_ratio, silent.consolidate, silent.token_efficiency] == [None] * 4
    idle = hour(lambda at: observation(requests=7.0, gpus=(gpu(),)))
    assert (idle.requests, idle.gpu_seconds_per_request) == (0.0, None)  # no price of a request that nobody made


@pytest.mark.parametrize(
    ("use", "seconds", "candidate"),
    [(0.05, 3_600, True), (0.25, 3_600, False), (0.05, 1_200, None), (None, 3_600, None)],
)
def test_only_devices_seen_idle_for_half_an_hour_are_named_for_consolidation(
    use: float | None, seconds: float, candidate: bool | None
) -> None:
    assert hour(lambda at: observation(gpus=(gpu(use),)), seconds).consolidate is candidate


def test_a_restarted_engine_is_not_compared_with_itself_before() -> None:
    found = hour(lambda at: observation(requests=at if at < 1_800 else at - 1_800))
    assert found.requests == pytest.approx(3_600, rel=0.05)


def test_prefix_cache_hits_are_those_of_the_hour_and_not_of_a_lifetime() -> None:
    def of(at: float) -> BackendObservation:
        return observation(
            values={catalog.KV_QUERIES.name: 1e6 + 10 * at, catalog.KV_HITS.name: 9e5 + 2 * at, OUTCOME_SLOT["ok"]: at}
        )

    assert hour(of).kv_hit_ratio == pytest.approx(0.2)


def test_the_coupling_is_found_through_noise_and_odd_minutes() -> None:
    state = {"requests": 0.0, "tokens": 0.0, "time": 0.0}

    def of(at: float) -> BackendObservation:
        rps = 2.0 + (at // 60) % 8
        tpot = 0.01 + 0.002 * rps + (0.5 if at // 60 % 12 == 0 else 0.0)
        state["requests"] += rps * STEP_S
        state["tokens"] += 100.0
        state["time"] += 100.0 * tpot
        seen = observation(requests=state["requests"], tokens=state["tokens"])
        gaps = Histogram((1.0, inf), (state["tokens"],) * 2, state["time"])
        return BackendObservation("a", seen.state, 0.0, None, seen.readings, {catalog.ITL.name: gaps})

    found = hour(of).coupling
    assert found is not None
    assert found.slope_s_per_rps == pytest.approx(0.002, rel=0.25)
    assert 50 <= found.samples <= MINUTES


@pytest.mark.parametrize(
    "points",
    [[], [(1.0, 0.1)] * (MIN_SAMPLES - 1), [(5.0, 0.01 * i) for i in range(60)], [(5.0 + 0.001 * i, 0.1) for i in range(60)]],
)
def test_a_load_that_hardly_varied_has_no_slope(points: list[tuple[float, float]]) -> None:
    assert coupling(points) is None


def test_a_straight_line_is_fully_explained() -> None:
    found = coupling([(float(i), 0.01 + 0.003 * i) for i in range(20)])
    assert found is not None
    assert (found.slope_s_per_rps, found.r2) == (pytest.approx(0.003), pytest.approx(1.0))  # type: ignore[comparison-overlap]


def test_free_memory_is_a_median_a_device_and_its_spread_is_over_nodes() -> None:
    backends = (Backend("a", labels={"node": "n1"}), Backend("b", labels={"node": "n1"}), Backend("c"))
    book = CapacityBook()
    for number, used in enumerate((60.0, 60.0, 10.0, 60.0, 60.0)):  # one odd sample moves no median
        seen = [observation(name, gpus=(gpu(used=used * GIB, uuid="GPU-1"),)) for name in ("a", "b")]
        last = situation(5.0 * number, *seen, observation("c", gpus=(gpu(used=50 * GIB, uuid="GPU-9"),)), backends=backends)
        book.note(last)
    found = free_memory(book.view(last))
    assert found.by_node == {"n1": 20 * GIB, "c": 30 * GIB}
    assert found.spread_bytes == pytest.approx(5 * GIB)
    told = document(book.view(last), 0.0)["free_memory"]
    assert (told["spread_bytes"], told["goal_bytes"]) == (found.spread_bytes, 12e6)


def test_a_device_that_is_lost_has_no_free_memory_and_one_node_has_no_spread() -> None:
    book = CapacityBook()
    book.note(situation(0.0, observation(gpus=(gpu(),))))
    assert free_memory(book.view(situation(0.0))).spread_bytes is None
    book.note(situation(10.0, observation(gpus=(gpu(uuid="GPU-2"),))))
    assert list(book.view(situation(10.0))[0].free) == ["GPU-2"]


def test_a_book_is_bounded_and_forgets_who_is_gone() -> None:
    book = CapacityBook()
    for minute in range(3 * MINUTES):
        last = situation(60.0 * minute, observation(requests=minute))
        book.note(last)
    assert len(book.view(last)[0].minutes) == MINUTES + 1
    book.forget(frozenset(("a",)))
    assert book.view(last) == ()
