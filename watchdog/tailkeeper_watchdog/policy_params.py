"""What each policy can be told: the parameters under ``policies.NAME`` of the configuration, with their bounds and defaults.

Apart from the policies, because whoever reads a configuration need not be able to decide: an exporter has no NumPy.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tailkeeper_exporter.settings import Ratio, Seconds, Settings
from tailkeeper_watchdog.metrics import (
    BREAKER_ERROR_RATIO,
    BREAKER_FAILURES,
    BREAKER_REQUESTS,
    MEMORY_PRESSURE_LIMIT_RATIO,
    MEMORY_RISK_AFTER_S,
    MEMORY_RISK_RATIO,
    MEMORY_STOP_AFTER_S,
    MEMORY_STOP_RATIO,
    PREEMPTIONS_LIMIT_PER_S,
)


class AdaptiveBatchWindowParams(Settings):
    irregular_above: Ratio = 0.75
    regular_below: Ratio = 0.4
    growth: Annotated[float, Field(ge=1)] = 1.2
    floor_s: Seconds = 0.010
    ceiling_s: Seconds = 0.200
    target_p99_s: Seconds = 0.200
    shrink: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """A factor for each 100 ms over the target."""
    limited_floor_s: Seconds = 0.050
    slow_batch_s: Seconds = 0.300
    breaches: Annotated[int, Field(ge=1)] = 3
    quiet_s: Seconds = 5
    interval_s: Seconds = 5
    """Between two steps by entropy: a window must be seen to work before it is changed again."""
    min_arrivals: Annotated[int, Field(ge=5)] = 50
    """The entropy of fewer says more about chance than about arrivals."""
    least_concurrency: Annotated[float, Field(ge=1)] = 4
    limit_step: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """A limit turns requests away, so it goes down by less than a window does."""
    limit_interval_s: Seconds = 10
    """The P99 that it is judged by is one of ten seconds."""


class MemoryBreakerParams(Settings):
    level1_ratio: Ratio = MEMORY_RISK_RATIO
    level1_after_s: Seconds = MEMORY_RISK_AFTER_S
    level2_ratio: Ratio = MEMORY_STOP_RATIO
    level2_after_s: Seconds = MEMORY_STOP_AFTER_S
    hysteresis_ratio: Ratio = 0.05
    """A level that came and went with every request would be no level."""
    drain_grace_s: Annotated[float, Field(ge=0)] = 5
    memory_copy_limit_ratio: Ratio = 0.85
    preemptions_limit_per_s: Annotated[float, Field(ge=0)] = PREEMPTIONS_LIMIT_PER_S
    """More than one preemption in two seconds is a backend that throws work away."""


class ContextLengthRoutingParams(Settings):
    floor_weight: Ratio = 0.1
    """A full backend still gets a trickle: without it nobody would see that it has room again."""
    full_weight_below_ratio: Ratio = 0.05
    """A nearly empty cache is no reason to turn a knob."""
    publish_step_ratio: Ratio = 0.05
    """A usage that moves by less is published already: a fleet of a thousand would write a thousand notes every half minute."""
    lower_s: Seconds = 20
    """Time in which a weight goes two thirds of the way down: a cache that fills up is not waited for long."""
    raise_s: Seconds = 120
    """Likewise up. Slower than down: with both at 20 s two backends at 60 % swing against each other for ever (simulated, with
    observations 15 s old)."""


MAX_HINTS = 64


class TokenRateWeightingParams(Settings):
    model_weights: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(max_length=MAX_HINTS)] = Field(default_factory=dict)
    """By MODEL-QUANTIZATION, or by MODEL; the traffic share that a model is meant to have where pools hold several."""
    baseline_p99_s: Seconds = 0.080
    interval_s: Seconds = 5
    max_step: Ratio = 0.2
    """A weight that swung further would overshoot before its effect can be seen."""
    correction: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of what is missing that a step makes up for once the weight was there: with a window of 60 s that is read 15 s
    late, 0.2 still swings where loads are high (simulated)."""
    floor_weight: Ratio = 0.1
    even_within_ratio: Ratio = 0.0
    """One that earns less than the best by no more than this keeps its whole weight. Few requests a backend make its memory and
    its share of those under way jump from tick to tick: that is no difference between backends."""
    min_tokens: Annotated[float, Field(ge=1)] = 200
    """Generated within the window; fewer say little about speed."""


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


MAX_TIERS = 8
Tier = Annotated[str, Field(min_length=1, max_length=32)]


class CacheOffloadParams(Settings):
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1, max_length=MAX_TIERS)] = ("local",)
    """What the tap has. Name more of them where the gateway has more, the nearest first."""
    pressure_ratio: Ratio = 0.80
    pressure_after_s: Seconds = 10
    step_s: Seconds = 30
    """A cache takes a while to fill: the next tier waits for what this one brings."""
    relief_ratio: Ratio = 0.60
    relief_after_s: Seconds = 60


class SloGuardianParams(Settings):
    ttft_p99_limit_s: Seconds = 0.8
    error_limit_ratio: Ratio = 0.005
    min_requests: Annotated[int, Field(ge=1)] = 20
    """One failure among fewer would be over any limit."""
    max_level: Annotated[int, Field(ge=0, le=3)] = 1
    escalate_after_s: Seconds = 20
    load_limit: Annotated[float, Field(gt=1)] = 2.1
    load_after_s: Seconds = 15
    baseline_s: Seconds = 3_600
    baseline_least_s: Seconds = 600
    max_scale: Annotated[float, Field(ge=1)] = 2.0
    """More than twice as many at once is a decision for a person."""
    itl_p99_limit_s: Seconds = 0.035
    shed_memory_ratio: Ratio = 0.85
    tokens_floor_per_s: Annotated[float, Field(ge=0)] = 1_000
    scale_memory_ratio: Ratio = 0.70
    good_period_s: Seconds = 10
    good_periods: Annotated[int, Field(ge=1)] = 3
