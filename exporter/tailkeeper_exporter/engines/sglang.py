"""SGLang: page names of 0.4 and 0.5, read in its metrics collector and in pages that others published; not run here.

The page needs ``--enable-metrics``. Names come with ``:`` and, from some collectors, with ``_``; older releases label the
model ``name``. Tokens and requests are split by ``is_streaming`` and counted when a request ends; while it runs, streamed
answers move the inter-token histogram and, at each log interval, ``realtime_tokens_total``. ``token_usage`` is the fullest of
the pools (full attention, sliding window, Mamba) without what could be evicted: what new requests have to wait for.
``prompt_tokens_total`` contains the cached tokens, so it is what was looked up.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.engines.base import Engine, Given, Progress, Source

_PROMPT = "sglang_prompt_tokens_total"

SGLANG = Engine(
    name="sglang",
    metrics_path="/metrics",
    health_path="/health",
    model_labels=("model_name", "name"),
    preallocates=True,
    sources=(
        Source(catalog.LATENCY, ("sglang_e2e_request_latency_seconds",)),
        Source(catalog.TTFT, ("sglang_time_to_first_token_seconds",)),
        Source(catalog.ITL, ("sglang_inter_token_latency_seconds", "sglang_time_per_output_token_seconds")),
        Source(catalog.QUEUE_TIME, ("sglang_queue_time_seconds",), expected=False),
        Source(catalog.REQUESTS, ("sglang_num_requests_total",), fixed=(("outcome", "ok"),)),
        Source(catalog.REQUESTS, ("sglang_num_aborted_requests_total",), fixed=(("outcome", "aborted"),), expected=False),
        Source(catalog.PROMPT_TOKENS, (_PROMPT,)),
        Source(catalog.GENERATED_TOKENS, ("sglang_generation_tokens_total",)),
        Source(catalog.PREEMPTIONS, ("sglang_num_retracted_requests_total",), expected=False),
        # Look-ups say something only beside the hits; before the first hit the page has no series of them.
        Source(catalog.KV_HITS, ("sglang_cached_tokens_total",), expected=False),
        Source(catalog.KV_QUERIES, (_PROMPT,), expected=False, given=Given.ABOVE_FOUND),
        Source(catalog.RUNNING, ("sglang_num_running_reqs",)),
        Source(catalog.WAITING, ("sglang_num_queue_reqs",)),
        Source(catalog.KV_USAGE, ("sglang_token_usage",)),
    ),
    progress=(Progress("sglang_realtime_tokens_total", where=(("mode", ("decode",)),)),),
    cannot_tell=(
        "failed requests, and prefill and decode times; a request that is aborted while it runs is counted as aborted and may be "
        "counted as finished too."
    ),
)
