"""The row of big numbers on top: is it bad, and is anybody acting? Each tile is one function of the settings."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, stat
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import by, regex, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.panels import About, Place, big_number, board_link, framed, link, now, threshold_steps
from tailkeeper_dashboards.settings import FLEET_UID, BoardSettings
from tailkeeper_watchdog.metrics import DECISIONS, DESIRED_WEIGHT, HSCORE, PAUSED, VERDICT


def why(settings: BoardSettings) -> list[dashboard.DashboardLink]:
    """The link that every panel carries: the console says in words what a number cannot."""
    return [link("Why? Open the console", settings.console_url)]


def this_backend(expression: str) -> dashboard.DashboardLink:
    """To the fleet board with only the clicked backend; ``expression`` is Grafana's name for it."""
    return board_link("Only this backend", FLEET_UID, expression)


def sla(settings: BoardSettings) -> stat.Panel:
    """Goodput over the last hour against the promise."""
    slo = style.seconds_text(settings.slo_ttft_s)
    about = About(
        "SLA, last hour",
        f"At least this share of the answered, failed and rejected requests of the last hour got its first token within {slo}; "
        f"{settings.objective:.1%} is promised.",
        style.RATIO_UNIT,
        "no traffic",
        Place(0, 0, 4, 4),
    )
    panel = big_number(about, ((0, style.RED), (settings.objective, style.GREEN))).decimals(2)
    return framed(panel.with_target(now(queries.goodput_ratio(settings.slo_ttft_s, "1h"))), about, why(settings))


def worst(settings: BoardSettings) -> stat.Panel:
    """The lowest health score and whose it is."""
    about = About(
        "Worst backend",
        "The backend with the lowest health score, from 0 to 1; below 0.6 it is reported.",
        style.unit_of(HSCORE),
        "no scores",
        Place(4, 0, 4, 4),
    )
    panel = big_number(about, style.SCORE_STEPS, named=True).decimals(style.SCORE_DECIMALS)
    panel = panel.data_links([this_backend("__field.labels.backend")])
    return framed(panel.with_target(now(f"bottomk(1, {queries.of_backend(HSCORE)})", legend="{{backend}}")), about, why(settings))


def serving(settings: BoardSettings) -> stat.Panel:
    """Backends that take work, and those that do not."""
    about = About(
        "Backends serving",
        "How many backends take requests (serving or busy), and how many do not.",
        style.COUNT_UNIT,
        "none seen",
        Place(8, 0, 4, 4),
    )
    taking = queries.in_states("serving", "busy")
    panel = big_number(about, (), named=True)
    panel = panel.with_target(now(f"sum({taking})", "A", "serving")).with_target(
        now(f"sum({taking} == bool 0)", "B", "not serving")
    )
    worrying = [DynamicConfigValue("thresholds", threshold_steps((1, style.RED)))]
    return framed(panel.override_by_name("not serving", worrying), about, why(settings))


def held_back(settings: BoardSettings) -> stat.Panel:
    """Backends that the watchdog wants below their normal weight."""
    about = About(
        "Held back",
        "Backends that the watchdog wants below their normal weight; in observe mode it only says so.",
        style.COUNT_UNIT,
        "no watchdog",
        Place(12, 0, 4, 4),
    )
    panel = big_number(about, ((1, style.BLUE),))
    return framed(panel.with_target(now(f"sum({queries.of_backend(DESIRED_WEIGHT)} < bool 1)")), about, why(settings))


def decisions(settings: BoardSettings) -> stat.Panel:
    """How the watchdog's decisions of the last hour ended."""
    verdicts = series(DECISIONS, regex(VERDICT, "|".join(style.VERDICT_COLORS)))
    about = About(
        "Decisions, last hour",
        "What the watchdog changed, was not allowed to change, and failed to change in the last hour.",
        style.COUNT_UNIT,
        "none yet",
        Place(16, 0, 5, 4),
    )
    panel = big_number(about, (), named=True).decimals(0)
    panel = panel.with_target(now(by("sum", (VERDICT,), f"increase({verdicts}[1h])"), legend="{{verdict}}"))
    for verdict, color in style.VERDICT_COLORS.items():
        panel = panel.override_by_name(verdict, [DynamicConfigValue("thresholds", threshold_steps((0.5, color)))])
    return framed(panel, about, why(settings))


def watching(settings: BoardSettings) -> stat.Panel:
    """Whether the watchdog watches, and whether it may act."""
    about = About(
        "Watchdog",
        "Whether the watchdog is watching, and whether somebody paused its actions.",
        style.unit_of(PAUSED),
        "not seen",
        Place(21, 0, 3, 4),
    )
    words = style.value_map({"0": ("watching", style.GREEN), "1": ("paused", style.ORANGE)})
    panel = big_number(about, ()).mappings([words, style.missing(about.no_value)])
    return framed(panel.with_target(now(f"max({series(PAUSED)})")), about, why(settings))
