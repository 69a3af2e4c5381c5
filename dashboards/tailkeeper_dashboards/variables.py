"""The variables and annotations that boards share. Data sources are variables, so that a board works in any Grafana."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableHide, VariableOption, VariableRefresh, VariableSort

from tailkeeper_alerts.promql import CLUSTER, by, eq, not_regex, series
from tailkeeper_dashboards.panels import PROMETHEUS
from tailkeeper_dashboards.prometheus_own import firing
from tailkeeper_dashboards.queries import IN_BACKENDS, IN_CLUSTER
from tailkeeper_dashboards.style import BLUE, ORANGE
from tailkeeper_exporter.catalog import BACKEND, BACKEND_STATE, BACKEND_UP, CANARY, MODEL, REQUESTS, Label, Metric
from tailkeeper_watchdog.metrics import DECISIONS, KNOB, POLICY, VERDICT

Variable = dashboard.DatasourceVariable | dashboard.QueryVariable | dashboard.TextBoxVariable
SOURCES = (("datasource", "Data Source", "prometheus"), ("tempo", "Tempo", "tempo"), ("loki", "Loki", "loki"))
"""Name, label and type. A board chooses its data sources by these, so that it works in any Grafana."""
LISTS = (
    ("cluster", "Cluster", BACKEND_UP, CLUSTER),
    ("model", "Model", REQUESTS, MODEL),
    ("backend", "Backend", BACKEND_STATE, BACKEND),
    ("canary", "Canary", REQUESTS, CANARY),
)
"""Name, title, and the series and label whose values are offered."""
BY_SMALL_STEPS = "token_rate_weighting|context_length_routing|adaptive_batch_window|return"
"""Policies that move a weight or a limit a little at every tick: a hundred lines on a board say nothing, and where the
weights and limits stand is on the boards themselves."""


def shared_variables(shown: frozenset[str]) -> tuple[Variable, ...]:
    """Data sources, cluster, model, backend, canary: the same on each board, so that links carry them from one to the next.

    ``shown`` are those that the board's own queries use; the others are there and hidden, because a choice that changes
    nothing would be a lie. The lists come from series that every backend has from the start.
    """

    def hide(name: str) -> VariableHide:
        return VariableHide.DONT_HIDE if name in shown else VariableHide.HIDE_VARIABLE

    sources = (dashboard.DatasourceVariable(name).label(label).type(kind).hide(hide(name)) for name, label, kind in SOURCES)
    lists = (_values(metric, label, name, title).hide(hide(name)) for name, title, metric, label in LISTS)
    return (*sources, *lists)


def text_box(name: str, label: str, description: str, default: str = "") -> dashboard.TextBoxVariable:
    """A field to type or paste into; never a list, since nobody can list request ids."""
    return dashboard.TextBoxVariable(name).label(label).description(description).default_value(default)


def _values(metric: Metric, label: Label, name: str, title: str) -> dashboard.QueryVariable:
    everything = VariableOption(selected=True, text="All", value="$__all")
    variable = dashboard.QueryVariable(name).label(title).datasource(PROMETHEUS)
    variable = variable.query(f"label_values({metric.name}, {label.name})").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable = variable.sort(VariableSort.ALPHABETICAL_ASC).multi(True).include_all(True)
    return variable.all_value(".*").current(everything)


def shared_annotations() -> tuple[dashboard.AnnotationQuery, ...]:
    """Alerts in orange, our own changes in blue."""
    applied = (
        f"increase({series(DECISIONS, eq(VERDICT, 'applied'), not_regex(POLICY, BY_SMALL_STEPS), IN_CLUSTER)}[$__rate_interval])"
    )
    changed = f"{by('sum', (POLICY, KNOB), applied)} > 0"
    return (_annotation("Alerts", firing(IN_CLUSTER, IN_BACKENDS), ORANGE), _annotation("Our changes", changed, BLUE))


def _annotation(name: str, expr: str, color: str) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(name).enable(True).datasource(PROMETHEUS).icon_color(color).expr(expr)
