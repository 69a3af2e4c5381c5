"""The OpenTelemetry Collector's configuration, from the SLO: which traces are kept, and for how long a decision waits. Pure.

The slow and the failed request is the one that somebody will ask for, so its trace is always kept; of the rest a share. A
decision waits for longer than the longest request that is tolerated (its last span comes at its end), or the trace of a slow one
would be decided on before it is there; where the outermost span is there, it is made soon after. Attribute names come from where
they are written.
"""

from __future__ import annotations

from math import ceil

from tailkeeper_alerts.document import HEADER as ALERTS_HEADER
from tailkeeper_alerts.document import Yaml, to_yaml
from tailkeeper_exporter.catalog import OUTCOMES
from tailkeeper_exporter.otlp import attributes
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.settings import SloSettings

PATH = "deploy/otel/collector.yaml"
KUBERNETES_PATH = "deploy/otel/kubernetes-events.yaml"
LONGEST_E2E = 8
"""So many times the SLO's P99 of a whole request may last and still be waited for: four minutes of the default 30 s."""
MARGIN_S = 30
"""On top of that, for spans that a client or gateway sends in batches, and for one that is sent again."""
AFTER_ROOT_S = 10
"""Once the outermost span is there, which ends last, only others' batches are waited for: OpenTelemetry's SDKs send every 5 s."""
TRACES_PER_S = 50
"""New ones that a collector is sized for; those that are waited for are in its memory, at some 10 kB each."""
SAMPLED_PERCENT = 10
"""Of the requests that were fast and good, so that there is something to compare a slow one with."""
OTLP_PORT, HEALTH_PORT, METRICS_PORT = 4318, 13133, 8888
TEMPO, LOKI = "http://tempo:4318", "http://loki:3100/otlp"

_HEADER = """\
# Written by `tailkeeper generate` from the SLO; change tailkeeper/collector_config.py and run it again.
# For OpenTelemetry Collector contrib, 0.150 and later. docs/tracing.md says what is kept and how to size it.
"""
_KUBERNETES_HEADER = """\
# Written by `tailkeeper generate`; change tailkeeper/collector_config.py and run it again.
# Beside the other file, in a collector of one replica that runs in the cluster:
#   otelcol-contrib --config collector.yaml --config kubernetes-events.yaml
# Its service account needs get, list and watch of events (docs/tracing.md).
"""


def longest_request_s(slo: SloSettings) -> float:
    """The longest request that is still waited for, in seconds."""
    return LONGEST_E2E * slo.latency.e2e_p99_s


def decision_wait_s(slo: SloSettings) -> int:
    """How long a trace is waited for from its first span on, in seconds."""
    return ceil(longest_request_s(slo)) + MARGIN_S


def slowest_first_token_s(slo: SloSettings) -> float:
    """The strictest promise of a first token, tiers included, in seconds: above it a request is slow to somebody."""
    return min((slo.latency.ttft_p99_s, *(tier.p99_s for tier in slo.tiers)))


def render(slo: SloSettings | None = None) -> dict[str, str]:
    """Both files: path from the project's root → text, the same on each run."""
    texts = ((PATH, _HEADER, _collector(slo or SloSettings())), (KUBERNETES_PATH, _KUBERNETES_HEADER, _kubernetes_events()))
    return {path: header + to_yaml(document).removeprefix(ALERTS_HEADER) for path, header, document in texts}


def _collector(slo: SloSettings) -> Yaml:
    return {
        "extensions": {"health_check": {"endpoint": f"0.0.0.0:{HEALTH_PORT}"}},
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"0.0.0.0:{OTLP_PORT}"}}}},
        "processors": {
            "memory_limiter": {"check_interval": "1s", "limit_percentage": 75, "spike_limit_percentage": 20},
            "tail_sampling": _sampling(slo),
            "batch": {"timeout": "1s", "send_batch_size": 512, "send_batch_max_size": 2048},
        },
        "exporters": {"otlp_http/tempo": _exporter(TEMPO), "otlp_http/loki": _exporter(LOKI)},
        "service": {
            "extensions": ["health_check"],
            "pipelines": {
                "traces": _pipeline("otlp", ("memory_limiter", "tail_sampling", "batch"), "otlp_http/tempo"),
                "logs": _pipeline("otlp", ("memory_limiter", "batch"), "otlp_http/loki"),
            },
            "telemetry": {
                "logs": {"level": "warn", "encoding": "json"},
                "metrics": {
                    "readers": [{"pull": {"exporter": {"prometheus": {"host": "0.0.0.0", "port": METRICS_PORT}}}}],
                },
            },
        },
    }


def _pipeline(receiver: str, processors: tuple[str, ...], exporter: str) -> Yaml:
    return {"receivers": [receiver], "processors": list(processors), "exporters": [exporter]}


def _exporter(endpoint: str) -> Yaml:
    """A store that is away is waited for as long as spans are of use to somebody, within a bounded queue."""
    return {
        "endpoint": endpoint,
        "sending_queue": {"enabled": True, "num_consumers": 4, "queue_size": 1_000},
        "retry_on_failure": {"enabled": True, "initial_interval": "1s", "max_interval": "30s", "max_elapsed_time": "300s"},
    }


def _sampling(slo: SloSettings) -> Yaml:
    wait_s = decision_wait_s(slo)
    waiting = TRACES_PER_S * wait_s
    return {
        "decision_wait": f"{wait_s}s",
        "decision_wait_after_root_received": f"{AFTER_ROOT_S}s",
        "num_traces": waiting,
        "expected_new_traces_per_sec": TRACES_PER_S,
        # Late spans of a trace that was kept are kept. Of one that was not, none is remembered as dropped, so that a slow
        # span which comes after the decision is decided on anew.
        "decision_cache": {"sampled_cache_size": 10 * waiting},
        "policies": list(_policies(slo)),
    }


def _policies(slo: SloSettings) -> tuple[Yaml, ...]:
    """Any of them keeps a trace."""
    slow = {
        "slow-first-token": (attributes.TTFT, slowest_first_token_s(slo)),
        "slow-tokens": (attributes.ITL, slo.latency.itl_p99_s),
    }
    return (
        {"name": "failed", "type": "status_code", "status_code": {"status_codes": ["ERROR"]}},
        _any_of("not-ok", attributes.OUTCOME, [outcome for outcome in OUTCOMES if outcome != "ok"]),
        {"name": "slow", "type": "latency", "latency": {"threshold_ms": round(slo.latency.e2e_p99_s * 1_000)}},
        *(_above(name, attribute, limit) for name, (attribute, limit) in slow.items()),
        _any_of("our-own", "service.name", [names.SERVICE_NAME]),
        {"name": "a-share", "type": "probabilistic", "probabilistic": {"sampling_percentage": SAMPLED_PERCENT}},
    )


def _any_of(name: str, attribute: str, values: list[str]) -> Yaml:
    return {"name": name, "type": "string_attribute", "string_attribute": {"key": attribute, "values": values}}


def _above(name: str, attribute: str, limit: float) -> Yaml:
    """``numeric_attribute`` knows whole numbers only. A span without the attribute is not above anything."""
    number = f"{limit:.6f}".rstrip("0")  # with a point always: without one it is another kind of number
    condition = f'attributes["{attribute}"] != nil and attributes["{attribute}"] > {number}{"0" if number.endswith(".") else ""}'
    return {"name": name, "type": "ottl_condition", "ottl_condition": {"error_mode": "ignore", "span": [condition]}}


def _kubernetes_events() -> Yaml:
    return {
        "receivers": {
            "k8sobjects": {
                "auth_type": "serviceAccount",
                "objects": [{"name": "events", "mode": "watch", "exclude_watch_type": ["DELETED"]}],
            }
        },
        "processors": {
            "transform/kubernetes_events": {
                "error_mode": "silent",
                "log_statements": [{"context": "log", "statements": list(_statements())}],
            }
        },
        "service": {
            "pipelines": {
                "logs/kubernetes": _pipeline(
                    "k8sobjects", ("memory_limiter", "transform/kubernetes_events", "batch"), "otlp_http/loki"
                )
            }
        },
    }


def _statements() -> tuple[str, ...]:
    """An event as a log record like the watchdog's own. What an event of somebody else does not have is left out."""
    told = {
        "k8s.event.reason": 'body["object"]["reason"]',
        "k8s.namespace.name": 'body["object"]["involvedObject"]["namespace"]',
        "k8s.object.kind": 'body["object"]["involvedObject"]["kind"]',
        "k8s.object.name": 'body["object"]["involvedObject"]["name"]',
        **{name: f'body["object"]["metadata"]["annotations"]["{names.ANNOTATION_PREFIX}{name}"]' for name in names.ANNOTATED},
    }
    return (
        f'set(resource.attributes["service.name"], "{names.KUBERNETES_SERVICE_NAME}")',
        *(f'set(attributes["{name}"], {source})' for name, source in told.items()),
        'set(time, Time(body["object"]["lastTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))',
        'set(severity_number, SEVERITY_NUMBER_INFO) where body["object"]["type"] == "Normal"',
        'set(severity_number, SEVERITY_NUMBER_WARN) where body["object"]["type"] == "Warning"',
        'set(body, body["object"]["message"])',
    )
