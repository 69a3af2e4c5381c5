"""Whether the stack's spans and logs arrive, with the names that boards look for. Standard library only; run by compose_probe.py.

With the real images Tempo and Loki are asked, so that the whole way through the collector is tried. Where no registry is reached
a stub stands in for the collector; then it is told what came in at OTLP, and the way from there on is not.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from tests.e2e.compose_stack import call, inside

SPANS = {
    "tailkeeper-tap": {"llm_request", "queue", "prefill", "decode"},
    "tailkeeper-watchdog": {"tick", "decide", "act"},
}
"""By service; the names stand here as a reader of boards knows them, and a test holds them to the code's."""
LOGS = {
    "tailkeeper-tap": {"gen_ai.request.id", "tailkeeper.backend", "tailkeeper.outcome"},
    "tailkeeper-watchdog": {"strategy_id", "trigger_reason", "phase"},
}
"""Attributes of the records, by service."""
STORES = {"otel-collector", "tempo", "loki"}
"""Their jobs in Prometheus."""
BACK_S = 900
Get = Callable[[str], Any]
"""JSON that an address answers."""

# In the watchdog's container, which has OpenTelemetry's messages. A stub keeps 64 KiB of a message; longer ones are left out.
_RECEIVED = """
import base64, json, urllib.error, urllib.request
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest as Logs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Traces

def service(part):
    return next((pair.value.string_value for pair in part.resource.attributes if pair.key == "service.name"), "")

found = {"/v1/traces": {}, "/v1/logs": {}}
try:
    items = json.load(urllib.request.urlopen("http://otel-collector:4318/stub/received", timeout=10))
except urllib.error.HTTPError:
    items = found = None
for item in items or []:
    if item["path"] not in found or item["bytes"] > 65536:
        continue
    body = base64.b64decode(item["base64"])
    if item["path"] == "/v1/traces":
        for part in Traces.FromString(body).resource_spans:
            names = found["/v1/traces"].setdefault(service(part), set())
            names.update(span.name for scope in part.scope_spans for span in scope.spans)
    else:
        for part in Logs.FromString(body).resource_logs:
            names = found["/v1/logs"].setdefault(service(part), set())
            names.update(pair.key for scope in part.scope_logs for record in scope.log_records for pair in record.attributes)
print(json.dumps(found, default=sorted))
"""


def stub_received() -> dict[str, dict[str, list[str]]] | None:
    """Names of spans and of records' attributes, by path and service; None where the collector is a real one."""
    received: dict[str, dict[str, list[str]]] | None = json.loads(inside(_RECEIVED))
    return received


def not_at_stub(received: dict[str, dict[str, list[str]]]) -> list[str]:
    """What did not come, of what boards look for."""
    wanted = (("/v1/traces", SPANS), ("/v1/logs", LOGS))
    return [
        f"{path} {service}: {name}"
        for path, by_service in wanted
        for service, names in by_service.items()
        for name in sorted(names - set(received[path].get(service, [])))
    ]


def not_in_stores(get: Get, tempo: str, loki: str, now_s: float) -> list[str]:
    """What Tempo and Loki do not find, of what boards look for."""
    spans = [(service, name) for service, names in SPANS.items() for name in sorted(names)]
    logs = [(service, name) for service, names in LOGS.items() for name in sorted(names)]
    return [
        *(f"tempo {service}: {name}" for service, name in spans if not _traces(get, tempo, service, name, now_s)),
        *(f"loki {service}: {name}" for service, name in logs if not _streams(get, loki, service, name, now_s)),
    ]


def _traces(get: Get, tempo: str, service: str, name: str, now_s: float) -> Any:
    wanted = f'{{ resource.service.name = "{service}" && name = "{name}" }}'
    asked = {"q": wanted, "limit": "1", "start": str(int(now_s) - BACK_S), "end": str(int(now_s) + 60)}
    return get(f"{tempo}/api/search?{urllib.parse.urlencode(asked)}")["traces"]


def _streams(get: Get, loki: str, service: str, name: str, now_s: float) -> Any:
    wanted = f'{{service_name="{service}"}} | {name.replace(".", "_")}!=""'
    asked = {"query": wanted, "limit": "1", "start": str(int(now_s) - BACK_S), "end": str(int(now_s) + 60)}
    return get(f"{loki}/loki/api/v1/query_range?{urllib.parse.urlencode(asked)}")["data"]["result"]


def telemetry_arrived() -> tuple[bool, object]:
    received = stub_received()
    if received is not None:
        missing = not_at_stub(received)
    else:
        missing = not_in_stores(lambda url: call("GET", url), "http://tempo:3200", "http://loki:3100", time.time())
    return not missing, missing
