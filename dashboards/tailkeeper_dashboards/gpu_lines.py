"""The GPUs behind the chosen backends: used, full, clocked down, held back. Each panel is told which GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard, statetimeline, timeseries
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import CLUSTER, Matcher, by, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.gpu_tables import HELD_BACK
from tailkeeper_dashboards.panels import About, Place, bands, fixed_color, framed, lines, target
from tailkeeper_exporter.catalog import (
    GPU,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_SM_CLOCK,
    GPU_THROTTLED,
    GPU_UTILIZATION,
    THROTTLE,
    Label,
    Metric,
)

Links = Sequence[dashboard.DashboardLink]
MOST_LINES = 16
"""Two full nodes; more cannot be told apart."""
UNSUPPORTED = "not reported by this GPU"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which GPUs, and what a line stands for: a backend by its highest GPU, in that backend's colour, or each GPU by itself."""

    of: tuple[Matcher, ...]
    each_gpu: bool = False

    @property
    def labels(self) -> tuple[Label, ...]:
        return (*queries.BY_BACKEND, GPU) if self.each_gpu else queries.BY_BACKEND

    @property
    def legend(self) -> str:
        return "{{backend}} …{{end}}" if self.each_gpu else "{{backend}}"

    def lines(self, metric: Metric, operator: str = "max") -> str:
        """The series of a gauge. A UUID is told by its last four characters, which fit beside a graph."""
        highest = f"topk({MOST_LINES}, {by(operator, self.labels, series(metric, *self.of))})"
        return f'label_replace({highest}, "end", "$1", "{GPU.name}", ".*(.{{4}})")' if self.each_gpu else highest


PanelOfGpu = Callable[[Links, Place, Chosen], timeseries.Panel | statetimeline.Panel]


def utilization(links: Links, place: Place, chosen: Chosen) -> timeseries.Panel:
    about = About(
        "Was the GPU busy?",
        "Share of time in which a kernel ran; 0 % with requests in flight is a hang, 100 % alone is no fault.",
        style.unit_of(GPU_UTILIZATION),
        UNSUPPORTED,
        place,
    )
    panel = lines().min(0).max(1).with_target(target(chosen.lines(GPU_UTILIZATION), legend=chosen.legend))
    return framed(panel, about, links)


def memory(links: Links, place: Place, chosen: Chosen) -> timeseries.Panel:
    about = About(
        "Was its memory full?",
        "GPU memory in use; the dashed line is what is installed, and an engine that reserves its cache sits just below it.",
        style.unit_of(GPU_MEMORY_USED),
        UNSUPPORTED,
        place,
    )
    panel = lines().min(0).with_target(target(chosen.lines(GPU_MEMORY_USED), "A", chosen.legend))
    panel = panel.with_target(target(f"max({series(GPU_MEMORY_TOTAL, *chosen.of)})", "B", "installed"))
    dashed = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [4, 6]})
    panel = panel.override_by_name("installed", [fixed_color(style.GREY), dashed, DynamicConfigValue("custom.lineWidth", 1)])
    return framed(panel, about, links)


def clocks(links: Links, place: Place, chosen: Chosen) -> timeseries.Panel:
    about = About(
        "Was it clocked down?",
        "Clock of the streaming multiprocessors, the slowest of a backend's; a fall under load means heat, power or a limit.",
        style.unit_of(GPU_SM_CLOCK),
        UNSUPPORTED,
        place,
    )
    panel = lines().min(0).with_target(target(chosen.lines(GPU_SM_CLOCK, "min"), legend=chosen.legend))
    return framed(panel, about, links)


def held_back(links: Links, place: Place, chosen: Chosen) -> statetimeline.Panel:
    about = About(
        "What held its clocks back?",
        "One band a reason that held the clocks of a chosen GPU back at any moment of this time range, orange while it did.",
        style.unit_of(GPU_THROTTLED),
        "nothing did, or it is not reported",
        place,
    )
    labels = (CLUSTER, THROTTLE)
    held = series(GPU_THROTTLED, *chosen.of)
    each = f"{by('max', labels, held)} and {by('max', labels, f'max_over_time({held}[$__range])')} > 0"
    words = style.value_map({"0": ("free", style.GREY), "1": ("held back", style.ORANGE)})
    panel = bands([words]).with_target(target(each, legend="{{reason}}"))
    for reason, (word, _) in HELD_BACK.items():
        panel = panel.override_by_regexp(f"/^{reason}$/", [DynamicConfigValue("displayName", word)])
    return framed(panel, about, links)
