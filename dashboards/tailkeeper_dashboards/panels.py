"""The pieces that every panel is put together from: data source, targets, links, legends, table columns. No board here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    GridPos,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from tailkeeper_dashboards.style import GREY, RED, color_by, missing, state_ranks, steps

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${datasource}")
AnyPanel = TypeVar("AnyPanel", stat.Panel, timeseries.Panel, table.Panel, statetimeline.Panel)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a panel lies, in Grafana's grid of 24 columns."""

    x: int
    y: int
    w: int
    h: int


@dataclass(frozen=True, slots=True)
class About:
    """What every panel must say: the question it answers, one sentence, its unit, and the word for no data."""

    title: str
    description: str
    unit: str
    no_value: str
    place: Place


def link(title: str, url: str) -> dashboard_builders.DashboardLink:
    return dashboard_builders.DashboardLink(title).type(DashboardLinkType.LINK).url(url)


def board_link(title: str, uid: str, backend: str) -> dashboard_builders.DashboardLink:
    """To a board with the same data source, model and time; ``backend`` is Grafana's expression for the clicked one."""
    kept = "${datasource:queryparam}&${model:queryparam}&${__url_time_range}"
    return link(title, f"/d/{uid}?{kept}&var-backend=${{{backend}:percentencode}}")


def framed(panel: AnyPanel, about: About, links: Sequence[dashboard_builders.DashboardLink]) -> AnyPanel:
    """The panel with everything that no panel may lack."""
    place = GridPos(about.place.h, about.place.w, about.place.x, about.place.y)
    panel = panel.title(about.title).description(about.description).datasource(PROMETHEUS).grid_pos(place)
    return panel.unit(about.unit).no_value(about.no_value).links(list(links))


def target(expr: str, ref: str = "A", legend: str = "__auto", *, exemplar: bool = False) -> prometheus.Dataquery:
    """A query over the board's time range."""
    query = prometheus.Dataquery().expr(expr).ref_id(ref).legend_format(legend).datasource(PROMETHEUS).range()
    return query.exemplar(True) if exemplar else query


def now(expr: str, ref: str = "A", legend: str = "__auto") -> prometheus.Dataquery:
    """A query at the end of the time range."""
    return prometheus.Dataquery().expr(expr).ref_id(ref).legend_format(legend).datasource(PROMETHEUS).instant()


def big_number(about: About, bounds: Sequence[tuple[float, str]], named: bool = False) -> stat.Panel:
    """A stat: coloured text, no sparkline, grey word where there is nothing."""
    panel = stat.Panel().thresholds(steps(*bounds)).mappings([missing(about.no_value)])
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"])
    text = BigValueTextMode.VALUE_AND_NAME if named else BigValueTextMode.VALUE
    panel = panel.reduce_options(reduce).text_mode(text).color_mode(BigValueColorMode.VALUE)
    return panel.graph_mode(BigValueGraphMode.NONE)


def lines() -> timeseries.Panel:
    """Lines whose colour follows their name, so that a backend has the same colour on every board."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    panel = timeseries.Panel().legend(legend.show_legend(True).calcs([])).tooltip(tooltip)
    panel = panel.color_scheme(color_by(FieldColorModeId.PALETTE_CLASSIC_BY_NAME)).thresholds(steps())
    return panel.line_width(2).fill_opacity(0).show_points(VisibilityMode.NEVER)


def logarithmic(panel: timeseries.Panel) -> timeseries.Panel:
    """For latencies: a hung backend at a minute must not flatten the others at some hundred milliseconds."""
    return panel.scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10))


def state_bands() -> statetimeline.Panel:
    """A band a backend, coloured and worded by state."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = statetimeline.Panel().mappings([*state_ranks(), missing("unknown")]).legend(legend.show_legend(False).calcs([]))
    panel = panel.color_scheme(color_by(FieldColorModeId.THRESHOLDS)).thresholds(steps())
    return panel.merge_values(True).show_value(VisibilityMode.AUTO).row_height(0.8)


def fixed_color(color: str) -> DynamicConfigValue:
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})


def limit_line(panel: timeseries.Panel, name: str) -> timeseries.Panel:
    """The SLO's own series as a dashed red line; its value is in its name."""
    style = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [10, 10]})
    return panel.override_by_name(name, [fixed_color(RED), style, DynamicConfigValue("custom.lineWidth", 1)])


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its query, header, unit, and whatever else Grafana's overrides can say.

    ``source`` is the label that the column shows; without one it shows the query's value.
    """

    header: str
    expr: str | None
    unit: str | None = None
    source: str | None = None
    width: int | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)


def fill_table(panel: table.Panel, columns: Sequence[Column]) -> table.Panel:
    """One row a backend: the queries joined on their labels, then named and ordered as the columns are."""
    names: dict[str, str] = {}
    hidden = {"Time": True}
    for index, column in enumerate(columns):
        value = f"Value #{_ref(index)}"
        names[column.source or value] = column.header
        if column.expr is not None:
            panel = panel.with_target(now(column.expr, _ref(index)).format(PromQueryFormat.TABLE))
            if column.source is not None:
                hidden[value] = True
    order = {name: index for index, name in enumerate(names)}
    organize = {"excludeByName": hidden, "indexByName": order, "renameByName": names}
    panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(DataTransformerConfig(id_val="organize", options=organize))
    for column in columns:
        panel = panel.override_by_name(column.header, _column_overrides(column))
    return panel


def _ref(index: int) -> str:
    return chr(ord("A") + index)


def _column_overrides(column: Column) -> list[DynamicConfigValue]:
    own = {"unit": column.unit, "custom.width": column.width}
    given = {name: value for name, value in own.items() if value is not None}
    return [DynamicConfigValue(name, value) for name, value in {**given, **column.overrides}.items()]


def threshold_steps(*bounds: tuple[float, str]) -> dict[str, object]:
    """Thresholds as an override's value, above a neutral base."""
    levels: list[object] = [{"color": GREY, "value": None}, *({"color": color, "value": value} for value, color in bounds)]
    return {"mode": "absolute", "steps": levels}
