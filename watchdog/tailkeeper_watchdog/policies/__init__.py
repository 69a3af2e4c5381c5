"""The policies. ``POLICIES`` is the only list; a policy is one file and one line here."""

from __future__ import annotations

from tailkeeper_watchdog.policies import gpu_health_gate
from tailkeeper_watchdog.policies.base import Policy

POLICIES: tuple[Policy, ...] = (gpu_health_gate.POLICY,)

__all__ = ["POLICIES", "Policy"]
