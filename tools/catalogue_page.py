"""A metrics page with every series of the catalogue: what a board, a rule or a lint can be tried against.

    python -m tools.catalogue_page 127.0.0.1:9499

It serves made-up but possible values (one backend is hung, counters rise with time, ratios stay in [0, 1]), and proves
that a query finds series of these names and labels, never that the exporter publishes them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product

from tailkeeper_dashboards.prometheus_own import ALERTMANAGER_ALERTS, POSTED_STATE
from tailkeeper_exporter.catalog import (
    CATALOG,
    ECC_KIND,
    OTLP_OUTCOME,
    OUTCOMES,
    QUANTILE_SATURATED,
    SIGNALS,
    THROTTLE,
    Kind,
    Label,
    Metric,
    Unit,
)
from tailkeeper_exporter.gpu.base import THROTTLE_REASONS
from tailkeeper_exporter.state import State
from tailkeeper_watchdog import metrics
from tailkeeper_watchdog.metrics import COST, FINDING_KIND, WATCHDOG_CATALOG

BACKENDS = ("sim-a", "sim-b", "sim-c", "sim-d")
HUNG = "sim-b"
MODELS = {"sim-d": "microsoft/phi-3-mini"}
MODEL = "Qwen/Qwen2.5-7B-Instruct"
VALUES: dict[str, tuple[str, ...]] = {
    "state": tuple(State),
    "signal": SIGNALS,
    "factor": ("latency", "error_rate", "cpu_usage", "uptime"),
    "verdict": ("applied", "refused", "failed"),
    "quantization": ("fp16",),
    "canary_revision": ("v1",),
    "severity": ("page", "ticket", "info"),
    "tier": ("default",),
    "window": ("1h", "1d", "30d"),
    "dimension": ("stage", "resource"),
    "xid": ("31", "79"),
}
"""Values of the labels that have a fixed set; any other label has one example value."""
KINDS = {
    ECC_KIND: ("single_bit", "double_bit"),
    FINDING_KIND: ("growth", "hung"),
    COST: ("latency",),
    THROTTLE: THROTTLE_REASONS,
    POSTED_STATE: ("active", "suppressed"),
    OTLP_OUTCOME: ("sent", "dropped"),
    metrics.OTLP_OUTCOME: ("sent", "dropped"),
    metrics.EVENT_OUTCOME: ("written", "dropped"),
}
"""Labels of one name that mean several things."""
OBSERVATIONS_PER_S = 8.0


def _values(metric: Metric, label: Label, backend: str) -> tuple[str, ...]:
    if label.name == "outcome" and metric.unit is Unit.REQUESTS:
        return OUTCOMES
    own = {"backend": (backend,), "model": (MODELS.get(backend, MODEL),), "gpu": (f"GPU-{backend}",)}
    return own.get(label.name) or KINDS.get(label) or VALUES.get(label.name) or ("example",)


def _label_sets(metric: Metric) -> Iterator[dict[str, str]]:
    names = metric.label_names
    for backend in BACKENDS if "backend" in names else ("",):
        for values in product(*(_values(metric, label, backend) for label in metric.labels)):
            yield dict(zip(names, values, strict=True))


def _text(labels: dict[str, str]) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _gauge(metric: Metric, labels: dict[str, str], elapsed_s: float) -> float:
    hung = labels.get("backend") == HUNG
    if "state" in labels:
        return float(labels["state"] == ("hung" if hung else "serving"))
    swing = 0.5 + 0.3 * math.sin(elapsed_s / 20 + sum(map(ord, "".join(labels.values()))))
    if metric.unit is Unit.RATIO:
        return 0.0 if hung and metric.name.endswith(("hscore", "weight")) else swing
    if metric.unit is Unit.ONE:
        return float(hung and metric is not QUANTILE_SATURATED)  # Whatever else may be wrong is wrong with the hung one.
    return round(swing * (100e9 if metric.unit is Unit.BYTES else 20), 3)


def _counter(labels: dict[str, str], elapsed_s: float) -> float:
    share = {"ok": 1.0, "error": 0.002, "rejected": 0.001, "aborted": 0.02}.get(labels.get("outcome", ""), 0.05)
    return elapsed_s * OBSERVATIONS_PER_S * (share if labels.get("backend") != HUNG else share / 8)


def _histogram(metric: Metric, labels: dict[str, str], elapsed_s: float) -> Iterator[str]:
    """Observations spread evenly over the lower half of the buckets, or the upper half for the hung backend."""
    total = int(elapsed_s * OBSERVATIONS_PER_S)
    half = len(metric.buckets) // 2
    first = half if labels.get("backend") == HUNG else 0
    for index, bound in enumerate((*metric.buckets, math.inf)):
        share = min(1.0, max(0.0, (index - first + 1) / half))
        le = "+Inf" if bound == math.inf else str(float(bound))
        yield f"{metric.name}_bucket{_text({**labels, 'le': le})} {int(total * share)}"
    yield f"{metric.name}_count{_text(labels)} {total}"
    yield f"{metric.name}_sum{_text(labels)} {total * metric.buckets[half]}"


def page(elapsed_s: float) -> str:
    """The whole page as Prometheus' text format, ``elapsed_s`` after the start."""
    lines: list[str] = []
    for metric in (*CATALOG, *WATCHDOG_CATALOG, ALERTMANAGER_ALERTS):
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels in _label_sets(metric):
            if metric.kind is Kind.HISTOGRAM:
                lines.extend(_histogram(metric, labels, elapsed_s))
            else:
                value = _counter(labels, elapsed_s) if metric.kind is Kind.COUNTER else _gauge(metric, labels, elapsed_s)
                lines.append(f"{metric.name}{_text(labels)} {value}")
    return "\n".join(lines) + "\n"


def server(host: str, port: int) -> ThreadingHTTPServer:
    """A server with the page at every path. Port 0 takes a free one; the caller starts and closes it."""
    started = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(time.monotonic() - started).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args  # Prometheus asks every second; nobody reads that.

    return ThreadingHTTPServer((host, port), Handler)


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    with server(host, int(port)) as running:
        running.serve_forever()
