"""TensorRT-LLM's own server (``trtllm-serve``): names of 1.1 to 1.3, read in its metrics collector; not run here.

The page is at ``/prometheus/metrics`` (``/metrics`` is JSON). It has grown from 5 series to about 60 in a year, so nearly
every row may be missing on an older release. ``time_per_output_token_seconds`` has one sample per request, its mean: it is
not the time between two tokens, and is not used as such. Requests are counted when they end; between two ends, KV use that
rises is the sign of work.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.engines.base import Engine, Source

_FINISHED = "trtllm_request_success_total"


def _finished(reasons: tuple[str, ...], outcome: str) -> Source:
    return Source(catalog.REQUESTS, (_FINISHED,), where=(("finished_reason", reasons),), fixed=(("outcome", outcome),))


TRTLLM = Engine(
    name="trtllm",
    metrics_path="/prometheus/metrics",
    health_path="/health",
    preallocates=True,
    sources=(
        Source(catalog.LATENCY, ("trtllm_e2e_request_latency_seconds",)),
        Source(catalog.TTFT, ("trtllm_time_to_first_token_seconds",)),
        Source(catalog.QUEUE_TIME, ("trtllm_request_queue_time_seconds",)),
        Source(catalog.PREFILL_TIME, ("trtllm_request_prefill_time_seconds",), expected=False),
        Source(catalog.DECODE_TIME, ("trtllm_request_decode_time_seconds",), expected=False),
        _finished(("stop", "length"), "ok"),
        _finished(("cancelled",), "aborted"),
        Source(catalog.REQUESTS, ("trtllm_request_error_total",), fixed=(("outcome", "error"),), expected=False),
        Source(catalog.PROMPT_TOKENS, ("trtllm_prompt_tokens_total",), expected=False),
        Source(catalog.GENERATED_TOKENS, ("trtllm_generation_tokens_total",), expected=False),
        Source(catalog.RUNNING, ("trtllm_num_requests_running",), expected=False),
        Source(catalog.WAITING, ("trtllm_num_requests_waiting",), expected=False),
        Source(catalog.KV_USAGE, ("trtllm_kv_cache_utilization",), expected=False),
    ),
    cannot_tell=(
        "times between tokens (its histogram holds one mean per request), preemptions, and tokens of an answer before its end; "
        "on releases before 1.3 also requests in flight, tokens and failed requests."
    ),
)
