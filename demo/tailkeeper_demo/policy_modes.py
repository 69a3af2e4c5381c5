"""The policies of the demo's configuration: all of them on ``enforce``, with numbers that fit four small engines.

Times are shorter than the defaults, so that what a policy does and takes back fits into a story of a minute. Values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Policies = Mapping[str, Mapping[str, Any]]

ENFORCED: Policies = {
    "gpu_health_gate": {"mode": "enforce", "params": {"breaker_open_s": 15, "breaker_trial_requests": 5}},
    # The demo promises a first token within 1.2 s: as long as that holds nobody is turned away. Four engines make 1,100 tokens/s.
    "slo_guardian": {"mode": "enforce", "params": {"ttft_p99_limit_s": 1.1, "tokens_floor_per_s": 200, "good_period_s": 4}},
    "memory_breaker": {"mode": "enforce", "params": {"level1_after_s": 5, "level2_after_s": 6, "drain_grace_s": 2}},
    # An engine five times slower has up to 0.6 s between tokens while a prompt is computed, however few requests it works on.
    # With a lower target the limit only makes a queue before it (0.3 s: 98.7 % of requests within the SLA; no limit: 99.8 %).
    "adaptive_batch_window": {
        "mode": "enforce",
        "params": {"target_p99_s": 0.6, "least_concurrency": 16, "limit_interval_s": 4, "growth": 1.5},
    },
    # Three engines that carry a fourth one's traffic have their caches half full, all alike: that is no reason to shift anything.
    "context_length_routing": {"mode": "enforce", "params": {"full_weight_below_ratio": 0.6}},
    # Two to five requests an engine: their number alone makes equal engines differ by a third.
    "token_rate_weighting": {"mode": "enforce", "params": {"even_within_ratio": 0.5}},
    "cache_offload": {"mode": "enforce", "params": {"pressure_after_s": 4, "step_s": 10, "relief_after_s": 10}},
}

OBSERVED: Policies = {name: {"mode": "observe", "params": given["params"]} for name, given in ENFORCED.items()}
"""The same policies writing down what they would do, and doing nothing."""
