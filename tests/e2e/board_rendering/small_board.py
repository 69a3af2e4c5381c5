"""A board for testing the harness itself: one panel of each kind that our boards use, over what the demo has. By hand, no SDK."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]
UID = "small"
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
TEMPO = {"type": "tempo", "uid": "${tempo}"}
LOKI = {"type": "loki", "uid": "${loki}"}
P99 = 'histogram_quantile(0.99, sum by (le, backend) (rate(llm_time_to_first_token_seconds_bucket{backend=~"$backend"}[1m])))'
SPANS = '{ name = "llm_request" && span.gen_ai.request.id = "$request_id" } | select(span.gpu.uuid, span.tailkeeper.ttft_s)'
KEPT = "${datasource:queryparam}&${tempo:queryparam}&${loki:queryparam}"
UP = "max by (backend) (llm_backend_up)"
BUCKETS = "sum by (le) (increase(llm_time_to_first_token_seconds_bucket[10s]))"
GPU = 'max by (gpu) (llm_gpu_utilization_ratio{gpu=~"$gpu.*"})'
NARROW = {"matcher": {"id": "byRegexp", "options": ".*"}, "properties": [{"id": "custom.width", "value": 95}]}
TO_TRACE = (
    f"/d/{UID}?{KEPT}&var-request_id=${{request_id:percentencode}}&var-trace_id=${{__data.fields.traceIdHidden:percentencode}}"
    '&var-gpu=${__data.fields["gpu.uuid"]:percentencode}&time=${__value.time}&time.window=60000'
)


def _panel(number: int, kind: str, title: str, source: Json, targets: list[Json], **more: Any) -> Json:
    place = {"x": 12 * ((number + 1) % 2), "y": 7 * ((number - 1) // 2), "w": 12, "h": 7}
    given = [{"refId": chr(65 + i), "datasource": source, **target} for i, target in enumerate(targets)]
    config = {"defaults": more.pop("defaults", {}), "overrides": more.pop("overrides", [])}
    shown = {"id": number, "type": kind, "title": title, "gridPos": place}
    return {**shown, "datasource": source, "targets": given, "fieldConfig": config, **more}


def _source(name: str) -> Json:
    return {"type": "datasource", "name": {"prometheus": "datasource"}.get(name, name), "query": name}


def _values(metric: str, label: str) -> Json:
    query = f"label_values({metric}, {label})"
    every = {"text": "All", "value": "$__all"}
    source = {"datasource": PROMETHEUS, "query": query, "refresh": 2, "current": every}
    return {"type": "query", "name": label, "multi": True, "includeAll": True, "allValue": ".*", **source}


def _panels() -> list[Json]:
    renamed = {"renameByName": {"backend": "Backend", "Value #A": "Running"}, "excludeByName": {"Time": True, "Value #B": True}}
    running = [{"id": "merge", "options": {}}, {"id": "organize", "options": renamed}]
    link = {"title": "Only this", "url": f"/d/{UID}?{KEPT}&var-backend=${{__value.raw:percentencode}}&${{__url_time_range}}"}
    linked = {"matcher": {"id": "byName", "options": "Backend"}, "properties": [{"id": "links", "value": [link]}]}
    last_first = {"sortBy": [{"displayName": "Backend", "desc": True}]}
    trace = {"title": "Trace and GPU", "url": TO_TRACE}
    opens = {"matcher": {"id": "byName", "options": "Span ID"}, "properties": [{"id": "links", "value": [trace]}]}
    two = [_now("llm_requests_running"), _now("llm_requests_waiting")]
    merged = {"transformations": [{"id": "merge", "options": {}}]}
    share = {"defaults": {"unit": "percentunit", "min": 0, "max": 1}}
    head = {"links": [{"title": "Itself", "url": f"/d/{UID}"}]}
    asked = {"query": SPANS, "queryType": "traceql", "tableType": "spans"}
    told = {"gen_ai.request.id": "Request", "tailkeeper.ttft_s": "TTFT", "gpu.uuid": "GPU"}
    hidden = dict.fromkeys(("Trace Service", "Trace Name", "Name"), True)
    fewer = [{"id": "organize", "options": {"excludeByName": hidden, "renameByName": told}}]
    return [
        _panel(1, "stat", "Backends", PROMETHEUS, [{"expr": "sum(llm_backend_up)", "instant": True}]),
        _panel(2, "timeseries", "P99", PROMETHEUS, [{"expr": P99, "exemplar": True}], defaults={"unit": "s"}, **head),
        _panel(3, "table", "Running", PROMETHEUS, two, transformations=running, overrides=[linked], options=last_first),
        _panel(4, "bargauge", "Queues", PROMETHEUS, [{"expr": "llm_requests_running", "instant": True}]),
        _panel(5, "gauge", "Busiest GPU", PROMETHEUS, [{"expr": "max(llm_gpu_utilization_ratio)", "instant": True}], **share),
        _panel(6, "state-timeline", "Up", PROMETHEUS, [{"expr": UP, "legendFormat": "{{backend}}"}]),
        _panel(7, "heatmap", "TTFT", PROMETHEUS, [{"expr": BUCKETS, "format": "heatmap"}]),
        _panel(8, "barchart", "Shares", PROMETHEUS, [_now("llm_requests_running")]),
        _panel(9, "xychart", "Load", PROMETHEUS, two, **merged),
        _panel(10, "text", "Words", PROMETHEUS, [], options={"mode": "markdown", "content": "Of **$request_id**"}),
        _panel(11, "table", "Request", TEMPO, [asked], transformations=fewer, overrides=[NARROW, opens]),
        _panel(12, "traces", "Trace", TEMPO, [{"query": "$trace_id", "queryType": "traceql"}]),
        _panel(13, "logs", "Logs", LOKI, [{"expr": '{service_name="tailkeeper-tap"} | gen_ai_request_id="$request_id"'}]),
        _panel(14, "timeseries", "GPU", PROMETHEUS, [{"expr": GPU, "legendFormat": "{{gpu}}"}], **share),
    ]


def _now(metric: str) -> Json:
    """One value a backend, as rows of a table."""
    return {"expr": f"max by (backend) ({metric})", "instant": True, "format": "table"}


def board() -> Json:
    """The good one; each call gives a copy of its own."""
    panels = _panels()
    boxes = [{"type": "textbox", "name": name, "query": ""} for name in ("request_id", "trace_id", "gpu")]
    sources = [_source(name) for name in ("prometheus", "tempo", "loki")]
    found = {
        "uid": UID,
        "title": "Small",
        "time": {"from": "now-3m", "to": "now"},
        "panels": panels,
        "templating": {"list": [*sources, _values("llm_backend_up", "backend"), *boxes]},
        "annotations": {
            "list": [{"name": "Served", "enable": True, "datasource": PROMETHEUS, "expr": "sum(llm_backend_up) > 0"}]
        },
        "links": [{"title": "Itself", "type": "link", "url": f"/d/{UID}", "keepTime": True, "includeVars": True}],
    }
    return copy.deepcopy(found)


def panel_of(found: Json, title: str) -> Json:
    """The panel with this title."""
    panel: Json = next(panel for panel in found["panels"] if panel["title"] == title)
    return panel
