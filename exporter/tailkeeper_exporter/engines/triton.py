"""Triton: 2.51 was seen running with a Python model; the TensorRT-LLM backend's gauges are documented, not run here.

The page is on port 8002. Durations are cumulative counters, from which no quantile can be had; summaries are averages over an
unknown window and are never used (field report A8). Only the first response has an optional histogram. A failed execution
inside a backend is counted as a success (seen). ``/v2/health/ready`` is 400 while no model was ever ready, and 200 again
while one that was loaded is not: a configured model is asked for by its own page (400 for one that is not there, also where
its name is mistyped, seen). Triton speaks no
completions API on this port, so it is not probed, and without a probe no standstill is called hung.
"""

from __future__ import annotations

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric
from tailkeeper_exporter.engines.base import Engine, Given, Progress, Source

_BATCHER = "nv_trt_llm_request_metrics"


def _failed(reasons: tuple[str, ...], outcome: str) -> Source:
    where = (("reason", reasons),)
    return Source(catalog.REQUESTS, ("nv_inference_request_failure",), where, (("outcome", outcome),))


def _batcher(metric: Metric, kind: str) -> Source:
    return Source(metric, (_BATCHER,), (("request_type", (kind,)),), expected=False)


TRITON = Engine(
    name="triton",
    metrics_path="/metrics",
    health_path="/v2/health/ready",
    model_labels=("model",),
    preallocates=True,
    probe=None,
    metrics_port=8002,
    not_ready_status=(400,),
    model_health_path="/v2/models/{model}/ready",
    sources=(
        Source(catalog.TTFT, ("nv_inference_first_response_histogram_ms",), scale=0.001, expected=False),
        Source(catalog.REQUESTS, ("nv_inference_request_success",), fixed=(("outcome", "ok"),)),
        _failed(("OTHER", "BACKEND"), "error"),
        _failed(("CANCELED",), "aborted"),
        _failed(("REJECTED",), "rejected"),
        _batcher(catalog.RUNNING, "scheduled"),
        _batcher(catalog.WAITING, "waiting"),
        Source(catalog.WAITING, ("nv_inference_pending_request_count",), given=Given.ABOVE_LACKING),
        Source(
            catalog.KV_USAGE,
            ("nv_trt_llm_kv_cache_block_metrics",),
            where=(("kv_cache_block_type", ("fraction",)),),
            expected=False,
        ),
    ),
    progress=(Progress("nv_inference_exec_count"),),
    cannot_tell=(
        "whole-request, queue and token latencies (cumulative sums only), tokens, prefix cache hits; requests in execution and "
        "KV use without the TensorRT-LLM backend; a failure inside a backend, which it counts as a success; and, not being "
        "probed, a hang."
    ),
)
