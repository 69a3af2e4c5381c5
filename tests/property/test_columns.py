"""What is asked of a whole fleet side by side is what observations, windows and policies say of each backend by itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isnan, nan, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Quantile, Reading, absent, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.columns import GAUGES, columns, p99_by_backend
from tailkeeper_watchdog.model import (
    Backend,
    BackendObservation,
    DesiredState,
    FleetSnapshot,
    GpuObservation,
    Mode,
    Situation,
    Slo,
)
from tailkeeper_watchdog.policies import gpu_health_gate as gate
from tailkeeper_watchdog.policy_params import GpuHealthGateParams
from tailkeeper_watchdog.samples import COUNTERS, OUTCOME_SLOT, Sample, sample_of
from tailkeeper_watchdog.scoring.hscore import FACTORS, Scores, may_be_below, score
from tailkeeper_watchdog.table import Table
from tailkeeper_watchdog.window import Window

NAMES = ("a", "b", "c", "d")
BOUNDS_S = (0.05, 0.1, 1.0, inf)
WEIGHTS = {"latency": 0.35, "error_rate": 0.4, "cpu_usage": 0.15, "uptime": 0.1}
NUMBERS = st.none() | st.sampled_from([0.0, 0.5, 0.93, 1.0, 7.0]) | st.floats(0, 1e6)
RATIOS = st.none() | st.floats(0, 1)
COUNTS = st.none() | st.lists(st.integers(0, 50), min_size=4, max_size=4).map(tuple)


def told(value: float | None) -> Reading[float]:
    return absent() if value is None else present(value, 0.0)


def gpu_of(age: float | None, fragmentation: float | None, nvlink: float | None, pcie: float | None) -> GpuObservation:
    return GpuObservation("g", told(age), absent(), absent(), absent(), told(fragmentation), told(pcie), told(nvlink), absent())


GPUS = st.lists(st.builds(gpu_of, st.none() | st.floats(0, 9), RATIOS, RATIOS, RATIOS), max_size=2).map(tuple)
STATES = st.sampled_from([State.SERVING, *State])
AGES = st.sampled_from([0.0, 0.0, 2.0, 9.0, None])


@st.composite
def observations(draw: st.DrawFn, name: str) -> BackendObservation:
    read = {slot: told(draw(NUMBERS)) for slot in draw(st.lists(st.sampled_from([*GAUGES, *COUNTERS]), unique=True))}
    return BackendObservation(name, draw(STATES), draw(AGES), readings=read, gpus=draw(GPUS))


@st.composite
def samples(draw: st.DrawFn, at: float) -> Sample:
    counters = {name: value for name in COUNTERS if (value := draw(NUMBERS)) is not None}
    kept = (catalog.TTFT.name, catalog.ITL.name, catalog.STEP_TIME.name, catalog.PREPROCESS_TIME.name)
    histograms = {name: Histogram(BOUNDS_S, counts, at) for name in kept if (counts := draw(COUNTS)) is not None}
    return sample_of(at, counters, histograms)


WINDOWS = st.one_of(
    st.builds(Window, samples(0.0), samples(10.0), RATIOS),
    st.builds(lambda end: Window(None, end), samples(10.0)),
    st.just(Window()),
)


@st.composite
def situations(draw: st.DrawFn, now: float = 1_000.0) -> Situation:
    seen = {name: draw(observations(name)) for name in NAMES if draw(st.integers(0, 9))}
    windows, recent = ({name: draw(WINDOWS) for name in NAMES if draw(st.integers(0, 9))} for _ in range(2))
    snapshot = FleetSnapshot(1, now, now, tuple(map(Backend, NAMES)), seen)
    return Situation(snapshot, windows, recent, {}, Slo(), 3.0)


def same(number: float, value: float | None) -> bool:
    return isnan(number) if value is None else number == value


@settings(deadline=None)
@given(situations())
def test_scores_of_a_whole_fleet_are_those_of_each_backend(situation: Situation) -> None:
    alone = {name: score(situation.fresh(name), situation.windows.get(name), WEIGHTS, situation.slo, name) for name in NAMES}
    assert Scores(situation, WEIGHTS) == alone
    assert list(may_be_below(alone, 0.5)) == list(alone.values()), "those that are there need not be chosen from"


@settings(deadline=None)
@given(situations(), st.sampled_from([0.2, 0.4, 0.6, 0.9]), st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=4, max_size=4))
def test_who_is_below_a_limit_is_among_those_who_may_be(situation: Situation, limit: float, shares: list[float]) -> None:
    weights = dict(zip(FACTORS, shares, strict=True))
    alive = [it for it in Scores(situation, weights).values() if it.veto is None]
    below = {it.backend for it in alive if it.hscore is not None and it.hscore < limit}
    chosen = [it.backend for it in may_be_below(Scores(situation, weights), limit)]
    assert below <= set(chosen)
    assert chosen == [name for name in NAMES if name in chosen]


@pytest.mark.parametrize("limit", [0.2, 0.4, 0.6])
def test_a_score_is_made_when_it_is_asked_for(limit: float) -> None:
    seen = {name: BackendObservation(name, State.SERVING, 0.0) for name in NAMES}
    told = {name: {OUTCOME_SLOT["ok"]: 100.0, OUTCOME_SLOT["error"]: failed} for name, failed in (("a", 0.0), ("b", 90.0))}
    windows = {name: Window(sample_of(0.0, dict.fromkeys(end, 0.0), {}), sample_of(60.0, end, {})) for name, end in told.items()}
    snapshot = FleetSnapshot(1, 0.0, 0.0, tuple(map(Backend, NAMES)), seen)
    scores = Scores(Situation(snapshot, windows, {}, {}, Slo(), 3.0), WEIGHTS)
    assert [it.backend for it in scores.may_be_below(limit)] == ["b"]
    assert list(scores._made) == ["b"]
    assert scores["b"] is scores["b"]
    assert (scores["a"].hscore, len(scores), scores.get("nobody")) == (1.0, len(NAMES), None)


@settings(deadline=None)
@given(situations())
def test_a_column_has_of_each_backend_what_its_observation_and_its_windows_say(situation: Situation) -> None:
    fleet = columns(situation)
    assert fleet is columns(situation), "made once"
    for place, name in enumerate(NAMES):
        seen = situation.fresh(name)
        assert fleet.seen[place] is seen
        assert (fleet.heard[place], fleet.dead[place]) == (seen is not None, seen is not None and seen.state.is_dead)
        assert all(same(fleet.told(slot)[place], None if seen is None else seen.value(slot)) for slot in GAUGES)
        assert all(same(fleet.standing.of(slot)[place], None if seen is None else seen.value(slot)) for slot in COUNTERS)
        for rises, windows in ((fleet.minute, situation.windows), (fleet.lately, situation.recent)):
            window = windows.get(name, Window())
            assert all(same(rises.of(counter)[place], window.increase(counter)) for counter in COUNTERS)
            for histogram in (catalog.ITL.name, catalog.STEP_TIME.name, catalog.QUEUE_TIME.name):
                assert same(rises.mean_s(histogram)[place], window.mean_s(histogram))
            for column, value in ((rises.taken(), window.taken), (rises.finished(), window.finished)):
                assert all(map(same, (column[0][place], column[1][place]), value or (None, None)))
            assert same(rises.kv_miss_ratio()[place], window.kv_miss_ratio)
            p95 = window.quantile("ttft", 0.95)
            assert same(rises.quantile("ttft", 0.95).value[place], None if p95 is None else p95.value)
            assert same(rises.seconds[place], window.seconds if window.end and window.start else None)


@settings(deadline=None)
@given(
    situations(), st.dictionaries(st.tuples(st.sampled_from(NAMES), st.sampled_from(["ttft", "itl"])), st.just(Quantile(0.3, 9)))
)
def test_a_p99_is_that_of_records_where_there_are_any(it: Situation, exact: dict[tuple[str, str], Quantile]) -> None:
    situation = replace(it, exact=exact)
    for signal in ("ttft", "itl", "e2e"):
        alone = {name: quantile for name in NAMES if (quantile := situation.p99(name, signal)) is not None}
        assert p99_by_backend(situation, signal) == alone


def test_columns_are_those_of_their_situation_and_of_no_other() -> None:
    seen = BackendObservation("a", State.SERVING, 0.0, readings={catalog.RUNNING.name: present(1.0, 0.0)})
    one = Situation(FleetSnapshot(1, 0.0, 0.0, (Backend("a"),), {"a": seen}), {}, {}, {}, Slo(), 3.0)
    later = replace(seen, readings={catalog.RUNNING.name: present(2.0, 0.0)})
    other = replace(one, snapshot=replace(one.snapshot, observations={"a": later}))
    assert [columns(s).told(catalog.RUNNING.name).tolist() for s in (one, other)] == [[1.0], [2.0]]


TABLES = st.lists(st.sampled_from(NAMES), unique=True).map(tuple)


@given(TABLES, TABLES, st.frozensets(st.sampled_from(NAMES)))
def test_a_table_has_the_lines_of_whoever_is_asked_for(
    names: tuple[str, ...], asked: tuple[str, ...], gone: frozenset[str]
) -> None:
    table = Table(names, Table().of(names, (0.0, 0.0)) + [[ord(name), -ord(name)] for name in names] if names else Table().lines)
    lines = table.of(asked, (nan, 0.5))
    assert lines.shape == (len(asked), 2)
    for name, line in zip(asked, lines.tolist(), strict=True):
        assert line == [ord(name), -ord(name)] if name in names else (isnan(line[0]) and line[1] == 0.5)
    left = table.without(gone)
    assert [(name, left.line(name)) for name in NAMES] == [(n, table.line(n) if n not in gone else None) for n in NAMES]


# The health gate, one backend after the other


@dataclass(frozen=True)
class Baseline:
    mean: float = 0.0
    variance: float = 0.0
    readings: int = 0
    taken_at: float = -inf

    def updated(self, miss: float, now: float) -> Baseline:
        if now - self.taken_at < gate.KV_SPACING_S:
            return self
        readings = self.readings + 1
        share = max(gate.KV_FORGETTING, 1.0 / readings)
        step = miss - self.mean
        return Baseline(self.mean + share * step, (1.0 - share) * (self.variance + share * step * step), readings, now)

    def is_worse(self, miss: float) -> bool:
        margin = max(gate.KV_MARGIN, gate.KV_SIGMAS * sqrt(self.variance))
        return self.readings >= gate.KV_READINGS and miss - self.mean > margin


@dataclass
class OneByOne:
    """The gate as it reads: every question asked of every backend."""

    breakers: dict[str, gate.Breaker] = field(default_factory=dict)
    kv: dict[str, Baseline] = field(default_factory=dict)
    dead_at: dict[str, float] = field(default_factory=dict)

    def decide(self, situation: Situation, params: GpuHealthGateParams) -> list[DesiredState]:
        now = situation.snapshot.now
        desired: list[DesiredState] = []
        ratios = {name: e for name, w in situation.recent.items() if (e := w.failure_ratio) is not None}
        for name in NAMES:
            seen, window, recent = situation.fresh(name), situation.windows.get(name), situation.recent.get(name)
            if seen is None:
                continue
            before = self.breakers.get(name, gate.Breaker())
            peers = gate.peers_error_ratio(ratios, name, None)
            breaker = self.breakers[name] = gate.step_breaker(before, seen, recent, peers, params, now)
            if seen.state.is_dead:
                self.dead_at[name] = now
            miss, baseline = window.kv_miss_ratio if window else None, self.kv.get(name, Baseline())
            worse = miss if miss is not None and baseline.is_worse(miss) else None
            self.kv[name] = baseline if miss is None or worse is not None else baseline.updated(miss, now)
            wants = [
                *gate._dead(seen),
                *gate._breaker_wants(breaker, params),
                *gate._pressure(seen, recent, situation.slo.ttft_p99_s, params),
                *gate._lost_gpu(seen, recent, params),
                *gate._slow(seen, self._step_s(name, recent, now), window, worse, params),
            ]
            desired.extend(
                DesiredState(gate.NAME, name, w.knob, w.value, w.reason, Mode.ENFORCE, w.signals, seen.age_s) for w in wants
            )
        return desired

    def _step_s(self, name: str, recent: Window | None, now: float) -> float | None:
        if recent is None or now - self.dead_at.get(name, -inf) < gate.AFTERMATH_S:
            return None
        step = recent.mean_s(catalog.STEP_TIME.name)
        return step if step is not None else recent.mean_s(catalog.ITL.name)


@settings(deadline=None)
@given(st.lists(situations(), min_size=1, max_size=4), st.booleans())
def test_the_health_gate_decides_side_by_side_what_it_would_decide_one_by_one(ticks: list[Situation], learned: bool) -> None:
    params, plain = GpuHealthGateParams(breaker_failures=2, breaker_min_requests=5), OneByOne()
    memory = gate.Memory()
    if learned:
        usual = Baseline(0.1, 0.0, gate.KV_READINGS, 0.0)
        plain.kv = dict.fromkeys(NAMES, usual)
        lines = Table().of(NAMES, (usual.mean, usual.variance, usual.readings, usual.taken_at))
        memory = gate.Memory(kv=Table(NAMES, lines))
    for number, given_now in enumerate(ticks):
        situation = replace(given_now, snapshot=replace(given_now.snapshot, now=1_000.0 + 40.0 * number))
        memory, desired = gate.decide(situation, params, Mode.ENFORCE, memory)
        assert list(desired) == plain.decide(situation, params)
        for name in NAMES:
            breaker = plain.breakers.get(name, gate.Breaker())
            known = memory.breakers.get(name)
            assert known == breaker or (known is None and breaker.state is gate.BreakerState.CLOSED)
            ok, errors, in_a_row = memory.counted.line(name) or (nan, nan, nan)
            assert same(ok, breaker.ok_seen)
            assert same(errors, breaker.errors_seen)
            assert in_a_row == breaker.failures_in_a_row
            baseline = plain.kv.get(name, Baseline())
            assert memory.kv.line(name) == (baseline.mean, baseline.variance, baseline.readings, baseline.taken_at)
