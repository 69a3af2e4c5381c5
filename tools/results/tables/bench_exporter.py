"""The exporter's cost: reading a page, and a backend at one read a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def table(figures: Mapping[str, Any]) -> str:
    parse, loop = figures["parse"], figures["loop"]
    ours, theirs = parse["ours_ms"]["median"], parse["prometheus_client_ms"]["median"]
    rows = (
        (
            f"parse vLLM's page ({parse['page_bytes'] / 1e3:.0f} kB, {parse['samples']} samples), median",
            f"{ours:.2f} ms, {parse['ratio']:.1f} times faster than `prometheus_client.parser` ({theirs:.1f} ms)",
        ),
        (
            f"a backend at 1 Hz, of {loop['backends']} with pages of {loop['page_bytes'] / 1e3:.0f} kB, probes included",
            f"{100 * loop['cpu_ratio_per_backend']:.2f} % of a core",
        ),
        (f"write the page of {loop['backends']} backends", f"{loop['metrics_page_ms']:.1f} ms"),
    )
    return "\n".join(["| what | figure |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows)])
