"""Watchdog itself: does it watch, is it in time, how fresh is what it knows, why did it not act, what does the exporter lose."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard
from grafana_foundation_sdk.models.common import BarGaugeNamePlacement

from tailkeeper_alerts.promql import CLUSTER, by, count, eq, regex, series, total
from tailkeeper_dashboards import assemble, exporter_panels, log_tables, queries, style
from tailkeeper_dashboards.latencies import quantile_lines
from tailkeeper_dashboards.panels import (
    About,
    Builder,
    Place,
    bars,
    big_number,
    fixed_color,
    framed,
    limit_line,
    lines,
    logarithmic,
    now,
    target,
)
from tailkeeper_dashboards.settings import WATCHDOG_UID, BoardSettings
from tailkeeper_dashboards.shapes import MOST_LINES, counted, ranked, tile
from tailkeeper_dashboards.tiles import why
from tailkeeper_watchdog.metrics import (
    DECISIONS,
    DETECTOR,
    DRIFT_ACTIVE,
    FORECAST_ERROR_BOUND,
    FORECAST_P99,
    KNOB,
    LEASES_IN_FORCE,
    OBSERVATION_AGE,
    PAUSED,
    POLICY,
    TICK_DURATION,
    VERDICT,
)

WINDOW = "$__rate_interval"
HERE = (queries.IN_CLUSTER,)
LATE_SHARE = 0.5
"""A tick that takes half of the time there is has no room for a bad day."""
OLD_S = 15.0
"""Evidence this old decides nothing any more, in the shortest of the usual settings."""
VERDICT_COLORS = {**log_tables.ENDED, "already": style.GREY, "observed": "light-blue", "advised": "light-orange"}


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder."""
    description = "Does the watchdog watch, is it in time, how fresh is what it knows, and why did it not act."
    return assemble.board(settings, WATCHDOG_UID, description, PANELS)


def _watching(settings: BoardSettings) -> Builder:
    about = About(
        "Is it watching?",
        "Whether a watchdog is seen, and whether somebody paused its actions.",
        style.unit_of(PAUSED),
        "not seen",
        Place(0, 0, 4, 4),
    )
    words = style.value_map({"0": ("watching", style.GREEN), "1": ("paused", style.ORANGE)})
    panel = big_number(about, ()).mappings([words, style.missing(about.no_value)])
    return framed(panel.with_target(now(f"max({series(PAUSED, *HERE)})")), about, why(settings))


def _busy(settings: BoardSettings) -> Builder:
    about = About(
        "Busy ticking",
        "Share of all time that ticks took in the last 5 minutes; at 100 % the next tick is late.",
        style.RATIO_UNIT,
        "not seen",
        Place(4, 0, 4, 4),
    )
    bounds = ((0.0, style.GREEN), (LATE_SHARE, style.ORANGE), (0.9, style.RED))
    spent = by("sum", (CLUSTER,), f"rate({total(TICK_DURATION, *HERE)}[5m])")
    return tile(settings, about, f"max({spent})", bounds, decimals=1)


def _evidence(settings: BoardSettings) -> Builder:
    about = About(
        "Oldest evidence",
        "The backend about which the newest evidence is oldest; nobody acts on what is stale.",
        style.unit_of(OBSERVATION_AGE),
        "no backends seen",
        Place(8, 0, 4, 4),
    )
    bounds = ((0.0, style.GREEN), (OLD_S, style.ORANGE))
    return tile(settings, about, f"topk(1, {queries.of_backend(OBSERVATION_AGE)})", bounds, "{{backend}}")


def _refused(settings: BoardSettings) -> Builder:
    about = About(
        "Refused, 1 h",
        "How many changes the guards did not allow in the last hour; the log below says why.",
        style.COUNT_UNIT,
        "no watchdog seen",
        Place(16, 0, 4, 4),
    )
    refused = series(DECISIONS, eq(VERDICT, "refused"), *HERE)
    return tile(settings, about, f"round(sum(increase({refused}[1h])))", ((1.0, style.ORANGE),), decimals=0)


def _leases(settings: BoardSettings) -> Builder:
    about = About(
        "Leases in force",
        "Changes of ours that are in force, or may be; each ends by itself.",
        style.unit_of(LEASES_IN_FORCE),
        "no watchdog seen",
        Place(20, 0, 4, 4),
    )
    return tile(settings, about, f"sum({series(LEASES_IN_FORCE, *HERE)})", ((1.0, style.BLUE),))


def _ticks(settings: BoardSettings) -> Builder:
    about = About(
        "Is a tick in time?",
        "How long whole ticks take, and the time from one to the next, which they must stay below.",
        style.unit_of(TICK_DURATION),
        "no watchdog seen",
        Place(0, 4, 12, 8),
    )
    panel = quantile_lines(TICK_DURATION, *HERE)
    between = by("max", (CLUSTER,), f"rate({count(TICK_DURATION, *HERE)}[{WINDOW}])")
    budget = "from one tick to the next"
    panel = limit_line(panel.with_target(target(f"1 / ({between} > 0)", "D", budget)), budget)
    return framed(panel, about, why(settings))


def _age(settings: BoardSettings) -> Builder:
    about = About(
        f"How old is what it knows? Oldest {MOST_LINES} backends",
        "Age of the newest evidence about each backend, as the watchdog has it.",
        style.unit_of(OBSERVATION_AGE),
        "no backends seen",
        Place(12, 4, 12, 8),
    )
    return logarithmic(ranked(settings, about, queries.of_backend(OBSERVATION_AGE)))


def _verdicts(settings: BoardSettings) -> Builder:
    about = About(
        "How did decisions end?",
        "Every decision by its verdict: observed and advised are those of policies that may not act.",
        style.COUNT_UNIT,
        "no watchdog seen",
        Place(0, 20, 12, 8),
    )
    expr = by("sum", (VERDICT,), f"increase({series(DECISIONS, *HERE)}[{WINDOW}])")
    panel = counted().with_target(target(expr, legend="{{verdict}}").interval("1m"))
    for verdict, color in VERDICT_COLORS.items():
        panel = panel.override_by_name(verdict, [fixed_color(color)])
    return framed(panel, about, why(settings))


def _refusals(settings: BoardSettings) -> Builder:
    about = About(
        "Whose changes were refused? Last hour",
        "Refused and failed changes of the last hour by policy and what was to be changed.",
        style.COUNT_UNIT,
        "none, or no watchdog is seen",
        Place(12, 20, 12, 8),
    )
    verdicts = series(DECISIONS, regex(VERDICT, "refused|failed"), *HERE)
    expr = f"round({by('sum', (POLICY, KNOB, VERDICT), f'increase({verdicts}[1h])')}) > 0"
    panel = (
        bars()
        .text(common.VizTextDisplayOptions().title_size(13).value_size(16))
        .name_placement(BarGaugeNamePlacement.TOP)
        .thresholds(style.steps((1.0, style.ORANGE)))
        .with_target(now(f"sort_desc({expr})", legend="{{policy}}: {{knob}} {{verdict}}"))
    )
    return framed(panel, about, why(settings))


def _reasons(settings: BoardSettings) -> Builder:
    return log_tables.refusals(settings, Place(0, 28, 24, 8))


def _detectors(settings: BoardSettings) -> Builder:
    about = About(
        "Which detectors hold a finding open?",
        "Open drift findings by detector; how many are false nobody can tell at the time, and docs/drift.md has measured rates.",
        style.COUNT_UNIT,
        "no watchdog seen",
        Place(0, 36, 8, 8),
    )
    active = by("sum", (DETECTOR,), series(DRIFT_ACTIVE, *queries.OF_BACKEND))
    return framed(lines().min(0).decimals(0).with_target(target(active, legend="{{detector}}")), about, why(settings))


def _forecast(settings: BoardSettings) -> Builder:
    about = About(
        f"How wrong are its forecasts? Worst {MOST_LINES}",
        "The 99th percentile of the last hour's errors of the P99 forecast; no line where none is better than the last value.",
        style.unit_of(FORECAST_ERROR_BOUND),
        "no forecast is better than the last value yet",
        Place(8, 36, 8, 8),
    )
    return ranked(settings, about, queries.of_backend(FORECAST_ERROR_BOUND)).min(0)


def _forecast_itself(settings: BoardSettings) -> Builder:
    about = About(
        f"What does it foresee? Worst {MOST_LINES}",
        "The forecast P99 of the first token over the next 30 s, where its error is known and small enough.",
        style.unit_of(FORECAST_P99),
        "no forecast is better than the last value yet",
        Place(16, 36, 8, 8),
    )
    limit = (f"SLO {style.seconds_text(settings.slo_ttft_s)}", settings.slo_ttft_s)
    return ranked(settings, about, queries.of_backend(FORECAST_P99), limit=limit).min(0)


PANELS: tuple[assemble.PanelOf, ...] = (
    _watching,
    _busy,
    _evidence,
    exporter_panels.sources,
    _refused,
    _leases,
    _ticks,
    _age,
    exporter_panels.source_age,
    exporter_panels.durations,
    _verdicts,
    _refusals,
    _reasons,
    _detectors,
    _forecast,
    _forecast_itself,
    exporter_panels.failing,
    exporter_panels.missing,
    exporter_panels.invalid,
    exporter_panels.probes,
    exporter_panels.lost,
)
