"""The table that names the culprit: one row a backend, joined from one query a column.

Widths are given so that nothing scrolls sideways at 1280 px; the name takes what is left.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, table

from tailkeeper_alerts.promql import CLUSTER, by, count, eq, quantile, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.panels import COLORED_TEXT, About, Column, Place, cell_link, fill_table, framed, threshold_steps
from tailkeeper_dashboards.settings import BoardSettings
from tailkeeper_dashboards.tiles import CELL, its_requests, this_backend, why
from tailkeeper_exporter.catalog import (
    BACKEND,
    GPU_UTILIZATION,
    KV_USAGE,
    QUANTILE_SATURATED,
    SIGNAL,
    STATE,
    TTFT,
    WAITING,
    Metric,
)
from tailkeeper_watchdog.metrics import ACTUAL_WEIGHT, COST, DESIRED_WEIGHT, DOMINANT_FACTOR, HSCORE


def backends(settings: BoardSettings, place: Place) -> table.Panel:
    """The table panel."""
    slo = style.seconds_text(settings.slo_ttft_s)
    about = About(
        "Which backend, and why?",
        "Worst score first; why is what costs the score most, P99 is over 5 minutes and n its number of requests, ≥ says that "
        "P99 lies beyond the engine's last bucket, and weight is what the gateway gives it of its normal share, beside what the "
        "watchdog wants.",
        style.COUNT_UNIT,
        "unknown",
        place,
    )
    panel = fill_table(table.Panel(), _columns(settings, slo)).thresholds(style.steps())
    panel = panel.mappings([style.missing("–")]).sort_by([common.TableSortByFieldState().display_name("HScore").desc(False)])
    return framed(panel, about, why(settings))


def _columns(settings: BoardSettings, slo: str) -> tuple[Column, ...]:
    saturated = by("max", queries.BY_BACKEND, series(QUANTILE_SATURATED, eq(SIGNAL, "ttft"), *queries.OF_BACKEND))
    per_model = queries.OF_MODEL
    # increase() estimates between scrapes; a number of requests is whole.
    requests = f"round({by('sum', queries.BY_BACKEND, f'increase({count(TTFT, *per_model)}[5m])')})"
    late = threshold_steps((0, style.GREEN), (settings.slo_ttft_s, style.RED))
    full = threshold_steps((0, style.NEUTRAL), (0.8, style.ORANGE), (0.9, style.RED))
    return (
        # Only there where the series have the label.
        Column("Cluster", None, source=CLUSTER.name),
        Column("Backend", None, source=BACKEND.name, overrides={"links": _links()}),
        Column("State", queries.current_state(), source=STATE.name, width=120, overrides=_state_cell()),
        Column("HScore", queries.of_backend(HSCORE), style.unit_of(HSCORE), width=140, overrides=_score_cell()),
        Column("Why", _why(), source=COST.name, width=95, overrides={"mappings": _factor_words()}),
        Column("≥", saturated, style.COUNT_UNIT, width=50, overrides={"mappings": _saturated_words()}),
        Column(
            f"P99 TTFT (SLO {slo})",
            quantile(0.99, TTFT, queries.BY_BACKEND, "5m", *per_model),
            style.unit_of(TTFT),
            width=170,
            overrides={"thresholds": late, "links": [cell_link(its_requests("__data.fields.backend"))], **COLORED_TEXT},
        ),
        Column("n", requests, style.COUNT_UNIT, width=65),
        Column("Queue", by("sum", queries.BY_BACKEND, series(WAITING, *per_model)), style.unit_of(WAITING), width=65),
        Column(
            "KV",
            by("max", queries.BY_BACKEND, series(KV_USAGE, *per_model)),
            style.unit_of(KV_USAGE),
            width=70,
            overrides={"thresholds": full, **COLORED_TEXT},
        ),
        Column("GPU", queries.of_backend(GPU_UTILIZATION, "avg"), style.unit_of(GPU_UTILIZATION), width=70),
        _weight("Weight", ACTUAL_WEIGHT, 75),
        _weight("Wanted", DESIRED_WEIGHT, 75),
    )


def _why() -> str:
    return queries.serving_model(by("max", (*queries.BY_BACKEND, COST), series(DOMINANT_FACTOR, *queries.OF_BACKEND)))


def _factor_words() -> list[object]:
    words = {"error_rate": "errors", "cpu_usage": "CPU"}
    return [style.value_map({name: (word, style.NEUTRAL) for name, word in words.items()}), style.missing("–")]


def _weight(header: str, metric: Metric, width: int) -> Column:
    less = {"thresholds": threshold_steps((0, style.BLUE), (1, style.NEUTRAL)), **COLORED_TEXT}
    return Column(header, queries.of_backend(metric), style.unit_of(metric), width=width, overrides=less)


def _links() -> list[dict[str, object]]:
    return [cell_link(link(CELL)) for link in (this_backend, its_requests)]


def _state_cell() -> dict[str, object]:
    return {"custom.cellOptions": {"type": "color-background", "mode": "basic"}, "mappings": style.state_names()}


def _score_cell() -> dict[str, object]:
    bar = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    return {
        "custom.cellOptions": bar,
        "min": 0,
        "max": 1,
        "decimals": style.SCORE_DECIMALS,
        "thresholds": threshold_steps(*style.SCORE_STEPS),
    }


def _saturated_words() -> list[object]:
    return [style.value_map({"0": (" ", style.NEUTRAL), "1": ("≥", style.ORANGE)}), style.missing(" ")]
