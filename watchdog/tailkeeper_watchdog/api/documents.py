"""Records of the core as the JSON documents of the public contract. Pure: values in, plain dictionaries out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailkeeper_exporter.readings import Quantile
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.model import (
    SERVE,
    Backend,
    BackendObservation,
    Decision,
    Enforceability,
    Finding,
    HealthScore,
    Knob,
    Lease,
    Mode,
    Target,
    TickRecord,
)
from tailkeeper_watchdog.policies import POLICIES

Json = dict[str, Any]
MODE_ORDER = (Mode.OBSERVE, Mode.ADVISE, Mode.ENFORCE)


def fleet(
    record: TickRecord,
    paused: str | None,
    servers: Mapping[Target, ServerState],
    support: Mapping[tuple[str, Knob], Support],
    modes: Mapping[str, Mode],
    leases: tuple[Lease, ...],
) -> Json:
    """``GET /api/v1/fleet``."""
    highest = max(modes.values(), key=MODE_ORDER.index, default=Mode.OBSERVE)
    return {
        "time": record.time_unix_s,
        "tick": record.tick,
        "mode": highest.value,
        "paused": paused is not None,
        "paused_because": paused,
        "error": record.error or record.situation.snapshot.source_error,
        "slo_ttft_p99_s": record.situation.slo.ttft_p99_s,
        "backends": [_backend(b, record, servers, support, highest, leases) for b in record.situation.snapshot.backends],
    }


def _backend(
    backend: Backend,
    record: TickRecord,
    servers: Mapping[Target, ServerState],
    support: Mapping[tuple[str, Knob], Support],
    mode: Mode,
    leases: tuple[Lease, ...],
) -> Json:
    situation = record.situation
    seen = situation.snapshot.observations.get(backend.name)
    score = situation.scores.get(backend.name) or HealthScore(backend.name, None)
    p99 = situation.p99(backend.name, "ttft")
    actuation, why = _actuation(backend, support, mode)
    return {
        "backend": backend.name,
        "model": backend.model,
        "state": seen.state.value if seen else "unknown",
        "reasons": list(seen.reasons) if seen else [],
        "hscore": score.hscore,
        "dominant_factor": score.dominant_factor,
        "unknown_factors": list(score.unknown_factors),
        "factors": {
            f.name: {"goodness": f.goodness, "weight": f.weight, "value": f.value, "unit": f.unit} for f in score.factors
        },
        "p99_s": p99.value if p99 else None,
        "p99_saturated": p99.saturated if p99 else False,
        "samples": _samples(p99),
        "age_s": seen.age_s if seen else None,
        "desired": _desired(backend.name, record),
        "actual": _actual(backend, servers),
        "leases": [_lease(lease) for lease in leases if lease.backend == backend.name],
        "actuation": actuation.value,
        "why": why or _why_not(backend.name, record, seen),
        **_load(seen),
    }


def _samples(p99: Quantile | None) -> int:
    return p99.samples if p99 else 0


def _load(seen: BackendObservation | None) -> Json:
    """Queue, KV and GPU at a glance; null where not known."""
    if seen is None:
        return {"running": None, "waiting": None, "kv_usage_ratio": None, "gpu_utilization_ratio": None}
    use = [v for g in seen.gpus if (v := g.utilization_ratio.value) is not None]
    return {
        "running": seen.value("llm_requests_running"),
        "waiting": seen.value("llm_requests_waiting"),
        "kv_usage_ratio": seen.value("llm_kv_cache_usage_ratio"),
        "gpu_utilization_ratio": sum(use) / len(use) if use else None,
    }


def _desired(name: str, record: TickRecord) -> Json:
    wanted: Json = {"weight": 1.0, "admission": SERVE}
    for wish in record.desired:
        if wish.backend == name:
            known = wanted.get(wish.knob.value)
            wanted[wish.knob.value] = min(known, wish.value) if isinstance(known, float) else wish.value
    return wanted


def _actual(backend: Backend, servers: Mapping[Target, ServerState]) -> Json:
    """What the gateway reported at this tick; with several gateways the most restricted."""
    states = [servers[t] for t in backend.targets if t in servers]
    if not states:
        return {"weight": None, "admission": None}
    weights = [float(s.values[Knob.WEIGHT]) for s in states if Knob.WEIGHT in s.values]
    admissions = [s.values[Knob.ADMISSION] for s in states if Knob.ADMISSION in s.values]
    return {
        "weight": min(weights) if weights else None,
        "admission": next((a for a in admissions if a != SERVE), admissions[0] if admissions else None),
        "in_service": all(s.in_service for s in states),
    }


def _actuation(backend: Backend, support: Mapping[tuple[str, Knob], Support], mode: Mode) -> tuple[Enforceability, str]:
    knobs = {knob for policy in POLICIES for knob in policy.knobs}
    answers = [support[(backend.name, knob)] for knob in knobs if (backend.name, knob) in support]
    if not any(a.enforceable for a in answers):
        return Enforceability.NOT_ENFORCEABLE, answers[0].why_not if answers else "no gateway is configured"
    if mode is not Mode.ENFORCE:
        return Enforceability.OBSERVED, "no policy is in mode enforce"
    return Enforceability.ENFORCED, ""


def _why_not(name: str, record: TickRecord, seen: BackendObservation | None) -> str:
    """The answer to "why did nothing happen?": the first refusal, else what is known of the state."""
    for verdict in record.verdicts:
        if verdict.desired.backend == name and verdict.refusal is not None:
            return f"{verdict.refusal.value} ({verdict.detail})"
    if seen is not None and seen.error is not None:
        return seen.error
    return "; ".join(seen.reasons) if seen else "nothing is known of it yet"


def _lease(lease: Lease) -> Json:
    return {
        "id": lease.id,
        "gateway": lease.target.gateway,
        "server": lease.target.server,
        "knob": lease.knob.value,
        "prior": lease.prior,
        "written": lease.written,
        "policy": lease.policy,
        "reason": lease.reason,
        "since": lease.created_unix_s,
        "expires": lease.expires_unix_s,
        "confirmed": lease.confirmed,
    }


def finding(found: Finding) -> Json:
    """One element of ``GET /api/v1/findings``."""
    return {
        "id": found.id,
        "kind": found.kind.value,
        "backend": found.backend,
        "severity": found.severity.value,
        "since": found.since_unix_s,
        "until": found.until_unix_s,
        "summary": found.summary,
        "signal": found.signal or None,
        "evidence": dict(found.evidence),
        "shares": [
            {"dimension": s.dimension, "value": s.value, "share": s.share, "confidence": s.confidence} for s in found.shares
        ],
    }


def decision(made: Decision) -> Json:
    """One element of ``GET /api/v1/decisions``."""
    return {
        "id": made.id,
        "time": made.time_unix_s,
        "tick": made.tick,
        "policy": made.policy,
        "backend": made.backend,
        "knob": made.knob.value,
        "from": made.from_value,
        "to": made.to_value,
        "verdict": made.verdict.value,
        "reason": made.reason,
        "lease_expires": made.lease_expires_unix_s,
    }


def policies(backends: tuple[Backend, ...], support: Mapping[tuple[str, Knob], Support], modes: Mapping[str, Mode]) -> list[Json]:
    """``GET /api/v1/policies``: policy × backend, each with the reason in plain words."""
    table = []
    for policy in POLICIES:
        rows = []
        for backend in backends:
            answers = {knob: support[(backend.name, knob)] for knob in policy.knobs}
            rows.append({"backend": backend.name, **support_row(modes[policy.name], answers)})
        table.append(
            {
                "policy": policy.name,
                "summary": policy.summary,
                "mode": modes[policy.name].value,
                "knobs": [k.value for k in policy.knobs],
                "backends": rows,
            }
        )
    return table


def support_row(mode: Mode, answers: Mapping[Knob, Support]) -> Json:
    """How far one policy goes at one backend, and why."""
    missing = {knob: a.why_not for knob, a in answers.items() if not a.enforceable}
    if len(missing) == len(answers):
        return {"actuation": Enforceability.NOT_ENFORCEABLE.value, "why": next(iter(missing.values()), "no knob")}
    partly = "; ".join(f"{knob.value} not: {why}" for knob, why in missing.items())
    if mode is not Mode.ENFORCE:
        why = f"mode is {mode.value}: what it would do is written down" + (f"; {partly}" if partly else "")
        return {"actuation": Enforceability.OBSERVED.value, "why": why}
    return {"actuation": Enforceability.ENFORCED.value, "why": partly}
