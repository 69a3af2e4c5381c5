"""Whatever an observation is, its difference to the one before gives it back exactly."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from tailkeeper_exporter.readings import Histogram, Reading, Status
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import BackendObservation, GpuObservation
from tailkeeper_watchdog.records.observations import difference, patched

numbers = st.one_of(st.integers(0, 10**6).map(float), st.floats(allow_nan=False))
"""Infinity too: what two models of one backend count together may leave the range of a double."""
readings = st.builds(
    lambda status, value, at, why: Reading(status, value if status is Status.PRESENT else None, at, why),
    st.sampled_from(Status), numbers, st.sampled_from([None, 1.0, 2.5]), st.sampled_from([None, "why"]),
)  # fmt: skip
present = st.builds(lambda value: Reading(Status.PRESENT, value, 7.25), numbers)
histograms = st.builds(
    lambda bounds, counts, total: Histogram((*bounds, float("inf")), tuple(counts[: len(bounds) + 1]), total),
    st.sampled_from([(0.1, 1.0), (0.1, 0.5, 1.0)]), st.lists(numbers, min_size=4, max_size=4), numbers,
)  # fmt: skip
gpus = st.builds(GpuObservation, st.just("GPU-1"), *[readings] * 8, st.just(("power",)))
names = st.sampled_from("abcd")
observations = st.builds(
    BackendObservation,
    st.just("x"), st.sampled_from(State), st.one_of(st.none(), numbers), st.sampled_from([None, "lost"]),
    st.one_of(st.dictionaries(names, present), st.dictionaries(names, readings)), st.dictionaries(names, histograms),
    st.lists(gpus, max_size=1).map(tuple), st.sampled_from([(), ("a reason",)]), st.frozensets(names),
)  # fmt: skip


infinite = BackendObservation("x", State.SERVING, 0.0, histograms={"a": Histogram((0.1, float("inf")), (1.0, float("inf")), 1.0)})


@given(st.lists(observations, min_size=1, max_size=5))
@example([infinite, replace(infinite, histograms={"a": Histogram((0.1, float("inf")), (2.0, float("inf")), 2.0)})])
def test_a_chain_of_differences_gives_back_every_observation(chain: list[BackendObservation]) -> None:
    before: BackendObservation | None = None
    again: BackendObservation | None = None
    for seen in chain:
        line = json.loads(json.dumps(difference(seen, before)))
        again = patched("x", line, again)
        assert again == seen
        before = seen


@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), st.lists(st.integers(0, 50), min_size=3, max_size=3))
def test_buckets_in_one_piece_of_memory_are_written_as_by_how_much_they_rose(counts: list[int], rises: list[int]) -> None:
    def seen(numbers: list[int]) -> BackendObservation:
        histogram = Histogram((0.1, 1.0, float("inf")), array("d", numbers), 1.0)
        return BackendObservation("x", State.SERVING, 0.0, histograms={"h": histogram})

    before, after = seen(counts), seen([count + rise for count, rise in zip(counts, rises, strict=True)])
    line = json.loads(json.dumps(difference(after, before)))
    assert line.get("h", {"h": [1.0, 0, 0, 0]}) == {"h": [1.0, *rises]}
    again = patched("x", line, patched("x", json.loads(json.dumps(difference(before, None))), None))
    assert list(again.histograms["h"].counts) == list(after.histograms["h"].counts)
