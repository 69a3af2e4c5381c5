"""NVIDIA NIM for LLMs: names of 1.x, read in its documentation and in the definitions of its metrics; not run here.

The names are vLLM's without the prefix, at ``/v1/metrics``; later releases keep ``vllm:``. Buckets are coarse: a whole request
is known only from one second up, and only to one minute.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.engines.base import Engine, Source

_FINISHED = ("request_success_total", "request_finish_total", "vllm_request_success_total")


def _source(metric: Metric, name: str, *older: str) -> Source:
    """A row under its bare name, and under vLLM's on releases that keep the prefix."""
    return Source(metric, (name, f"vllm_{name}", *older))


def _finished(reasons: tuple[str, ...], outcome: str) -> Source:
    return Source(catalog.REQUESTS, _FINISHED, where=(("finished_reason", reasons),), fixed=(("outcome", outcome),))


NIM = Engine(
    name="nim",
    metrics_path="/v1/metrics",
    health_path="/v1/health/ready",
    preallocates=True,
    sources=(
        _source(catalog.LATENCY, "e2e_request_latency_seconds"),
        _source(catalog.TTFT, "time_to_first_token_seconds"),
        _source(catalog.ITL, "time_per_output_token_seconds", "vllm_inter_token_latency_seconds"),
        _finished(("stop", "length"), "ok"),
        _finished(("abort",), "aborted"),
        Source(catalog.REQUESTS, ("request_failure_total",), fixed=(("outcome", "error"),), expected=False),
        _source(catalog.PROMPT_TOKENS, "prompt_tokens_total"),
        _source(catalog.GENERATED_TOKENS, "generation_tokens_total"),
        _source(catalog.RUNNING, "num_requests_running"),
        _source(catalog.WAITING, "num_requests_waiting"),
        _source(catalog.KV_USAGE, "gpu_cache_usage_perc", "vllm_kv_cache_usage_perc"),
    ),
    cannot_tell=(
        "queue, prefill and decode times, prefix cache hits, preemptions; a whole request's P99 above one minute is only "
        "known to be above it."
    ),
)
