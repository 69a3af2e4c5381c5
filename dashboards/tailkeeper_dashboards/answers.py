"""Answers that more than one board gives in the same words and colours: which state, how many requests and how they ended."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, statetimeline, timeseries
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import by, eq, not_regex, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.panels import About, Place, fixed_color, framed, lines, state_bands, target
from tailkeeper_dashboards.settings import BoardSettings
from tailkeeper_dashboards.shapes import MOST_LINES
from tailkeeper_dashboards.tiles import why
from tailkeeper_exporter.catalog import OUTCOME, REQUESTS


def states(settings: BoardSettings, place: Place) -> statetimeline.Panel:
    about = About(
        f"In which state was it, and when? Most worrying {MOST_LINES}",
        "What the exporter says of each backend; grey is unknown, which is not dead.",
        style.COUNT_UNIT,
        "none seen",
        place,
    )
    worst = f"topk({MOST_LINES}, {queries.state_rank()})"
    return framed(state_bands().with_target(target(worst, legend="{{backend}}")), about, why(settings))


def outcomes(settings: BoardSettings, place: Place) -> timeseries.Panel:
    slo = style.seconds_text(settings.slo_ttft_s)
    good = f"first token within {slo} (at least)"
    about = About(
        "How many requests, and how did they end?",
        "Finished requests a second by outcome, and those whose first token surely came in time.",
        style.rate_unit_of(REQUESTS),
        "no traffic",
        place,
    )
    # What went well comes last, so that it lies on top of the stack and its colour draws the upper edge.
    parts = (not_regex(OUTCOME, "ok"), eq(OUTCOME, "ok"))
    rates = [by("sum", (OUTCOME,), f"rate({series(REQUESTS, *queries.OF_MODEL, part)}[$__rate_interval])") for part in parts]
    panel = lines().min(0).fill_opacity(25).stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    panel = panel.with_target(target(rates[0], "A", "{{outcome}}")).with_target(target(rates[1], "B", "{{outcome}}"))
    panel = panel.with_target(target(queries.within(settings.slo_ttft_s, "$__rate_interval", "rate"), "C", good))
    for outcome, color in style.OUTCOME_COLORS.items():
        panel = panel.override_by_name(outcome, [fixed_color(color)])
    alone = DynamicConfigValue("custom.stacking", {"mode": "none", "group": "B"})
    plain = [fixed_color(style.NEUTRAL), alone, DynamicConfigValue("custom.fillOpacity", 0)]
    return framed(panel.override_by_name(good, plain), about, why(settings))
