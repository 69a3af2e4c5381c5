"""Fleet SLA: is it bad, where, and what was done about it. Top left answers the first, the first row the second."""

from __future__ import annotations

from functools import partial

from grafana_foundation_sdk.builders import dashboard

from tailkeeper_alerts.promql import by, quantile, series
from tailkeeper_dashboards import answers, assemble, backend_table, queries, style, tiles
from tailkeeper_dashboards.panels import (
    About,
    Builder,
    Place,
    framed,
    lines,
    logarithmic,
    target,
    with_limit,
)
from tailkeeper_dashboards.settings import FLEET_UID, BoardSettings
from tailkeeper_dashboards.shapes import MOST_LINES
from tailkeeper_dashboards.tiles import CLICKED, its_requests, this_backend, why
from tailkeeper_exporter.catalog import REQUESTS, TTFT
from tailkeeper_watchdog.metrics import HSCORE


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder. Every panel links to the console, which says why."""
    description = "Is the SLA held, for whom, which backend is to blame, and what was done about it."
    return assemble.board(settings, FLEET_UID, description, PANELS)


def _p99(settings: BoardSettings) -> Builder:
    slo = f"SLO {style.seconds_text(settings.slo_ttft_s)}"
    about = About(
        f"How long do users wait? P99 TTFT, slowest {MOST_LINES}",
        "One request in a hundred waits at least this long for its first token; diamonds are single requests.",
        style.unit_of(TTFT),
        "no traffic",
        Place(0, 12, 12, 10),
    )
    worst = f"topk({MOST_LINES}, {quantile(0.99, TTFT, queries.BY_BACKEND, '$__rate_interval', *queries.OF_MODEL)})"
    panel = logarithmic(lines()).data_links([its_requests(CLICKED), this_backend(CLICKED)])
    panel = panel.with_target(target(worst, "A", "{{backend}}", exemplar=True))
    return framed(with_limit(panel, slo, settings.slo_ttft_s), about, why(settings))


def _hscore(settings: BoardSettings) -> Builder:
    about = About(
        f"How healthy is each backend? HScore, lowest {MOST_LINES}",
        "From 0 to 1, 1 is best; below 0.6, 0.4 and 0.2 it is reported more and more often.",
        style.unit_of(HSCORE),
        "no scores",
        Place(12, 12, 12, 5),
    )
    panel = lines().min(0).max(1).decimals(style.SCORE_DECIMALS).data_links([this_backend(CLICKED)])
    worst = f"bottomk({MOST_LINES}, {queries.of_backend(HSCORE)})"
    return framed(panel.with_target(target(worst, legend="{{backend}}")), about, why(settings))


def _errors(settings: BoardSettings) -> Builder:
    about = About(
        f"Who fails requests? Share of errors and rejections, highest {MOST_LINES}",
        "Failed and rejected requests as a share of all finished ones; a backend without requests has no line.",
        style.RATIO_UNIT,
        "no traffic",
        Place(12, 22, 12, 8),
    )
    window = "[$__rate_interval]"
    failed = by("sum", queries.BY_BACKEND, f"rate({series(REQUESTS, *queries.OF_MODEL, queries.FAILED)}{window})")
    finished = by("sum", queries.BY_BACKEND, f"rate({series(REQUESTS, *queries.OF_MODEL)}{window})")
    panel = lines().min(0).data_links([this_backend(CLICKED)])
    panel = panel.with_target(target(f"topk({MOST_LINES}, {failed} / ({finished} > 0))", legend="{{backend}}"))
    budget = 1 - settings.objective
    return framed(with_limit(panel, f"allowed {budget:.2%}", budget), about, why(settings))


PANELS: tuple[assemble.PanelOf, ...] = (
    partial(tiles.sla, place=Place(0, 0, 4, 4)),
    partial(tiles.budget, place=Place(4, 0, 4, 4)),
    partial(tiles.worst, place=Place(8, 0, 4, 4)),
    partial(tiles.serving, place=Place(12, 0, 4, 4)),
    partial(tiles.findings, place=Place(16, 0, 4, 4)),
    partial(tiles.actions, place=Place(20, 0, 4, 4)),
    partial(backend_table.backends, place=Place(0, 4, 24, 8)),
    _p99,
    _hscore,
    partial(answers.states, place=Place(12, 17, 12, 5)),
    partial(answers.outcomes, place=Place(0, 22, 12, 8)),
    _errors,
)
