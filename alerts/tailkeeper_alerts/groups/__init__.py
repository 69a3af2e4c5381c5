"""The rule groups, in the order in which they are written. A file in this folder that is missing here fails a test."""

from __future__ import annotations

from collections.abc import Callable

from tailkeeper_alerts.groups import health, latency, liveness, slo_burn, slo_counts, slo_hours, vllm_only
from tailkeeper_alerts.model import Group, RuleSettings

Build = Callable[[RuleSettings], Group]
GROUPS: tuple[Build, ...] = (
    latency.group,
    slo_counts.group,
    slo_hours.group,
    slo_burn.group,
    liveness.group,
    health.group,
)
VLLM_ONLY: tuple[Build, ...] = (vllm_only.group,)
"""A file of its own: the names of ours for a vLLM that is scraped without the exporter."""
