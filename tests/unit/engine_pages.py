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
)
