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
from math import inf, nan
from statistics import median
from typing import NamedTuple

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.columns import Columns, columns
from tailkeeper_watchdog.many_windows import Column, Mask, number_or_none
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
from tailkeeper_watchdog.policy_params import GpuHealthGateParams
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.table import Matrix, Table
from tailkeeper_watchdog.window import Window

_OK, _ERROR = OUTCOME_SLOT["ok"], OUTCOME_SLOT["error"]
NAME = "gpu_health_gate"


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


class Breaker(NamedTuple):
    """What is remembered of one backend's failures. Counts are as they were last seen; None is not told."""

    state: BreakerState = BreakerState.CLOSED
    changed_at: float = 0.0
    failures_in_a_row: float = 0.0
    ok_seen: float | None = None
    errors_seen: float | None = None
    trial_ok: float = 0.0
    trial_errors: float = 0.0
    why: str = ""


_CLOSED = Breaker()

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
class Memory:
    breakers: Mapping[str, Breaker] = field(default_factory=lambda: EMPTY)
    """Those that are open or on trial."""
    counted: Table = field(default_factory=Table)
    """Of every backend what a closed breaker knows: see ``_UNCOUNTED``."""
    kv: Table = field(default_factory=Table)
    """Of every backend the baseline of its KV miss rate: see ``_NO_BASELINE``."""
    dead_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """When each backend was last seen dead, monotonic seconds."""


_UNCOUNTED = (nan, nan, 0.0)
"""Requests that ended well when it was last seen, those that failed, and failures in a row; NaN is not told."""
_NO_BASELINE = (0.0, 0.0, 0.0, -inf)
"""Running mean and variance, readings, and when the last one was taken, in monotonic seconds."""

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
    """One desired state for each knob of each backend that should not have its normal share of the traffic. One that is not heard
    of wants nothing, and nothing that is remembered of it changes."""
    fleet, now = columns(situation), situation.snapshot.now
    breakers, counted = _stepped(fleet, situation, memory, params)
    kv, worse = _kv_baselines(fleet, memory, now)
    dead_at = {**memory.dead_at, **{fleet.names[place]: now for place in np.flatnonzero(fleet.dead)}}
    step_s = _step_time_s(fleet)
    desired: list[DesiredState] = []
    for place in _suspects(fleet, breakers, step_s, worse, params):
        name, seen = fleet.names[place], fleet.seen[place]
        if seen is None:
            continue
        window, recent = situation.windows.get(name), situation.recent.get(name)
        after_hang = now - dead_at.get(name, -AFTERMATH_S) < AFTERMATH_S
        worse_miss = window.kv_miss_ratio if window is not None and worse[place] else None
        wants = [
            *_dead(seen),
            *_breaker_wants(breakers.get(name, _CLOSED), params),
            *_pressure(seen, recent, situation.slo.ttft_p99_s, params),
            *_lost_gpu(seen, recent, params),
            *_slow(seen, None if after_hang else number_or_none(step_s[place]), window, worse_miss, params),
        ]
        desired.extend(DesiredState(NAME, name, w.knob, w.value, w.reason, mode, w.signals, seen.age_s) for w in wants)
    return Memory(breakers, counted, kv, dead_at), tuple(desired)


def _suspects(
    fleet: Columns, breakers: Mapping[str, Breaker], step_s: Column, worse: Mask, params: GpuHealthGateParams
) -> list[int]:
    """Those of whom anything is over any limit: of all others, nearly all of a fleet, there is nothing to want."""
    over = (
        fleet.dead
        | worse
        | (step_s > params.step_time_limit_s)
        | (fleet.told(catalog.VRAM_PRESSURE.name) > params.memory_pressure_limit_ratio)
        | (fleet.told(catalog.GPU_SAMPLE_AGE.name) > params.gpu_missed_after_s)
        | (fleet.told(catalog.GPU_FRAGMENTATION.name) > params.fragmentation_limit_ratio)
        | (fleet.told(catalog.GPU_NVLINK.name) > params.nvlink_limit_ratio)
        | (fleet.told(catalog.GPU_PCIE.name) > params.pcie_limit_ratio)
        | (fleet.minute.quantile("preprocess", 0.95).value > params.preprocess_p95_limit_s)
    )
    over[fleet.places(breakers)] = True
    return [int(place) for place in np.flatnonzero(over & fleet.heard)]


def _stepped(
    fleet: Columns, situation: Situation, memory: Memory, params: GpuHealthGateParams
) -> tuple[dict[str, Breaker], Table]:
    """The breakers after this tick: side by side as long as they stay closed, one by one where one is not or may not stay so."""
    ok, errors = fleet.standing.of(_OK), fleet.standing.of(_ERROR)
    counted = memory.counted.of(fleet.names, _UNCOUNTED)
    ok_seen, errors_seen, in_a_row = counted.T
    silent = ok <= ok_seen  # of requests that ended well; false where either is not told
    new_errors = np.where(errors > errors_seen, errors - errors_seen, 0.0)
    after = np.column_stack((ok, errors, np.where(silent, in_a_row + new_errors, 0.0)))
    finished, failed = fleet.lately.taken()
    may_open = (after[:, 2] >= params.breaker_failures) | (failed > params.breaker_error_ratio * finished)
    held = np.zeros(len(fleet.names), dtype=bool)
    held[fleet.places(memory.breakers)] = True
    ratios = _failure_ratios(fleet)
    overall = median(ratios.values()) if ratios else None
    breakers = {name: memory.breakers[name] for place in np.flatnonzero(held & ~fleet.heard) if (name := fleet.names[place])}
    for place in np.flatnonzero((held | may_open) & fleet.heard):
        name, seen = fleet.names[place], fleet.seen[place]
        if seen is not None:
            before = memory.breakers.get(name) or _closed(*counted[place].tolist())
            peers = peers_error_ratio(ratios, name, overall)
            breaker = step_breaker(before, seen, situation.recent.get(name), peers, params, situation.snapshot.now)
            after[place, 2] = breaker.failures_in_a_row
            if breaker.state is not BreakerState.CLOSED:
                breakers[name] = breaker
    return breakers, Table(fleet.names, np.where(fleet.heard[:, None], after, counted))


def _closed(ok_seen: float, errors_seen: float, in_a_row: float) -> Breaker:
    return Breaker(failures_in_a_row=in_a_row, ok_seen=number_or_none(ok_seen), errors_seen=number_or_none(errors_seen))


def _failure_ratios(fleet: Columns) -> dict[str, float]:
    """By backend, where anything finished; whether it is heard of or not."""
    finished, failed = fleet.lately.taken()
    places = np.flatnonzero(finished > 0)
    return dict(zip([fleet.names[place] for place in places], (failed[places] / finished[places]).tolist(), strict=True))


def _kv_baselines(fleet: Columns, memory: Memory, now: float) -> tuple[Table, Mask]:
    """The baselines after this tick, and whose KV miss rate is worse than its own: what is worse does not become usual."""
    lines = memory.kv.of(fleet.names, _NO_BASELINE)
    mean, variance, readings, taken_at = lines.T
    miss = np.where(fleet.heard, fleet.minute.kv_miss_ratio(), nan)
    worse = (readings >= KV_READINGS) & (miss - mean > np.maximum(KV_MARGIN, KV_SIGMAS * np.sqrt(variance)))
    due = np.flatnonzero(~np.isnan(miss) & ~worse & (now - taken_at >= KV_SPACING_S))
    lines[due] = _updated(lines[due], miss[due], now)
    return Table(fleet.names, lines), worse


def _updated(lines: Matrix, miss: Column, now: float) -> Matrix:
    """Baselines with one more reading each."""
    mean, variance, readings, _ = lines.T
    share = np.maximum(KV_FORGETTING, 1.0 / (readings + 1))
    step = miss - mean
    after = (1.0 - share) * (variance + share * step * step)
    return np.column_stack((mean + share * step, after, readings + 1, np.full(len(lines), now)))


def _step_time_s(fleet: Columns) -> Column:
    """Of an engine that tells no steps, the time between two tokens."""
    step = fleet.lately.mean_s(catalog.STEP_TIME.name)
    return np.where(np.isnan(step), fleet.lately.mean_s(catalog.ITL.name), step)


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
    ok, errors = seen.value(_OK), seen.value(_ERROR)
    new_ok = max(0.0, ok - breaker.ok_seen) if ok is not None and breaker.ok_seen is not None else 0.0
    new_errors = max(0.0, errors - breaker.errors_seen) if errors is not None and breaker.errors_seen is not None else 0.0
    unbroken = ok is not None and breaker.ok_seen is not None and new_ok == 0  # unseen successes break a row too
    in_a_row = breaker.failures_in_a_row + new_errors if unbroken else 0.0
    breaker = breaker._replace(ok_seen=ok, errors_seen=errors, failures_in_a_row=in_a_row)
    if breaker.state is BreakerState.CLOSED:
        return _maybe_open(breaker, recent, peers_error_ratio, params, now)
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


POLICY = Policy(
    name=NAME,
    summary="Drain what cannot serve, lighten what serves badly.",
    knobs=(Knob.ADMISSION, Knob.WEIGHT),
    new_memory=Memory,
    decide=decide,
)
