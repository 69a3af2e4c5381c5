"""From a fault to what is read at a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown

WHAT = (
    ("the first page that says hung", "drain read at {gateway}", ("fault_to_weight_seconds",)),
    (
        "a GPU's memory full, in the file that stands for the driver, sampled every 0.1 s",
        "lower weight read at {gateway}",
        ("gpu", "fault_to_weight_seconds"),
    ),
    (
        "the first page on which a pool's P99 of the first token is over 800 ms",
        "degrade level read at the tap",
        ("shedding", "broken_page_to_level_seconds"),
    ),
)


def runs(figures: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One for each pace, the slowest first."""
    return sorted(figures.get("runs", [figures]), key=lambda run: -float(run["tick_s"]))


def table(figures: Mapping[str, Any]) -> str:
    told = runs(figures)
    heads = [f"tick {run['tick_s']:g} s: p50, p99, max" for run in told]
    rows = [
        (begin, end.format(gateway={"haproxy": "HAProxy"}.get(told[0]["gateway"], told[0]["gateway"])), *_cells(told, keys))
        for begin, end, keys in WHAT
    ]
    return markdown(("from", "to", *heads), rows)


def _cells(told: list[Mapping[str, Any]], keys: tuple[str, ...]) -> list[str]:
    cells = []
    for run in told:
        found: Any = run
        for key in keys:
            found = found[key]
        cells.append(", ".join(f"{found[name]:.2f}" for name in ("p50", "p99", "max")) + " s")
    return cells
