"""Latencies of what is chosen as P50, P95 and P99: three strengths of one hue, the SLO as a line, and the n they come from."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard, timeseries
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import CLUSTER, Matcher, quantile
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.panels import About, fixed_color, framed, lines, logarithmic, target, with_limit
from tailkeeper_exporter.catalog import Metric

QUANTILES = (0.5, 0.95, 0.99)
N = "requests (n)"
WINDOW = "$__rate_interval"


def quantile_lines(metric: Metric, *matchers: Matcher) -> timeseries.Panel:
    """Of all that ``matchers`` choose together; refs A, B and C."""
    panel = logarithmic(lines())
    for ref, q in zip("ABC", QUANTILES, strict=True):
        name = f"P{q * 100:.0f}"
        asked = quantile(q, metric, (CLUSTER,), WINDOW, *matchers)
        panel = panel.with_target(target(asked, ref, name, exemplar=name == "P99"))
        strength = [fixed_color(style.QUANTILE_COLORS[name]), DynamicConfigValue("custom.lineWidth", 2 if name == "P99" else 1)]
        panel = panel.override_by_name(name, strength)
    return panel


def quantiles(
    metric: Metric, about: About, links: Sequence[dashboard.DashboardLink], slo_s: float | None = None, counted: str = N
) -> timeseries.Panel:
    """All chosen backends together; ``counted`` says what n counts, ``slo_s`` the promise in seconds where there is one."""
    panel = quantile_lines(metric, *queries.OF_MODEL)
    panel = panel.with_target(target(queries.samples(metric, WINDOW, CLUSTER), "D", counted))
    panel = panel.override_by_query("D", _beside())
    if slo_s is not None:
        slo = f"SLO {style.seconds_text(slo_s)}"
        panel = with_limit(panel, slo, slo_s, "E")
    return framed(panel, about, links)


def _beside() -> list[DynamicConfigValue]:
    """n is told in the tooltip and named in the legend; a line of it would say nothing about time."""
    hidden = {"viz": True, "legend": False, "tooltip": False}
    return [
        DynamicConfigValue("unit", style.COUNT_UNIT),
        DynamicConfigValue("custom.hideFrom", hidden),
        DynamicConfigValue("custom.axisPlacement", "hidden"),
        fixed_color(style.GREY),
    ]
