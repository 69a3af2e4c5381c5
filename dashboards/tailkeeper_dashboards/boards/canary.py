"""Canary: is the new revision worse than the stable one, how much traffic does it have, and of how many requests."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, table

from tailkeeper_alerts.promql import CLUSTER
from tailkeeper_dashboards import assemble, canary_queries, happened, queries, style
from tailkeeper_dashboards.canary_queries import EACH, LEAST_REQUESTS
from tailkeeper_dashboards.panels import (
    COLORED_TEXT,
    LOKI,
    About,
    Builder,
    Column,
    Place,
    fill_table,
    framed,
    lines,
    logarithmic,
    target,
    threshold_steps,
    with_limit,
)
from tailkeeper_dashboards.settings import CANARY_UID, BoardSettings
from tailkeeper_dashboards.shapes import MOST_LINES, counted_logs, rows_by_minute, tile
from tailkeeper_dashboards.tiles import why
from tailkeeper_exporter.catalog import CANARY, MODEL, REQUESTS, TTFT

HOUR = "1h"
EACH_REVISION = "{{canary_revision}} {{model}}"
NOTHING = "nothing to compare"
ALWAYS = -86_400.0
"""Below any difference of latencies in seconds: from here on a difference has a colour."""


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder."""
    description = "Traffic, latency and errors by canary revision, and what differs from the stable one."
    return assemble.board(settings, CANARY_UID, description, PANELS)


def _slower(settings: BoardSettings) -> Builder:
    about = About(
        "Canary slower?",
        f"How much longer P99 to the first token was in the last hour than the stable revision's, which most requests were of; "
        f"only where there were {LEAST_REQUESTS}.",
        style.unit_of(TTFT),
        NOTHING,
        Place(0, 0, 4, 4),
    )
    bounds = ((ALWAYS, style.GREEN), (settings.slo_ttft_s / 10, style.ORANGE), (settings.slo_ttft_s / 2, style.RED))
    slower = canary_queries.canaries(canary_queries.slower_than_stable(HOUR), HOUR)
    worst = f"topk(1, {canary_queries.called(slower)})"
    return tile(settings, about, worst, bounds, "{{canary_revision}}")


def _failing(settings: BoardSettings) -> Builder:
    about = About(
        "Failing most",
        f"The largest share of failed and rejected requests of a revision, last hour; {1 - settings.objective:.2%} is allowed.",
        style.RATIO_UNIT,
        "no traffic",
        Place(4, 0, 4, 4),
    )
    bounds = ((0.0, style.GREEN), (1 - settings.objective, style.RED))
    worst = f"topk(1, {canary_queries.called(canary_queries.error_ratio(HOUR))})"
    return tile(settings, about, worst, bounds, "{{canary_revision}}", decimals=2)


def _share(settings: BoardSettings) -> Builder:
    about = About(
        "Not on stable",
        "Share of the last hour's requests that were of another than the most used revision of their model.",
        style.RATIO_UNIT,
        "no traffic",
        Place(12, 0, 4, 4),
    )
    every, stable = f"sum({canary_queries.requests(HOUR)})", f"sum({canary_queries.stable(HOUR)})"
    return tile(settings, about, f"({every} - {stable}) / ({every} > 0)", decimals=1)


def _slowest(settings: BoardSettings) -> Builder:
    slo = style.seconds_text(settings.slo_ttft_s)
    about = About(
        "Slowest revision",
        f"The highest P99 to the first token of a revision's backends over the last hour; {slo} is promised.",
        style.unit_of(TTFT),
        "no traffic",
        Place(8, 0, 4, 4),
    )
    bounds = ((0.0, style.GREEN), (settings.slo_ttft_s, style.RED))
    worst = f"topk(1, {canary_queries.called(canary_queries.p99(HOUR))})"
    return tile(settings, about, worst, bounds, "{{canary_revision}}")


def _stable(settings: BoardSettings) -> Builder:
    about = About(
        "Stable",
        "The revision that most requests of the last hour were of, and how many; the others are compared with it.",
        style.COUNT_UNIT,
        "no traffic",
        Place(16, 0, 4, 4),
    )
    most = f"round(topk(1, {canary_queries.called(canary_queries.stable(HOUR))}))"
    return tile(settings, about, most, (), "{{canary_revision}}")


def _revisions(settings: BoardSettings) -> Builder:
    about = About(
        "Revisions",
        "How many revisions, each of each model, had a request in the last hour.",
        style.COUNT_UNIT,
        "no traffic",
        Place(20, 0, 4, 4),
    )
    return tile(settings, about, f"count({canary_queries.requests(HOUR)} > 0)")


def _heat(settings: BoardSettings) -> Builder:
    about = About(
        "Where does the traffic go? log10(requests per second + 1), minute by minute",
        "A row a revision and model, a cell a minute: 0.3 is 1 request a second, 1 is 9, 2 is 99; empty is no series.",
        style.unit_of(REQUESTS),
        "no traffic",
        Place(0, 4, 24, 9),
    )
    expr = f"log10({canary_queries.called(canary_queries.rate())} + 1)"
    panel = rows_by_minute().with_target(target(expr, legend=EACH_REVISION).interval("1m"))
    return framed(panel, about, why(settings))


def _compared(settings: BoardSettings) -> Builder:
    slo = style.seconds_text(settings.slo_ttft_s)
    about = About(
        "Which revision is worse, and by how much?",
        f"The last hour by revision; differences to stable need {LEAST_REQUESTS} requests, else too few, and P99 is of the "
        "backends that mostly serve the revision.",
        style.COUNT_UNIT,
        "no traffic",
        Place(0, 13, 24, 7),
    )
    role = style.value_map({"1": ("stable", style.GREY)})
    worse = {**COLORED_TEXT, "mappings": [style.missing("too few")]}
    late = {
        **COLORED_TEXT,
        "thresholds": threshold_steps((0, style.NEUTRAL), (settings.slo_ttft_s, style.RED)),
        "mappings": [style.missing("not known")],
    }
    slower = threshold_steps((ALWAYS, style.NEUTRAL), (settings.slo_ttft_s / 10, style.ORANGE))
    failing = threshold_steps((-1, style.NEUTRAL), (1 - settings.objective, style.ORANGE))
    columns = (
        Column("Cluster", None, source=CLUSTER.name),
        Column("Model", None, source=MODEL.name),
        Column("Revision", None, source=CANARY.name, width=140),
        Column("Role", _role(), style.COUNT_UNIT, width=90, overrides={"mappings": [role, style.missing("canary")]}),
        Column("Requests (n)", _named(f"round({canary_queries.requests(HOUR)})"), style.COUNT_UNIT, width=110),
        Column("Errors", _named(canary_queries.error_ratio(HOUR)), style.RATIO_UNIT, width=100),
        Column(
            "Errors, difference",
            _always(canary_queries.errors_more_than_stable(HOUR)),
            style.RATIO_UNIT,
            width=150,
            overrides={**worse, "thresholds": failing},
        ),
        Column(f"P99 TTFT (SLO {slo})", _always(canary_queries.p99(HOUR)), style.unit_of(TTFT), width=160, overrides=late),
        Column(
            "P99, difference",
            _always(canary_queries.slower_than_stable(HOUR)),
            style.unit_of(TTFT),
            width=150,
            overrides={**worse, "thresholds": slower},
        ),
    )
    return framed(fill_table(table.Panel(), columns).thresholds(style.steps()), about, why(settings))


def _role() -> str:
    return _always(f"0 * ({canary_queries.requests(HOUR)} and {EACH} {canary_queries.stable(HOUR)}) + 1")


def _named(expression: str) -> str:
    return canary_queries.called(expression)


def _always(expression: str) -> str:
    """With not a number where it is not known, so that the cell says so and the column stays."""
    return _named(f"({expression} or NaN * {canary_queries.requests(HOUR)})")


def _p99(settings: BoardSettings) -> Builder:
    slo = f"SLO {style.seconds_text(settings.slo_ttft_s)}"
    about = About(
        "How long do users wait? P99 TTFT",
        "P99 to the first token of the backends that mostly serve a revision; exact where a backend serves one revision only.",
        style.unit_of(TTFT),
        "no traffic",
        Place(0, 20, 8, 9),
    )
    p99 = f"topk({MOST_LINES}, {canary_queries.called(canary_queries.p99('$__rate_interval'))})"
    panel = logarithmic(lines()).with_target(target(p99, "A", EACH_REVISION, exemplar=True))
    return framed(with_limit(panel, slo, settings.slo_ttft_s), about, why(settings))


def _by_request(settings: BoardSettings) -> Builder:
    about = About(
        "The same, from the access log",
        "P99 to the first token over the requests that named the revision themselves, whichever backend served them.",
        style.unit_of(TTFT),
        "no access log in Loki",
        Place(8, 20, 8, 9),
    )
    panel = logarithmic(lines()).with_target(counted_logs(happened.p99_by_revision(), "A", "{{tailkeeper_canary_revision}}"))
    return framed(panel, about, why(settings), LOKI)


def _errors(settings: BoardSettings) -> Builder:
    budget = 1 - settings.objective
    about = About(
        "Who fails requests? Errors",
        "Failed and rejected requests as a share of all finished ones of a revision; one without requests has no line.",
        style.RATIO_UNIT,
        "no traffic",
        Place(16, 20, 8, 9),
    )
    share = f"{canary_queries.rate(queries.FAILED)} / ({canary_queries.rate()} > 0)"
    panel = lines().min(0).with_target(target(f"topk({MOST_LINES}, {canary_queries.called(share)})", "A", EACH_REVISION))
    return framed(with_limit(panel, f"allowed {budget:.2%}", budget), about, why(settings))


PANELS: tuple[assemble.PanelOf, ...] = (
    _slower,
    _failing,
    _slowest,
    _share,
    _stable,
    _revisions,
    _heat,
    _compared,
    _p99,
    _by_request,
    _errors,
)
