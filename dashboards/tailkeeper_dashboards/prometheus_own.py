"""Series that Prometheus and Alertmanager make themselves, declared like ours, with the labels that our rules give them."""

from __future__ import annotations

from tailkeeper_alerts.model import RuleSettings
from tailkeeper_alerts.promql import INSTANCE, JOB, Matcher, eq, series
from tailkeeper_alerts.slo import promises
from tailkeeper_exporter.catalog import BACKEND, Kind, Label, Metric, Unit
from tailkeeper_watchdog.metrics import BURN_FAST

ALERT_NAME = Label("alertname", 64, "name of the rule")
ALERT_STATE = Label("alertstate", 2, "pending or firing")
ALERT_SEVERITY = Label("severity", 3, "page, ticket or info")
STRATEGY = Label("self_heal_strategy", 8, "the policy that acts on it, or none")
POSTED_STATE = Label("state", 3, "active, suppressed or unprocessed")

ALERTS = Metric(
    "ALERTS",
    Kind.GAUGE,
    Unit.ONE,
    "1 for each alert of Prometheus' rules.",
    (ALERT_NAME, ALERT_STATE, BACKEND, ALERT_SEVERITY, STRATEGY),
)
UP = Metric("up", Kind.GAUGE, Unit.ONE, "1 when the last scrape succeeded.", (JOB, INSTANCE))
ALERTMANAGER_ALERTS = Metric(
    "alertmanager_alerts",
    Kind.GAUGE,
    Unit.ONE,
    "Alerts that Alertmanager holds, where it is scraped.",
    (POSTED_STATE, JOB, INSTANCE),
)
PROMETHEUS_OWN: tuple[Metric, ...] = (ALERTS, UP, ALERTMANAGER_ALERTS)
RECORDED = promises(RuleSettings())[0].counted(BURN_FAST.short_s)
"""Our rules record it of every backend, with traffic or without, by cluster and backend: where it is, they are evaluated."""


def firing(*matchers: Matcher) -> str:
    """The alerts that fire; nothing while none does."""
    return series(ALERTS, eq(ALERT_STATE, "firing"), *matchers)
