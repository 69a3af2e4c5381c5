"""Watch over a pool's promise as a whole: shed first, scale next, restore step by step.

* Degrade: the pool's P99 of the first token over 800 ms, or more than 0.5 % of its requests failing in the last 10 s (those
  refused are not counted, for this policy has some refused itself): at the next tick every backend's tap refuses requests of low
  priority (degrade level 1). Where that lasts another 20 s the next level follows, up to ``max_level``; level 2 refuses
  everything but high priority, so it has to be asked for.
* Scale: more than 2.1 × the usual number of requests in the pool for 15 s asks for as many more replicas, at most twice as many.
* Rebalance: P99 between tokens over 35 ms with memory pressure above 85 % sheds; fewer than 1,000 tokens a second with memory
  below 70 % and requests waiting scales; else it waits.
* Restore: after three good periods of 10 s in a row one step each period, so that all is back within two minutes. Where too few
  requests finish to judge by, a period is good while none waits, and none is under way or tokens come.

The usual number of requests is a mean over an hour of good times, and is used once ten minutes of it are known. A pool of
which nothing is heard stays as it is. What was left in a backend that is drained, or was in those 10 s, ends late and sheds
nothing at the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, nan

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import bucket_quantile
from tailkeeper_watchdog.columns import Columns, columns
from tailkeeper_watchdog.many_windows import or_none
from tailkeeper_watchdog.model import EMPTY, Backend, DesiredState, Knob, Mode, Pool, Situation
from tailkeeper_watchdog.policies.base import Policy, has_a_drain, last_drained
from tailkeeper_watchdog.policy_params import SloGuardianParams
from tailkeeper_watchdog.samples import SIGNAL_HISTOGRAM

NAME = "slo_guardian"


@dataclass(frozen=True, slots=True)
class Guard:
    """What is remembered of one pool; monotonic seconds."""

    level: int = 0
    scale: float = 1.0
    stepped_at: float = float("-inf")
    """The last step in either direction."""
    good_since: float | None = None
    loaded_since: float | None = None
    usual: float | None = None
    """Requests in the pool, mean of good times."""
    usual_s: float = 0.0
    """How long that mean has been learned."""
    seen_at: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    guards: Mapping[Pool, Guard] = field(default_factory=lambda: EMPTY)
    drained_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """When each backend was last seen drained; monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Look:
    """One pool now; None is not known. Seconds, ratios, requests, tokens per second."""

    ttft_p99_s: float | None = None
    itl_p99_s: float | None = None
    """Asked only where memory is short: by itself it is no reason for anything here."""
    error_ratio: float | None = None
    requests: float | None = None
    """Under way or waiting, over those of the pool that tell of requests."""
    waiting: float | None = None
    memory: float | None = None
    tokens_per_s: float | None = None


def decide(
    situation: Situation, params: SloGuardianParams, mode: Mode, memory: Memory
) -> tuple[Memory, tuple[DesiredState, ...]]:
    """A degrade level and a number of replicas for the backends of each pool that is, or was a moment ago, in trouble."""
    guards: dict[Pool, Guard] = {}
    desired: list[DesiredState] = []
    now = situation.snapshot.now
    drained_at = last_drained(memory.drained_at, situation)
    asked = asked_of(situation)
    heard = asked.fleet.heard.tolist()
    for pool, members in _pools(situation.snapshot.backends).items():
        fresh = [place for place in members if heard[place]]
        before = memory.guards.get(pool, Guard())
        if not fresh:
            guards[pool] = replace(before, good_since=None, loaded_since=None, seen_at=None)
            continue
        serving = [place for place in fresh if not _drained(asked.fleet.names[place], situation, drained_at, now)]
        guard = guards[pool] = step(before, look(serving or fresh, asked, params), now, params)
        if guard.level or guard.scale > 1.0:
            desired.extend(_wishes(guard, fresh, situation, mode))
    return Memory(guards, drained_at), tuple(desired)


def _drained(name: str, situation: Situation, drained_at: Mapping[str, float], now: float) -> bool:
    at = drained_at.get(name)
    return at is not None and has_a_drain(situation.recent.get(name), at, now)


def _pools(backends: tuple[Backend, ...]) -> dict[Pool, list[int]]:
    """The places of each pool's backends."""
    pools: dict[Pool, list[int]] = {}
    for place, backend in enumerate(backends):
        pools.setdefault(backend.pool, []).append(place)
    return pools


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of each backend, by its place; None is not known."""

    fleet: Columns
    taken: list[float | None]
    failed: list[float | None]
    running: list[float | None]
    waiting: list[float | None]
    pressure: list[float | None]
    tokens_per_s: list[float | None]


def asked_of(situation: Situation) -> Asked:
    fleet = columns(situation)
    (taken, failed), seconds = fleet.lately.taken(), fleet.lately.seconds
    tokens_per_s = fleet.lately.of(catalog.GENERATED_TOKENS.name) / np.where(seconds > 0, seconds, nan)
    gauges = (catalog.RUNNING, catalog.WAITING, catalog.VRAM_PRESSURE)
    told = (taken, failed, *(fleet.told(gauge.name) for gauge in gauges), tokens_per_s)
    return Asked(fleet, *map(or_none, told))


def look(places: list[int], asked: Asked, params: SloGuardianParams) -> Look:
    """The pool as its users see it: one distribution over all of its backends."""
    # Without those that were refused: what this policy sheds must not be what it sheds for.
    total, failed = sum(_known(asked.taken, places)), sum(_known(asked.failed, places))
    running, waiting = _work(asked, places)
    pressures, rates = _known(asked.pressure, places), _known(asked.tokens_per_s, places)
    memory = sum(pressures) / len(pressures) if pressures else None
    short_of_memory = memory is not None and memory > params.shed_memory_ratio
    return Look(
        ttft_p99_s=_p99(asked.fleet, places, "ttft", params.min_requests),
        itl_p99_s=_p99(asked.fleet, places, "itl", params.min_requests) if short_of_memory else None,
        error_ratio=failed / total if total >= params.min_requests else None,
        requests=None if running is None or waiting is None else running + waiting,
        waiting=waiting,
        memory=memory,
        tokens_per_s=sum(rates) if rates else None,
    )


def _known(values: list[float | None], places: list[int]) -> list[float]:
    return [value for place in places if (value := values[place]) is not None]


def _work(asked: Asked, places: list[int]) -> tuple[float | None, float | None]:
    """Requests under way and waiting, over those that tell the first. Of one that does not tell what waits, nobody knows it."""
    telling = [place for place in places if asked.running[place] is not None]
    waiting = _known(asked.waiting, telling)
    if not telling:
        return None, None
    return sum(_known(asked.running, telling)), sum(waiting) if len(waiting) == len(telling) else None


def _p99(fleet: Columns, places: list[int], signal: str, least: int) -> float | None:
    """P99 over the backends whose buckets are those of most; None of fewer than ``least`` observations."""
    merged = fleet.lately.merged(places, SIGNAL_HISTOGRAM[signal])
    quantile = bucket_quantile(merged, 0.99) if merged is not None and merged.count >= least else None
    return None if quantile is None else quantile.value


def step(before: Guard, seen: Look, now: float, params: SloGuardianParams) -> Guard:
    """The guard after this look at the pool."""
    guard = _loaded(before, seen, now, params)
    trouble = _trouble(seen, params)
    want_scale, why_scale = _scale_wanted(guard, seen, now, params)
    if trouble:
        guard = replace(guard, good_since=None, why=trouble)
        due = guard.level == 0 or now - guard.stepped_at >= params.escalate_after_s
        if due and guard.level < params.max_level:
            guard = replace(guard, level=guard.level + 1, stepped_at=now)
    if want_scale > guard.scale:
        guard = replace(guard, scale=want_scale, stepped_at=now, good_since=None, why=why_scale if not trouble else guard.why)
    if trouble or want_scale > 1.0:
        return replace(guard, good_since=None, seen_at=now)
    return replace(_restored(guard, seen, now, params), seen_at=now)


def _trouble(seen: Look, params: SloGuardianParams) -> str:
    """What breaks the promise now; empty where nothing is known to."""
    if seen.ttft_p99_s is not None and seen.ttft_p99_s > params.ttft_p99_limit_s:
        return f"P99 of the first token {seen.ttft_p99_s * 1e3:.0f} ms, limit {params.ttft_p99_limit_s * 1e3:.0f} ms"
    if seen.error_ratio is not None and seen.error_ratio > params.error_limit_ratio:
        return f"{seen.error_ratio:.1%} of requests fail, limit {params.error_limit_ratio:.1%}"
    itl_s, memory = seen.itl_p99_s, seen.memory
    if itl_s is not None and memory is not None and itl_s > params.itl_p99_limit_s and memory > params.shed_memory_ratio:
        return f"P99 between tokens {itl_s * 1e3:.0f} ms with memory pressure {memory:.0%}"
    return ""


def _loaded(guard: Guard, seen: Look, now: float, params: SloGuardianParams) -> Guard:
    """With the usual load learned in good times, and since when the load is far above it."""
    if seen.requests is None:
        return replace(guard, loaded_since=None)
    known = guard.usual is not None and guard.usual_s >= params.baseline_least_s
    if known and guard.usual and seen.requests > params.load_limit * guard.usual:
        return replace(guard, loaded_since=now if guard.loaded_since is None else guard.loaded_since)
    elapsed = 0.0 if guard.seen_at is None else now - guard.seen_at
    if guard.usual is None:
        return replace(guard, usual=seen.requests, loaded_since=None)
    # A plain mean until an hour is known, then one that forgets.
    learned_s = min(guard.usual_s, params.baseline_s) + elapsed
    usual = guard.usual + (seen.requests - guard.usual) * (elapsed / learned_s if learned_s > 0 else 0.0)
    return replace(guard, usual=usual, usual_s=guard.usual_s + elapsed, loaded_since=None)


def _scale_wanted(guard: Guard, seen: Look, now: float, params: SloGuardianParams) -> tuple[float, str]:
    """How many times its replicas the pool should have, and why."""
    if guard.loaded_since is not None and guard.usual and seen.requests is not None:
        if now - guard.loaded_since >= params.load_after_s:
            times = seen.requests / guard.usual
            return min(params.max_scale, times), f"{times:.1f} × the usual {guard.usual:.0f} requests"
        return guard.scale, guard.why
    slow = seen.tokens_per_s is not None and seen.tokens_per_s < params.tokens_floor_per_s
    roomy = seen.memory is not None and seen.memory < params.scale_memory_ratio
    if slow and roomy and seen.waiting:
        words = f"{seen.tokens_per_s:.0f} tokens/s with {seen.waiting:.0f} requests waiting and memory pressure {seen.memory:.0%}"
        return params.max_scale, words
    return 1.0, ""


def _restored(guard: Guard, seen: Look, now: float, params: SloGuardianParams) -> Guard:
    """One step back where the last periods were good. A look that says nothing is no good period."""
    if not guard.level and guard.scale <= 1.0:
        return replace(guard, good_since=None, why="")
    if seen.ttft_p99_s is None and seen.error_ratio is None and not _is_quiet(seen):
        return replace(guard, good_since=None)
    since = now if guard.good_since is None else guard.good_since
    guard = replace(guard, good_since=since)
    if now - since < params.good_periods * params.good_period_s or now - guard.stepped_at < params.good_period_s:
        return guard
    if guard.level:
        return replace(guard, level=guard.level - 1, stepped_at=now)
    return replace(guard, scale=1.0, stepped_at=now)


def _is_quiet(seen: Look) -> bool:
    """Whether so few finish because so few are there, and not because they hang: what is shed may have been nearly all."""
    return seen.waiting == 0 and (seen.requests == 0 or bool(seen.tokens_per_s))


def _wishes(guard: Guard, places: list[int], situation: Situation, mode: Mode) -> Iterator[DesiredState]:
    for place in places:
        backend = situation.snapshot.backends[place]
        age_s = situation.heard[backend.name].age_s
        if guard.level:
            yield DesiredState(NAME, backend.name, Knob.DEGRADE_LEVEL, float(guard.level), guard.why, mode, ("slo",), age_s)
        replicas = situation.knob(backend, Knob.REPLICAS)
        if guard.scale > 1.0 and replicas is not None:
            wanted = float(ceil(float(replicas.prior) * guard.scale))
            yield DesiredState(NAME, backend.name, Knob.REPLICAS, wanted, guard.why, mode, ("load",), age_s)


POLICY = Policy(
    name=NAME,
    summary="Shed, scale and restore for a pool's promise.",
    knobs=(Knob.DEGRADE_LEVEL, Knob.REPLICAS),
    new_memory=Memory,
    decide=decide,
)
