"""The row of big numbers on top: is it bad, and is anybody acting? Each tile is one function of the settings."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, stat
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import eq, quantile, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.panels import (
    About,
    Column,
    Place,
    big_number,
    board_link,
    board_url,
    cell_link,
    framed,
    link,
    now,
    threshold_steps,
)
from tailkeeper_dashboards.queries import IN_CLUSTER
from tailkeeper_dashboards.settings import BACKEND_UID, FLEET_UID, HEALING_UID, NAMES, ROOT_CAUSE_UID, BoardSettings
from tailkeeper_exporter.catalog import BACKEND, TTFT
from tailkeeper_watchdog.metrics import (
    FINDINGS_OPEN,
    HSCORE,
    LEASES_IN_FORCE,
    PAUSED,
    SLO_BUDGET_LEFT,
    WINDOW,
)

CLICKED = "__field.labels.backend"
"""Grafana's name for the backend of the clicked line."""
CELL = "__value.raw"
"""Of the clicked cell."""


def why(settings: BoardSettings) -> list[dashboard.DashboardLink]:
    """The link that every panel carries: the console says in words what a number cannot."""
    return [link("Why? Open the console", settings.console_url)]


def this_backend(expression: str) -> dashboard.DashboardLink:
    """To the board of the clicked backend; ``expression`` is Grafana's name for it."""
    return board_link("This backend, stage by stage", BACKEND_UID, expression)


def backend_column(width: int | None = None) -> Column:
    """The backend's name; a click leads to its board."""
    return Column("Backend", None, source=BACKEND.name, width=width, overrides={"links": [cell_link(this_backend(CELL))]})


def its_requests(expression: str) -> dashboard.DashboardLink:
    """To the slow requests of the clicked backend."""
    return board_link("Its slow requests, and why", ROOT_CAUSE_UID, expression)


def elsewhere(settings: BoardSettings, *uids: str) -> list[dashboard.DashboardLink]:
    """To the same choice on other boards, and to the console."""
    return [*(link(f"Open {NAMES[uid]}", board_url(uid)) for uid in uids), *why(settings)]


def sla(settings: BoardSettings, place: Place) -> stat.Panel:
    """Goodput over the last hour against the promise."""
    slo = style.seconds_text(settings.slo_ttft_s)
    about = About(
        "SLA, last hour",
        f"At least this share of the answered, failed and rejected requests of the last hour got its first token within {slo}; "
        f"{settings.objective:.1%} is promised.",
        style.RATIO_UNIT,
        "no traffic",
        place,
    )
    panel = big_number(about, ((0, style.RED), (settings.objective, style.GREEN))).decimals(2)
    return framed(panel.with_target(now(queries.goodput_ratio(settings.slo_ttft_s, "1h"))), about, why(settings))


def worst(settings: BoardSettings, place: Place) -> stat.Panel:
    """The lowest health score and whose it is."""
    about = About(
        "Worst backend",
        "The backend with the lowest health score, from 0 to 1; below 0.6 it is reported.",
        style.unit_of(HSCORE),
        "no scores",
        place,
    )
    panel = big_number(about, style.SCORE_STEPS, named=True).decimals(style.SCORE_DECIMALS)
    panel = panel.data_links([this_backend(CLICKED)])
    return framed(panel.with_target(now(f"bottomk(1, {queries.of_backend(HSCORE)})", legend="{{backend}}")), about, why(settings))


def serving(settings: BoardSettings, place: Place) -> stat.Panel:
    """Backends that take work, and those that do not."""
    about = About(
        "Serving",
        "How many backends take requests (serving or busy), and how many do not.",
        style.COUNT_UNIT,
        "none seen",
        place,
    )
    taking = queries.in_states("serving", "busy")
    panel = big_number(about, (), named=True)
    panel = panel.with_target(now(f"sum({taking})", "A", "serving")).with_target(
        now(f"sum({taking} == bool 0)", "B", "not serving")
    )
    worrying = [DynamicConfigValue("thresholds", threshold_steps((1, style.RED)))]
    return framed(panel.override_by_name("not serving", worrying), about, why(settings))


def budget(settings: BoardSettings, place: Place) -> stat.Panel:
    """What is left of the month's error budget, of the tier that has least."""
    about = About(
        "Budget, 30 days",
        f"The rest of the {1 - settings.objective:.1%} of requests that may fail or come late in 30 days, of the tier with the "
        "least left; the watchdog counts it for the whole fleet, whatever is chosen above.",
        style.unit_of(SLO_BUDGET_LEFT),
        "not counted yet",
        place,
    )
    left = series(SLO_BUDGET_LEFT, eq(WINDOW, "30d"), IN_CLUSTER)
    panel = big_number(about, ((0, style.RED), (0.25, style.ORANGE), (0.5, style.GREEN))).decimals(0)
    return framed(panel.with_target(now(f"min({left})")), about, why(settings))


def findings(settings: BoardSettings, place: Place) -> stat.Panel:
    """Open findings by how loud they are."""
    about = About(
        "Open findings",
        "What the watchdog holds to be wrong now: what pages somebody, and what can wait for the morning.",
        style.unit_of(FINDINGS_OPEN),
        "no watchdog",
        place,
    )
    panel = big_number(about, (), named=True).decimals(0)
    for ref, severity, color in (("A", "page", style.RED), ("B", "ticket", style.ORANGE)):
        panel = panel.with_target(now(queries.open_findings(severity), ref, severity))
        panel = panel.override_by_name(severity, [DynamicConfigValue("thresholds", threshold_steps((1, color)))])
    return framed(panel, about, [link("Open Self-healing", board_url(HEALING_UID))])


def actions(settings: BoardSettings, place: Place) -> stat.Panel:
    """Changes of ours at gateways, and whether the watchdog may make any."""
    about = About(
        "Our actions",
        "Changes that the watchdog made at gateways and has not given back yet, and whether somebody paused it.",
        style.unit_of(LEASES_IN_FORCE),
        "no watchdog",
        place,
    )
    panel = big_number(about, ((1, style.BLUE),), named=True).decimals(0).with_target(now(queries.leases(), "A", "in force"))
    panel = panel.with_target(now(f"max({series(PAUSED, IN_CLUSTER)})", "B", "watchdog"))
    words = [style.value_map({"0": ("watching", style.NEUTRAL), "1": ("paused", style.ORANGE)}), style.missing("not seen")]
    panel = panel.override_by_name("watchdog", [DynamicConfigValue("mappings", words)])
    return framed(panel, about, [link("Open Self-healing", board_url(HEALING_UID))])


def slowest(settings: BoardSettings, place: Place) -> stat.Panel:
    """The P99 of the first token of the slowest backend that is chosen, with its n."""
    slo = style.seconds_text(settings.slo_ttft_s)
    about = About(
        f"P99 first token (SLO {slo})",
        "The slowest chosen backend over the last 5 minutes, with its number of requests n; ≥ says that P99 lies beyond the "
        "engine's last bucket.",
        style.unit_of(TTFT),
        "no traffic",
        place,
    )
    each = f"topk(1, {quantile(0.99, TTFT, queries.BY_BACKEND, '5m', *queries.OF_MODEL)})"
    on, saturated = queries.EACH_BACKEND, queries.saturated("ttft")
    panel = big_number(about, ((0, style.GREEN), (settings.slo_ttft_s, style.RED)), named=True)
    panel = panel.with_target(now(f"{each} unless {on} ({saturated})", "A", "{{backend}}"))
    panel = panel.with_target(now(f"{each} and {on} ({saturated})", "B", "{{backend}} ≥"))
    n = f"{queries.samples(TTFT, '5m', *queries.BY_BACKEND)} and {on} {each}"
    panel = panel.with_target(now(n, "C", "n"))
    plain = [DynamicConfigValue("unit", style.COUNT_UNIT), DynamicConfigValue("thresholds", threshold_steps())]
    panel = panel.override_by_query("C", plain).data_links([its_requests(CLICKED)])
    return framed(panel, about, [link("Open Fleet SLA", board_url(FLEET_UID))])
