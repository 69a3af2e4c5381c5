"""``bench attribution``: what the causes of one finding cost, by how many requests are looked at, and beside enumeration.

``sizes``: the whole calculation (stages, queue, segments, resamples, chance), on simulated requests of which one tenant's became
slow. As many requests before the finding as since, but for the least that a baseline must have.

``segments``: the heart of it, the exact Shapley value of mix and within of five segments, beside its textbook form: the P99 of
each of the 1,024 coalitions found by itself, by sorting the mixture that it stands for, and each player's value summed by the
definition. Both must come to the same, or the run fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import combinations
from math import comb
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailkeeper_watchdog.attribution.combine import MIN_BASELINE, MIN_CURRENT, Attribution, attribute
from tailkeeper_watchdog.attribution.hand_down import Given
from tailkeeper_watchdog.attribution.request_log import RequestLog
from tailkeeper_watchdog.attribution.segments import MAX_SEGMENTS, Part, Values, segment_shift
from tailkeeper_watchdog.model import RequestRecord

SIZES = (10, 100, 1_000, 10_000)
"""Requests since the finding. Ten are fewer than a P99 can be compared of: then means and gauges are told, at once."""
ROUNDS = 15
PEER_SIZES = (100, 1_000)
PEER_ROUNDS = 5
RATE = 5.0
"""Requests a second."""
TENANTS = ("t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7")
SICK = "t2"
SLOWER = 6.0
AT_S = 100_000.0
"""When the finding opened, on the clock of the records."""
Q = 0.99

Floats = NDArray[np.float64]


def attribution_bench(seed: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """CPU milliseconds. Raises RuntimeError where enumeration comes to something else, or the planted cause is not found."""
    return {
        "sizes": [_size(size, rounds, seed) for size in SIZES],
        "segments": [_beside_enumeration(size, seed) for size in PEER_SIZES],
    }


def _size(size: int, rounds: int, seed: int) -> dict[str, Any]:
    given = finding(size, seed)
    told: list[Attribution] = []
    times = [_cpu_ms(lambda: told.append(attribute(given, seed))) for _ in range(rounds)]
    first = told[0].shares[0]
    if size >= 1_000 and (first.dimension, first.value) != ("tenant", SICK):
        raise RuntimeError(f"of {size} requests {first.dimension} {first.value} was named first, and tenant {SICK} is to blame")
    return {
        "requests": size,
        "compared": size >= MIN_CURRENT,
        "ms": {"p50": round(median(times), 3), "max": round(max(times), 3)},
        "named_first": f"{first.dimension} {first.value}",
    }


def finding(size: int, seed: int) -> Given:
    """What is known of a finding with so many requests since, of an engine as spans tell of it; one tenant's became slow."""
    random = np.random.default_rng([seed, size])
    log = RequestLog()
    log.extend(_requests(max(size, MIN_BASELINE), 1.0, random), AT_S - 1.0, 2 * SIZES[-1])
    log.extend(_requests(size, SLOWER, random), AT_S + 1.0, 2 * SIZES[-1])
    return Given("ttft", log.between(0.0, AT_S), log.between(AT_S, AT_S + 2.0))


def _requests(count: int, slower: float, random: np.random.Generator) -> list[RequestRecord]:
    tenants = random.choice(len(TENANTS), count)
    tokens = np.maximum(8.0, random.lognormal(np.log(600), 0.6, count))
    factor = np.where(tenants == TENANTS.index(SICK), slower, 1.0)
    prefill, queue = tokens * 5e-5 * factor * random.lognormal(0.0, 0.1, count), random.exponential(0.02, count)
    itl, network = random.lognormal(np.log(0.02), 0.1, count), random.lognormal(np.log(0.01), 0.3, count)
    starts = AT_S + np.cumsum(random.exponential(1.0 / RATE, count))
    return [
        RequestRecord(
            backend="a",
            outcome="ok",
            ttft_s=float(queue[i] + prefill[i] + network[i]),
            itl_s=float(itl[i]),
            e2e_s=float(queue[i] + prefill[i] + network[i] + 120 * itl[i]),
            start_unix_s=float(starts[i]),
            queue_s=float(queue[i]),
            prefill_s=float(prefill[i]),
            prompt_tokens=round(float(tokens[i])),
            model="m",
            tenant=TENANTS[tenants[i]],
            modality="image" if i % 7 == 0 else "text",
            canary_revision="v2" if i % 9 == 0 else "v1",
        )
        for i in range(count)
    ]


def _beside_enumeration(size: int, seed: int) -> dict[str, Any]:
    given = finding(size, seed)
    assert given.baseline is not None
    assert given.current is not None
    before, now = (
        Values(sample.rows["ttft_s"].astype(np.float64), sample.rows["tenant"].astype(np.intp))
        for sample in (given.baseline, given.current)
    )
    codes = list(range(1, MAX_SEGMENTS))
    names = given.current.names["tenant"]
    theirs: list[Mapping[str, tuple[float, float]]] = []
    ours: list[tuple[Part, ...]] = []
    ours_ms = [_cpu_ms(lambda: ours.append(segment_shift(before, now, codes, names))) for _ in range(5 * PEER_ROUNDS)]
    theirs_ms = [_cpu_ms(lambda: theirs.append(enumerated(before, now, codes, names))) for _ in range(PEER_ROUNDS)]
    for part in ours[0]:
        if not np.allclose((part.mix, part.within), theirs[0][part.value], atol=1e-9):
            raise RuntimeError(f"{part}: enumeration says {theirs[0][part.value]}")
    return {
        "requests": size,
        "coalitions": 1 << (2 * MAX_SEGMENTS),
        "ours_ms": round(median(ours_ms), 3),
        "enumeration_ms": round(median(theirs_ms), 1),
        "ratio": round(median(theirs_ms) / median(ours_ms), 1),
    }


def enumerated(before: Values, now: Values, codes: list[int], names: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Mix and within of each segment and the rest, by the definition of the Shapley value."""
    groups = [*([code] for code in codes), sorted({*before.codes.tolist(), *now.codes.tolist()} - set(codes))]
    then, current = ([v.of[np.isin(v.codes, group)] for group in groups] for v in (before, now))
    players = range(2 * len(groups))
    worth = {
        frozenset(members): _p99_of(then, current, frozenset(members), len(groups))
        for count in range(len(players) + 1)
        for members in combinations(players, count)
    }

    def value(player: int) -> float:
        others = [coalition for coalition in worth if player not in coalition]
        n = len(players)
        return sum((worth[c | {player}] - worth[c]) / (n * comb(n - 1, len(c))) for c in others)

    labels = [*(names[code] for code in codes), "other"]
    return {label: (value(i), value(len(groups) + i)) for i, label in enumerate(labels)}


def _p99_of(then: list[Floats], current: list[Floats], members: frozenset[int], size: int) -> float:
    """P99 of the traffic with the mix of these segments as now, and the values of those."""
    values, weights = [], []
    for segment in range(size):
        own = current[segment] if size + segment in members else then[segment]
        own = own if own.size else (then[segment] if size + segment in members else current[segment])
        mix = current if segment in members else then
        values.append(own)
        weights.append(np.full(own.size, mix[segment].size / sum(part.size for part in mix) / max(1, own.size)))
    order = np.argsort(np.concatenate(values), kind="stable")
    reached = np.cumsum(np.concatenate(weights)[order])
    place = int(np.searchsorted(reached, Q * reached[-1] - 1e-12))
    return float(np.concatenate(values)[order][min(place, order.size - 1)])


def _cpu_ms(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return 1_000 * (time.thread_time() - started)
