"""A backend in series, bytes and CPU: what the plan for a large fleet is reckoned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STORES = {"prometheus": "Prometheus 2.42", "victoria_metrics": "VictoriaMetrics 1.79"}


def table(figures: Mapping[str, Any]) -> str:
    head = "| captured page | its own series | ours on the exporter's page | of them read from a store | exporter's page |"
    rows = [head, "|---|---|---|---|---|"]
    rows += [
        f"| {one['page']} | {one['native']} | {one['ours']} | {one['read']} | {one['page_bytes'] / 1e3:.1f} kB |"
        for one in figures["series"]
    ]
    rows += ["", f"Reading the vLLM page, of {figures['backends']} backends at once, for each backend:", ""]
    rows += ["| read from | our CPU | answer | the store's CPU, and memory for all of them |", "|---|---|---|---|"]
    read_ms, page_kb = figures["direct"]["cpu_ms_per_backend"], figures["series"][0]["page_bytes"] / 1e3
    rows.append(f"| the exporters | {read_ms:.2f} ms | {page_kb:.0f} kB | |")
    for name, words in STORES.items():
        one = figures["stores"][name]
        for key, how in (("all", "two queries"), ("by_name", "by name, as a shard asks")):
            store_ms = 1_000 * one[key]["store_cpu_s"] / figures["backends"]
            rows.append(
                f"| {words}, {how} | {one[key]['cpu_ms_per_backend']:.2f} ms | {one['bytes_per_backend'] / 1e3:.0f} kB "
                f"| {store_ms:.1f} ms, {one['rss_bytes'] / 1e6:.0f} MB |"
            )
    return "\n".join(rows)
