"""What the exporter says of itself: which of its sources answer, how late and how slow, what it could not use, what it lost."""

from __future__ import annotations

from grafana_foundation_sdk.builders import table

from tailkeeper_alerts.promql import CLUSTER, by, not_regex, regex, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.panels import About, Builder, Column, Place, fill_table, framed, lines, logarithmic, target
from tailkeeper_dashboards.settings import BoardSettings
from tailkeeper_dashboards.shapes import ranked, tile
from tailkeeper_dashboards.tiles import backend_column, why
from tailkeeper_exporter.catalog import (
    INVALID_SAMPLES,
    METRIC,
    MISSING_METRICS,
    OTLP_LOGS,
    OTLP_OUTCOME,
    OTLP_SPANS,
    PROBE_OUTCOME,
    PROBES,
    REASON,
    SCRAPE_AGE,
    SCRAPE_DURATION,
    SCRAPE_SUCCESS,
    SOURCE,
)
from tailkeeper_watchdog import metrics

WINDOW = "$__rate_interval"
FEW_LINES = 6
"""Of sources, which are several a backend: those that are the worst for a moment only come on top of these."""


def sources(settings: BoardSettings) -> Builder:
    about = About(
        "Sources up",
        "Share of the exporter's sources whose last read gave readings: engine pages, GPUs, probes, health, taps.",
        style.RATIO_UNIT,
        "no exporter seen",
        Place(12, 0, 4, 4),
    )
    each = queries.of_group(SCRAPE_SUCCESS, (*queries.BY_BACKEND, SOURCE), "min")
    return tile(
        settings, about, f"sum({each}) / count({each})", ((0.0, style.RED), (0.9, style.ORANGE), (1.0, style.GREEN)), decimals=1
    )


def source_age(settings: BoardSettings) -> Builder:
    about = About(
        f"Which source is late? Oldest {FEW_LINES}",
        "Time since a source last gave readings; without probes, which are made only where traffic proves nothing.",
        style.unit_of(SCRAPE_AGE),
        "no exporter seen",
        Place(0, 12, 12, 8),
    )
    due = series(SCRAPE_AGE, *queries.OF_BACKEND, not_regex(SOURCE, "probe"))
    ages = queries.serving_model(by("max", (*queries.BY_BACKEND, SOURCE), due))
    return logarithmic(ranked(settings, about, ages, "{{backend}} {{source}}", most=FEW_LINES))


def durations(settings: BoardSettings) -> Builder:
    about = About(
        f"Which source is slow? Slowest {FEW_LINES}",
        "How long the exporter's last read of each source took.",
        style.unit_of(SCRAPE_DURATION),
        "no exporter seen",
        Place(12, 12, 12, 8),
    )
    durations = queries.of_group(SCRAPE_DURATION, (*queries.BY_BACKEND, SOURCE))
    return logarithmic(ranked(settings, about, durations, "{{backend}} {{source}}", most=FEW_LINES))


def failing(settings: BoardSettings) -> Builder:
    about = About(
        "Which sources give nothing?",
        "Sources of the exporter whose last read gave no readings.",
        style.COUNT_UNIT,
        "none, or no exporter is seen",
        Place(0, 44, 8, 8),
    )
    failing = f"{queries.of_group(SCRAPE_SUCCESS, (*queries.BY_BACKEND, SOURCE), 'min')} < 1"
    return _listed(settings, about, "Source", SOURCE.name, failing)


def missing(settings: BoardSettings) -> Builder:
    about = About(
        "Which metrics are missing?",
        "Metrics that an engine of this kind and version should offer and does not; what they would say is unknown.",
        style.COUNT_UNIT,
        "none, or no exporter is seen",
        Place(8, 44, 8, 8),
    )
    missing = f"{queries.of_group(MISSING_METRICS, (*queries.BY_BACKEND, METRIC))} > 0"
    return _listed(settings, about, "Metric", METRIC.name, missing)


def invalid(settings: BoardSettings) -> Builder:
    about = About(
        "Which samples were not used?",
        "Samples and pages that the exporter could not use, a second, by reason.",
        style.rate_unit_of(INVALID_SAMPLES),
        "all were used, or no exporter is seen",
        Place(16, 44, 8, 8),
    )
    expr = by("sum", (REASON,), f"rate({series(INVALID_SAMPLES, *queries.OF_BACKEND)}[{WINDOW}])")
    return framed(lines().min(0).with_target(target(f"{expr} > 0", legend="{{reason}}")), about, why(settings))


def probes(settings: BoardSettings) -> Builder:
    about = About(
        "How do its own probes end?",
        "One-token requests of the exporter, a second, by outcome; they are never counted as traffic.",
        style.rate_unit_of(PROBES),
        "no probes",
        Place(0, 52, 12, 8),
    )
    expr = by("sum", (PROBE_OUTCOME,), f"rate({series(PROBES, *queries.OF_BACKEND)}[{WINDOW}])")
    return framed(lines().min(0).with_target(target(f"{expr} > 0", legend="{{outcome}}")), about, why(settings))


def lost(settings: BoardSettings) -> Builder:
    about = About(
        "What is lost on its way to the collector?",
        "Spans and log records a second, of exporter and watchdog, that were dropped (too many, or too old) or refused.",
        style.rate_unit_of(OTLP_SPANS),
        "nothing is sent to a collector",
        Place(12, 52, 12, 8),
    )
    sent = {
        "exporter's spans": (OTLP_SPANS, OTLP_OUTCOME),
        "access log": (OTLP_LOGS, OTLP_OUTCOME),
        "watchdog's spans": (metrics.OTLP_SPANS, metrics.OTLP_OUTCOME),
        "decision log": (metrics.OTLP_LOGS, metrics.OTLP_OUTCOME),
    }
    panel = lines().min(0).axis_soft_max(1)
    for ref, (name, (metric, outcome)) in zip("ABCD", sent.items(), strict=True):
        gone = series(metric, regex(outcome, "dropped|refused"), queries.IN_CLUSTER)
        panel = panel.with_target(target(f"sum(rate({gone}[{WINDOW}]))", ref, name))
    return framed(panel, about, why(settings))


def _listed(settings: BoardSettings, about: About, header: str, label: str, expr: str) -> table.Panel:
    """Names only: which backend, and which of its parts."""
    columns = (Column("Cluster", None, source=CLUSTER.name), backend_column(), Column(header, expr, source=label))
    return framed(fill_table(table.Panel(), columns).thresholds(style.steps()), about, why(settings))
