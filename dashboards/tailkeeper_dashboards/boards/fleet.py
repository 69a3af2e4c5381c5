"""Fleet SLA: is it bad, where, and what was done about it. Top left answers the first, the first row the second."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import by, eq, not_regex, quantile, series
from tailkeeper_dashboards import assemble, backend_table, queries, style, tiles
from tailkeeper_dashboards.panels import (
    About,
    Builder,
    Place,
    fixed_color,
    framed,
    limit_line,
    lines,
    logarithmic,
    state_bands,
    target,
)
from tailkeeper_dashboards.settings import FLEET_UID, BoardSettings
from tailkeeper_dashboards.tiles import this_backend, why
from tailkeeper_exporter.catalog import OUTCOME, REQUESTS, TTFT
from tailkeeper_watchdog.metrics import HSCORE

MOST_LINES = 20
"""More lines than this cannot be told apart; the table below the numbers has every backend."""


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder. Every panel links to the console, which says why."""
    description = "Is the SLA held, for whom, which backend is to blame, and what was done about it."
    return assemble.board(settings, FLEET_UID, description, PANELS)


def _p99(settings: BoardSettings) -> Builder:
    slo = f"SLO {style.seconds_text(settings.slo_ttft_s)}"
    about = About(
        f"How long do users wait? P99 TTFT, slowest {MOST_LINES}",
        "One request in a hundred waits at least this long for its first token; diamonds are single requests.",
        style.unit_of(TTFT),
        "no traffic",
        Place(0, 12, 12, 10),
    )
    worst = f"topk({MOST_LINES}, {quantile(0.99, TTFT, queries.BY_BACKEND, '$__rate_interval', *queries.OF_MODEL)})"
    panel = logarithmic(lines()).data_links([this_backend("__field.labels.backend")])
    panel = panel.with_target(target(worst, "A", "{{backend}}", exemplar=True))
    panel = limit_line(panel.with_target(target(f"vector({settings.slo_ttft_s:g})", "B", slo)), slo)
    return framed(panel, about, why(settings))


def _hscore(settings: BoardSettings) -> Builder:
    about = About(
        f"How healthy is each backend? HScore, lowest {MOST_LINES}",
        "From 0 to 1, 1 is best; below 0.6, 0.4 and 0.2 it is reported more and more often.",
        style.unit_of(HSCORE),
        "no scores",
        Place(12, 12, 12, 5),
    )
    panel = lines().min(0).max(1).decimals(style.SCORE_DECIMALS).data_links([this_backend("__field.labels.backend")])
    worst = f"bottomk({MOST_LINES}, {queries.of_backend(HSCORE)})"
    return framed(panel.with_target(target(worst, legend="{{backend}}")), about, why(settings))


def _states(settings: BoardSettings) -> Builder:
    about = About(
        f"In which state was it, and when? Most worrying {MOST_LINES}",
        "What the exporter says of each backend; grey is unknown, which is not dead.",
        style.COUNT_UNIT,
        "none seen",
        Place(12, 17, 12, 5),
    )
    worst = f"topk({MOST_LINES}, {queries.state_rank()})"
    return framed(state_bands().with_target(target(worst, legend="{{backend}}")), about, why(settings))


def _outcomes(settings: BoardSettings) -> Builder:
    slo = style.seconds_text(settings.slo_ttft_s)
    good = f"first token within {slo} (at least)"
    about = About(
        "How many requests, and how did they end?",
        "Finished requests a second by outcome, and those whose first token surely came in time.",
        style.rate_unit_of(REQUESTS),
        "no traffic",
        Place(0, 22, 12, 8),
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


def _errors(settings: BoardSettings) -> Builder:
    about = About(
        f"Who fails requests? Share of errors and rejections, highest {MOST_LINES}",
        "Failed and rejected requests as a share of all finished ones; a backend without requests has no line.",
        style.RATIO_UNIT,
        "no traffic",
        Place(12, 22, 12, 8),
    )
    window = "[$__rate_interval]"
    failed = by("sum", queries.BY_BACKEND, f"rate({series(REQUESTS, *queries.OF_MODEL, queries.FAILED)}{window})")
    finished = by("sum", queries.BY_BACKEND, f"rate({series(REQUESTS, *queries.OF_MODEL)}{window})")
    panel = lines().min(0).data_links([this_backend("__field.labels.backend")])
    panel = panel.with_target(target(f"topk({MOST_LINES}, {failed} / ({finished} > 0))", legend="{{backend}}"))
    budget = 1 - settings.objective
    allowed = f"allowed {budget:.2%}"
    panel = limit_line(panel.with_target(target(f"vector({budget:.6g})", "B", allowed)), allowed)
    return framed(panel, about, why(settings))


PANELS: tuple[assemble.PanelOf, ...] = (
    tiles.sla,
    tiles.worst,
    tiles.serving,
    tiles.held_back,
    tiles.decisions,
    tiles.watching,
    backend_table.backends,
    _p99,
    _hscore,
    _states,
    _outcomes,
    _errors,
)
