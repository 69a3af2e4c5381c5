"""What each engine's fixture page must come to, counted by hand from the page: the table behind ``test_engines.py``.

A page whose name ends in ``-from-docs`` was written from documented names; the others were captured from the real program.
Keys are catalogue name and labels; a histogram is its count and its sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import Metric

Key = tuple[str, tuple[tuple[str, str], ...]]


def of(metric: Metric, **labels: str) -> Key:
    return metric.name, tuple(sorted(labels.items()))


@dataclass(frozen=True)
class PageOf:
    """One fixture page and its readings: all of them, so that anything else published is a failure."""

    engine: str
    file: str
    values: dict[Key, float]
    histograms: dict[Key, tuple[float, float]] = field(default_factory=dict)
    progress: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


PAGES: tuple[PageOf, ...] = (
    PageOf(
        "llamacpp",
        "llamacpp-b11669.prom",
        {
            of(catalog.PROMPT_TOKENS): 98 + 56,
            of(catalog.GENERATED_TOKENS): 481,
            of(catalog.KV_HITS): 56,
            of(catalog.KV_QUERIES): 98 + 56,
            of(catalog.RUNNING): 0,
            of(catalog.WAITING): 0,
        },
        progress={"llamacpp_n_decode_total": 125},
    ),
    PageOf(
        "llamacpp",
        "llamacpp-b11669-busy.prom",
        {
            of(catalog.PROMPT_TOKENS): 68,
            of(catalog.GENERATED_TOKENS): 0,
            of(catalog.KV_HITS): 0,
            of(catalog.KV_QUERIES): 68,
            of(catalog.RUNNING): 4,
            of(catalog.WAITING): 4,
        },
        progress={"llamacpp_n_decode_total": 3},
    ),
    PageOf(
        "sglang",
        "sglang-0.5-from-docs.prom",
        {
            of(catalog.REQUESTS, model="m", outcome="ok"): 40 + 10,
            of(catalog.REQUESTS, model="m", outcome="aborted"): 3,
            of(catalog.PROMPT_TOKENS, model="m"): 7000 + 1000,
            of(catalog.GENERATED_TOKENS, model="m"): 3900 + 300,
            of(catalog.PREEMPTIONS, model="m"): 4,
            of(catalog.KV_HITS, model="m"): 5500 + 500,
            of(catalog.KV_QUERIES, model="m"): 7000 + 1000,
            # Two tensor ranks say the same of the same five requests.
            of(catalog.RUNNING, model="m"): 5,
            of(catalog.WAITING, model="m"): 2,
            of(catalog.KV_USAGE, model="m"): 0.31,
        },
        {
            of(catalog.LATENCY, model="m"): (40, 90.0),
            of(catalog.TTFT, model="m"): (40 + 10, 6.0 + 1.5),
            of(catalog.ITL, model="m"): (4150, 62.5),
            of(catalog.QUEUE_TIME, model="m"): (50, 0.75),
        },
        progress={"sglang_realtime_tokens_total": 4321},
    ),
    PageOf(
        "sglang",
        "sglang-0.4-from-docs.prom",
        {
            of(catalog.REQUESTS, model="m", outcome="ok"): 8,
            of(catalog.PROMPT_TOKENS, model="m"): 800,
            of(catalog.GENERATED_TOKENS, model="m"): 760,
            of(catalog.RUNNING, model="m"): 3,
            of(catalog.WAITING, model="m"): 0,
            of(catalog.KV_USAGE, model="m"): 0.5,
        },
        {
            of(catalog.LATENCY, model="m"): (8, 13.0),
            of(catalog.TTFT, model="m"): (8, 0.4),
            of(catalog.ITL, model="m"): (752, 12.0),
        },
    ),
    PageOf(
        "trtllm",
        "trtllm-1.3-from-docs.prom",
        {
            of(catalog.REQUESTS, model="m", outcome="ok"): 150 + 5,
            of(catalog.REQUESTS, model="m", outcome="aborted"): 2,
            of(catalog.REQUESTS, model="m", outcome="error"): 1,
            of(catalog.PROMPT_TOKENS, model="m"): 90_000,
            of(catalog.GENERATED_TOKENS, model="m"): 15_500,
            of(catalog.RUNNING, model="m"): 7,
            of(catalog.WAITING, model="m"): 1,
            of(catalog.KV_USAGE, model="m"): 0.62,
        },
        {
            of(catalog.LATENCY, model="m"): (157, 310.5),
            of(catalog.TTFT, model="m"): (157, 12.25),
            of(catalog.QUEUE_TIME, model="m"): (157, 1.5),
            of(catalog.PREFILL_TIME, model="m"): (157, 9.0),
            of(catalog.DECODE_TIME, model="m"): (157, 298.0),
        },
    ),
    PageOf(
        "trtllm",
        "trtllm-1.1-from-docs.prom",
        {
            of(catalog.REQUESTS, model="m", outcome="ok"): 150 + 5,
            # The family is there and has counted no such end.
            of(catalog.REQUESTS, model="m", outcome="aborted"): 0,
        },
        {
            of(catalog.LATENCY, model="m"): (157, 310.5),
            of(catalog.TTFT, model="m"): (157, 12.25),
            of(catalog.QUEUE_TIME, model="m"): (157, 1.5),
        },
    ),
    PageOf(
        "tgi",
        "tgi-3-from-docs.prom",
        {
            of(catalog.REQUESTS, outcome="ok"): 100,
            of(catalog.REQUESTS, outcome="error"): 3 + 1,
            of(catalog.REQUESTS, outcome="aborted"): 1,
            of(catalog.REQUESTS, outcome="rejected"): 6,
            of(catalog.PROMPT_TOKENS): 33_300,
            of(catalog.GENERATED_TOKENS): 8_800,
            of(catalog.RUNNING): 4,
            of(catalog.WAITING): 2,
        },
        {
            of(catalog.LATENCY): (100, 250.5),
            of(catalog.QUEUE_TIME): (100, 11.5),
            of(catalog.PREPROCESS_TIME): (111, 0.5),
            of(catalog.STEP_TIME): (2499, 75.25),
        },
        progress={"tgi_batch_inference_success": 80 + 2499},
    ),
    PageOf(
        "nim",
        "nim-1.x-from-docs.prom",
        {
            of(catalog.REQUESTS, model="meta/llama", outcome="ok"): 11 + 4,
            of(catalog.REQUESTS, model="meta/llama", outcome="aborted"): 1,
            of(catalog.REQUESTS, model="meta/llama", outcome="error"): 2,
            of(catalog.PROMPT_TOKENS, model="meta/llama"): 603,
            of(catalog.GENERATED_TOKENS, model="meta/llama"): 997,
            of(catalog.RUNNING, model="meta/llama"): 3,
            of(catalog.WAITING, model="meta/llama"): 1,
            of(catalog.KV_USAGE, model="meta/llama"): 0.125,
        },
        {
            of(catalog.LATENCY, model="meta/llama"): (16, 18.5),
            of(catalog.TTFT, model="meta/llama"): (16, 0.875),
            of(catalog.ITL, model="meta/llama"): (981, 9.5),
        },
    ),
    PageOf(
        "ray",
        "ray-2.60.0-serve.prom",
        {
            # Two requests to Ray's own routes have no application and are not among them.
            of(catalog.REQUESTS, outcome="ok"): 307,
            of(catalog.REQUESTS, outcome="aborted"): 61,
            of(catalog.REQUESTS, outcome="error"): 62,
            of(catalog.RUNNING): 0,
            of(catalog.WAITING): 0,
        },
        {of(catalog.LATENCY): (307, 52.605)},
        missing=tuple(
            metric.name
            for metric in (
                catalog.TTFT,
                catalog.ITL,
                catalog.QUEUE_TIME,
                catalog.PREFILL_TIME,
                catalog.DECODE_TIME,
                catalog.PROMPT_TOKENS,
                catalog.GENERATED_TOKENS,
                catalog.PREEMPTIONS,
                catalog.KV_QUERIES,
                catalog.KV_HITS,
                catalog.KV_USAGE,
            )
        ),
    ),
    PageOf(
        "ray",
        "ray-2.48-vllm-from-docs.prom",
        {
            of(catalog.REQUESTS, model="m", outcome="ok"): 20 + 30 + 1 + 2,
            of(catalog.REQUESTS, model="m", outcome="aborted"): 1,
            # vLLM's own one, and what Serve answered with 500 and 503.
            of(catalog.REQUESTS, model="m", outcome="error"): 1 + 1 + 4,
            of(catalog.PROMPT_TOKENS, model="m"): 10_000,
            of(catalog.GENERATED_TOKENS, model="m"): 2_000,
            of(catalog.PREEMPTIONS, model="m"): 1,
            of(catalog.KV_QUERIES, model="m"): 10_000,
            of(catalog.KV_HITS, model="m"): 1_500,
            of(catalog.RUNNING, model="m"): 8,
            of(catalog.WAITING, model="m"): 2 + 4,
            of(catalog.KV_USAGE, model="m"): 0.7,
        },
        {
            of(catalog.LATENCY, model="m"): (55, 120.5),
            of(catalog.TTFT, model="m"): (55, 6.5),
            of(catalog.ITL, model="m"): (878 + 1067, 40.0),
            of(catalog.QUEUE_TIME, model="m"): (55, 1.5),
            of(catalog.PREFILL_TIME, model="m"): (55, 4.5),
            of(catalog.DECODE_TIME, model="m"): (55, 114.0),
        },
    ),
    PageOf(
        "triton",
        "triton-2.51.0.prom",
        {
            of(catalog.REQUESTS, model="llm", outcome="ok"): 22,
            of(catalog.REQUESTS, model="llm", outcome="error"): 0,
            of(catalog.REQUESTS, model="llm", outcome="aborted"): 0,
            of(catalog.REQUESTS, model="llm", outcome="rejected"): 0,
            of(catalog.WAITING, model="llm"): 0,
        },
        progress={"nv_inference_exec_count": 7},
    ),
    PageOf(
        "triton",
        "triton-2.51-trtllm-from-docs.prom",
        {
            of(catalog.REQUESTS, model="ensemble", outcome="ok"): 59,
            # The member says 0 while its ensemble says 59: each under its own name.
            of(catalog.REQUESTS, model="tensorrt_llm", outcome="ok"): 0,
            of(catalog.REQUESTS, model="ensemble", outcome="error"): 1 + 2,
            of(catalog.REQUESTS, model="ensemble", outcome="aborted"): 3,
            of(catalog.REQUESTS, model="ensemble", outcome="rejected"): 4,
            of(catalog.RUNNING, model="tensorrt_llm"): 6,
            of(catalog.WAITING, model="tensorrt_llm"): 3,
            of(catalog.KV_USAGE, model="tensorrt_llm"): 0.25,
        },
        {of(catalog.TTFT, model="tensorrt_llm"): (59, 12.25)},
        progress={"nv_inference_exec_count": 59 + 61},
    ),
)
