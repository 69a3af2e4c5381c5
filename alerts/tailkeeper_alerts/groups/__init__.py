"""The rule groups, in the order in which they are written. A file in this folder that is missing here fails a test."""

from __future__ import annotations

from collections.abc import Callable

from tailkeeper_alerts.groups import health, latency, liveness
from tailkeeper_alerts.model import Group, RuleSettings

GROUPS: tuple[Callable[[RuleSettings], Group], ...] = (latency.group, liveness.group, health.group)
