"""The ring: always the lower rank of the last samples, whatever comes in which batches, and whatever was asked before."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tailkeeper_watchdog.scoring.ring import LatencyRing

latencies = st.floats(0, 1e6) | st.sampled_from([0.0, 0.1, 0.2, 0.5])
"""Values that repeat as well: ties at the edge of the tail are where it could go wrong."""


def brute_force(values: list[float], size: int, q: float) -> tuple[float, int]:
    last = sorted(values[-size:])
    return last[int(q * (len(last) - 1))], len(last)


@given(
    st.lists(st.lists(latencies, max_size=40), min_size=1, max_size=60),
    st.integers(1, 120),
    st.sampled_from([0.99, 0.999, 1.0, 0.5, 0.0]),
    st.integers(1, 5),
)
@example([[1.0] * 40, [0.0] * 40], 50, 0.99, 1)
@example([[float(n)] for n in range(60, 0, -1)], 20, 0.99, 1)
def test_the_ring_gives_what_sorting_everything_gives(batches: list[list[float]], size: int, q: float, every: int) -> None:
    ring, given_so_far = LatencyRing(size), list[float]()
    for number, batch in enumerate(batches):
        ring.extend(np.array(batch))
        given_so_far += batch
        if number % every == 0 and given_so_far:
            quantile = ring.quantile(q)
            assert quantile is not None
            assert (quantile.value, quantile.samples) == brute_force(given_so_far, size, q)


@pytest.mark.parametrize("batch", [3, 7, 60, 400, 2_500])
@pytest.mark.parametrize("drift", [-1e-4, 0.0, 1e-4], ids=["falling", "level", "rising"])
def test_a_full_ring_follows_traffic_that_drifts(batch: int, drift: float) -> None:
    stream = np.random.default_rng(3).lognormal(-1.6, 0.6, 6_000) * np.exp(drift * np.arange(6_000))
    ring = LatencyRing(1_000)
    for at in range(0, stream.size, batch):
        ring.extend(stream[at : at + batch])
        quantile = ring.quantile(0.99)
        assert quantile is not None
        assert (quantile.value, quantile.samples) == brute_force(stream[: at + batch].tolist(), 1_000, 0.99)


@pytest.mark.parametrize("alike", [1, 3, 30, 90])
@pytest.mark.parametrize("batch", [7, 100])
def test_more_equal_values_than_the_tail_can_hold_take_nothing_else_out_of_it(alike: int, batch: int) -> None:
    ring, given_so_far = LatencyRing(200), list[float]()
    for number in range(60):
        values = [5.0] * alike if number % 17 == 3 else [0.1] * batch
        ring.extend(np.array(values))
        given_so_far += values
        quantile = ring.quantile(0.99)
        assert quantile is not None
        assert (quantile.value, quantile.samples) == brute_force(given_so_far, 200, 0.99)


def test_steady_traffic_is_seldom_searched_through(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, partition = list[int](), np.partition

    def counted(values: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
        searched.append(rank)
        return partition(values, rank)

    monkeypatch.setattr(np, "partition", counted)
    ring, random = LatencyRing(1_000), np.random.default_rng(5)
    for _ in range(2_000):
        ring.extend(random.exponential(0.2, 10))
        ring.quantile(0.99)
    assert 1 <= len(searched) <= 20


def test_an_empty_ring_knows_no_quantile() -> None:
    assert LatencyRing().quantile(0.99) is None


def test_a_ring_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        LatencyRing(0)


def test_impossible_latencies_are_left_out_of_the_ring_and_counted() -> None:
    ring = LatencyRing()
    assert ring.extend(np.array([0.1, nan, -1.0, inf])) == 3
    assert len(ring) == 1
