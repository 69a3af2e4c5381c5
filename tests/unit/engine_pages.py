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
)
