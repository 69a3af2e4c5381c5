"""Everything that is generated and committed, in one mapping: dashboards, rules, Alertmanager, collector, documentation."""

from __future__ import annotations

from tailkeeper import collector_config, metric_docs, policy_docs
from tailkeeper_alerts.notifications.receivers import Receivers
from tailkeeper_alerts.render import render as render_alerts
from tailkeeper_dashboards.render import render as render_dashboards


def documents(receivers: Receivers | None = None) -> dict[str, str]:
    """Path below the repository → content. The same bytes on each run."""
    configurations = {**render_alerts(receivers=receivers), **collector_config.render()}
    return {**render_dashboards(), **configurations, **metric_docs.render(), **policy_docs.render()}
