"""The variables and annotations that boards share. One data source variable, so that a board works in any Grafana."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableOption, VariableRefresh, VariableSort

from tailkeeper_alerts.promql import by, eq, series
from tailkeeper_dashboards.panels import PROMETHEUS
from tailkeeper_dashboards.queries import IN_BACKENDS
from tailkeeper_dashboards.style import BLUE, ORANGE
from tailkeeper_exporter.catalog import BACKEND, BACKEND_STATE, MODEL, REQUESTS, Label, Metric
from tailkeeper_watchdog.metrics import DECISIONS, KNOB, POLICY, VERDICT

Variable = dashboard.DatasourceVariable | dashboard.QueryVariable


def shared_variables() -> tuple[Variable, ...]:
    """Data source, model, backend. Both lists come from series that every backend has from the start."""
    return (
        dashboard.DatasourceVariable("datasource").label("Data Source").type("prometheus"),
        _values(REQUESTS, MODEL, "Model"),
        _values(BACKEND_STATE, BACKEND, "Backend"),
    )


def _values(metric: Metric, label: Label, title: str) -> dashboard.QueryVariable:
    everything = VariableOption(selected=True, text="All", value="$__all")
    variable = dashboard.QueryVariable(label.name).label(title).datasource(PROMETHEUS)
    variable = variable.query(f"label_values({metric.name}, {label.name})").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable = variable.sort(VariableSort.ALPHABETICAL_ASC).multi(True).include_all(True)
    return variable.all_value(".*").current(everything)


def shared_annotations() -> tuple[dashboard.AnnotationQuery, ...]:
    """Alerts in orange, our own changes in blue."""
    firing = f'ALERTS{{alertstate="firing",{IN_BACKENDS.text}}}'
    applied = f"increase({series(DECISIONS, eq(VERDICT, 'applied'))}[$__rate_interval])"
    changed = f"{by('sum', (POLICY, KNOB), applied)} > 0"
    return (_annotation("Alerts", firing, ORANGE), _annotation("Our changes", changed, BLUE))


def _annotation(name: str, expr: str, color: str) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(name).enable(True).datasource(PROMETHEUS).icon_color(color).expr(expr)
