"""Detectors and policies that look at a whole fleet at once find what they would find looking at one backend after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, sqrt
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Quantile, bucket_quantile, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.detectors import growth, improved_but_broken, zscore
from tailkeeper_watchdog.model import Backend, BackendObservation, Epoch, FleetSnapshot, RequestRecord, Situation, Slo
from tailkeeper_watchdog.policies import slo_guardian
from tailkeeper_watchdog.policy_params import SloGuardianParams
from tailkeeper_watchdog.samples import OUTCOME_SLOT, sample_of
from tailkeeper_watchdog.window import Window

NAMES = ("a", "b", "c")
BOUNDS_S = (0.1, 0.2, 0.4, 0.8, 1.6, inf)
OTHER_S = (0.15, 1.0, inf)


@dataclass(frozen=True)
class Did:
    """What one backend did in a minute: requests, how many of them failed, tokens, and the bucket of all first tokens."""

    ok: int | None = 40
    failed: int | None = 0
    tokens: float | None = 8_000.0
    bucket: int | None = 1
    other_bounds: bool = False
    running: float | None = 4.0
    waiting: float | None = 0.0
    pressure: float | None = 0.5

    def window(self) -> Window:
        told = {OUTCOME_SLOT["ok"]: self.ok, OUTCOME_SLOT["error"]: self.failed, catalog.GENERATED_TOKENS.name: self.tokens}
        counters = {name: float(value) for name, value in told.items() if value is not None}
        histograms = {}
        if self.bucket is not None:
            bounds = OTHER_S if self.other_bounds else BOUNDS_S
            counts = tuple(float(self.ok or 0) * (place >= min(self.bucket, len(bounds) - 1)) for place in range(len(bounds)))
            histograms = {name: Histogram(bounds, counts, 1.0) for name in (catalog.TTFT.name, catalog.ITL.name)}
        nothing = {name: Histogram(h.bounds, (0.0,) * len(h.bounds), 0.0) for name, h in histograms.items()}
        return Window(sample_of(0.0, dict.fromkeys(counters, 0.0), nothing), sample_of(60.0, counters, histograms))

    def seen(self, name: str) -> BackendObservation:
        told = {catalog.RUNNING.name: self.running, catalog.WAITING.name: self.waiting, catalog.VRAM_PRESSURE.name: self.pressure}
        readings = {slot: present(value, 0.0) for slot, value in told.items() if value is not None}
        return BackendObservation(name, State.SERVING, 0.0, readings=readings)


DID = st.builds(
    Did,
    st.sampled_from([40, 40, 25, 10, 0, None]),
    st.sampled_from([0, 0, 0, 6, 30, None]),
    st.sampled_from([8_000.0, 8_000.0, 500.0, None]),
    st.sampled_from([0, 1, 2, 3, 4, 5, None]),
    st.booleans(),
    st.sampled_from([4.0, 0.0, None]),
    st.sampled_from([0.0, 3.0, None]),
    st.sampled_from([0.5, 0.95, None]),
)


@dataclass(frozen=True)
class Tick:
    did: dict[str, Did]
    after_s: float = 60.0
    epochs: dict[str, int] = field(default_factory=dict)
    told_s: tuple[float, ...] = ()
    """First tokens that the first backend told of one by one."""

    def situation(self, now: float) -> Situation:
        snapshot = FleetSnapshot(
            1, now, now, tuple(map(Backend, NAMES)), {name: did.seen(name) for name, did in self.did.items()}
        )
        windows = {name: did.window() for name, did in self.did.items()}
        told = tuple(RequestRecord(NAMES[0], "ok", ttft_s, None, None) for ttft_s in self.told_s)
        epochs = {name: Epoch(number) for name, number in self.epochs.items()}
        exact = {(NAMES[1], "ttft"): Quantile(0.3, 50)}
        return Situation(snapshot, windows, windows, {}, Slo(), 3.0, exact, {NAMES[0]: told} if told else {}, epochs)


TICKS = st.lists(
    st.builds(
        Tick,
        st.dictionaries(st.sampled_from(NAMES), DID),
        st.sampled_from([1.0, 5.0, 60.0, 60.0, 400.0]),
        st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1)),
        st.sampled_from([(), (), (0.1,) * 30, (0.9,) * 30]),
    ),
    max_size=12,
)


def at_times(ticks: list[Tick]) -> list[Situation]:
    now, found = 1_000.0, []
    for tick in ticks:
        now += tick.after_s
        found.append(tick.situation(now))
    return found


@settings(deadline=None)
@given(TICKS)
def test_growth(ticks: list[Tick]) -> None:
    memory, taken = growth.Memory(), dict.fromkeys(NAMES, -inf)
    readings: dict[str, list[float]] = {name: [] for name in NAMES}
    for situation in at_times(ticks):
        now, grows = situation.snapshot.now, []
        for name in NAMES:
            quantile = situation.p99(name, "ttft") if now - taken[name] >= growth.SPACING_S else None
            if quantile is not None and quantile.samples >= growth.MIN_SAMPLES:
                readings[name], taken[name] = [*readings[name], quantile.value][-4:], now
            last = readings[name]
            if len(last) == 4 and all(last[i + 1] >= growth.GROWTH * last[i] > 0 for i in range(3)):
                grows.append((name, last))
        memory, symptoms = growth.detect(situation, memory)
        assert [(symptom.backend, symptom.evidence["p99_s"]) for symptom in symptoms] == grows


@dataclass(frozen=True)
class Watched:
    """One backend's Z-score as it reads."""

    epoch: int = -1
    source: str = ""
    count: int = 0
    mean_s: float = 0.0
    squares: float = 0.0
    latest: Quantile | None = None
    taken_at: float = -inf

    def read(self, quantile: Quantile, epoch: int, source: str, now: float) -> Watched:
        known = self if (self.epoch, self.source) == (epoch, source) else Watched(epoch, source)
        if known.count < zscore.BASELINE_READINGS:
            count, step = known.count + 1, quantile.value - known.mean_s
            mean_s = known.mean_s + step / count
            known = replace(known, count=count, mean_s=mean_s, squares=known.squares + step * (quantile.value - mean_s))
        return replace(known, latest=quantile, taken_at=now)

    @property
    def z(self) -> float | None:
        if self.latest is None or self.count < zscore.BASELINE_READINGS:
            return None
        spread = max(sqrt(self.squares / self.count), zscore.MIN_SPREAD_RATIO * self.mean_s)
        return (self.latest.value - self.mean_s) / spread if spread > 0 else None


@settings(deadline=None)
@given(TICKS, st.integers(1, 4))
def test_zscore(ticks: list[Tick], baseline: int) -> None:
    usual, zscore.BASELINE_READINGS = zscore.BASELINE_READINGS, baseline
    try:
        _zscore(at_times(ticks))
    finally:
        zscore.BASELINE_READINGS = usual


def _zscore(situations: list[Situation]) -> None:
    memory, plain = zscore.Memory(), dict.fromkeys(NAMES, Watched())
    told: list[tuple[float, int, float]] = []
    for situation in situations:
        now, far = situation.snapshot.now, []
        told = [one for one in told if now - one[0] <= zscore.WINDOW_S]
        records = situation.records.get(NAMES[0], ())
        told += [(now, len(records), record.ttft_s or 0.0) for record in records[:1]]
        for name in NAMES:
            known, source = plain[name], zscore.BUCKETS
            quantile = situation.windows.get(name, Window()).quantile("ttft", 0.99)
            if name == NAMES[0] and told:
                values = sorted(value for _, count, value in told for _ in range(count))
                source, quantile = zscore.RECORDS, Quantile(values[int(0.99 * (len(values) - 1))], len(values))
            if now - known.taken_at >= zscore.SPACING_S and quantile is not None and quantile.samples >= zscore.MIN_SAMPLES:
                known = plain[name] = known.read(quantile, situation.epoch(name).number, source, now)
            z = known.z
            if z is not None and z > zscore.LIMIT and now - known.taken_at <= zscore.WINDOW_S:
                far.append((name, z, known.mean_s, known.count, known.source))
        memory, symptoms = zscore.detect(situation, memory)
        evidence = ("z", "baseline_mean_s", "baseline_readings", "source")
        assert [(symptom.backend, *(symptom.evidence[key] for key in evidence)) for symptom in symptoms] == far


@settings(deadline=None)
@given(TICKS, st.integers(0, 8))
def test_improved_but_broken(ticks: list[Tick], quiet: int) -> None:
    detector = improved_but_broken
    memory, plain = detector.Memory(), {name: detector.Usual() for name in NAMES}
    for situation in at_times([*[Tick(dict.fromkeys(NAMES, Did(bucket=4)))] * quiet, *ticks]):
        expected = []
        for name in NAMES:
            epoch, window = situation.epoch(name).number, situation.windows.get(name)
            if plain[name].epoch != epoch:
                plain[name] = detector.Usual(epoch)
            if window is not None:
                with mock.patch.object(detector, "_may_have_broken", return_value=True):
                    p99 = window.quantile("ttft", 0.99)
                    plain[name], symptom = detector._judge(name, window, p99, plain[name], situation.snapshot.now)
                expected += [symptom] if symptom is not None else []
        memory, symptoms = detector.detect(situation, memory)
        assert list(symptoms) == expected
        assert {name: memory.usual.get(name, detector.Usual()) for name in NAMES} == plain


@settings(deadline=None)
@given(st.lists(DID, min_size=len(NAMES), max_size=len(NAMES)))
def test_what_the_guardian_sees_of_a_pool(did: list[Did]) -> None:
    params = SloGuardianParams()
    situation = Tick(dict(zip(NAMES, did, strict=True))).situation(1_000.0)
    seen, windows = [situation.heard[name] for name in NAMES], [situation.recent[name] for name in NAMES]
    look = slo_guardian.look([0, 1, 2], slo_guardian.asked_of(situation), params)
    taken = [window.taken for window in windows if window.taken is not None]
    total, failed = sum(count for count, _ in taken), sum(bad for _, bad in taken)
    assert look.error_ratio == (failed / total if total >= params.min_requests else None)
    telling = [one for one in seen if one.value(catalog.RUNNING.name) is not None]
    waiting = [one.value(catalog.WAITING.name) for one in telling]
    assert look.waiting == (sum(w for w in waiting if w is not None) if telling and None not in waiting else None)
    pressures = [p for one in seen if (p := one.value(catalog.VRAM_PRESSURE.name)) is not None]
    assert look.memory == (sum(pressures) / len(pressures) if pressures else None)
    rates = [r for window in windows if (r := window.rate(catalog.GENERATED_TOKENS.name)) is not None]
    assert look.tokens_per_s == (sum(rates) if rates else None)
    by_bounds: dict[tuple[float, ...], list[Histogram]] = {}
    for window in windows:
        if (histogram := window.histogram(catalog.TTFT.name)) is not None:
            by_bounds.setdefault(histogram.bounds, []).append(histogram)
    found: dict[float, list[float | None]] = {}
    for same in by_bounds.values():
        whole = Histogram(same[0].bounds, tuple(map(sum, zip(*(h.counts for h in same), strict=True))), 0.0)
        quantile = bucket_quantile(whole, 0.99) if whole.count >= params.min_requests else None
        found.setdefault(whole.count, []).append(None if quantile is None else quantile.value)
    assert look.ttft_p99_s in (found[max(found)] if found else [None])
