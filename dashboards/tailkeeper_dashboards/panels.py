"""The pieces that every panel is put together from: data source, targets, links, legends, table columns. No board here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    heatmap,
    logs,
    loki,
    prometheus,
    stat,
    statetimeline,
    table,
    tempo,
    text,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    LogsDedupStrategy,
    LogsSortOrder,
    ScaleDistribution,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    GridPos,
    ValueMapping,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.tempo import SearchTableType
from grafana_foundation_sdk.models.text import TextMode

from tailkeeper_dashboards.style import GREY, RED, color_by, missing, state_ranks, steps

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${datasource}")
TEMPO = DataSourceRef(type_val="tempo", uid="${tempo}")
LOKI = DataSourceRef(type_val="loki", uid="${loki}")
MIXED = DataSourceRef(type_val="datasource", uid="-- Mixed --")
"""Of a panel whose queries ask several; each query then names its own."""
KEPT_VARIABLES = ("datasource", "tempo", "loki", "cluster", "model", "backend", "canary")
"""What every board has, and so every link between boards carries."""

Builder = (
    stat.Panel
    | timeseries.Panel
    | table.Panel
    | statetimeline.Panel
    | heatmap.Panel
    | bargauge.Panel
    | barchart.Panel
    | logs.Panel
    | text.Panel
    | xychart.Panel
    | dashboard_builders.Panel
)
"""What a board may hold. Types that the SDK has no builder for are ``dashboard.Panel().type(...)``."""
AnyPanel = TypeVar("AnyPanel", bound=Builder)


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
    """To a board with everything kept but the backend; ``backend`` is Grafana's expression for the clicked one."""
    return link(title, f"{board_url(uid, 'backend')}&var-backend=${{{backend}:percentencode}}")


def board_url(uid: str, *without: str, time: bool = True) -> str:
    """A board's address with the variables and the time of the board it is opened from, but for those in ``without``."""
    kept = [f"${{{name}:queryparam}}" for name in KEPT_VARIABLES if name not in without]
    return f"/d/{uid}?{'&'.join([*kept, *(['${__url_time_range}'] if time else [])])}"


def framed(
    panel: AnyPanel,
    about: About,
    links: Sequence[dashboard_builders.DashboardLink],
    source: DataSourceRef = PROMETHEUS,
) -> AnyPanel:
    """The panel with everything that no panel may lack."""
    place = GridPos(about.place.h, about.place.w, about.place.x, about.place.y)
    panel.title(about.title).description(about.description).datasource(source).grid_pos(place)
    panel.unit(about.unit).no_value(about.no_value).links(list(links))
    return panel


def target(expr: str, ref: str = "A", legend: str = "__auto", *, exemplar: bool = False) -> prometheus.Dataquery:
    """A query over the board's time range."""
    query = prometheus.Dataquery().expr(expr).ref_id(ref).legend_format(legend).datasource(PROMETHEUS).range()
    return query.exemplar(True) if exemplar else query


def now(expr: str, ref: str = "A", legend: str = "__auto") -> prometheus.Dataquery:
    """A query at the end of the time range."""
    return prometheus.Dataquery().expr(expr).ref_id(ref).legend_format(legend).datasource(PROMETHEUS).instant()


def search(traceql: str, ref: str = "A", limit: int = 20) -> tempo.TempoQuery:
    """A TraceQL search, one row a span with what the query selects as columns."""
    query = tempo.TempoQuery().query(traceql).query_type("traceql").ref_id(ref).datasource(TEMPO)
    return query.limit(limit).spss(limit).table_type(SearchTableType.SPANS)


def trace(trace_id: str, ref: str = "A") -> tempo.TempoQuery:
    """One whole trace by its id, for a panel of type ``traces``."""
    return tempo.TempoQuery().query(trace_id).query_type("traceql").ref_id(ref).datasource(TEMPO)


def log_lines(logql: str, ref: str = "A", limit: int = 200) -> loki.Dataquery:
    """Lines of logs, newest first."""
    return loki.Dataquery().expr(logql).query_type("range").max_lines(limit).ref_id(ref).datasource(LOKI)


def log_list() -> logs.Panel:
    """A list of log lines that shows what it was given and invents no colours."""
    panel = logs.Panel().show_time(True).wrap_log_message(True).enable_log_details(True).prettify_log_message(False)
    panel = panel.show_labels(False).show_common_labels(False).dedup_strategy(LogsDedupStrategy.NONE)
    return panel.sort_order(LogsSortOrder.DESCENDING).thresholds(steps())


def trace_view() -> dashboard_builders.Panel:
    """Grafana's own trace panel, for which the SDK has no builder."""
    return dashboard_builders.Panel().type("traces").thresholds(steps())


def bars() -> bargauge.Panel:
    """Horizontal bars from 0, one a series, coloured by threshold, longest first as the query sorts them."""
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"])
    panel = bargauge.Panel().orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC).min(0)
    return panel.reduce_options(reduce).show_unfilled(True).thresholds(steps())


def stacked_bars() -> barchart.Panel:
    """One horizontal bar a row, made of one part a column."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = barchart.Panel().orientation(VizOrientation.HORIZONTAL).stacking(StackingMode.NORMAL).group_width(0.6).bar_width(0.9)
    panel = panel.legend(legend.show_legend(True).calcs([])).show_value(VisibilityMode.AUTO).thresholds(steps())
    return panel.fill_opacity(85).line_width(0).tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))


def note(about: About, markdown: str) -> text.Panel:
    """A panel of words. It has a unit and a word for no data like the others, which cost nothing."""
    return text.Panel().mode(TextMode.MARKDOWN).content(markdown).thresholds(steps())


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
    return bands(state_ranks())


def bands(mappings: Sequence[ValueMapping]) -> statetimeline.Panel:
    """A band a series, coloured and worded by ``mappings`` of its number; grey and worded where there is none."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = statetimeline.Panel().mappings([*mappings, missing("unknown")]).legend(legend.show_legend(False).calcs([]))
    panel = panel.color_scheme(color_by(FieldColorModeId.THRESHOLDS)).thresholds(steps())
    return panel.merge_values(True).show_value(VisibilityMode.AUTO).row_height(0.8)


def fixed_color(color: str) -> DynamicConfigValue:
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})


def fixed_lines(panel: timeseries.Panel, asked: Iterable[tuple[str, str, str]]) -> timeseries.Panel:
    """Lines whose colour says what they are: a name, a query and a colour each."""
    for ref, (name, expr, color) in zip("ABCDEFG", asked, strict=False):
        panel = panel.with_target(target(expr, ref, name)).override_by_name(name, [fixed_color(color)])
    return panel


def with_limit(panel: timeseries.Panel, name: str, bound: float, ref: str = "B") -> timeseries.Panel:
    """``bound``, in the panel's unit, as a line of its own; ``name`` says its value."""
    return limit_line(panel.with_target(target(f"vector({bound:g})", ref, name)), name)


def limit_line(panel: timeseries.Panel, name: str) -> timeseries.Panel:
    """The series ``name`` as a bound is drawn: dashed, thin and red."""
    dashed = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [10, 10]})
    return panel.override_by_name(name, [fixed_color(RED), dashed, DynamicConfigValue("custom.lineWidth", 1)])


COLORED_TEXT: Mapping[str, object] = {"custom.cellOptions": {"type": "color-text"}}
"""Overrides of a column whose words and numbers have the colour of their mapping or threshold."""


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
    """One row a set of labels: the queries joined on them, then named and ordered as the columns are."""
    names: dict[str, str] = {}
    hidden = {"Time": True}
    for index, column in enumerate(columns):
        value = f"Value #{_ref(index)}"
        names[column.source or value] = column.header
        if column.expr is not None:
            panel = panel.with_target(now(column.expr, _ref(index)).format(PromQueryFormat.TABLE))
            if column.source is not None:
                hidden[value] = True
    asked = [column for column in columns if column.expr is not None]
    if len(asked) == 1:  # Grafana numbers values only where several queries answer.
        if asked[0].source is None:
            names["Value"] = asked[0].header
        else:
            hidden["Value"] = True
    order = {name: index for index, name in enumerate(names)}
    organize = {"excludeByName": hidden, "indexByName": order, "renameByName": names}
    panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(DataTransformerConfig(id_val="organize", options=organize))
    for column in columns:
        overrides = _column_overrides(column)
        panel = panel.override_by_name(column.header, overrides) if overrides else panel
    return panel


def cell_link(made: dashboard_builders.DashboardLink) -> dict[str, object]:
    """A link as a cell's override has it."""
    built = made.build()
    return {"title": built.title, "url": built.url}


def labels_as_columns() -> DataTransformerConfig:
    """What Loki knows of a line beside its text, a column each."""
    return DataTransformerConfig(id_val="extractFields", options={"source": "labels", "format": "auto", "replace": False})


def _ref(index: int) -> str:
    return chr(ord("A") + index)


def _column_overrides(column: Column) -> list[DynamicConfigValue]:
    own = {"unit": column.unit, "custom.width": column.width}
    given = {name: value for name, value in own.items() if value is not None}
    return [DynamicConfigValue(name, value) for name, value in {**given, **column.overrides}.items()]


def threshold_steps(*bounds: tuple[float, str]) -> dict[str, object]:
    """Thresholds as an override's value. What lies below all of them is grey."""
    levels: list[object] = [{"color": GREY, "value": None}, *({"color": color, "value": value} for value, color in bounds)]
    return {"mode": "absolute", "steps": levels}
