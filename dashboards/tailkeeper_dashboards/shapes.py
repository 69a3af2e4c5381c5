"""Kinds of panels that several boards are made of, finished but for what they ask. No board and no metric here."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import common, heatmap, loki, stat, timeseries, xychart
from grafana_foundation_sdk.models.common import (
    AxisColorMode,
    GraphDrawStyle,
    HeatmapCellLayout,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, DynamicConfigValue
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.xychart import SeriesMapping, XYShowMode

from tailkeeper_dashboards.panels import (
    LOKI,
    About,
    big_number,
    fixed_color,
    framed,
    lines,
    now,
    target,
    with_limit,
)
from tailkeeper_dashboards.settings import BoardSettings
from tailkeeper_dashboards.style import BLUE, steps
from tailkeeper_dashboards.tiles import CLICKED, this_backend, why

MOST_LINES = 20
"""More lines than this cannot be told apart; a table has every one."""


def tile(
    settings: BoardSettings,
    about: About,
    expr: str,
    bounds: Sequence[tuple[float, str]] = (),
    legend: str = "__auto",
    *,
    decimals: int | None = None,
) -> stat.Panel:
    """One number now. With a ``legend`` it says whose it is, and leads to that backend where the legend names one."""
    named = legend != "__auto"
    panel = big_number(about, bounds, named=named).with_target(now(expr, legend=legend))
    panel = panel if decimals is None else panel.decimals(decimals)
    panel = panel.data_links([this_backend(CLICKED)]) if "{{backend}}" in legend else panel
    return framed(panel, about, why(settings))


def ranked(
    settings: BoardSettings,
    about: About,
    expr: str,
    legend: str = "{{backend}}",
    *,
    limit: tuple[str, float] | None = None,
    lowest: bool = False,
    most: int = MOST_LINES,
) -> timeseries.Panel:
    """A line a series, the most striking ones, each a link to its backend; ``limit`` is a name and a bound in the same unit."""
    pick = "bottomk" if lowest else "topk"
    panel = lines().data_links([this_backend(CLICKED)]).with_target(target(f"{pick}({most}, {expr})", "A", legend))
    if limit is not None:
        name, bound = limit
        panel = with_limit(panel, name, bound)
    return framed(panel, about, why(settings))


def counted() -> timeseries.Panel:
    """Stacked bars: how many in each stretch of time."""
    panel = lines().draw_style(GraphDrawStyle.BARS).fill_opacity(80).line_width(0).min(0).decimals(0)
    return panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))


def rows_by_minute() -> heatmap.Panel:
    """A row a series and a cell a minute. Grafana takes series that are not buckets as rows when it is told not to calculate."""
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Viridis").steps(32).reverse(False).min(0)
    panel = heatmap.Panel().calculate(False).color(color).cell_gap(1).show_legend().show_value(VisibilityMode.NEVER)
    panel = panel.rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.UNKNOWN))
    panel = panel.y_axis(heatmap.YAxisConfig()).mode(TooltipDisplayMode.SINGLE).show_color_scale(True)
    return panel.thresholds(steps())


def scatter(x: tuple[str, str, str], y: tuple[str, str, str]) -> xychart.Panel:
    """A dot a backend and moment. ``x`` and ``y`` are header, unit and query; both queries give a value a backend."""
    panel = xychart.Panel().mapping(SeriesMapping.AUTO).show(XYShowMode.POINTS).thresholds(steps())
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = panel.legend(legend.show_legend(False).calcs([]))
    panel = panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.SINGLE)).series([])
    panel = panel.point_size(xychart.XychartFieldConfigPointSize().fixed(5)).axis_color_mode(AxisColorMode.TEXT)
    headers = {}
    log = {"type": "log", "log": 10}  # One backend that hangs must not press all others onto the axis.
    for ref, (header, unit, expr) in zip("AB", (x, y), strict=True):
        panel = panel.with_target(target(expr, ref).format(PromQueryFormat.TABLE))
        headers[f"Value #{ref}"] = header
        axis = [("unit", unit), ("custom.axisLabel", header), *([("custom.scaleDistribution", log)] if ref == "B" else [])]
        panel = panel.override_by_name(header, [fixed_color(BLUE), *(DynamicConfigValue(*one) for one in axis)])
    panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    organize = {"excludeByName": {}, "indexByName": {"Value #A": 0, "Value #B": 1}, "renameByName": headers}
    return panel.with_transformation(DataTransformerConfig(id_val="organize", options=organize))


def counted_logs(logql: str, ref: str = "A", legend: str = "") -> loki.Dataquery:
    """A number over time that Loki works out of log lines."""
    query = loki.Dataquery().expr(logql).query_type("range").ref_id(ref).datasource(LOKI)
    return query.legend_format(legend) if legend else query
