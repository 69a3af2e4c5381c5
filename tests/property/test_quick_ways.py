"""What is done the quick way for thousands of backends gives what the plain way gives."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from dataclasses import fields, replace
from itertools import accumulate
from math import inf, isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, absent, invalid, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.attribution.resources import _median
from tailkeeper_watchdog.drift.bucket_blocks import BucketReading, _between, _rose
from tailkeeper_watchdog.guards import GuardContext
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.many_windows import Rises, Standing
from tailkeeper_watchdog.model import (
    Backend,
    BackendObservation,
    FleetSnapshot,
    Knob,
    Lease,
    Outcome,
    Situation,
    Slo,
    Target,
)
from tailkeeper_watchdog.plan import _adopted, adopted
from tailkeeper_watchdog.samples import Sample, sample_of
from tailkeeper_watchdog.settings import GuardsSettings
from tailkeeper_watchdog.window import Window

NAMES = ("a", "b", "c")
STALE_AFTER_S = 3.0
AGES = st.none() | st.sampled_from([0.0, 2.9, 3.0, 3.1]) | st.floats(0, 10)
OBSERVATIONS = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(lambda state, age: BackendObservation("x", state, age), st.sampled_from(State), AGES),
)
TARGETS = st.builds(Target, st.sampled_from(["g", "h"]), st.sampled_from(["s", "t"]), st.sampled_from(["p", "q"]))


def situation_of(observations: dict[str, BackendObservation]) -> Situation:
    snapshot = FleetSnapshot(1, 100.0, 1e9, tuple(map(Backend, NAMES)), observations)
    return Situation(snapshot, {}, {}, {}, Slo(), STALE_AFTER_S)


@given(OBSERVATIONS)
def test_who_is_heard_is_everyone_whose_evidence_is_fresh_and_says_something(seen: dict[str, BackendObservation]) -> None:
    situation = situation_of(seen)
    for name in NAMES:
        it = seen.get(name)
        stale = it is None or it.age_s is None or it.age_s > STALE_AFTER_S or it.state is State.UNKNOWN
        assert situation.fresh(name) is (None if stale else it)


def test_what_was_worked_out_of_a_situation_is_not_taken_along_by_another_one() -> None:
    before = situation_of({"a": BackendObservation("a", State.SERVING, 0.0)})
    assert before.fresh("a") is not None
    after = replace(before, snapshot=replace(before.snapshot, observations={}))
    assert after.fresh("a") is None
    target = Target("g", "a", "p")
    backend = Backend("a", targets=(target,))
    in_pool = replace(before, snapshot=replace(before.snapshot, backends=(backend,)))
    assert (in_pool.drained, in_pool.knob(backend, Knob.WEIGHT)) == (frozenset(), None)
    drained = replace(in_pool, actual={target: {Knob.ADMISSION: "drain", Knob.WEIGHT: 1.0}})
    assert drained.drained == {"a"}
    assert drained.knob(backend, Knob.WEIGHT) is not None


def test_an_observation_of_another_age_is_the_same_in_everything_else() -> None:
    histogram = Histogram((1.0,), (1.0,), 1.0)
    read = {"r": present(1.0, 0.0)}
    seen = BackendObservation("a", State.BUSY, 1.0, "e", read, {"h": histogram}, (), ("why",), frozenset({"m"}))
    default = BackendObservation("", State.UNKNOWN, None)
    told = [f.name for f in fields(seen) if getattr(seen, f.name) != getattr(default, f.name) or f.name == "gpus"]
    assert told == [f.name for f in fields(seen)], "give the new field a value here, and see that at_age keeps it"
    assert seen.at_age(2.0) == replace(seen, age_s=2.0)


def test_the_values_of_an_observation_are_those_of_its_present_readings() -> None:
    read = {"r": present(1.0, 0.0), "s": absent(), "t": invalid("no number"), "zero": present(0.0, 0.0)}
    seen = BackendObservation("a", State.BUSY, 1.0, readings=read)
    assert seen.values == {"r": 1.0, "zero": 0.0} == seen.at_age(2.0).values
    assert [seen.value(name) for name in (*read, "x")] == [1.0, None, None, 0.0, None]
    assert replace(seen, readings={"r": present(2.0, 0.0)}).at_age(3.0).values == {"r": 2.0}


COUNTS = st.lists(st.integers(0, 50) | st.floats(0, 1e6), min_size=4, max_size=4).map(tuple)
BOUNDS_S = (0.1, 1.0, 10.0, float("inf"))


RISING = (
    st.lists(st.sampled_from([0.0, 0.0, 1.0, 7.0, 100.5]) | st.floats(0, 1e6), min_size=4, max_size=4).map(accumulate).map(tuple)
)
TOLD = st.none() | RISING | COUNTS


def sample_with(at: float, ttft: tuple[float, ...] | None, itl: tuple[float, ...] | None) -> Sample:
    told = ((catalog.TTFT.name, ttft), (catalog.LATENCY.name, itl), (catalog.ITL.name, itl))
    return sample_of(at, {}, {name: Histogram(BOUNDS_S, counts, at) for name, counts in told if counts is not None})


@given(COUNTS, COUNTS)
def test_a_window_says_what_the_difference_of_its_histograms_says(before: tuple[float, ...], after: tuple[float, ...]) -> None:
    first, last = Histogram(BOUNDS_S, before, 1.0), Histogram(BOUNDS_S, after, 3.0)
    for name in (catalog.TTFT.name, catalog.QUEUE_TIME.name):  # with its buckets, and without
        window = Window(sample_of(0.0, {}, {name: first}), sample_of(9.0, {}, {name: last}))
        assert window.histogram(name) == (last.minus(first) if name == catalog.TTFT.name else None)
        assert window.mean_s(name) == (2.0 / (last.count - first.count) if last.count > first.count else None)


@given(st.lists(st.tuples(TOLD, TOLD, TOLD, TOLD), max_size=5), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantiles_of_many_windows_are_those_that_each_finds_by_itself(
    told: list[tuple[tuple[float, ...] | None, ...]], q: float
) -> None:
    ends = [Window(sample_with(0.0, *one[:2]), sample_with(9.0, *one[2:])) for one in told]
    windows = [*ends, Window(), Window(None, sample_with(9.0, None, None))]
    rises = Rises(windows)
    for signal in ("ttft", "itl", "e2e"):
        found = [rises.quantile(signal, q).at(place) for place in range(len(windows))]
        assert found == [window.quantile(signal, q) for window in windows]


@given(st.lists(st.tuples(TOLD, TOLD, st.booleans()), max_size=5), st.sets(st.integers(0, 5)))
def test_windows_are_merged_side_by_side_as_one_by_one(
    told: list[tuple[tuple[float, ...] | None, tuple[float, ...] | None, bool]], asked: set[int]
) -> None:
    def sample(at: float, counts: tuple[float, ...] | None, *, other: bool) -> Sample:
        bounds = (0.2, 1.0, 10.0, inf) if other else BOUNDS_S
        return sample_of(at, {}, {} if counts is None else {catalog.TTFT.name: Histogram(bounds, counts, at)})

    windows = [Window(sample(0.0, one, other=other), sample(9.0, two, other=other)) for one, two, other in told] + [Window()]
    places = sorted(place for place in asked if place < len(windows))
    alone = [h for place in places if (h := windows[place].histogram(catalog.TTFT.name)) is not None]
    sizes = {bounds: sum(h.count for h in alone if h.bounds == bounds) for bounds in {h.bounds: None for h in alone}}
    merged = Rises(windows).merged(places, catalog.TTFT.name)
    if merged is None:
        assert not alone
    else:
        assert sizes[merged.bounds] == max(sizes.values())
        same = [h.counts for h in alone if h.bounds == merged.bounds]
        assert merged.counts == pytest.approx(tuple(map(sum, zip(*same, strict=True))))


@given(st.lists(st.tuples(st.sampled_from([BOUNDS_S, (0.2, 1.0, 10.0, inf)]), RISING), min_size=2, max_size=2))
def test_a_layout_that_does_not_fit_is_not_used(told: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> None:
    samples: list[Sample] = []
    for bounds, counts in told:
        like = samples[-1].layout if samples else None
        samples.append(sample_of(0.0, {}, {catalog.TTFT.name: Histogram(tuple(bounds), counts, 1.0)}, like))
    assert (samples[0].layout is samples[1].layout) == (told[0][0] == told[1][0])
    window = Window(samples[0], samples[1])
    plain = [Histogram(bounds, counts, 1.0) for bounds, counts in told]
    assert window.histogram(catalog.TTFT.name) == plain[1].minus(plain[0])


@given(st.lists(TOLD, max_size=5), st.sampled_from([0.05, 0.1, 0.3, 1.0, 10.0, 99.0]))
def test_what_is_surely_above_a_limit_is_above_the_end_of_its_bucket(told: list[tuple[float, ...] | None], limit: float) -> None:
    above, counted = Standing([*(sample_with(0.0, counts, None) for counts in told), None]).above(catalog.TTFT.name, limit)
    for place, counts in enumerate([*told, None]):
        index = bisect_left(BOUNDS_S, limit)
        if counts is None or index >= len(BOUNDS_S) - 1:
            assert isnan(above[place])
            assert isnan(counted[place])
        else:
            assert (above[place], counted[place]) == (counts[-1] - counts[index], counts[-1])


@given(COUNTS, COUNTS)
def test_two_readings_rose_exactly_where_something_can_be_told_between_them(
    before: tuple[float, ...], after: tuple[float, ...]
) -> None:
    first, last = (BucketReading(at, Histogram(BOUNDS_S, counts, 1.0)) for at, counts in ((0.0, before), (9.0, after)))
    assert _rose(first, last) == (_between(first, last) is not None)


def lease_of(number: int, backend: str, target: Target) -> Lease:
    return Lease(number, backend, target, Knob.WEIGHT, "p", 1.0, 0.5, "", 0.0, 1.0)


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), TARGETS), max_size=4),
    st.lists(st.lists(TARGETS, max_size=3).map(tuple), min_size=3, max_size=3),
)
def test_leases_are_adopted_as_if_each_were_looked_up(held: list[tuple[str, Target]], targets: list[tuple[Target, ...]]) -> None:
    backends = tuple(Backend(name, targets=of_it) for name, of_it in zip(NAMES, targets, strict=True))
    leases = tuple(lease_of(number, *of_it) for number, of_it in enumerate(held))
    owners: dict[tuple[str, str], dict[str, Target]] = {}
    for backend in backends:
        for target in backend.targets:
            owners.setdefault((target.gateway, target.server), {})[backend.name] = target
    looked_up = tuple(_adopted(lease, owners.get((lease.target.gateway, lease.target.server), {})) for lease in leases)
    assert adopted(leases, backends) == looked_up


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_a_median_of_a_resource_is_the_median(values: list[float]) -> None:
    assert _median(np.array(values)) == np.median(np.array(values))


@given(st.lists(st.tuples(st.sampled_from(NAMES), TARGETS, st.sampled_from([Knob.WEIGHT, Knob.ADMISSION])), max_size=6))
def test_leases_on_a_knob_of_a_backend_are_found_as_if_all_were_looked_at(held: list[tuple[str, Target, Knob]]) -> None:
    leases = tuple(replace(lease_of(number, name, target), knob=knob) for number, (name, target, knob) in enumerate(held))
    context = GuardContext(FleetSnapshot(1, 0.0, 0.0, (), {}), GuardsSettings(), 3.0, leases)
    for name in NAMES:
        for knob in (Knob.WEIGHT, Knob.ADMISSION):
            assert tuple(context.leases_on(name, knob)) == tuple(x for x in leases if x.backend == name and x.knob is knob)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["intend", "confirm", "renew", "run_out", "reverts", "end", "torn"]),
        st.booleans(),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.5, 1.0]),
    ),
    max_size=12,
)


def written_down(ledger: Ledger, what: str, lease: Lease | None, which: int, value: float, at: float) -> None:
    if what == "intend" or lease is None:
        target = Target("g", NAMES[which], "p")
        ledger.intend(NAMES[which], target, Knob.WEIGHT, "policy", 1.0, value, "why", at, at + 60.0)
    elif what == "confirm":
        ledger.confirm(lease.id, value)
    elif what == "renew":
        ledger.renew(lease.id, at + 60.0)
    elif what == "run_out":
        ledger.run_out(lease.id, at)
    elif what == "reverts":
        ledger.note_reverts(lease.id, 1)
    elif what == "end":
        ledger.end(lease.id, Outcome.RELEASED, at)
    else:
        with contextlib.suppress(RuntimeError), ledger.together():
            ledger.renew(lease.id, at + 99.0)
            ledger.end(lease.id, Outcome.RELEASED, at)
            raise RuntimeError("as if the disk were full")


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_leases_that_are_held_are_those_in_the_file_whoever_wrote_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bool, int, float]]
) -> None:
    path = Path(tmp_path_factory.mktemp("ledger")) / "ledger.db"
    ledger, other = Ledger(path), Ledger(path)
    for at, (what, foreign, which, value) in enumerate(steps):
        leases = ledger.leases()
        lease = leases[which % len(leases)] if leases else None
        written_down(other if foreign else ledger, what, lease, which, value, float(at))
        fresh = Ledger(path)
        assert ledger.leases() == fresh.leases()
        fresh.close()
    other.close()
    ledger.close()
