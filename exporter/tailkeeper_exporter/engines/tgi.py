"""Text Generation Inference: names of 2 and 3, read in its documentation and router source; not run here.

There is no histogram of the first token. Token counts are sums of histograms over finished requests. Counters have no
``_total``. Prefill and decode of the batch are told apart by ``method`` only, and mixing them means nothing (field report A8):
one decode of the batch is one step of the engine. ``tgi_request_mean_time_per_token_duration`` is a mean per request and not
the time between two tokens. A request that failed its validation is the client's error and is not counted.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.engines.base import Engine, Progress, Source

_FAILED = "tgi_request_failure"


def _failed(errors: tuple[str, ...], outcome: str) -> Source:
    return Source(catalog.REQUESTS, (_FAILED,), where=(("err", errors),), fixed=(("outcome", outcome),), expected=False)


TGI = Engine(
    name="tgi",
    metrics_path="/metrics",
    health_path="/health",
    preallocates=True,
    sources=(
        Source(catalog.LATENCY, ("tgi_request_duration",)),
        Source(catalog.QUEUE_TIME, ("tgi_request_queue_duration",)),
        Source(catalog.PREPROCESS_TIME, ("tgi_request_validation_duration",)),
        Source(catalog.STEP_TIME, ("tgi_batch_inference_duration",), where=(("method", ("decode",)),)),
        Source(catalog.REQUESTS, ("tgi_request_success",), fixed=(("outcome", "ok"),)),
        _failed(("generation", "incomplete"), "error"),
        _failed(("dropped", "cancelled"), "aborted"),
        _failed(("overloaded",), "rejected"),
        Source(catalog.PROMPT_TOKENS, ("tgi_request_input_length_sum",)),
        Source(catalog.GENERATED_TOKENS, ("tgi_request_generated_tokens_sum",)),
        Source(catalog.RUNNING, ("tgi_batch_current_size",)),
        Source(catalog.WAITING, ("tgi_queue_size",)),
    ),
    progress=(Progress("tgi_batch_inference_success"),),
    cannot_tell=(
        "the time to the first token, times between tokens (it has one mean per request), KV use and hits, preemptions; tokens "
        "of an answer before its end."
    ),
)
