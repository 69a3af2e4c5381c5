"""GPU & KV: is memory running out, is a GPU hot, slow or failing, and does the cache help. Each panel works alone."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, table

from tailkeeper_alerts.promql import by, eq, not_regex, regex, series
from tailkeeper_dashboards import assemble, gpu_tables, queries, style
from tailkeeper_dashboards.gpu_tables import AS_SET, BY_GPU, HOT_CELSIUS, PCIE_LIMIT_RATIO, STALE_S, of_gpu
from tailkeeper_dashboards.panels import (
    COLORED_TEXT,
    About,
    Builder,
    Column,
    Place,
    bands,
    big_number,
    fill_table,
    framed,
    now,
    target,
)
from tailkeeper_dashboards.settings import GPU_UID, BoardSettings
from tailkeeper_dashboards.shapes import MOST_LINES, ranked, tile
from tailkeeper_dashboards.tiles import CLICKED, this_backend, why
from tailkeeper_exporter.catalog import (
    ECC_KIND,
    GPU_ECC_ERRORS,
    GPU_NVLINK,
    GPU_PCIE,
    GPU_POWER,
    GPU_SAMPLE_AGE,
    GPU_SM_CLOCK,
    GPU_TEMPERATURE,
    GPU_THROTTLED,
    GPU_UTILIZATION,
    GPU_XID_EVENTS,
    KV_HIT_RATIO,
    KV_USAGE,
    THROTTLE,
    VRAM_PRESSURE,
    XID,
    Metric,
)
from tailkeeper_exporter.gpu.xid import XIDS, XidSeverity
from tailkeeper_watchdog.metrics import MEMORY_RISK_RATIO, MEMORY_STOP_RATIO

NOT_SUPPORTED = "not supported by these GPUs"
EACH_GPU = "{{backend}}{{gpu}}"
FULL = ((0.0, style.GREEN), (MEMORY_RISK_RATIO, style.ORANGE), (MEMORY_STOP_RATIO, style.RED))
XID_COLORS = {
    XidSeverity.APPLICATION: style.GREY,
    XidSeverity.WATCH: style.ORANGE,
    XidSeverity.GPU: style.RED,
    XidSeverity.UNKNOWN: style.PURPLE,
}


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder. Its variables come from series that every backend has, so no missing field empties it."""
    description = "Is GPU memory running out, is a GPU hot, slow or failing, and does the KV cache help."
    return assemble.board(settings, GPU_UID, description, PANELS)


def _pressure_now(settings: BoardSettings) -> Builder:
    about = About(
        "VRAM pressure",
        f"How near the fullest backend is to running out of GPU memory: a ticket from {MEMORY_RISK_RATIO:.0%}, "
        f"drained from {MEMORY_STOP_RATIO:.0%}.",
        style.unit_of(VRAM_PRESSURE),
        "not known",
        Place(0, 0, 4, 4),
    )
    return tile(settings, about, f"topk(1, {queries.of_backend(VRAM_PRESSURE)})", FULL, "{{backend}}", decimals=1)


def _kv_now(settings: BoardSettings) -> Builder:
    about = About(
        "Fullest KV cache",
        "The backend with the largest share of its KV cache in use.",
        style.unit_of(KV_USAGE),
        "not told",
        Place(4, 0, 4, 4),
    )
    return tile(settings, about, f"topk(1, {_of_model(KV_USAGE)})", FULL, "{{backend}}", decimals=1)


def _hottest(settings: BoardSettings) -> Builder:
    about = About(
        "Hottest GPU",
        f"The highest core temperature; above {HOT_CELSIUS:g} °C it is named as a cause.",
        style.unit_of(GPU_TEMPERATURE),
        "not supported",
        Place(8, 0, 4, 4),
    )
    bounds = ((0.0, style.GREEN), (HOT_CELSIUS, style.ORANGE))
    return tile(settings, about, f"topk(1, {of_gpu(GPU_TEMPERATURE)})", bounds, "{{backend}}", decimals=0)


def _held_back(settings: BoardSettings) -> Builder:
    about = About(
        "GPUs held back",
        "GPUs whose clocks are low for heat, power or another fault, and not because somebody set them so.",
        style.COUNT_UNIT,
        "not supported",
        Place(12, 0, 4, 4),
    )
    reasons = series(GPU_THROTTLED, not_regex(THROTTLE, "|".join(AS_SET)), *queries.OF_BACKEND)
    expr = f"sum({queries.serving_model(by('max', BY_GPU, reasons))})"
    return tile(settings, about, expr, ((0.0, style.GREEN), (1.0, style.ORANGE)))


def _faults(settings: BoardSettings) -> Builder:
    about = About(
        "Faults, last hour",
        "Uncorrected memory errors, and XIDs that are the GPU's own fault; those of a program are in the table below.",
        style.COUNT_UNIT,
        "not told",
        Place(16, 0, 4, 4),
    )
    own = "|".join(str(number) for number, row in XIDS.items() if row.severity is XidSeverity.GPU)
    counters = {
        "uncorrected": series(GPU_ECC_ERRORS, eq(ECC_KIND, "double_bit"), *queries.OF_BACKEND),
        "XIDs": series(GPU_XID_EVENTS, regex(XID, own), *queries.OF_BACKEND),
    }
    panel = big_number(about, ((0.0, style.GREEN), (1.0, style.RED)), named=True).decimals(0)
    for ref, (name, selector) in zip("AB", counters.items(), strict=True):
        panel = panel.with_target(now(f"round(sum(increase({selector}[1h])))", ref, name))
    return framed(panel, about, why(settings))


def _oldest(settings: BoardSettings) -> Builder:
    about = About(
        "Oldest sample",
        "Age of the oldest sample of any GPU; one that is lost grows old here and has no other value.",
        style.unit_of(GPU_SAMPLE_AGE),
        "no GPU seen",
        Place(20, 0, 4, 4),
    )
    bounds = ((0.0, style.GREEN), (STALE_S, style.ORANGE))
    return tile(settings, about, f"max({of_gpu(GPU_SAMPLE_AGE)})", bounds)


def _use(settings: BoardSettings) -> Builder:
    return _each_gpu(
        settings,
        f"How busy is each GPU? Busiest {MOST_LINES}",
        "Share of time in which a kernel ran, which says that it works and not how hard.",
        GPU_UTILIZATION,
        Place(0, 12, 12, 8),
        share=True,
    )


def _memory(settings: BoardSettings) -> Builder:
    about = About(
        f"How full is its memory? Fullest {MOST_LINES}",
        "Memory in use as a share of what is installed; an engine that takes it all when it starts stays high: look for changes.",
        style.RATIO_UNIT,
        NOT_SUPPORTED,
        Place(12, 12, 12, 8),
    )
    return ranked(settings, about, gpu_tables.named(gpu_tables.used_ratio()), EACH_GPU).min(0).max(1)


def _pressure(settings: BoardSettings) -> Builder:
    about = About(
        f"How near is it to running out? Worst {MOST_LINES}",
        "Where an engine takes its memory at the start: the largest of KV use, headroom lost since it was warm, and preemptions.",
        style.unit_of(VRAM_PRESSURE),
        "not known",
        Place(0, 20, 8, 8),
    )
    limit = (f"new work stops at {MEMORY_STOP_RATIO:.0%}", MEMORY_STOP_RATIO)
    return ranked(settings, about, queries.of_backend(VRAM_PRESSURE), limit=limit).min(0)


def _kv(settings: BoardSettings) -> Builder:
    about = About(
        f"How full is the KV cache? Fullest {MOST_LINES}",
        "Share of KV blocks in use, of the fullest rank; near 100 % requests wait or are put back.",
        style.unit_of(KV_USAGE),
        "not told by this engine",
        Place(8, 20, 8, 8),
    )
    return ranked(settings, about, _of_model(KV_USAGE)).min(0)


def _hits(settings: BoardSettings) -> Builder:
    about = About(
        f"Does the prefix cache help? Least {MOST_LINES}",
        "Prompt tokens found in the cache, of those looked up in the last minute; a fall costs prefill time.",
        style.unit_of(KV_HIT_RATIO),
        "not told by this engine",
        Place(16, 20, 8, 8),
    )
    return ranked(settings, about, _of_model(KV_HIT_RATIO), lowest=True).min(0).max(1)


def _clocks(settings: BoardSettings) -> Builder:
    about = About(
        f"How fast is its clock? Slowest {MOST_LINES}",
        "Clock of the multiprocessors; the panel beside it says why it is low.",
        style.unit_of(GPU_SM_CLOCK),
        NOT_SUPPORTED,
        Place(0, 28, 12, 8),
    )
    return ranked(settings, about, gpu_tables.named(of_gpu(GPU_SM_CLOCK)), EACH_GPU, lowest=True)


def _reasons(settings: BoardSettings) -> Builder:
    about = About(
        f"Why are clocks held back? Most worrying {MOST_LINES}",
        "The most worrying of the reasons that the driver gives for each GPU.",
        style.COUNT_UNIT,
        NOT_SUPPORTED,
        Place(12, 28, 12, 8),
    )
    worst = f"topk({MOST_LINES}, {gpu_tables.named(gpu_tables.held_back_rank())})"
    panel = bands(gpu_tables.held_back_words()).data_links([this_backend(CLICKED)])
    return framed(panel.with_target(target(worst, legend=EACH_GPU)), about, why(settings))


def _temperature(settings: BoardSettings) -> Builder:
    return _each_gpu(
        settings,
        f"How hot is it? Hottest {MOST_LINES}",
        f"Core temperature; above {HOT_CELSIUS:g} °C it is named as a cause.",
        GPU_TEMPERATURE,
        Place(0, 36, 12, 8),
        limit=(f"named as a cause above {HOT_CELSIUS:g} °C", HOT_CELSIUS),
    )


def _power(settings: BoardSettings) -> Builder:
    return _each_gpu(
        settings,
        f"How much power does it draw? Most {MOST_LINES}",
        "Power drawn; a fall under the same load goes with a low clock.",
        GPU_POWER,
        Place(12, 36, 12, 8),
    )


def _links(settings: BoardSettings) -> Builder:
    about = About(
        f"Is a link full? Fullest {MOST_LINES}",
        f"Throughput as a share of the link, PCIe or NVLink; above {PCIE_LIMIT_RATIO:.0%} of PCIe a backend gets less work.",
        style.RATIO_UNIT,
        NOT_SUPPORTED,
        Place(0, 44, 12, 8),
    )
    panel = ranked(settings, about, gpu_tables.named(of_gpu(GPU_PCIE)), f"PCIe {EACH_GPU}")
    nvlink = f"topk({MOST_LINES}, {gpu_tables.named(of_gpu(GPU_NVLINK))})"
    return panel.with_target(target(nvlink, "B", f"NVLink {EACH_GPU}")).min(0)


def _xids(settings: BoardSettings) -> Builder:
    about = About(
        "Which XIDs, and what do they say?",
        "XID events of the last hour by number, with our reading of NVIDIA's table; not every driver reports every one.",
        style.COUNT_UNIT,
        "none seen in the last hour",
        Place(12, 44, 12, 8),
    )
    events = by("sum", (*BY_GPU, XID), f"increase({series(GPU_XID_EVENTS, *queries.OF_BACKEND)}[1h])")
    meanings = {str(number): (f"{number}: {row.meaning}", XID_COLORS[row.severity]) for number, row in XIDS.items()}
    columns = (
        *gpu_tables.names(),
        Column("XID", None, source=XID.name, overrides={"mappings": [style.value_map(meanings)], **COLORED_TEXT}),
        Column("Events", f"round({events}) > 0", style.COUNT_UNIT, width=80),
    )
    panel = fill_table(table.Panel(), columns).thresholds(style.steps())
    return framed(panel, about, why(settings))


def _each_gpu(
    settings: BoardSettings,
    title: str,
    description: str,
    metric: Metric,
    place: Place,
    *,
    limit: tuple[str, float] | None = None,
    share: bool = False,
) -> Builder:
    about = About(title, description, style.unit_of(metric), NOT_SUPPORTED, place)
    panel = ranked(settings, about, gpu_tables.named(of_gpu(metric)), EACH_GPU, limit=limit).min(0)
    return panel.max(1) if share else panel


def _of_model(metric: Metric) -> str:
    return by("max", queries.BY_BACKEND, series(metric, *queries.OF_MODEL))


PANELS: tuple[assemble.PanelOf, ...] = (
    _pressure_now,
    _kv_now,
    _hottest,
    _held_back,
    _faults,
    _oldest,
    gpu_tables.how_is_it,
    _use,
    _memory,
    _pressure,
    _kv,
    _hits,
    _clocks,
    _reasons,
    _temperature,
    _power,
    _links,
    _xids,
    gpu_tables.is_it_failing,
)
