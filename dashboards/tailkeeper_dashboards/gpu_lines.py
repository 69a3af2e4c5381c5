"""The GPUs behind the chosen backends: used, full, clocked down, held back. Each panel takes the matchers that choose the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grafana_foundation_sdk.builders import dashboard, statetimeline, timeseries
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import Matcher, by, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.panels import About, Place, fixed_color, framed, lines, state_bands, target
from tailkeeper_exporter.catalog import (
    GPU,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_SM_CLOCK,
    GPU_THROTTLED,
    GPU_UTILIZATION,
    THROTTLE,
    Metric,
)

Links = Sequence[dashboard.DashboardLink]
PanelOfGpu = Callable[[Links, Place, Sequence[Matcher]], timeseries.Panel | statetimeline.Panel]
BY_GPU = (*queries.BY_BACKEND, GPU)
MOST_LINES = 16
"""Two full nodes; more cannot be told apart."""
UNSUPPORTED = "not reported by this GPU"


def _each(metric: Metric, of: Sequence[Matcher]) -> str:
    return f"topk({MOST_LINES}, {by('max', BY_GPU, series(metric, *of))})"


def utilization(links: Links, place: Place, of: Sequence[Matcher]) -> timeseries.Panel:
    about = About(
        "Was the GPU busy?",
        "Share of time in which a kernel ran; 0 % with requests in flight is a hang, 100 % alone is no fault.",
        style.unit_of(GPU_UTILIZATION),
        UNSUPPORTED,
        place,
    )
    panel = lines().min(0).max(1).with_target(target(_each(GPU_UTILIZATION, of), legend="{{backend}} {{gpu}}"))
    return framed(panel, about, links)


def memory(links: Links, place: Place, of: Sequence[Matcher]) -> timeseries.Panel:
    about = About(
        "Was its memory full?",
        "GPU memory in use; the dashed line is what is installed, and an engine that reserves its cache sits just below it.",
        style.unit_of(GPU_MEMORY_USED),
        UNSUPPORTED,
        place,
    )
    panel = lines().min(0).with_target(target(_each(GPU_MEMORY_USED, of), "A", "{{backend}} {{gpu}}"))
    panel = panel.with_target(target(f"max({series(GPU_MEMORY_TOTAL, *of)})", "B", "installed"))
    dashed = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [4, 6]})
    panel = panel.override_by_name("installed", [fixed_color(style.GREY), dashed, DynamicConfigValue("custom.lineWidth", 1)])
    return framed(panel, about, links)


def clocks(links: Links, place: Place, of: Sequence[Matcher]) -> timeseries.Panel:
    about = About(
        "Was it clocked down?",
        "Clock of the streaming multiprocessors; a fall under load means heat, power or somebody's limit.",
        style.unit_of(GPU_SM_CLOCK),
        UNSUPPORTED,
        place,
    )
    panel = lines().min(0).with_target(target(_each(GPU_SM_CLOCK, of), legend="{{backend}} {{gpu}}"))
    return framed(panel, about, links)


def held_back(links: Links, place: Place, of: Sequence[Matcher]) -> statetimeline.Panel:
    about = About(
        "What held its clocks back?",
        "One band a reason that the driver gives, orange while it holds the clocks back.",
        style.unit_of(GPU_THROTTLED),
        "nothing reported",
        place,
    )
    each = by("max", (*BY_GPU, THROTTLE), series(GPU_THROTTLED, *of))
    words = style.value_map({"0": ("free", style.GREY), "1": ("held back", style.ORANGE)})
    panel = state_bands().mappings([words, style.missing("unknown")])
    return framed(panel.with_target(target(f"topk({MOST_LINES}, {each})", legend="{{backend}} {{reason}}")), about, links)
