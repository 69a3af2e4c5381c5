"""Self-healing: do the watchdog, the cluster and the alerts agree, what was found and done, and what is still in force."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, table
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import CLUSTER, by, eq, regex, series
from tailkeeper_dashboards import agreement, assemble, backend_story, happened, log_tables, queries, style
from tailkeeper_dashboards.panels import (
    COLORED_TEXT,
    MIXED,
    About,
    Builder,
    Column,
    Place,
    bands,
    big_number,
    fill_table,
    fixed_color,
    framed,
    lines,
    now,
    target,
    threshold_steps,
)
from tailkeeper_dashboards.prometheus_own import (
    ALERT_NAME,
    ALERT_SEVERITY,
    ALERT_STATE,
    ALERTMANAGER_ALERTS,
    ALERTS,
    POSTED_STATE,
    STRATEGY,
)
from tailkeeper_dashboards.settings import HEALING_UID, BoardSettings
from tailkeeper_dashboards.shapes import MOST_LINES, counted, counted_logs, tile
from tailkeeper_dashboards.tiles import CLICKED, backend_column, this_backend, why
from tailkeeper_exporter.catalog import BACKEND
from tailkeeper_watchdog.metrics import (
    ACTUAL_WEIGHT,
    DECISIONS,
    DESIRED_WEIGHT,
    FINDINGS_OPEN,
    KNOB,
    LEASES_IN_FORCE,
    SEVERITY,
    VERDICT,
)

SEVERITY_COLORS = {"page": style.RED, "ticket": style.ORANGE, "info": style.BLUE}


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder."""
    description = "What was found, what was done about it, and whether decisions, cluster and alerts agree."
    return assemble.board(settings, HEALING_UID, description, PANELS)


def _agree(settings: BoardSettings) -> Builder:
    about = About(
        "Do the three agree?",
        "Whether findings, alerts and the actions of the last 5 minutes say the same of each strategy; the panel below says how.",
        style.COUNT_UNIT,
        "no watchdog seen",
        Place(0, 0, 5, 4),
    )
    differ = {str(n): (f"{n} differ{'s' if n == 1 else ''}", style.ORANGE) for n in range(1, len(agreement.STRATEGIES) + 1)}
    words = style.value_map({"0": ("yes", style.GREEN)} | differ)
    panel = big_number(about, ()).mappings([words, style.missing(about.no_value)])
    return framed(panel.with_target(now(f"max({agreement.differing()})")), about, why(settings))


def _open(settings: BoardSettings) -> Builder:
    about = About(
        "Open findings",
        "What the watchdog holds to be wrong now, by how loud it is.",
        style.unit_of(FINDINGS_OPEN),
        "no watchdog seen",
        Place(5, 0, 6, 4),
    )
    panel = big_number(about, (), named=True)
    expr = by("sum", (SEVERITY,), series(FINDINGS_OPEN, queries.IN_CLUSTER))
    panel = panel.with_target(now(expr, legend="{{severity}}"))
    for severity, color in SEVERITY_COLORS.items():
        panel = panel.override_by_name(severity, [DynamicConfigValue("thresholds", threshold_steps((1, color)))])
    return framed(panel, about, why(settings))


def _in_force(settings: BoardSettings) -> Builder:
    about = About(
        "Changes in force",
        "Changes of ours at gateways and engines that are in force, or may be; each is a lease that ends by itself.",
        style.unit_of(LEASES_IN_FORCE),
        "no watchdog seen",
        Place(11, 0, 4, 4),
    )
    return tile(settings, about, f"sum({series(LEASES_IN_FORCE, queries.IN_CLUSTER)})", ((1.0, style.BLUE),))


def _firing(settings: BoardSettings) -> Builder:
    about = About(
        "Alerts firing",
        "Alerts of Prometheus' rules that fire now, by how loud they are.",
        style.COUNT_UNIT,
        "rules not seen",
        Place(15, 0, 5, 4),
    )
    panel = big_number(about, (), named=True)
    for ref, severity in zip("AB", ("page", "ticket"), strict=True):
        panel = panel.with_target(now(queries.alerts_firing(eq(ALERT_SEVERITY, severity)), ref, severity))
        loud = threshold_steps((1, SEVERITY_COLORS[severity]))
        panel = panel.override_by_name(severity, [DynamicConfigValue("thresholds", loud)])
    return framed(panel, about, why(settings))


def _alertmanager(settings: BoardSettings) -> Builder:
    about = About(
        "Alertmanager",
        "Alerts in Alertmanager by state, those of the watchdog too; suppressed ones are silenced or inhibited.",
        style.COUNT_UNIT,
        "not scraped",
        Place(20, 0, 4, 4),
    )
    panel = big_number(about, (), named=True)
    held = by("max", (POSTED_STATE,), series(ALERTMANAGER_ALERTS, regex(POSTED_STATE, "active|suppressed")))
    return framed(panel.with_target(now(held, legend="{{state}}")), about, why(settings))


def _story(settings: BoardSettings) -> Builder:
    about = About(
        f"What was found, and what was done? Most concerned {MOST_LINES}",
        "Each backend from finding to change and back; why is in the log below, and what was read back in the panel of weights.",
        style.COUNT_UNIT,
        "no watchdog seen",
        Place(0, 4, 12, 9),
    )
    panel = bands(backend_story.words()).data_links([this_backend(CLICKED)])
    most = f"topk({MOST_LINES}, {backend_story.code()})"
    return framed(panel.with_target(target(most, legend="{{backend}}")), about, why(settings))


def _agreement(settings: BoardSettings) -> Builder:
    about = About(
        "Which strategies do they agree about?",
        "Found is an open finding, told a firing alert that names the strategy, acted a change made or kept within 5 minutes; "
        "less than a minute of difference is only how long alerts take.",
        style.COUNT_UNIT,
        "no watchdog seen",
        Place(12, 4, 12, 9),
    )
    panel = bands(agreement.words())
    for ref, strategy in zip("ABC", agreement.STRATEGIES, strict=True):
        panel = panel.with_target(target(agreement.code(strategy), ref, f"{strategy} {{{{cluster}}}}"))
    return framed(panel, about, why(settings))


def _ended(settings: BoardSettings) -> Builder:
    verdicts = series(DECISIONS, regex(VERDICT, "|".join(log_tables.ENDED)), queries.IN_CLUSTER)
    about = About(
        "How did decisions end?",
        "Changes that were applied and read back, refused by a guard, failed, given back, let expire, or left to another hand.",
        style.COUNT_UNIT,
        "no watchdog seen",
        Place(0, 13, 12, 8),
    )
    panel = counted().with_target(
        target(by("sum", (VERDICT,), f"increase({verdicts}[$__rate_interval])"), legend="{{verdict}}").interval("1m")
    )
    for verdict, color in log_tables.ENDED.items():
        panel = panel.override_by_name(verdict, [fixed_color(color)])
    return framed(panel, about, why(settings))


def _three(settings: BoardSettings) -> Builder:
    about = About(
        "What did each of the three say, and when?",
        "Lines of the decision log that changed something, events of the cluster, and alerts that fire, side by side.",
        style.COUNT_UNIT,
        "nothing was said",
        Place(12, 13, 12, 8),
    )
    panel = counted().with_target(counted_logs(happened.changes(), "A", "decisions"))
    panel = panel.with_target(counted_logs(happened.cluster_events(), "B", "Kubernetes events"))
    panel = panel.with_target(target(queries.alerts_firing(queries.IN_BACKENDS), "C", "alerts"))
    for ref, color in (("A", style.BLUE), ("B", style.PURPLE), ("C", style.ORANGE)):
        panel = panel.override_by_query(ref, [fixed_color(color)])
    return framed(panel, about, why(settings), MIXED)


def _log(settings: BoardSettings) -> Builder:
    return log_tables.decisions(settings, Place(0, 21, 24, 10))


def _events(settings: BoardSettings) -> Builder:
    return log_tables.cluster_events(settings, Place(0, 31, 14, 9))


def _alerts(settings: BoardSettings) -> Builder:
    about = About(
        "Which alerts?",
        "Pending and firing alerts of Prometheus' rules, with the strategy that each of them names.",
        style.COUNT_UNIT,
        "none, or the rules are not loaded",
        Place(14, 31, 10, 9),
    )
    labels = (CLUSTER, ALERT_NAME, ALERT_STATE, BACKEND, ALERT_SEVERITY, STRATEGY)
    loud = style.value_map({name: (name, color) for name, color in SEVERITY_COLORS.items()})
    columns = (
        Column("Cluster", None, source=CLUSTER.name),
        Column("Alert", None, source=ALERT_NAME.name),
        backend_column(85),
        Column(
            "Severity",
            None,
            source=ALERT_SEVERITY.name,
            width=75,
            overrides={"mappings": [loud], **COLORED_TEXT},
        ),
        Column("Strategy", None, source=STRATEGY.name, width=135),
        Column(
            "State",
            by("max", labels, series(ALERTS, queries.IN_CLUSTER, queries.IN_BACKENDS)),
            source=ALERT_STATE.name,
            width=70,
        ),
    )
    return framed(fill_table(table.Panel(), columns).thresholds(style.steps()), about, why(settings))


def _weights(settings: BoardSettings) -> Builder:
    about = About(
        f"Is it really so? Weight wanted and read back, lowest {MOST_LINES}",
        "Share of its normal weight that each backend should have (dotted) and has at its gateway; apart for long means that a "
        "gateway does not do it.",
        style.unit_of(DESIRED_WEIGHT),
        "no watchdog seen",
        Place(0, 40, 12, 8),
    )
    panel = lines().min(0).data_links([this_backend(CLICKED)])
    wanted = f"bottomk({MOST_LINES}, {queries.of_backend(DESIRED_WEIGHT)})"
    there = f"bottomk({MOST_LINES}, {queries.of_backend(ACTUAL_WEIGHT)})"
    panel = panel.with_target(target(there, "A", "{{backend}}")).with_target(target(wanted, "B", "{{backend}} wanted"))
    dotted = DynamicConfigValue("custom.lineStyle", {"fill": "dot", "dash": [2, 6]})
    return framed(panel.override_by_query("B", [dotted, fixed_color(style.GREY)]), about, why(settings))


def _leases(settings: BoardSettings) -> Builder:
    about = About(
        "What of ours is in force?",
        "Changes in force by what was changed; what stays after its finding has closed is on its way back.",
        style.unit_of(LEASES_IN_FORCE),
        "no watchdog seen",
        Place(12, 40, 12, 8),
    )
    panel = lines().min(0).decimals(0)
    expr = by("sum", (KNOB,), series(LEASES_IN_FORCE, queries.IN_CLUSTER))
    return framed(panel.with_target(target(f"{expr} > 0", legend="{{knob}}")), about, why(settings))


PANELS: tuple[assemble.PanelOf, ...] = (
    _agree,
    _open,
    _in_force,
    _firing,
    _alertmanager,
    _story,
    _agreement,
    _ended,
    _three,
    _log,
    _events,
    _alerts,
    _weights,
    _leases,
)
