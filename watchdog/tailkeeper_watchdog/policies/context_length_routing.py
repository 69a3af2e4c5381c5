"""Send less to a backend whose KV cache is filling up, so that long contexts go where there is room.

Weight = max(0.1, 1 − KV cache usage): usage 0.82 gives 0.18, 0.45 gives 0.55, 0.12 gives 0.88. That is the weight of a backend
that is seen for the first time. From then on its weight follows, down within some 20 s and up within some 120 s: what is seen now
is the effect of weights of half a minute ago, and whoever follows at once swings, the more the fuller the caches.

A backend that is well and does not tell its usage gets no more than the median of those that do. Where a gateway keeps notes, the
usage is also published as the annotation ``kv_usage_ratio``: Consul has it beside the weight, for routers that decide by
themselves.

A request needs 2 · layers · kv_heads · head_dim · tokens · dtype_bytes · 1.05 bytes of KV cache (the 5 % are the allocator's);
the tap orders its queue by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, inf
from statistics import median

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.model import EMPTY, BackendObservation, DesiredState, Knob, Mode, Pool, Situation
from tailkeeper_watchdog.policies.base import Policy
from tailkeeper_watchdog.policy_params import ContextLengthRoutingParams

NAME = "context_length_routing"
ANNOTATION = "kv_usage_ratio"


@dataclass(frozen=True, slots=True)
class Given:
    """The weight a backend has by this policy, and as of when; monotonic seconds."""

    weight: float
    at: float


@dataclass(frozen=True, slots=True)
class Memory:
    given: Mapping[str, Given] = field(default_factory=lambda: EMPTY)
    published: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """The usage that was last published of each backend."""


def weight_of(kv_usage_ratio: float, floor: float) -> float:
    """Share of its prior weight for a backend whose KV cache is used to that share."""
    return max(floor, 1.0 - min(1.0, max(0.0, kv_usage_ratio)))


def decide(
    situation: Situation, params: ContextLengthRoutingParams, mode: Mode, memory: Memory
) -> tuple[Memory, tuple[DesiredState, ...]]:
    """A weight for each backend that is heard of and not nearly empty, and its usage as an annotation."""
    heard = situation.heard
    seen = {b.name: s for b in situation.snapshot.backends if (s := heard.get(b.name)) is not None}
    usage = {name: u for name, s in seen.items() if (u := s.value(catalog.KV_USAGE.name)) is not None}
    given = {name: _followed(memory.given.get(name), used, situation.snapshot.now, params) for name, used in usage.items()}
    desired: list[DesiredState] = []
    for name, used in usage.items():
        weight = round(given[name].weight, 4)
        if weight <= 1.0 - params.full_weight_below_ratio:
            desired.append(_wish(seen[name], Knob.WEIGHT, weight, f"KV cache {used:.0%} in use", mode))
    note_mode = Mode.OBSERVE if mode is Mode.ADVISE else mode  # figures for routers are no advice to a person
    published = dict(memory.published)
    for backend in situation.snapshot.backends if Knob.ANNOTATION in situation.knobs_told else ():
        name = backend.name
        if name in usage and situation.knob(backend, Knob.ANNOTATION) is not None:
            if not abs(usage[name] - published.get(name, inf)) < params.publish_step_ratio:
                published[name] = usage[name]
            note = f"{ANNOTATION}={min(1.0, max(0.0, published[name])):.2f}"
            desired.append(_wish(seen[name], Knob.ANNOTATION, note, "published for routers", note_mode))
    desired.extend(_cap_on_unknown(situation, seen, given, params, mode))
    # One that is not heard of for a while goes on from where it was; one that is gone is forgotten.
    return Memory({**memory.given, **given}, published), tuple(desired)


def _followed(before: Given | None, used: float, now: float, params: ContextLengthRoutingParams) -> Given:
    due = weight_of(used, params.floor_weight) if used >= params.full_weight_below_ratio else 1.0
    if before is None:
        return Given(due, now)
    pace_s = params.lower_s if due < before.weight else params.raise_s
    return Given(due + (before.weight - due) * exp(-max(0.0, now - before.at) / pace_s), now)


def _cap_on_unknown(
    situation: Situation,
    seen: Mapping[str, BackendObservation],
    given: Mapping[str, Given],
    params: ContextLengthRoutingParams,
    mode: Mode,
) -> list[DesiredState]:
    """Nobody gets more for being silent than its peers at the same gateway and pool get for telling."""
    silent = [b for b in situation.snapshot.backends if b.name in seen and b.name not in given]
    if not silent:
        return []
    peers: dict[Pool, list[float]] = {}
    for backend in situation.snapshot.backends:
        if backend.name in given:
            for target in backend.targets:
                peers.setdefault((target.gateway, target.pool), []).append(given[backend.name].weight)
    capped = []
    for backend in silent:
        told = [weight for target in backend.targets for weight in peers.get((target.gateway, target.pool), ())]
        if told:
            limit = median(told)
            if limit < 1.0 - params.full_weight_below_ratio:
                reason = f"its KV cache usage is not known: no more than the median of its {len(told)} peers"
                capped.append(_wish(seen[backend.name], Knob.WEIGHT, round(limit, 4), reason, mode))
    return capped


def _wish(seen: BackendObservation, knob: Knob, value: float | str, reason: str, mode: Mode) -> DesiredState:
    return DesiredState(NAME, seen.backend, knob, value, reason, mode, ("kv_usage",), seen.age_s)


POLICY = Policy(
    name=NAME,
    summary="Send long contexts where the KV cache has room.",
    knobs=(Knob.WEIGHT, Knob.ANNOTATION),
    new_memory=Memory,
    decide=decide,
)
