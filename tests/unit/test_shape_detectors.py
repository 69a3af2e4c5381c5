"""Distortion, Z-score, and a fall in P99 that is no good news."""

from __future__ import annotations

import random
from math import inf, nan
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.detectors import DETECTORS, Detector, Symptom, distortion, improved_but_broken, zscore
from tailkeeper_watchdog.detectors.distortion import Shape
from tailkeeper_watchdog.model import RequestRecord, Severity, Slo
from tests.unit.watched_fleet import WatchedFleet, record

MINUTE_S = 60.0


# Distortion


def test_a_wide_spread_is_told_for_information() -> None:
    watched = WatchedFleet(distortion.DETECTOR)
    watched.told(*[record(0.1)] * 270, *[record(3.0)] * 30)
    (found,) = watched.look()
    assert found.severity is Severity.INFO
    assert found.evidence["ratio"] == pytest.approx(pstdev([0.1] * 270 + [3.0] * 30) / fmean([0.1] * 270 + [3.0] * 30))


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([record(0.1)] * 150 + [record(0.2)] * 150, "a narrow spread"),
        ([record(0.1)] * 150 + [record(3.0)] * 20, "too few"),
        ([record(0.1)] * 300 + [record(3.0, outcome="error")] * 60, "failed requests have no latency"),
        ([record(nan)] * 300 + [record(inf)] * 30 + [record(-1.0)] * 30 + [record(None)] * 30, "nothing that can be true"),
        ([record(0.0)] * 300, "no latency at all"),
    ],
)
def test_no_distortion_is_told_of(records: list[RequestRecord], why: str) -> None:
    watched = WatchedFleet(distortion.DETECTOR)
    watched.told(*records)
    assert watched.look() == (), why


def test_what_nothing_was_added_to_for_a_minute_is_the_past() -> None:
    watched = WatchedFleet(distortion.DETECTOR)
    watched.told(*[record(0.1)] * 270, *[record(3.0)] * 30)
    assert watched.look()
    assert watched.look(MINUTE_S + 1) == ()


@given(st.lists(st.lists(st.floats(0, 100), max_size=60), max_size=60))
def test_the_moving_sums_are_those_of_the_samples_themselves(batches: list[list[float]]) -> None:
    shape, told = Shape(), []
    for batch in batches:
        if batch:
            shape = shape.add(batch, 0.0)
            told.extend(batch)
    whole = shape.whole()
    held = told[-whole.count :] if whole.count else []
    assert whole.count == len(held)
    assert min(len(told), 1_000) <= whole.count <= 1_100
    if held:
        assert whole.mean_s == pytest.approx(fmean(held), abs=1e-9)
        assert whole.deviation_s == pytest.approx(pstdev(held), abs=1e-6)


# Z-score


def _learned(seed: int = 1, source: str = "buckets") -> tuple[WatchedFleet, random.Random]:
    watched, rng = WatchedFleet(zscore.DETECTOR), random.Random(seed)
    for _ in range(500):
        assert _step(watched, rng, source) == ()
    return watched, rng


def _step(watched: WatchedFleet, rng: random.Random, source: str, factor: float = 1.0) -> tuple[Symptom, ...]:
    values = [factor * rng.lognormvariate(-1.6, 0.4) for _ in range(25)]
    if source == "records":
        watched.told(*[record(v) for v in values])
    watched.did(ttft_s=values)
    return watched.look()


@pytest.mark.parametrize("source", ["buckets", "records"])
def test_a_p99_far_from_its_baseline_is_told_for_information(source: str) -> None:
    watched, rng = _learned(source=source)
    for _ in range(24):
        found = _step(watched, rng, source, factor=4.0)
    assert [(s.severity, s.evidence["z"] > 3.5) for s in found] == [(Severity.INFO, True)]
    assert source in found[0].evidence["source"]
    for _ in range(24):
        found = _step(watched, rng, source)
    assert found == ()


def test_before_the_baseline_is_whole_nothing_is_said() -> None:
    watched, rng = WatchedFleet(zscore.DETECTOR), random.Random(2)
    for number in range(400):
        assert _step(watched, rng, "buckets", factor=1.0 if number < 300 else 9.0) == ()


def test_a_restart_begins_a_new_baseline() -> None:
    watched, rng = _learned()
    watched.seen["a"].state = State.STARTING
    watched.look()
    watched.seen["a"].state = State.SERVING
    for _ in range(60):
        assert _step(watched, rng, "buckets", factor=4.0) == ()


def test_another_model_begins_a_new_baseline_and_one_more_does_not() -> None:
    watched, rng = _learned()
    watched.seen["a"].models = frozenset({"m", "adapter"})
    for _ in range(24):
        found = _step(watched, rng, "buckets", factor=4.0)
    assert found
    watched.seen["a"].models = frozenset({"other"})
    for _ in range(24):
        assert _step(watched, rng, "buckets", factor=4.0) == ()


def test_ten_thousand_requests_a_second_are_held_in_bounded_memory() -> None:
    watched = WatchedFleet(zscore.DETECTOR)
    for _ in range(30):
        watched.told(*[record(0.1)] * 5_000)
        watched.look(0.5)
    held = sum(values.size for _, values in watched.state.batches["a"])
    assert held <= 2 * zscore.MAX_SAMPLES


# Improved, but broken


def _usual(minutes: int = 10) -> WatchedFleet:
    watched = WatchedFleet(improved_but_broken.DETECTOR)
    for _ in range(minutes * 12):
        watched.did(ttft_s=[0.3] * 9 + [1.0])
        assert watched.look() == ()
    return watched


def test_a_faster_backend_whose_requests_fail_is_a_ticket() -> None:
    watched = _usual()
    for _ in range(24):
        watched.did(ttft_s=[0.05] * 5, errors=5)
        found = watched.look()
    (broken,) = found
    assert broken.severity is Severity.TICKET
    assert "of the requests fail" in broken.summary


def test_a_faster_backend_with_empty_answers_is_a_ticket() -> None:
    watched = _usual()
    for _ in range(24):
        watched.did(ttft_s=[0.05] * 10, tokens=1)
        found = watched.look()
    assert [s.evidence["tokens_per_request"] for s in found] == [1.0]


@pytest.mark.parametrize(
    ("ttft_s", "errors", "tokens", "why"),
    [
        ([0.05] * 10, 0, 100, "faster, and all is well"),
        ([0.3] * 5 + [1.0], 5, 100, "failing, and no faster"),
        ([0.05] * 10, 0, 60, "shorter answers"),
        ([0.05], 0, 1, "too few to say"),
    ],
)
def test_an_improvement_or_a_failure_alone_is_not_it(ttft_s: list[float], errors: int, tokens: int, why: str) -> None:
    watched = _usual()
    for _ in range(24):
        watched.did(ttft_s=ttft_s, errors=errors, tokens=tokens)
        assert watched.look() == (), why


def test_it_stays_while_it_lasts_and_ends_with_it() -> None:
    watched = _usual()
    for _ in range(12 * 60):
        watched.did(ttft_s=[0.05] * 5, errors=5)
        found = watched.look()
    assert found
    for _ in range(24):
        watched.did(ttft_s=[0.3] * 9 + [1.0])
        found = watched.look()
    assert found == ()


# All of them


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: d.name)
def test_a_backend_that_is_gone_is_forgotten(detector: Detector) -> None:
    watched = WatchedFleet(detector, names=("a", "gone"))
    for _ in range(30):
        watched.told(record(0.1, "a"), record(0.1, "gone"))
        watched.did("gone", ttft_s=[0.1] * 9, errors=1)
        watched.look()
    watched.forget("gone")
    assert "gone" not in repr(watched.state)
    watched.look()


_BAD = st.one_of(st.none(), st.sampled_from([nan, inf, -inf, -1.0, 0.0, 1e300]), st.floats(0, 10))
_RECORD = st.builds(record, _BAD, outcome=st.sampled_from(["ok", "error", "aborted", "nonsense"]), itl_s=_BAD, e2e_s=_BAD)
_TICK = st.tuples(st.floats(0, 4_000), st.lists(_RECORD, max_size=8), st.floats(-50, 50), st.sampled_from(list(State)))


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: d.name)
@given(ticks=st.lists(_TICK, max_size=12))
def test_whatever_comes_in_nothing_is_raised_and_nobody_is_woken(detector: Detector, ticks: list[Any]) -> None:
    """Gaps, counters that go back, values that cannot be: a handful of them is evidence of nothing."""
    watched = WatchedFleet(detector, slo=Slo(50.0, 50.0, 50.0))
    for after_s, records, rise, state in ticks:
        seen = watched.seen["a"]
        seen.ok, seen.state = max(0.0, seen.ok + rise), state
        seen.counts = [max(0.0, count + rise) for count in seen.counts]
        watched.told(*records)
        symptoms = watched.look(after_s)
        assert not [s for s in symptoms if s.severity is Severity.PAGE and s.kind.value not in ("hung", "down")]
