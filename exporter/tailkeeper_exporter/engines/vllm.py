"""vLLM: page names from 0.6 to 0.32, seen on 0.32.0 (CPU build) and read in the older releases' metric lists.

``gpu_cache_usage_perc`` became ``kv_cache_usage_perc`` (both for a while, then only the new one), and
``time_per_output_token_seconds`` became ``inter_token_latency_seconds``. HTTP errors show only in
``http_requests_total``; a request that the engine refused shows in ``admission_rejections_total``.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.engines.base import Engine, Source

_COMPLETIONS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
_FINISHED = "vllm_request_success_total"
_REJECTED = "vllm_admission_rejections_total"


def _finished(reasons: tuple[str, ...], outcome: str) -> Source:
    return Source(catalog.REQUESTS, (_FINISHED,), where=(("finished_reason", reasons),), fixed=(("outcome", outcome),))


VLLM = Engine(
    name="vllm",
    metrics_path="/metrics",
    health_path="/health",
    preallocates=True,
    cannot_tell="requests that the HTTP layer refused with 4xx; a paused engine, which looks like one without traffic.",
    sources=(
        Source(catalog.LATENCY, ("vllm_e2e_request_latency_seconds",)),
        Source(catalog.TTFT, ("vllm_time_to_first_token_seconds",)),
        Source(catalog.ITL, ("vllm_inter_token_latency_seconds", "vllm_time_per_output_token_seconds")),
        Source(catalog.QUEUE_TIME, ("vllm_request_queue_time_seconds",)),
        Source(catalog.PREFILL_TIME, ("vllm_request_prefill_time_seconds",)),
        Source(catalog.DECODE_TIME, ("vllm_request_decode_time_seconds",)),
        _finished(("stop", "length", "repetition"), "ok"),
        _finished(("error",), "error"),
        _finished(("abort",), "aborted"),
        Source(
            catalog.REQUESTS,
            ("http_requests_total",),
            where=(("status", ("5xx",)), ("handler", _COMPLETIONS)),
            fixed=(("outcome", "error"),),
            expected=False,
        ),
        # A request refused for want of a place in the queue is answered 503, so it is among the 5xx as well: 16 of each
        # on the captured page. It is taken off here and counted once, as rejected.
        Source(catalog.REQUESTS, (_REJECTED,), fixed=(("outcome", "error"),), scale=-1.0, expected=False),
        Source(catalog.REQUESTS, (_REJECTED,), fixed=(("outcome", "rejected"),), expected=False),
        Source(catalog.PROMPT_TOKENS, ("vllm_prompt_tokens_total",)),
        Source(catalog.GENERATED_TOKENS, ("vllm_generation_tokens_total",)),
        Source(catalog.PREEMPTIONS, ("vllm_num_preemptions_total",)),
        Source(catalog.KV_QUERIES, ("vllm_prefix_cache_queries_total", "vllm_gpu_prefix_cache_queries_total")),
        Source(catalog.KV_HITS, ("vllm_prefix_cache_hits_total", "vllm_gpu_prefix_cache_hits_total")),
        Source(catalog.RUNNING, ("vllm_num_requests_running",)),
        Source(catalog.WAITING, ("vllm_num_requests_waiting",)),
        Source(catalog.KV_USAGE, ("vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc")),
    ),
)
