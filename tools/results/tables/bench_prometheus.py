"""Fleets read through a real Prometheus server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import duration, markdown, mebibytes

HEAD = (
    "backends",
    "series in the server",
    "queries a tick",
    "reading",
    "our CPU",
    "the server's CPU",
    "our memory",
    "the server's",
)


def table(figures: Mapping[str, Any]) -> str:
    return markdown(HEAD, (_row(size) for size in figures["sizes"]))


def _row(size: Mapping[str, Any]) -> tuple[str, ...]:
    head = (f"{size['backends']:,}", f"{size['series']:,}")
    if "left_out" in size:
        return (*head, f"not read: {size['left_out']}", "", "", "", "", "")
    queries = sorted(set(size["queries"]))
    times = (duration(size[key]) for key in ("seconds", "reader_cpu_s", "server_cpu_s"))
    peaks = (mebibytes(size[key]) for key in ("reader_rss_peak_bytes", "server_rss_peak_bytes"))
    return (*head, " or ".join(map(str, queries)), *times, *peaks)
