"""What is seen is 15 s old, and a backend's cache and speed follow its weight: weights still settle, without swinging.

A simulated loop of the two policies that turn weights all the time, with their gateway. A tick is a second. A backend's KV usage
and its time between tokens follow its share of the load with a lag, and the policies see them 15 s later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp

import pytest

from tailkeeper_watchdog.model import Knob, KnobValue
from tailkeeper_watchdog.plan import WEIGHT_DEADBAND
from tailkeeper_watchdog.policies import context_length_routing, token_rate_weighting
from tailkeeper_watchdog.policy_params import ContextLengthRoutingParams, TokenRateWeightingParams
from tests.unit.situations import Run, seen, situation, window

DELAY_S, LAG_S, SECONDS, WINDOW_S = 15, 8.0, 900, 60
ONE_STEP = 0.2
LATE_S = 300
"""The last seconds, in which nothing may move by more than a step any more."""

Names = tuple[str, ...]
Load = Mapping[str, float]
Decide = Callable[[int, list[Load]], Mapping[tuple[str, Knob], KnobValue]]


def simulate(capacity: Mapping[str, float], load: float, decide: Decide) -> dict[str, list[float]]:
    """Weights by backend and second. ``load`` is shared out by weight; a load of 1 fills a backend of capacity 1."""
    weights = dict.fromkeys(capacity, 1.0)
    now = {name: load / sum(capacity.values()) for name in capacity}
    past: list[Load] = [dict(now)]
    course: dict[str, list[float]] = {name: [] for name in capacity}
    for second in range(SECONDS):
        total = sum(weights.values())
        for name, size in capacity.items():
            due = load * weights[name] / total / size
            now[name] += (due - now[name]) * (1 - exp(-1 / LAG_S))
        past.append(dict(now))
        wants = decide(second, past)
        for name in capacity:
            wanted = float(wants.get((name, Knob.WEIGHT), 1.0))
            if abs(wanted - weights[name]) > WEIGHT_DEADBAND:
                weights[name] = wanted
            course[name].append(weights[name])
    return course


def late_swing(course: Mapping[str, list[float]]) -> float:
    """The widest way that a weight went in the last minutes."""
    return max(max(weights[-LATE_S:]) - min(weights[-LATE_S:]) for weights in course.values())


def routed(second: int, past: list[Load], run: Run) -> Mapping[tuple[str, Knob], KnobValue]:
    old = past[max(0, len(past) - 1 - DELAY_S)]
    return run.tick(situation(*(seen(n, kv_usage=min(1.0, used)) for n, used in old.items()), now=float(second)))


def rated(second: int, past: list[Load], run: Run) -> Mapping[tuple[str, Knob], KnobValue]:
    """Time between tokens grows with the load, over the last minute, as the windows have it."""
    seen_at = max(1, len(past) - DELAY_S)
    minute = past[max(0, seen_at - WINDOW_S) : seen_at]
    mean = {n: sum(moment[n] for moment in minute) / len(minute) for n in past[0]}
    windows = {n: window(itl={0.02 + 0.06 * load: 4_000.0}, generated_tokens=4_000.0) for n, load in mean.items()}
    observed = [seen(n, running=32.0 * load, vram_pressure=min(1.0, load)) for n, load in minute[-1].items()]
    return run.tick(situation(*observed, windows=windows, now=float(second)))


Made = tuple[Callable[[], Run], Callable[[int, list[Load], Run], Mapping[tuple[str, Knob], KnobValue]]]
POLICIES: Mapping[str, Made] = {
    "context_length_routing": (lambda: Run(context_length_routing.POLICY, ContextLengthRoutingParams()), routed),
    "token_rate_weighting": (lambda: Run(token_rate_weighting.POLICY, TokenRateWeightingParams()), rated),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load_each", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("hot", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_weights_settle_under_a_delay_of_15_s(policy: str, load_each: float, hot: float, size: int) -> None:
    make, decide = POLICIES[policy]
    run = make()
    capacity = {"hot": hot} | {f"b{n}": 1.0 for n in range(size - 1)}
    course = simulate(capacity, load_each * sum(capacity.values()), lambda second, past: decide(second, past, run))

    assert late_swing(course) <= ONE_STEP
