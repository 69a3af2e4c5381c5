"""Capacity & cost: will memory run out, what is idle, what does a request cost, and what does more load cost in speed."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, table

from tailkeeper_alerts.promql import CLUSTER, by, count, series, total
from tailkeeper_dashboards import assemble, queries, style
from tailkeeper_dashboards.panels import COLORED_TEXT, About, Builder, Column, Place, fill_table, framed, threshold_steps
from tailkeeper_dashboards.settings import CAPACITY_UID, BoardSettings
from tailkeeper_dashboards.shapes import MOST_LINES, ranked, scatter, tile
from tailkeeper_dashboards.tiles import backend_column, why
from tailkeeper_dashboards.variables import text_box
from tailkeeper_exporter.catalog import GENERATED_TOKENS, GPU_UTILIZATION, ITL, REQUESTS, TOKEN_EFFICIENCY
from tailkeeper_watchdog.metrics import (
    CAPACITY_CONSOLIDATE,
    CAPACITY_FREE_SPREAD,
    CAPACITY_GPU_SECONDS,
    CAPACITY_IDLE,
    CAPACITY_TPOT_SLOPE,
    MEMORY_EXHAUSTION,
)

PRICE = text_box("price", "Price of a GPU hour", "In any currency; costs on this board are GPU hours times this.", "1")
SOON_S, VERY_SOON_S = 900.0, 300.0
"""Memory that is full within these is worth a look, and a hand."""
FULL_IN = ((0.0, style.RED), (VERY_SOON_S, style.ORANGE), (SOON_S, style.YELLOW))
WINDOW = "[$__rate_interval]"
PER_THOUSAND = f"1000 * {queries.of_backend(CAPACITY_GPU_SECONDS)}"
COST = f"{queries.of_backend(CAPACITY_GPU_SECONDS)} * 1000 / 3600 * $price"
TOKENS = by("sum", queries.BY_BACKEND, f"rate({series(GENERATED_TOKENS, *queries.OF_MODEL)}{WINDOW})")


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder."""
    description = "Will memory run out, what is idle, what does a request cost, and what does more load cost in speed."
    return assemble.board(settings, CAPACITY_UID, description, PANELS, (PRICE,))


def _exhaustion_now(settings: BoardSettings) -> Builder:
    about = About(
        "Memory full in",
        "The soonest time at which a KV cache or GPU memory will be full, if it goes on as in the last minutes.",
        style.unit_of(MEMORY_EXHAUSTION),
        "none foreseen",
        Place(0, 0, 4, 4),
    )
    return tile(settings, about, f"bottomk(1, {queries.of_backend(MEMORY_EXHAUSTION)})", FULL_IN, "{{backend}}")


def _idle_now(settings: BoardSettings) -> Builder:
    about = About(
        "Idle, last hour",
        "Mean over backends of the share of the seen part of the last hour in which no request ran.",
        style.unit_of(CAPACITY_IDLE),
        "not known yet",
        Place(4, 0, 5, 4),
    )
    return tile(settings, about, f"avg({queries.of_backend(CAPACITY_IDLE)})", decimals=1)


def _per_thousand(settings: BoardSettings) -> Builder:
    about = About(
        "GPU time per 1,000",
        "GPU time that a thousand finished requests took in the last hour, waiting for work included, over the chosen backends.",
        style.unit_of(CAPACITY_GPU_SECONDS),
        "no GPUs, or no requests",
        Place(9, 0, 5, 4),
    )
    return tile(settings, about, f"1000 * {_mean_gpu_seconds()}", decimals=1)


def _cost(settings: BoardSettings) -> Builder:
    about = About(
        "Cost of 1,000 requests",
        "The GPU hours of a thousand requests of the last hour, times the price of a GPU hour that is given above.",
        style.MONEY_UNIT,
        "no GPUs, or no requests",
        Place(14, 0, 5, 4),
    )
    return tile(settings, about, f"{_mean_gpu_seconds()} * 1000 / 3600 * $price", decimals=2)


def _candidates(settings: BoardSettings) -> Builder:
    about = About(
        "To consolidate",
        "Backends whose GPUs were used less than 20 % in the last hour, so that others might do their work.",
        style.unit_of(CAPACITY_CONSOLIDATE),
        "not known yet",
        Place(19, 0, 5, 4),
    )
    return tile(settings, about, f"sum({queries.of_backend(CAPACITY_CONSOLIDATE)})", ((1.0, style.BLUE),))


def _table(settings: BoardSettings) -> Builder:
    about = About(
        "Which backend is used well, and what does it cost?",
        "The last hour by backend, the most expensive first; slope is how much longer a token takes per request a second more.",
        style.COUNT_UNIT,
        "–",
        Place(0, 4, 24, 8),
    )
    role = [style.value_map({"0": ("no", style.GREY), "1": ("candidate", style.BLUE)}), style.missing("not known")]
    full = threshold_steps(*FULL_IN)
    columns = (
        Column("Cluster", None, source=CLUSTER.name),
        backend_column(),
        _column("GPU use", queries.of_backend(GPU_UTILIZATION, "avg"), style.unit_of(GPU_UTILIZATION), 90),
        _column("Idle", queries.of_backend(CAPACITY_IDLE), style.unit_of(CAPACITY_IDLE), 80),
        _column("Tokens", TOKENS, style.rate_unit_of(GENERATED_TOKENS), 110),
        _column("Per memory share", queries.of_backend(TOKEN_EFFICIENCY), style.unit_of(TOKEN_EFFICIENCY), 140),
        _column("GPU time of 1,000", PER_THOUSAND, style.unit_of(CAPACITY_GPU_SECONDS), 160),
        _column("Cost of 1,000", COST, style.MONEY_UNIT, 110),
        _column("Slope", queries.of_backend(CAPACITY_TPOT_SLOPE), style.unit_of(CAPACITY_TPOT_SLOPE), 100),
        Column(
            "Consolidate",
            _always(queries.of_backend(CAPACITY_CONSOLIDATE)),
            style.unit_of(CAPACITY_CONSOLIDATE),
            width=110,
            overrides={"mappings": role, **COLORED_TEXT},
        ),
        Column(
            "Memory full in",
            _always(queries.of_backend(MEMORY_EXHAUSTION)),
            style.unit_of(MEMORY_EXHAUSTION),
            width=120,
            overrides={"thresholds": full, "mappings": [style.missing("not foreseen")], **COLORED_TEXT},
        ),
    )
    panel = fill_table(table.Panel(), columns).thresholds(style.steps()).mappings([style.missing("not known")])
    panel = panel.sort_by([common.TableSortByFieldState().display_name("GPU time of 1,000").desc(True)])
    return framed(panel, about, why(settings))


def _column(header: str, expr: str, unit: str, width: int) -> Column:
    return Column(header, _always(expr), unit, width=width, overrides=COLORED_TEXT)


def _always(expr: str) -> str:
    """With not a number where it is not known, so that its cell says so and the column stays."""
    return f"{expr} or NaN * {queries.in_states('.*')}"


def _efficiency(settings: BoardSettings) -> Builder:
    about = About(
        f"How many tokens for the memory it takes? Least {MOST_LINES}",
        "Tokens a second divided by the share of GPU memory in use; compare backends of one model.",
        style.unit_of(TOKEN_EFFICIENCY),
        "no tokens, or no GPUs",
        Place(0, 12, 12, 9),
    )
    return ranked(settings, about, queries.of_backend(TOKEN_EFFICIENCY), lowest=True).min(0)


def _scatter(settings: BoardSettings) -> Builder:
    about = About(
        "What does more load cost in speed?",
        "A dot a backend and moment: to the right more requests a second, upwards more time between two tokens; where it turns "
        "upwards there is no capacity left.",
        style.unit_of(ITL),
        "no traffic, or no inter-token times",
        Place(12, 12, 12, 9),
    )
    rate = by("sum", queries.BY_BACKEND, f"rate({series(REQUESTS, *queries.OF_MODEL)}{WINDOW})")
    spent = by("sum", queries.BY_BACKEND, f"rate({total(ITL, *queries.OF_MODEL)}{WINDOW})")
    tokens = by("sum", queries.BY_BACKEND, f"rate({count(ITL, *queries.OF_MODEL)}{WINDOW})")
    x = ("Requests per second", style.rate_unit_of(REQUESTS), f"{rate} > 0")
    y = ("Time per token, mean", style.unit_of(ITL), f"{spent} / ({tokens} > 0)")
    return framed(scatter(x, y), about, why(settings))


def _idle(settings: BoardSettings) -> Builder:
    about = About(
        f"Who has nothing to do? Idlest {MOST_LINES}",
        "Share of the last hour, as far as it was seen, in which no request ran.",
        style.unit_of(CAPACITY_IDLE),
        "not known yet",
        Place(0, 21, 8, 8),
    )
    return ranked(settings, about, queries.of_backend(CAPACITY_IDLE)).min(0).max(1)


def _gpu_time(settings: BoardSettings) -> Builder:
    about = About(
        f"What do 1,000 requests take? Most {MOST_LINES}",
        "GPU time of its devices for a thousand finished requests, over the last hour; a GPU of two backends counts twice.",
        style.unit_of(CAPACITY_GPU_SECONDS),
        "no GPUs, or no requests",
        Place(8, 21, 8, 8),
    )
    return ranked(settings, about, PER_THOUSAND).min(0)


def _exhaustion(settings: BoardSettings) -> Builder:
    about = About(
        f"When will memory be full? Soonest {MOST_LINES}",
        "Time until a KV cache or GPU memory is full, by a straight line through the last minutes; no line: none is foreseen.",
        style.unit_of(MEMORY_EXHAUSTION),
        "none foreseen",
        Place(16, 21, 8, 8),
    )
    return ranked(settings, about, queries.of_backend(MEMORY_EXHAUSTION), lowest=True).min(0)


def _spread(settings: BoardSettings) -> Builder:
    about = About(
        "Is free memory alike on all nodes?",
        "Standard deviation over nodes of the free GPU memory per device; it means something for replicas of one model only.",
        style.unit_of(CAPACITY_FREE_SPREAD),
        "fewer than two nodes",
        Place(0, 29, 24, 6),
    )
    return ranked(
        settings, about, by("max", (CLUSTER,), series(CAPACITY_FREE_SPREAD, queries.IN_CLUSTER)), "spread {{cluster}}"
    ).min(0)


def _mean_gpu_seconds() -> str:
    """GPU seconds of a request over all chosen backends, each with the weight of its requests."""
    requests = by("sum", queries.BY_BACKEND, f"increase({series(REQUESTS, *queries.OF_MODEL)}[1h])")
    of_one = queries.of_backend(CAPACITY_GPU_SECONDS)
    return f"(sum({of_one} * {requests}) / (sum({requests} and {of_one}) > 0))"


PANELS: tuple[assemble.PanelOf, ...] = (
    _exhaustion_now,
    _idle_now,
    _per_thousand,
    _cost,
    _candidates,
    _table,
    _efficiency,
    _scatter,
    _idle,
    _gpu_time,
    _exhaustion,
    _spread,
)
