"""The policies. ``POLICIES`` is the only list; a policy is one file, what it can be told in
``policy_params``, and one line here."""

from __future__ import annotations

from tailkeeper_watchdog.policies import (
    adaptive_batch_window,
    cache_offload,
    context_length_routing,
    gpu_health_gate,
    memory_breaker,
    slo_guardian,
    token_rate_weighting,
)
from tailkeeper_watchdog.policies.base import Policy

POLICIES: tuple[Policy, ...] = (
    adaptive_batch_window.POLICY,
    memory_breaker.POLICY,
    context_length_routing.POLICY,
    token_rate_weighting.POLICY,
    gpu_health_gate.POLICY,
    cache_offload.POLICY,
    slo_guardian.POLICY,
)

__all__ = ["POLICIES", "Policy"]
