"""The two tables of the GPU board: how each GPU is, and whether its hardware fails. One row a GPU, whatever it can tell.

The rows come from the age of the sample, which every GPU has, so that one without temperature or utilisation stays.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models.dashboard import ValueMapping

from tailkeeper_alerts.promql import CLUSTER, by, eq, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.panels import (
    COLORED_TEXT,
    About,
    Column,
    Place,
    board_url,
    cell_link,
    fill_table,
    framed,
    link,
    threshold_steps,
)
from tailkeeper_dashboards.settings import ROOT_CAUSE_UID, BoardSettings
from tailkeeper_dashboards.tiles import CELL, backend_column, why
from tailkeeper_exporter.catalog import (
    BACKEND,
    ECC_KIND,
    GPU,
    GPU_ECC_ERRORS,
    GPU_FRAGMENTATION,
    GPU_MEMORY_COPY,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_NVLINK,
    GPU_PCIE,
    GPU_POWER,
    GPU_RETIRED_PAGES,
    GPU_SAMPLE_AGE,
    GPU_SM_CLOCK,
    GPU_TEMPERATURE,
    GPU_THROTTLED,
    GPU_UTILIZATION,
    GPU_XID_EVENTS,
    KV_USAGE,
    THROTTLE,
    Metric,
)

BY_GPU = (CLUSTER, BACKEND, GPU)
HOT_CELSIUS = 75.0
"""Above this a GPU is named as a cause (product description 3.4)."""
NVLINK_LIMIT_RATIO, PCIE_LIMIT_RATIO = 0.82, 0.85
"""Above these the health gate sends less work there."""
STALE_S = 10.0
"""A sample this old is of no use beside requests of some seconds."""
SORTED_WIDTH = 125
"""Of the column that the rows are sorted by: its head has an arrow beside its name."""

HELD_BACK: dict[str, tuple[str, str]] = {
    "applications_clocks_setting": ("as set", style.BLUE),
    "display_clock_setting": ("as set for displays", style.BLUE),
    "sync_boost": ("as its group", style.BLUE),
    "sw_power_cap": ("power cap", style.YELLOW),
    "other": ("another reason", style.ORANGE),
    "hw_slowdown": ("hardware slowdown", style.ORANGE),
    "sw_thermal_slowdown": ("heat, by driver", style.RED),
    "hw_thermal_slowdown": ("heat, by hardware", style.RED),
    "hw_power_brake_slowdown": ("power brake", style.DARK_RED),
}
"""NVML's reasons in words, the most worrying last; its rank is the number that graphs have."""
AS_SET = ("applications_clocks_setting", "display_clock_setting", "sync_boost")
"""What people set is no trouble."""


def of_gpu(metric: Metric, operator: str = "max") -> str:
    return queries.of_group(metric, BY_GPU, operator)


def told(expression: str) -> str:
    """``expression``, and not a number for each GPU that lacks it, so that its cell says so and its column stays."""
    return f"{expression} or {of_gpu(GPU_SAMPLE_AGE)} * NaN"


def named(expression: str) -> str:
    """``expression`` for lines called ``{{backend}}{{gpu}}``: a backend's only GPU is called, and so coloured, like the backend;
    of several each has the first eight and the last four characters of its UUID."""
    alone = f"{by('count', queries.BY_BACKEND, series(GPU_SAMPLE_AGE))} == 1"
    only = f'label_replace({expression} and {queries.EACH_BACKEND} ({alone}), "gpu", "", "gpu", ".*")'
    spaced = f'label_replace({expression} unless {queries.EACH_BACKEND} ({alone}), "gpu", " $1", "gpu", "(.*)")'
    return f'({only} or label_replace({spaced}, "gpu", " $1…$2", "gpu", " (.{{8}}).+(.{{4}})"))'


def used_ratio() -> str:
    """Memory in use as a share of what the device has."""
    return f"({of_gpu(GPU_MEMORY_USED)} / ({of_gpu(GPU_MEMORY_TOTAL)} > 0))"


def held_back_rank() -> str:
    """The rank of the most worrying reason why the clocks are held back, 0 for none."""
    ranks = " or ".join(
        f"{series(GPU_THROTTLED, eq(THROTTLE, reason), *queries.OF_BACKEND)} * {rank}" for rank, reason in enumerate(HELD_BACK, 1)
    )
    return queries.serving_model(by("max", BY_GPU, ranks))


def held_back_words() -> list[ValueMapping]:
    """For cells and graphs that hold such a rank."""
    words = {"0": ("not held back", style.GREEN)} | {str(rank): word for rank, word in enumerate(HELD_BACK.values(), 1)}
    return [style.value_map(words)]


def how_is_it(settings: BoardSettings) -> table.Panel:
    """Use, memory, heat and clocks now."""
    about = About(
        "Which GPU, and how is it?",
        "One row a GPU, the hottest first; KV is its backend's cache, and the last but one says why its clocks are low.",
        style.COUNT_UNIT,
        "no GPU seen",
        Place(0, 4, 24, 8),
    )
    # A value of the backend beside each of its GPUs; the age of the sample only lends its labels.
    kv = by("max", queries.BY_BACKEND, series(KV_USAGE, *queries.OF_MODEL))
    at_each = f"{kv} + {queries.EACH_BACKEND} group_right () 0 * {of_gpu(GPU_SAMPLE_AGE)}"
    full = threshold_steps((0, style.NEUTRAL), (0.8, style.ORANGE), (0.9, style.RED))
    held = {"mappings": [*held_back_words(), style.missing("unsupported")], **COLORED_TEXT}
    return _table(
        settings,
        about,
        "Temperature",
        (
            *names(),
            _column("Use", of_gpu(GPU_UTILIZATION), GPU_UTILIZATION),
            Column("Memory", told(used_ratio()), style.RATIO_UNIT, width=100, overrides={"decimals": 1, **COLORED_TEXT}),
            _column("KV", at_each, KV_USAGE, {"thresholds": full}),
            _column("Temperature", of_gpu(GPU_TEMPERATURE), GPU_TEMPERATURE, _above(HOT_CELSIUS), SORTED_WIDTH),
            _column("Power", of_gpu(GPU_POWER), GPU_POWER),
            _column("SM clock", of_gpu(GPU_SM_CLOCK), GPU_SM_CLOCK),
            Column("Clocks held back", told(held_back_rank()), style.COUNT_UNIT, width=150, overrides=held),
            _column("Age", of_gpu(GPU_SAMPLE_AGE), GPU_SAMPLE_AGE, _above(STALE_S)),
        ),
    )


def is_it_failing(settings: BoardSettings) -> table.Panel:
    """Links, fragmentation and errors now."""
    about = About(
        "Is its hardware failing, or its links full?",
        "Corrected and uncorrected memory errors and XIDs are those of the last hour; retired are pages or rows, for good.",
        style.COUNT_UNIT,
        "no GPU seen",
        Place(0, 52, 24, 8),
    )
    xids = series(GPU_XID_EVENTS, *queries.OF_BACKEND)
    # The series of an XID begins with its first, so none is not told apart from a driver that reports none.
    unseen = {"mappings": [style.missing("none seen")], **COLORED_TEXT}
    bad = {"thresholds": threshold_steps((0, style.NEUTRAL), (1, style.RED)), **COLORED_TEXT}
    return _table(
        settings,
        about,
        "Uncorrected",
        (
            *names(),
            _column("Fragmented", of_gpu(GPU_FRAGMENTATION), GPU_FRAGMENTATION),
            _column("Copying", of_gpu(GPU_MEMORY_COPY), GPU_MEMORY_COPY),
            _column("PCIe", of_gpu(GPU_PCIE), GPU_PCIE, _above(PCIE_LIMIT_RATIO)),
            _column("NVLink", of_gpu(GPU_NVLINK), GPU_NVLINK, _above(NVLINK_LIMIT_RATIO)),
            Column("Corrected", told(_errors("single_bit")), style.COUNT_UNIT, width=100, overrides=COLORED_TEXT),
            Column("Uncorrected", told(_errors("double_bit")), style.COUNT_UNIT, width=SORTED_WIDTH, overrides=bad),
            Column("XIDs", told(_last_hour(xids)), style.COUNT_UNIT, width=100, overrides=unseen),
            _column("Retired", of_gpu(GPU_RETIRED_PAGES), GPU_RETIRED_PAGES),
        ),
    )


def _table(settings: BoardSettings, about: About, sort: str, columns: tuple[Column, ...]) -> table.Panel:
    panel = fill_table(table.Panel(), columns).thresholds(style.steps()).mappings([style.missing("unsupported")])
    panel = panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
    return framed(panel, about, why(settings))


def names() -> tuple[Column, ...]:
    requests = link("Requests on this GPU", f"{board_url(ROOT_CAUSE_UID)}&var-gpu=${{{CELL}:percentencode}}")
    gpu = {"links": [cell_link(requests)], "mappings": [style.short_ids()]}
    return (
        Column("Cluster", None, source=CLUSTER.name),
        backend_column(),
        Column("GPU", None, source=GPU.name, width=130, overrides=gpu),
    )


def _column(header: str, expr: str, metric: Metric, overrides: dict[str, object] | None = None, width: int = 100) -> Column:
    return Column(header, told(expr), style.unit_of(metric), width=width, overrides={**COLORED_TEXT, **(overrides or {})})


def _above(limit: float) -> dict[str, object]:
    return {"thresholds": threshold_steps((0, style.NEUTRAL), (limit, style.ORANGE))}


def _errors(kind: str) -> str:
    return _last_hour(series(GPU_ECC_ERRORS, eq(ECC_KIND, kind), *queries.OF_BACKEND))


def _last_hour(selector: str) -> str:
    # increase() estimates between scrapes; a number of events is whole.
    return queries.serving_model(f"round({by('sum', BY_GPU, f'increase({selector}[1h])')})")
