"""Ray Serve, with vLLM inside it: Ray 2.60 was seen running with a plain deployment; vLLM's names under Ray are documented.

Ray's page is that of a node's agent, on the port that ``--metrics-export-port`` names, and carries what all replicas on that
node say; the backend is the Serve application. vLLM's metrics come as ``ray_vllm_…``. Without them Serve's own proxy metrics
stand in, in milliseconds: the series with an application, because those without are Ray's own routes, our health check among
them. What waits in Serve waits besides what waits in vLLM.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.engines.base import Engine, Given, Source

_OK, _ABORTED, _ERROR = ("200",), ("499",), ("500", "502", "503", "504")


def _vllm(metric: Metric, *names: str, expected: bool = True) -> Source:
    return Source(metric, tuple(f"ray_vllm_{name}" for name in names), expected=expected)


def _finished(reasons: tuple[str, ...], outcome: str) -> Source:
    names = ("ray_vllm_request_success_total",)
    return Source(catalog.REQUESTS, names, (("finished_reason", reasons),), (("outcome", outcome),), expected=False)


def _answered(codes: tuple[str, ...], outcome: str, given: Given) -> Source:
    where = (("application", ()), ("status_code", codes))
    names = ("ray_serve_num_http_requests_total",)
    return Source(catalog.REQUESTS, names, where, (("outcome", outcome),), given=given)


RAY = Engine(
    name="ray",
    metrics_path="/metrics",
    health_path="/-/healthz",
    metrics_port=8080,
    preallocates=True,
    sources=(
        _vllm(catalog.LATENCY, "e2e_request_latency_seconds", expected=False),
        Source(
            catalog.LATENCY,
            ("ray_serve_http_request_latency_ms",),
            where=(("application", ()), ("status_code", _OK)),
            scale=0.001,
            given=Given.ABOVE_LACKING,
        ),
        _vllm(catalog.TTFT, "time_to_first_token_seconds"),
        _vllm(catalog.ITL, "inter_token_latency_seconds", "time_per_output_token_seconds"),
        _vllm(catalog.QUEUE_TIME, "request_queue_time_seconds"),
        _vllm(catalog.PREFILL_TIME, "request_prefill_time_seconds"),
        _vllm(catalog.DECODE_TIME, "request_decode_time_seconds"),
        _finished(("stop", "length", "repetition"), "ok"),
        _answered(_OK, "ok", Given.ABOVE_LACKING),
        _finished(("abort",), "aborted"),
        _answered(_ABORTED, "aborted", Given.ABOVE_LACKING),
        _finished(("error",), "error"),
        _answered(_ERROR, "error", Given.ALWAYS),
        _vllm(catalog.PROMPT_TOKENS, "prompt_tokens_total"),
        _vllm(catalog.GENERATED_TOKENS, "generation_tokens_total"),
        _vllm(catalog.PREEMPTIONS, "num_preemptions_total"),
        _vllm(catalog.KV_QUERIES, "prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
        _vllm(catalog.KV_HITS, "prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
        _vllm(catalog.RUNNING, "num_requests_running", expected=False),
        Source(catalog.RUNNING, ("ray_serve_replica_processing_queries",), given=Given.ABOVE_LACKING),
        _vllm(catalog.WAITING, "num_requests_waiting", expected=False),
        Source(catalog.WAITING, ("ray_serve_deployment_queued_queries",), expected=False),
        _vllm(catalog.KV_USAGE, "kv_cache_usage_perc", "gpu_cache_usage_perc"),
    ),
    cannot_tell=(
        "tokens, KV use and the time to the first token of a deployment without vLLM; replicas on other nodes than the page's; "
        "before a request of a kind has ended, that kind."
    ),
)
