"""llama.cpp's llama-server: its page as of build b11669, seen running (``--metrics``; without that flag the page is 501).

The page has no labels, no histogram, no KV use, no error counter and no count of requests. Numbers are printed with six
digits, so above a million a counter moves in steps of ten and more. Generated tokens are counted when an answer is complete,
prompt tokens when the prompt has been computed; ``n_decode_total`` moves with each step. ``prompt_tokens_total`` leaves out
what came from the cache: taken in and looked up were both together. The ``…_tokens_seconds`` gauges are averages over a
window that depends on who polled or over the whole lifetime (field report A8), and are not used.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.engines.base import Engine, Given, Progress, Source

_PROMPT = "llamacpp_prompt_tokens_total"
_CACHED = "llamacpp_prompt_tokens_cached_total"

LLAMACPP = Engine(
    name="llamacpp",
    metrics_path="/metrics",
    health_path="/health",
    preallocates=True,
    sources=(
        Source(catalog.PROMPT_TOKENS, (_PROMPT,)),
        Source(catalog.PROMPT_TOKENS, (_CACHED,), expected=False),
        Source(catalog.GENERATED_TOKENS, ("llamacpp_tokens_predicted_total",)),
        # Older pages do not count the cached tokens; then nothing is known of look-ups either.
        Source(catalog.KV_HITS, (_CACHED,), expected=False),
        Source(catalog.KV_QUERIES, (_CACHED,), expected=False),
        Source(catalog.KV_QUERIES, (_PROMPT,), expected=False, given=Given.ABOVE_FOUND),
        Source(catalog.RUNNING, ("llamacpp_requests_processing",)),
        Source(catalog.WAITING, ("llamacpp_requests_deferred",)),
    ),
    progress=(Progress("llamacpp_n_decode_total"),),
    cannot_tell=(
        "latencies, finished and failed requests, KV use; generated tokens before an answer's end. "
        "Six digits are printed: above 100 million steps a slow engine moves the page too rarely to tell a full engine from a "
        "frozen one."
    ),
)
