"""SLA root cause: from a slow request to its stages, its trace, its logs, and the GPU that served it at that minute.

Three steps: choose a row, or type a request id; its link sets request, trace, backend, GPU and the minutes around it; every panel
below shows that request or that GPU. Nothing depends on exemplars or on sampling: the access log has every request.
"""

from __future__ import annotations

from functools import partial

from grafana_foundation_sdk.builders import dashboard

from tailkeeper_alerts.promql import by, regex, series
from tailkeeper_dashboards import assemble, causes, gpu_lines, queries, request_tables, requests, style, tiles
from tailkeeper_dashboards.panels import (
    LOKI,
    TEMPO,
    About,
    Builder,
    Place,
    framed,
    lines,
    log_lines,
    log_list,
    target,
    trace,
    trace_view,
)
from tailkeeper_dashboards.settings import BACKEND_UID, FLEET_UID, GPU_UID, ROOT_CAUSE_UID, BoardSettings
from tailkeeper_dashboards.tiles import elsewhere
from tailkeeper_dashboards.variables import text_box
from tailkeeper_exporter.catalog import GPU, KV_USAGE

OF_GPU = gpu_lines.Chosen((*queries.OF_BACKEND, regex(GPU, "$gpu.*")))
"""A whole UUID chooses its GPU, and an empty field all GPUs of the chosen backends."""
VARIABLES = (
    text_box("request_id", "Request id", "The x-request-id that the user was given, or a row of the table below."),
    text_box("trace_id", "Trace id", "32 hexadecimal digits; a row of the table fills it in."),
    text_box("gpu", "GPU", "A GPU's UUID; empty for all GPUs of the chosen backends."),
)


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder; the request is marked on every graph where its access-log line lies."""
    description = "Why did this user wait? From a request to its stages, its trace, its logs, and the GPU that served it."
    result = assemble.board(settings, ROOT_CAUSE_UID, description, PANELS, VARIABLES)
    mark = dashboard.AnnotationQuery().name("This request").enable(True).datasource(LOKI)
    return result.annotation(mark.icon_color(style.MARK).expr(requests.lines_of_request()))


def _trace(settings: BoardSettings) -> Builder:
    about = About(
        "What happened inside? Its trace",
        "The request from its first byte to its last, with every program that took part in it.",
        "none",
        "choose a request above; without a trace, its stages are in the log",
        Place(0, 22, 14, 10),
    )
    return framed(trace_view().with_target(trace("$trace_id")), about, elsewhere(settings, FLEET_UID), TEMPO)


def _logs(settings: BoardSettings) -> Builder:
    about = About(
        "What was logged about it?",
        "Lines of the access log and of the watchdog that carry this request's id or its trace's.",
        "none",
        "choose a request above",
        Place(14, 22, 10, 10),
    )
    return framed(log_list().with_target(log_lines(requests.lines_of_request())), about, elsewhere(settings, FLEET_UID), LOKI)


def _kv(settings: BoardSettings) -> Builder:
    about = About(
        "Was the KV cache full?",
        "Share of KV blocks in use on the chosen backends; above 90 % requests wait for memory or are put back.",
        style.unit_of(KV_USAGE),
        "not reported by this engine",
        Place(16, 32, 8, 8),
    )
    used = f"topk({gpu_lines.MOST_LINES}, {by('max', queries.BY_BACKEND, series(KV_USAGE, *queries.OF_MODEL))})"
    panel = lines().min(0).max(1).with_target(target(used, legend="{{backend}}"))
    return framed(panel, about, elsewhere(settings, BACKEND_UID, GPU_UID))


def _of_gpu(panel: gpu_lines.PanelOfGpu, place: Place) -> assemble.PanelOf:
    return lambda settings: panel(elsewhere(settings, GPU_UID, BACKEND_UID), place, OF_GPU)


PANELS: tuple[assemble.PanelOf, ...] = (
    partial(tiles.slowest, place=Place(0, 0, 7, 4)),
    partial(tiles.sla, place=Place(7, 0, 4, 4)),
    partial(tiles.worst, place=Place(11, 0, 4, 4)),
    partial(tiles.findings, place=Place(15, 0, 4, 4)),
    partial(tiles.actions, place=Place(19, 0, 5, 4)),
    partial(request_tables.traced, place=Place(0, 4, 12, 10)),
    partial(request_tables.logged, place=Place(12, 4, 12, 10)),
    partial(causes.stages, place=Place(0, 14, 10, 8)),
    partial(causes.shares, place=Place(10, 14, 14, 8)),
    _trace,
    _logs,
    _of_gpu(gpu_lines.utilization, Place(0, 32, 8, 8)),
    _of_gpu(gpu_lines.memory, Place(8, 32, 8, 8)),
    _kv,
    _of_gpu(gpu_lines.clocks, Place(0, 40, 12, 7)),
    _of_gpu(gpu_lines.held_back, Place(12, 40, 12, 7)),
)
