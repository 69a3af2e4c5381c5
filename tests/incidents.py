"""Simulated incidents with a planted cause: requests through a queue, as an engine's spans or as a tap would tell them.

Prefill is a queue served in order (so that one long prompt delays whoever comes behind it), decode runs beside it, the CPU
prepares each prompt before. All is drawn from one seed. The fault changes the physics; what the records and gauges say of it
follows. Labelled a simulation: it knows nothing of batching, memory or preemption.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from tailkeeper_watchdog.attribution.changes import Candidate
from tailkeeper_watchdog.attribution.hand_down import Given
from tailkeeper_watchdog.attribution.request_log import RequestLog
from tailkeeper_watchdog.attribution.resources import RESOURCES, STAGE_MEANS, compared, rank
from tailkeeper_watchdog.model import RequestRecord

MIN_RISE = 1.2
FAULTS = ("prefill", "tenant", "canary", "throttle", "cpu", "none")
EXPECTED = {
    "prefill": ("stage", "prefill"),
    "tenant": ("tenant", "t2"),
    "canary": ("canary_revision", "v2"),
    "throttle": ("resource", "gpu_throttled"),
    "cpu": ("resource", "preprocess_time"),
    "none": ("unknown", "unknown"),
}
TENANTS = ("t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7")
TENANT_PARTS = np.array([0.3, 0.2, 0.12, 0.12, 0.1, 0.08, 0.05, 0.03])
TENANT_TOKENS = np.array([300, 500, 400, 900, 1500, 250, 3000, 700])


@dataclass(frozen=True)
class Physics:
    """What an engine and its users are like. Seconds and tokens."""

    rate: float = 4.0
    per_token_s: float = 5e-5
    itl_s: float = 0.02
    prepare_s: float = 0.004
    image_s: float = 0.03
    cpu_factor: float = 1.0
    tenant_tokens: float = 1.0
    tenant_rate: float = 1.0
    canary_part: float = 0.0
    canary_factor: float = 1.0


@dataclass(frozen=True)
class Incident:
    """One finding's evidence and what was planted."""

    fault: str
    view: str
    given: Given
    expected: tuple[str, str]


def incident(fault: str, seed: int) -> Incident:
    """The evidence of one incident with ``fault``; everything else is drawn by the seed.

    Drawn anew until P99 of the signal has risen by a fifth: below that no detector would have opened a finding.
    """
    rng = np.random.default_rng([seed, FAULTS.index(fault)])
    while True:
        drawn = _draw(fault, rng)
        if fault == "none" or _rise(drawn.given) >= MIN_RISE:
            return drawn


def _rise(given: Given) -> float:
    assert given.baseline is not None
    assert given.current is not None
    before, now = (np.nanquantile(sample.rows[f"{given.signal}_s"], 0.99) for sample in (given.baseline, given.current))
    return float(now / before)


def _draw(fault: str, rng: np.random.Generator) -> Incident:
    usual = Physics(rate=rng.uniform(2, 8), canary_part=float(rng.choice([0.0, 0.1])))
    load = _load(usual)
    usual = replace(usual, per_token_s=usual.per_token_s * rng.uniform(0.25, 0.55) / load)
    ill = _ill(usual, fault, rng)
    view = "blind" if fault == "none" and rng.random() < 0.5 else str(rng.choice(["engine", "tap"]))
    signal = "ttft" if rng.random() < 0.7 else "e2e"
    log, onset = RequestLog(), 10_000.0
    log.extend(_requests(usual, int(rng.integers(2_000, 6_000)), onset, view, rng), onset - 1, 10_000)
    if view == "blind":
        ill = replace(usual, per_token_s=usual.per_token_s * 2.0)
    log.extend(_requests(ill, int(rng.integers(400, 3_000)), onset, view, rng), onset + 1, 10_000)
    lines, now, peers = _gauges(fault, ill.cpu_factor, rng)
    distractor = (Candidate("action", "weight 1 (slo_guardian, applied)", 400.0, 0.1),) if rng.random() < 0.3 else ()
    given = Given(signal, log.between(0, onset), log.between(onset, onset + 10), rank(compared(now, lines, peers)), distractor)
    return Incident(fault, view, given, EXPECTED[fault])


def _load(physics: Physics) -> float:
    """Part of the time in which the prefill is busy, about."""
    parts = TENANT_PARTS.copy()
    tokens = TENANT_TOKENS.astype(float)
    parts[2] *= physics.tenant_rate
    tokens[2] *= physics.tenant_tokens
    slow = 1 + physics.canary_part * (physics.canary_factor - 1)
    return float(physics.rate * (parts * tokens).sum() * 1.1 * physics.per_token_s * slow)


def _ill(usual: Physics, fault: str, rng: np.random.Generator) -> Physics:
    """As the fault changes it, but never so that the queue grows without end: there would be no P99 to speak of."""
    while True:
        match fault:
            case "prefill":
                ill = replace(usual, per_token_s=usual.per_token_s * rng.uniform(1.5, 3.0))
            case "tenant":
                ill = replace(usual, tenant_tokens=rng.uniform(4, 20), tenant_rate=rng.uniform(1, 2))
            case "canary":
                ill = replace(usual, canary_part=rng.uniform(0.1, 0.3), canary_factor=rng.uniform(2, 5))
            case "throttle":
                factor = rng.uniform(1.4, 2.2)
                ill = replace(usual, per_token_s=usual.per_token_s * factor, itl_s=usual.itl_s * factor)
            case "cpu":
                ill = replace(usual, cpu_factor=rng.uniform(20, 60))
            case _:
                return usual
        if _load(ill) < 0.9:
            return ill


def _requests(physics: Physics, count: int, at: float, view: str, rng: np.random.Generator) -> list[RequestRecord]:
    parts = TENANT_PARTS.copy()
    parts[2] *= physics.tenant_rate
    tenants = rng.choice(len(TENANTS), count, p=parts / parts.sum())
    tokens = np.maximum(8, TENANT_TOKENS[tenants] * rng.lognormal(0.0, 0.45, count))
    tokens[tenants == 2] *= physics.tenant_tokens
    canary = rng.random(count) < physics.canary_part
    image = rng.random(count) < 0.15
    starts = at + np.cumsum(rng.exponential(1.0 / (physics.rate * parts.sum()), count))
    slow = np.where(canary, physics.canary_factor, 1.0)
    prefill = (0.01 + tokens * physics.per_token_s) * slow * rng.lognormal(0.0, 0.05, count)
    prepare = physics.cpu_factor * (physics.prepare_s + tokens * 1e-6 + image * physics.image_s) * rng.lognormal(0.0, 0.2, count)
    network = rng.lognormal(np.log(0.01), 0.3, count)
    queue, ahead = _queue(starts + prepare, prefill, tokens)
    generated = np.maximum(2, rng.lognormal(np.log(120), 0.6, count))
    itl = physics.itl_s * slow * rng.lognormal(0.0, 0.1, count)
    ttft = prepare + network + queue + prefill
    told = _as_told(view, ttft, queue, prefill, tokens, ahead)
    columns = {
        "ttft_s": ttft,
        "itl_s": itl,
        "e2e_s": ttft + generated * itl,
        "start_unix_s": starts,
        "outcome": np.where(rng.random(count) > 0.003, "ok", "error"),
        "modality": np.where(image, "image", "text"),
        "canary_revision": np.where(canary, "v2", "v1"),
        **told,
        **({} if view == "blind" else {"tenant": np.array(TENANTS)[tenants]}),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [RequestRecord(backend="a", model="m", **dict(zip(columns, row, strict=True))) for row in rows]


def _as_told(
    view: str, ttft: np.ndarray, queue: np.ndarray, prefill: np.ndarray, tokens: np.ndarray, ahead: np.ndarray
) -> dict[str, np.ndarray]:
    """What an engine's spans say, or a tap that sees the engine from outside, or one that only measures the whole."""
    if view == "blind":
        return {}
    if view == "engine":
        return {"queue_s": queue, "prefill_s": prefill, "prompt_tokens": np.round(tokens)}
    waited = np.full(ttft.size, 0.0005)
    return {"queue_s": waited, "prefill_s": ttft - waited, "prompt_tokens": np.round(tokens), "backlog_tokens": ahead}


def _queue(arrivals: np.ndarray, service: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Waits in order of arrival, and the prompt tokens that each found before it: those waiting or in prefill."""
    waits, ahead = np.zeros(arrivals.size), np.zeros(arrivals.size)
    order = np.argsort(arrivals, kind="stable")
    inside: deque[tuple[float, float]] = deque()
    free = held = 0.0
    for i, at, takes, size in zip(
        order.tolist(), arrivals[order].tolist(), service[order].tolist(), tokens[order].tolist(), strict=True
    ):
        while inside and inside[0][0] <= at:
            held -= inside.popleft()[1]
        begin = max(at, free)
        waits[i], ahead[i], free = begin - at, max(0.0, held), begin + takes
        inside.append((free, size))
        held += size
    return waits, ahead


_USUAL = {
    "gpu_throttled": 0.0,
    "gpu_sm_clock": 1.9e9,
    "gpu_temperature": 62.0,
    "preprocess_time": 0.009,
    "cpu_usage": 0.35,
    "pcie": 0.2,
    "nvlink": 0.3,
    "preemptions": 0.0,
    "kv_usage": 0.5,
    "gpu_utilization": 0.6,
}
_SCATTER = {
    "gpu_sm_clock": 1e7,
    "gpu_temperature": 1.5,
    "preprocess_time": 0.001,
    "cpu_usage": 0.04,
    "pcie": 0.03,
    "nvlink": 0.03,
    "kv_usage": 0.08,
    "gpu_utilization": 0.08,
}


def _gauges(fault: str, cpu_factor: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The backend's lines of the last half hour, its line now, and those of three peers."""

    def line() -> np.ndarray:
        values = [max(0.0, rng.normal(_USUAL[r.name], _SCATTER.get(r.name, 0.0))) for r in RESOURCES]
        return np.array([*values, *(nan for _ in STAGE_MEANS)])

    lines, now, peers = np.stack([line() for _ in range(30)]), line(), [line() for _ in range(3)]
    names = [r.name for r in RESOURCES]
    if fault == "throttle":
        now[names.index("gpu_throttled")] = 1.0
        now[names.index("gpu_sm_clock")] *= rng.uniform(0.45, 0.7)
        now[names.index("gpu_temperature")] += rng.uniform(8, 25)
    if fault == "cpu":
        now[names.index("preprocess_time")] *= cpu_factor
        now[names.index("cpu_usage")] = rng.uniform(0.85, 1.0)
    if fault in ("prefill", "tenant", "canary", "throttle"):
        now[names.index("gpu_utilization")] = min(1.0, now[names.index("gpu_utilization")] + rng.uniform(0.05, 0.3))
    if fault == "tenant":
        now[names.index("kv_usage")] = min(1.0, now[names.index("kv_usage")] + rng.uniform(0.0, 0.4))
    return lines, now, peers
