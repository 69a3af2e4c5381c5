"""Records of the core as the JSON documents of the public contract. Pure: values in, plain dictionaries out.

A field that is not known is null, never 0. The fleet's document is made for 2,000 backends: everything that is looked
up by backend is sorted by backend once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Quantile
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.api.why import Circumstances, actuation_of, why_of
from tailkeeper_watchdog.attribution.words import said
from tailkeeper_watchdog.baseline_set import BaselineSet
from tailkeeper_watchdog.columns import p99_by_backend
from tailkeeper_watchdog.model import (
    SERVE,
    Backend,
    BackendObservation,
    Decision,
    DesiredState,
    Enforceability,
    Finding,
    HealthScore,
    Knob,
    KnobValue,
    Lease,
    Mode,
    Situation,
    Target,
    TickRecord,
    Verdict,
)
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.resolve import RESTRICTION
from tailkeeper_watchdog.switches import Hold

Json = dict[str, Any]
MODE_ORDER = (Mode.OBSERVE, Mode.ADVISE, Mode.ENFORCE)


@dataclass(frozen=True, slots=True)
class FleetView:
    """What ``GET /api/v1/fleet`` is made from, all of one moment. ``now_unix_s`` is the watchdog's own clock."""

    record: TickRecord
    now_unix_s: float
    tick_s: float
    support: Mapping[tuple[str, Knob], Support]
    modes: Mapping[str, Mode]
    servers: Mapping[Target, ServerState] = field(default_factory=dict)
    gateway_errors: Mapping[str, str] = field(default_factory=dict)
    paused: str | None = None
    leases: tuple[Lease, ...] = ()
    holds: Mapping[str, Hold] = field(default_factory=dict)
    shard: Json | None = None

    @property
    def mode(self) -> Mode:
        """How far the boldest policy may go."""
        return max(self.modes.values(), key=MODE_ORDER.index, default=Mode.OBSERVE)


class _OfBackend(Protocol):
    @property
    def backend(self) -> str: ...


T = TypeVar("T", bound=_OfBackend)


def _by_backend(rows: Iterable[T]) -> Mapping[str, tuple[T, ...]]:
    found: dict[str, list[T]] = defaultdict(list)
    for row in rows:
        found[row.backend].append(row)
    return {name: tuple(of_one) for name, of_one in found.items()}


@dataclass(frozen=True, slots=True)
class _Sorted:
    """A view's rows by backend."""

    desired: Mapping[str, tuple[DesiredState, ...]]
    leases: Mapping[str, tuple[Lease, ...]]
    verdicts: Mapping[str, tuple[Verdict, ...]]

    @classmethod
    def of(cls, view: FleetView) -> _Sorted:
        verdicts: dict[str, list[Verdict]] = defaultdict(list)
        for verdict in view.record.verdicts:
            verdicts[verdict.desired.backend].append(verdict)
        return cls(
            _by_backend(view.record.desired),
            _by_backend(view.leases),
            {name: tuple(of_one) for name, of_one in verdicts.items()},
        )


def fleet(view: FleetView) -> Json:
    """``GET /api/v1/fleet``."""
    record = view.record
    situation = record.situation
    rows = _Sorted.of(view)
    return {
        "time": record.time_unix_s,
        "now": view.now_unix_s,
        "tick": record.tick,
        "tick_s": view.tick_s,
        "mode": view.mode.value,
        "paused": view.paused is not None,
        "paused_because": view.paused,
        "shard": view.shard,
        "error": record.error or situation.snapshot.source_error,
        "gateway_errors": dict(view.gateway_errors),
        "slo_ttft_p99_s": situation.slo.ttft_p99_s,
        "stale_after_s": situation.stale_after_s,
        "backends": [_backend(backend, view, rows) for backend in situation.snapshot.backends],
    }


def _backend(backend: Backend, view: FleetView, rows: _Sorted) -> Json:
    name, situation = backend.name, view.record.situation
    seen = situation.snapshot.observations.get(name)
    desired = rows.desired.get(name, ())
    places = {(t.gateway, t.server) for t in backend.targets}
    # A lease that waits to be given back at a server which this backend has left is not about what it gets now.
    leases = tuple(x for x in rows.leases.get(name, ()) if (x.target.gateway, x.target.server) in places)
    actuation, unable = actuation_of(name, view.support, view.mode)
    circumstances = Circumstances(seen, desired, rows.verdicts.get(name, ()), leases, unable)
    return {
        "backend": name,
        "model": backend.model,
        "state": seen.state.value if seen else "unknown",
        "reasons": list(seen.reasons) if seen else [],
        **_score(situation.scores.get(name) or HealthScore(name, None)),
        **_p99(known_p99(situation, name, "ttft")),
        "age_s": seen.age_s if seen else None,
        "desired": _desired(desired, computed=view.record.error is None),
        "actual": _actual(backend, view.servers),
        "actuation": actuation.value,
        "why": why_of(circumstances),
        "leases": [_lease(lease) for lease in leases],
        "hold": _hold(view.holds.get(name)),
        **_load(seen),
    }


def _score(score: HealthScore) -> Json:
    return {
        "hscore": score.hscore,
        "confidence": score.confidence,
        "dominant_factor": score.dominant_factor,
        "factors": {
            f.name: {"goodness": f.goodness, "weight": f.weight, "value": f.value, "unit": f.unit} for f in score.factors
        },
        "unknown_factors": list(score.unknown_factors),
    }


def known_p99(situation: Situation, backend: str, signal: str) -> Quantile | None:
    """The P99 of a backend whose evidence is fresh. The last window of a silent one describes the past: it is not known."""
    return None if situation.fresh(backend) is None else p99_by_backend(situation, signal).get(backend)


def _p99(quantile: Quantile | None) -> Json:
    """No quantile means that no request is behind one: n = 0."""
    if quantile is None:
        return {"p99_s": None, "p99_saturated": False, "samples": 0}
    return {"p99_s": quantile.value, "p99_saturated": quantile.saturated, "samples": quantile.samples}


def _load(seen: BackendObservation | None) -> Json:
    """Queue, KV and GPU at a glance; null where not known."""
    use = [v for g in seen.gpus if (v := g.utilization_ratio.value) is not None] if seen else []
    return {
        "running": seen.value(catalog.RUNNING.name) if seen else None,
        "waiting": seen.value(catalog.WAITING.name) if seen else None,
        "kv_usage_ratio": seen.value(catalog.KV_USAGE.name) if seen else None,
        "gpu_utilization_ratio": sum(use) / len(use) if use else None,
    }


def _desired(wishes: tuple[DesiredState, ...], *, computed: bool) -> Json:
    """What the policies want, the most restrictive of it; normal where they want nothing, null where none was asked."""
    if not computed:
        return {"weight": None, "admission": None}
    wanted: dict[str, KnobValue] = {Knob.WEIGHT.value: 1.0, Knob.ADMISSION.value: SERVE}
    for wish in wishes:
        known = wanted.get(wish.knob.value, wish.value)
        wanted[wish.knob.value] = min(known, wish.value, key=RESTRICTION[wish.knob])
    return dict(wanted)


def _actual(backend: Backend, servers: Mapping[Target, ServerState]) -> Json:
    """What the gateway reported at this tick; with several gateways the most restricted."""
    states = [servers[t] for t in backend.targets if t in servers]
    weights = [float(s.values[Knob.WEIGHT]) for s in states if Knob.WEIGHT in s.values]
    admissions = [s.values[Knob.ADMISSION] for s in states if Knob.ADMISSION in s.values]
    return {
        "weight": min(weights) if weights else None,
        "admission": next((a for a in admissions if a != SERVE), admissions[0] if admissions else None),
        "in_service": all(s.in_service for s in states) if states else None,
        "doubt": "; ".join(s.doubt for s in states if s.doubt) or None,
    }


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


def kept(lease: Lease, why: str) -> Json:
    """A lease that a release could do nothing about, with why and what to do."""
    return {**_lease(lease), "backend": lease.backend, "why": why}


def _hold(hold: Hold | None) -> Json | None:
    return None if hold is None else {"reason": hold.reason, "until": hold.until_unix_s}


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
            {"dimension": s.dimension, "value": s.value, "said": said(s), "share": s.share, "confidence": s.confidence}
            for s in found.shares
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
    for policy in (policy for policy in POLICIES if policy.name in modes):
        rows = []
        for backend in backends:
            answers = {knob: support[(backend.name, knob)] for knob in policy.knobs}
            rows.append({"backend": backend.name, **support_row(modes[policy.name], answers)})
        table.append(_policy(policy.name, policy.summary, modes[policy.name], policy.knobs, rows))
    return table


def _policy(name: str, summary: str, mode: Mode, knobs: tuple[Knob, ...], rows: list[Json]) -> Json:
    return {"policy": name, "summary": summary, "mode": mode.value, "knobs": [k.value for k in knobs], "backends": rows}


def support_row(mode: Mode, answers: Mapping[Knob, Support]) -> Json:
    """How far one policy goes at one backend, and why; and the same for each of its knobs, for one may go without another."""
    knobs = {knob.value: _reach(mode, answer) for knob, answer in answers.items()}
    missing = {knob: a.why_not for knob, a in answers.items() if not a.enforceable}
    if len(missing) == len(answers):
        why = next(iter(missing.values()), "no knob")
        return {"actuation": Enforceability.NOT_ENFORCEABLE.value, "why": why, "knobs": knobs}
    reach, why = (Enforceability.ENFORCED, "") if mode is Mode.ENFORCE else (Enforceability.OBSERVED, _only_observed(mode))
    partly = "; ".join(f"{knob.value} not: {why}" for knob, why in missing.items())
    return {"actuation": reach.value, "why": "; ".join(part for part in (why, partly) if part), "knobs": knobs}


def _reach(mode: Mode, answer: Support) -> Json:
    if not answer.enforceable:
        return {"actuation": Enforceability.NOT_ENFORCEABLE.value, "why": answer.why_not}
    if mode is not Mode.ENFORCE:
        return {"actuation": Enforceability.OBSERVED.value, "why": _only_observed(mode)}
    return {"actuation": Enforceability.ENFORCED.value, "why": ""}


def _only_observed(mode: Mode) -> str:
    return f"mode is {mode.value}: what it would do is written down"


def baselines(used: BaselineSet, given: BaselineSet, gathering: Mapping[str, str]) -> dict[str, Any]:
    """The document that ``watchdog.baselines`` takes: what was gathered here over what the configuration gave, as it stands.

    ``gathering`` says for each backend without a baseline what is missing; whoever reads the file leaves it alone.
    """
    whole = BaselineSet({**given.backends, **used.backends}, given.models)
    return {**whole.document(), "gathering": {name: {"why": why} for name, why in sorted(gathering.items())}}
