"""Give each backend the share of the traffic that its speed earns, measured in tokens and not in requests.

Backends are compared with those of the same model and precision in the same pool only: versions never mix.

Weight = speed × exp(−0.05 · max(0, P99 − 80 ms) / 10 ms) × (1 − load), over the largest of the group, so that the best one
keeps its prior weight; times the group's hint over the largest hint of the pool.

* speed: tokens per second of one running request, the inverse of the mean time between tokens over the last 60 s. Tokens per
  second of the whole backend would only repeat who gets the most traffic.
* P99 of the time between tokens over the last 60 s: 10 ms above the 80 ms of the baseline cost 4.9 %.
* load: 0.4 · memory + 0.35 · KV misses + 0.25 · active requests (as a share of the busiest of the group); what one of the
  group does not tell is left out for all of it, so that nobody gains by being silent.
* A backend that is drained, or was within those 60 s, is not compared: what was stuck in it is no speed, and being idle no merit.
* hint: ``model_weights``, for example ``llama3-70b-fp16: 30`` and ``phi-3-mini-int4: 10``, for pools of several models.

Corrected every 5 s by at most 0.2 a step, until the weight that is due is reached; from then on by a tenth of what is missing,
because what is seen is the effect of the weights of a minute ago. That streamed requests weigh 8 against 2 for batched ones is
the tap's queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import exp, nan
from typing import NamedTuple

import numpy as np

from tailkeeper_exporter import catalog
from tailkeeper_watchdog.columns import columns, p99
from tailkeeper_watchdog.many_windows import or_none
from tailkeeper_watchdog.model import EMPTY, DesiredState, Knob, Mode, Pool, Situation
from tailkeeper_watchdog.policies.base import Policy, has_a_drain, last_drained
from tailkeeper_watchdog.policy_params import TokenRateWeightingParams

NAME = "token_rate_weighting"
Group = tuple[Pool, tuple[str, str]]
"""Gateway and pool, and in it model and precision."""
PENALTY_PER_STEP = 0.05
PENALTY_STEP_S = 0.010
"""Each 10 ms of P99 above the baseline cost a factor of exp(−0.05)."""
AS_GOOD_AS_ALL = 0.02
"""Corrections become ever smaller: from here on the way back to all of the traffic is over, or it would never be."""
MEMORY_SHARE, MISS_SHARE, ACTIVE_SHARE = 0.4, 0.35, 0.25


class Given(NamedTuple):
    """The weight a backend has by this policy, when it was last corrected (monotonic seconds), and why it is what it is."""

    weight: float
    at: float
    why: str = ""
    arrived: bool = False
    """Whether it ever was within one step of what was due."""


@dataclass(frozen=True, slots=True)
class Memory:
    given: Mapping[str, Given] = field(default_factory=lambda: EMPTY)
    drained_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """When each backend was last seen drained; monotonic seconds."""
    judged: Mapping[Group, tuple[float, tuple[str, ...]]] = field(default_factory=lambda: EMPTY)
    """When each group was last compared (monotonic seconds), and who could be: until a step is due its wishes are repeated."""


class _Speed(NamedTuple):
    """What one backend does now; None is not known. Tokens per second of one running request, seconds, ratios, requests.

    A tuple, as the merit is: one for every backend of the fleet at every step, and a dataclass takes three times as long to make.
    """

    name: str
    tokens_per_s: float
    p99_s: float | None
    memory: float | None
    kv_miss: float | None
    running: float | None


class _Merit(NamedTuple):
    """What one backend earned, before it is compared."""

    speed: _Speed
    load: float
    value: float

    @property
    def why(self) -> str:
        p99 = "not known" if self.speed.p99_s is None else f"{self.speed.p99_s * 1e3:.0f} ms"
        return f"{self.speed.tokens_per_s:.1f} tokens/s a running request, P99 between tokens {p99}, load {self.load:.0%}"


def latency_penalty(p99_s: float, baseline_s: float) -> float:
    """Factor in (0, 1] for a P99 of the time between tokens; seconds."""
    return exp(-PENALTY_PER_STEP * max(0.0, p99_s - baseline_s) / PENALTY_STEP_S)


def composite_load(memory: float | None, kv_miss: float | None, active: float | None) -> float:
    """Load in [0, 1] from memory, KV misses and active requests, each a ratio; None counts for nothing."""
    load = 0.0
    if memory is not None:
        load += MEMORY_SHARE * min(1.0, max(0.0, memory))
    if kv_miss is not None:
        load += MISS_SHARE * min(1.0, max(0.0, kv_miss))
    if active is not None:
        load += ACTIVE_SHARE * min(1.0, max(0.0, active))
    return load


def decide(
    situation: Situation, params: TokenRateWeightingParams, mode: Mode, memory: Memory
) -> tuple[Memory, tuple[DesiredState, ...]]:
    """A weight below 1 for each backend that earns less than the best of its group; groups of one are left alone."""
    now = situation.snapshot.now
    given = dict(memory.given)
    drained_at = last_drained(memory.drained_at, situation)
    judged: dict[Group, tuple[float, tuple[str, ...]]] = {}
    desired: list[DesiredState] = []
    speeds: list[_Speed | None] = []  # of the whole fleet, where a step of any group is due
    for pool, groups in _pools(situation).items():
        hints = {key: _hint(*key, params) for key in groups}
        most = max(hints.values())
        for key, group in groups.items():
            at, names = memory.judged.get((pool, key), (float("-inf"), ()))
            if now - at >= params.interval_s:
                speeds = speeds or _speeds(situation, drained_at, params)
                at, shares = now, _shared_out([speed for place in group if (speed := speeds[place]) is not None], params)
                names = tuple(merit.speed.name for merit, _ in shares)
                for merit, share in shares:
                    name = merit.speed.name
                    due = 1.0 if share >= 1.0 - params.even_within_ratio else share
                    given[name] = _corrected(given.get(name), merit, due * hints[key] / most, now, params)
            judged[pool, key] = at, names
            desired.extend(_wishes(names, given, situation, mode))
    return Memory(given, drained_at, judged), tuple(desired)


def _wishes(names: tuple[str, ...], given: Mapping[str, Given], situation: Situation, mode: Mode) -> Iterator[DesiredState]:
    """What stands, for those that are heard of now."""
    heard = situation.heard
    for name in names:
        held = given.get(name)
        if held is not None and held.weight < 1.0 and (seen := heard.get(name)) is not None:
            yield DesiredState(NAME, name, Knob.WEIGHT, round(held.weight, 4), held.why, mode, ("tokens",), seen.age_s)


_NOT_GIVEN = Given(1.0, float("-inf"))


def _corrected(before: Given | None, merit: _Merit, share: float, now: float, params: TokenRateWeightingParams) -> Given:
    """One step toward the share that is due, when a step is due."""
    if before is None:
        before = _NOT_GIVEN
    if now - before.at < params.interval_s:
        return before
    missing = share - before.weight
    step = max(-params.max_step, min(params.max_step, missing * (params.correction if before.arrived else 1.0)))
    weight = max(params.floor_weight, min(1.0, before.weight + step))
    if share >= 1.0 and weight > 1.0 - AS_GOOD_AS_ALL:
        weight = 1.0
    return Given(weight, now, merit.why if weight < 1.0 else "", before.arrived or abs(missing) <= params.max_step)


def _pools(situation: Situation) -> dict[Pool, dict[tuple[str, str], list[int]]]:
    """Places of backends by gateway and pool, and in it by model and precision. One at several gateways counts at its first."""
    pools: dict[Pool, dict[tuple[str, str], list[int]]] = {}
    for place, backend in enumerate(situation.snapshot.backends):
        pools.setdefault(backend.pool, {}).setdefault((backend.model, backend.quantization), []).append(place)
    return pools


def _hint(model: str, quantization: str, params: TokenRateWeightingParams) -> float:
    return params.model_weights.get(f"{model}-{quantization}", params.model_weights.get(model, 1.0))


def _shared_out(speeds: list[_Speed], params: TokenRateWeightingParams) -> list[tuple[_Merit, float]]:
    """Each of a group with its share of the best one's merit; nobody where fewer than two can be compared."""
    if len(speeds) < 2:
        return []
    running = [s.running for s in speeds if s.running is not None]
    busiest = max(running) if len(running) == len(speeds) else 0.0
    tell_memory, tell_miss = None not in [s.memory for s in speeds], None not in [s.kv_miss for s in speeds]
    merits = [
        _merit(
            s,
            composite_load(
                s.memory if tell_memory else None,
                s.kv_miss if tell_miss else None,
                s.running / busiest if s.running is not None and busiest > 0 else None,
            ),
            params,
        )
        for s in speeds
    ]
    best = max(merit.value for merit in merits)
    return [(merit, merit.value / best) for merit in merits] if best > 0 else []


def _speeds(situation: Situation, drained_at: Mapping[str, float], params: TokenRateWeightingParams) -> list[_Speed | None]:
    """Of each backend of the fleet. None where its speed is not known, too few tokens say it, or it has a drain in its window."""
    fleet, windows, now = columns(situation), situation.windows, situation.snapshot.now
    tokens, mean_s = fleet.minute.of(catalog.GENERATED_TOKENS.name), fleet.minute.mean_s(catalog.ITL.name)
    working = fleet.heard & (tokens >= params.min_tokens) & ~np.isnan(mean_s) & (mean_s != 0)
    for place in fleet.places(drained_at):  # nearly nobody was ever drained, and who was not has no drain in its window
        name = fleet.names[place]
        working[place] &= not has_a_drain(windows.get(name), drained_at[name], now)
    told = zip(
        fleet.names,
        (1.0 / np.where(working, mean_s, nan)).tolist(),
        or_none(p99(situation, "itl").value),
        or_none(fleet.told(catalog.VRAM_PRESSURE.name)),
        or_none(fleet.minute.kv_miss_ratio()),
        or_none(fleet.told(catalog.RUNNING.name)),
        strict=True,
    )
    return [speed if works else None for works, speed in zip(working.tolist(), map(_Speed._make, told), strict=True)]


def _merit(speed: _Speed, load: float, params: TokenRateWeightingParams) -> _Merit:
    penalty = 1.0 if speed.p99_s is None else latency_penalty(speed.p99_s, params.baseline_p99_s)
    return _Merit(speed, load, speed.tokens_per_s * penalty * (1.0 - load))


POLICY = Policy(
    name=NAME,
    summary="Share traffic out by measured token speed.",
    knobs=(Knob.WEIGHT,),
    new_memory=Memory,
    decide=decide,
)
