"""Keep traffic away from a backend that cannot serve, and lighten one that serves badly.

* ``hung`` or ``down`` (the exporter's word, itself two independent signals): drain at the next tick.
* Memory pressure above 92 %: weight 50 %, and drain where preemptions or a broken latency SLO say the same.
* Mean step time (or its proxy, mean inter-token latency) above 80 ms: weight 50 %.
* Three GPU samples missed in a row: drain, if a second signal agrees; a state that is unknown is none.
* Derating: weight × (1 − Σ penalties of breached dimensions), never below 10 %.
* Breaker: 5 failures in a row, or most requests failing while the peers' do not, opens it; after 30 s a trial at the
  floor weight; closed again below 5 % errors.

Heat and throttling are named as causes and change nothing by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, sqrt
from statistics import median
from typing import Annotated, NamedTuple

from pydantic import Field

from tailkeeper_exporter import catalog
from tailkeeper_exporter.settings import Ratio, Seconds, Settings
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.metrics import (
    BREAKER_ERROR_RATIO,
    BREAKER_FAILURES,
    BREAKER_REQUESTS,
    MEMORY_PRESSURE_LIMIT_RATIO,
    PREEMPTIONS_LIMIT_PER_S,
)
from tailkeeper_watchdog.model import (
    DRAIN,
    EMPTY,
    BackendObservation,
    DesiredState,
    Knob,
    Mode,
    Situation,
)
from tailkeeper_watchdog.policies.base import Policy
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.window import Window

NAME = "gpu_health_gate"


class GpuHealthGateParams(Settings):
    memory_pressure_limit_ratio: Ratio = MEMORY_PRESSURE_LIMIT_RATIO
    preemptions_limit_per_s: Annotated[float, Field(ge=0)] = PREEMPTIONS_LIMIT_PER_S
    """More than one preemption in two seconds is a backend that throws work away."""
    step_time_limit_s: Seconds = 0.080
    slow_weight: Ratio = 0.5
    gpu_missed_after_s: Seconds = 3.0
    """Three missed collections at the default interval of 1 s."""
    fragmentation_limit_ratio: Ratio = 0.45
    fragmentation_penalty: Ratio = 0.32
    kv_miss_limit_ratio: Ratio = 0.18
    kv_miss_penalty: Ratio = 0.27
    preprocess_p95_limit_s: Seconds = 0.120
    preprocess_penalty: Ratio = 0.21
    nvlink_limit_ratio: Ratio = 0.82
    pcie_limit_ratio: Ratio = 0.85
    link_penalty: Ratio = 0.20
    floor_weight: Ratio = 0.1
    breaker_failures: Annotated[int, Field(ge=1)] = BREAKER_FAILURES
    breaker_error_ratio: Ratio = BREAKER_ERROR_RATIO
    """A quarter of the requests failing is fifty times the default error budget: not a spike."""
    breaker_min_requests: Annotated[int, Field(ge=1)] = BREAKER_REQUESTS
    breaker_open_s: Seconds = 30
    breaker_close_error_ratio: Ratio = 0.05
    breaker_trial_requests: Annotated[int, Field(ge=1)] = 10


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


class Breaker(NamedTuple):
    """A tuple: one is made for each backend at each tick, and a dataclass takes three times as long."""

    state: BreakerState = BreakerState.CLOSED
    changed_at: float = 0.0
    failures_in_a_row: float = 0.0
    ok_seen: float | None = None
    errors_seen: float | None = None
    trial_ok: float = 0.0
    trial_errors: float = 0.0
    why: str = ""


KV_SPACING_S = 60.0
"""One reading a minute: windows of a minute that overlap would be one fact told many times."""
KV_READINGS = 10
"""Ten minutes of a backend's own history before its KV miss rate may be called worse than its baseline."""
KV_MARGIN = 0.05
KV_SIGMAS = 4.0
"""Prefix hits come and go with the traffic: only what lies outside the backend's own spread is a change."""
KV_FORGETTING = 0.05
"""Weight of the newest reading: about the last twenty minutes count."""


@dataclass(frozen=True, slots=True)
class KvBaseline:
    """Running mean and variance of one backend's KV miss rate; ``taken_at`` in monotonic seconds."""

    mean: float = 0.0
    variance: float = 0.0
    readings: int = 0
    taken_at: float = float("-inf")

    def updated(self, miss: float, now: float) -> KvBaseline:
        if now - self.taken_at < KV_SPACING_S:
            return self
        readings = self.readings + 1
        share = max(KV_FORGETTING, 1.0 / readings)
        step = miss - self.mean
        variance = (1.0 - share) * (self.variance + share * step * step)
        return KvBaseline(self.mean + share * step, variance, readings, now)

    def is_worse(self, miss: float) -> bool:
        return self.readings >= KV_READINGS and miss - self.mean > max(KV_MARGIN, KV_SIGMAS * sqrt(self.variance))


@dataclass(frozen=True, slots=True)
class Memory:
    breakers: Mapping[str, Breaker] = field(default_factory=lambda: EMPTY)
    kv: Mapping[str, KvBaseline] = field(default_factory=lambda: EMPTY)
    dead_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """When each backend was last seen dead, monotonic seconds."""


AFTERMATH_S = 20.0
"""Tokens that waited out a hang are counted when it ends: for as long as they can stand in the recent window, a slow
step time describes the hang and not the backend."""


@dataclass(frozen=True, slots=True)
class _Want:
    knob: Knob
    value: float | str
    reason: str
    signals: tuple[str, ...] = ()


def decide(
    situation: Situation, params: GpuHealthGateParams, mode: Mode, memory: Memory
) -> tuple[Memory, tuple[DesiredState, ...]]:
    """One desired state for each knob of each backend that should not have its normal share of the traffic."""
    breakers: dict[str, Breaker] = {}
    baselines: dict[str, KvBaseline] = {}
    dead_at = dict(memory.dead_at)
    now = situation.snapshot.now
    desired: list[DesiredState] = []
    new_breaker, new_baseline = Breaker(), KvBaseline()
    error_ratios = {name: e for name, w in situation.recent.items() if (e := w.failure_ratio) is not None}
    overall = median(error_ratios.values()) if error_ratios else None
    heard, windows, recents = situation.heard, situation.windows, situation.recent
    for backend in situation.snapshot.backends:
        name = backend.name
        seen = heard.get(name)
        breaker = memory.breakers.get(name, new_breaker)
        baseline = memory.kv.get(name, new_baseline)
        if seen is None:  # unknown wants nothing and changes nothing remembered
            breakers[name], baselines[name] = breaker, baseline
            continue
        window, recent = windows.get(name), recents.get(name)
        peers = overall if len(error_ratios) > EXACT_PEERS else peers_error_ratio(error_ratios, name, overall)
        breaker = breakers[name] = step_breaker(breaker, seen, recent, peers, params, now)
        if seen.state.is_dead:
            dead_at[name] = now
        step_time_s = None if now - dead_at.get(name, -AFTERMATH_S) < AFTERMATH_S else _step_time_s(recent)
        miss = window.kv_miss_ratio if window else None
        worse_miss = miss if miss is not None and baseline.is_worse(miss) else None
        baselines[name] = baseline if miss is None or worse_miss is not None else baseline.updated(miss, now)
        if breaker.state is BreakerState.CLOSED and _looks_well(seen, step_time_s, window, worse_miss, params):
            continue  # nearly all of a fleet
        wants = [
            *_dead(seen),
            *_breaker_wants(breaker, params),
            *_pressure(seen, recent, situation.slo.ttft_p99_s, params),
            *_lost_gpu(seen, recent, params),
            *_slow(seen, step_time_s, window, worse_miss, params),
        ]
        desired.extend(DesiredState(NAME, name, w.knob, w.value, w.reason, mode, w.signals, seen.age_s) for w in wants)
    return Memory(breakers, baselines, dead_at), tuple(desired)


def _looks_well(
    seen: BackendObservation, step_s: float | None, window: Window | None, worse_miss: float | None, params: GpuHealthGateParams
) -> bool:
    """The cheap half of the question: whether it lives and nothing of it is over any limit, so that there is nothing to want."""
    pressure = seen.value(catalog.VRAM_PRESSURE.name)
    if seen.state.is_dead or worse_miss is not None or (pressure is not None and pressure > params.memory_pressure_limit_ratio):
        return False
    if step_s is not None and step_s > params.step_time_limit_s:
        return False
    for gpu in seen.gpus:
        age_s = gpu.sample_age_s.value
        if age_s is not None and age_s > params.gpu_missed_after_s:
            return False
    return not _breached(seen, window, worse_miss, params)


def _dead(seen: BackendObservation) -> list[_Want]:
    if not seen.state.is_dead:
        return []
    why = "; ".join(seen.reasons) or f"the exporter reports {seen.state}"
    return [_Want(Knob.ADMISSION, DRAIN, f"{seen.state}: {why}", ("no_progress", "probe_unanswered"))]


def _breaker_wants(breaker: Breaker, params: GpuHealthGateParams) -> list[_Want]:
    if breaker.state is BreakerState.OPEN:
        return [_Want(Knob.ADMISSION, DRAIN, f"breaker open: {breaker.why}", ("errors", "peers_unaffected"))]
    if breaker.state is BreakerState.TRIAL:
        return [_Want(Knob.WEIGHT, params.floor_weight, f"breaker on trial after: {breaker.why}")]
    return []


def _pressure(seen: BackendObservation, recent: Window | None, slo_ttft_s: float, params: GpuHealthGateParams) -> list[_Want]:
    pressure = seen.value(catalog.VRAM_PRESSURE.name)
    if pressure is None or pressure <= params.memory_pressure_limit_ratio:
        return []
    signals = ["memory_pressure"]
    preemptions = recent.rate(catalog.PREEMPTIONS.name) if recent else None
    if preemptions is not None and preemptions > params.preemptions_limit_per_s:
        signals.append("preemptions")
    p95 = recent.quantile("ttft", 0.95) if recent else None
    if p95 is not None and p95.value > slo_ttft_s:
        signals.append("latency")
    reason = f"memory pressure {pressure:.0%}, limit {params.memory_pressure_limit_ratio:.0%}"
    return [
        _Want(Knob.WEIGHT, params.slow_weight, reason, tuple(signals)),
        _Want(Knob.ADMISSION, DRAIN, f"{reason}; with {', '.join(signals[1:]) or 'no second signal'}", tuple(signals)),
    ]


_BLIND = (State.UNKNOWN, State.MISCONFIGURED)
"""States that say that we do not know: whoever lost sight of page and GPU together has no second signal, only less sight."""


def _lost_gpu(seen: BackendObservation, recent: Window | None, params: GpuHealthGateParams) -> list[_Want]:
    ages = {gpu.uuid: gpu.sample_age_s.value for gpu in seen.gpus}
    lost = [uuid for uuid, age in ages.items() if age is not None and age > params.gpu_missed_after_s]
    if not lost:
        return []
    signals = ["gpu_lost"]
    errors = recent.failure_ratio if recent else None
    if errors is not None and errors > params.breaker_close_error_ratio:
        signals.append("errors")
    if not (seen.state.takes_work or seen.state in _BLIND):
        signals.append("not_serving")
    reason = f"no sample of GPU {', '.join(lost)} for more than {params.gpu_missed_after_s:g} s"
    return [_Want(Knob.ADMISSION, DRAIN, reason, tuple(signals))]


def _slow(
    seen: BackendObservation,
    step_s: float | None,
    window: Window | None,
    worse_miss: float | None,
    params: GpuHealthGateParams,
) -> list[_Want]:
    """One weight: step time and derating multiply, and the floor holds for the product."""
    weight, reasons = 1.0, []
    if step_s is not None and step_s > params.step_time_limit_s:
        weight *= params.slow_weight
        reasons.append(f"mean step time {step_s * 1e3:.0f} ms, limit {params.step_time_limit_s * 1e3:.0f} ms")
    penalty = 0.0
    for name, share in _breached(seen, window, worse_miss, params):
        penalty += share
        reasons.append(name)
    weight = max(params.floor_weight, weight * (1.0 - penalty))
    if not reasons:
        return []
    return [_Want(Knob.WEIGHT, round(weight, 4), "; ".join([*reasons, *_causes(seen)]), ("gpu",))]


def _step_time_s(recent: Window | None) -> float | None:
    if recent is None:
        return None
    step = recent.mean_s(catalog.STEP_TIME.name)
    return step if step is not None else recent.mean_s(catalog.ITL.name)


def _breached(
    seen: BackendObservation, window: Window | None, worse_miss: float | None, params: GpuHealthGateParams
) -> list[tuple[str, float]]:
    fragmentation = nvlink = pcie = -inf  # below every limit where nobody tells
    for gpu in seen.gpus:
        fragmentation = _larger(fragmentation, gpu.fragmentation_ratio.value)
        nvlink, pcie = _larger(nvlink, gpu.nvlink_ratio.value), _larger(pcie, gpu.pcie_ratio.value)
    pre = window.quantile("preprocess", 0.95) if window else None
    found = []
    if fragmentation > params.fragmentation_limit_ratio:
        words = _over("fragmentation", fragmentation, params.fragmentation_limit_ratio)
        found.append((words, params.fragmentation_penalty))
    if worse_miss is not None and worse_miss > params.kv_miss_limit_ratio:
        found.append((_over("KV miss rate", worse_miss, params.kv_miss_limit_ratio), params.kv_miss_penalty))
    if pre is not None and pre.value > params.preprocess_p95_limit_s:
        words = _over("preprocessing P95 in s", pre.value, params.preprocess_p95_limit_s)
        found.append((words, params.preprocess_penalty))
    if nvlink > params.nvlink_limit_ratio:  # the two links are one dimension with one penalty
        found.append((_over("NVLink use", nvlink, params.nvlink_limit_ratio), params.link_penalty))
    elif pcie > params.pcie_limit_ratio:
        found.append((_over("PCIe use", pcie, params.pcie_limit_ratio), params.link_penalty))
    return found


def _over(what: str, value: float, limit: float) -> str:
    return f"{what} {value:.2f}, limit {limit:.2f}"


def _larger(worst: float, value: float | None) -> float:
    return worst if value is None or value <= worst else value


HOT_CELSIUS = 75.0
"""Above this a GPU is named as a cause (product description 3.4)."""


def _causes(seen: BackendObservation) -> list[str]:
    causes = []
    for gpu in seen.gpus:
        heat = gpu.temperature_celsius.value
        if heat is not None and heat > HOT_CELSIUS:
            causes.append(f"GPU {gpu.uuid} at {heat:.0f} °C")
        if gpu.throttle_reasons:
            causes.append(f"GPU {gpu.uuid} throttled: {', '.join(gpu.throttle_reasons)}")
    return causes


EXACT_PEERS = 50
"""Up to this many backends the own ratio is left out of the median; above it one value cannot move it."""


def peers_error_ratio(ratios: Mapping[str, float], backend: str, overall: float | None) -> float | None:
    """Median error ratio of the other backends, in [0, 1]; None where there is no other to compare with."""
    if len(ratios) > EXACT_PEERS:
        return overall
    others = [ratio for name, ratio in ratios.items() if name != backend]
    return median(others) if others else None


def step_breaker(
    breaker: Breaker,
    seen: BackendObservation,
    recent: Window | None,
    peers_error_ratio: float | None,
    params: GpuHealthGateParams,
    now: float,
) -> Breaker:
    """The breaker after this observation. Only finished requests move it; silence never does."""
    ok, errors = _finished(seen)
    new_ok = max(0.0, ok - breaker.ok_seen) if ok is not None and breaker.ok_seen is not None else 0.0
    new_errors = max(0.0, errors - breaker.errors_seen) if errors is not None and breaker.errors_seen is not None else 0.0
    unbroken = ok is not None and breaker.ok_seen is not None and new_ok == 0  # unseen successes break a row too
    in_a_row = breaker.failures_in_a_row + new_errors if unbroken else 0.0
    if breaker.state is BreakerState.CLOSED:  # nearly all: spelt out, because _replace() takes three times as long
        tried = breaker.trial_ok, breaker.trial_errors
        breaker = Breaker(BreakerState.CLOSED, breaker.changed_at, in_a_row, ok, errors, *tried, breaker.why)
        return _maybe_open(breaker, recent, peers_error_ratio, params, now)
    breaker = breaker._replace(ok_seen=ok, errors_seen=errors, failures_in_a_row=in_a_row)
    if breaker.state is BreakerState.OPEN:
        if now - breaker.changed_at >= params.breaker_open_s and seen.state.takes_work:
            return breaker._replace(state=BreakerState.TRIAL, changed_at=now, trial_ok=0, trial_errors=0)
        return breaker
    trial = breaker._replace(trial_ok=breaker.trial_ok + new_ok, trial_errors=breaker.trial_errors + new_errors)
    total = trial.trial_ok + trial.trial_errors
    if total < params.breaker_trial_requests:
        return trial
    if trial.trial_errors / total < params.breaker_close_error_ratio:
        return trial._replace(state=BreakerState.CLOSED, changed_at=now, failures_in_a_row=0, why="")
    return trial._replace(state=BreakerState.OPEN, changed_at=now, why="still failing on trial")


def _maybe_open(
    breaker: Breaker, recent: Window | None, peers_error_ratio: float | None, params: GpuHealthGateParams, now: float
) -> Breaker:
    if peers_error_ratio is None or peers_error_ratio >= params.breaker_close_error_ratio:
        return breaker  # everyone fails: a common cause, not this backend
    if breaker.failures_in_a_row >= params.breaker_failures:
        why = f"{breaker.failures_in_a_row:.0f} failures in a row, peers at {peers_error_ratio:.1%}"
    elif recent is not None and (taken := recent.taken) is not None and taken[1] > params.breaker_error_ratio * taken[0]:
        count, failed = taken
        if count < params.breaker_min_requests:
            return breaker
        why = f"{failed / count:.0%} of {count:.0f} requests failed, peers at {peers_error_ratio:.1%}"
    else:
        return breaker
    return breaker._replace(state=BreakerState.OPEN, changed_at=now, why=why)


def _finished(seen: BackendObservation) -> tuple[float | None, float | None]:
    ok = seen.value(OUTCOME_SLOT["ok"])
    errors = seen.value(OUTCOME_SLOT["error"])
    return ok, errors


POLICY = Policy(
    name=NAME,
    summary="Drain what cannot serve, lighten what serves badly.",
    knobs=(Knob.ADMISSION, Knob.WEIGHT),
    new_memory=Memory,
    decide=decide,
)
