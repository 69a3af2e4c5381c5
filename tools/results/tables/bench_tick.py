"""Whole ticks by the size of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import duration, markdown, mebibytes


def runs(figures: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One for each size, the smallest first."""
    return sorted(figures.get("runs", [figures]), key=lambda run: int(run["backends"]))


def table(figures: Mapping[str, Any]) -> str:
    return markdown(
        ("backends", "tick: p50", "p99", "max", "its CPU: p50", "a backend", "collector of cycles", "recording", "resident"),
        (
            (
                f"{run['backends']:,}",
                *(duration(run["tick_seconds"][key]) for key in ("p50", "p99", "max")),
                duration(run["tick_cpu_seconds"]["p50"]),
                duration(run["tick_cpu_seconds"]["p50"] / run["backends"]),
                duration(run["tidying_seconds"]["p50"]),
                duration(run["recording_seconds"]["p50"]),
                mebibytes(run["rss_bytes"]),
            )
            for run in runs(figures)
        ),
    )
