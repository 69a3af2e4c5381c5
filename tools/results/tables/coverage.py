"""Branch coverage of the pure core, by package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def table(figures: Mapping[str, Any]) -> str:
    """A line for each package, worst branches first, and one for all of them."""
    packages = sorted(figures["packages"].items(), key=lambda item: (_ratio(item[1], "branches"), item[0]))
    lines = [_line(f"`{name}`", sums) for name, sums in packages]
    return "\n".join(
        (
            "| package | modules | lines run | branches taken |",
            "|---|---|---|---|",
            *lines,
            _line(f"**all**, limit {figures['limit_ratio']:.0%}", figures["total"]),
        )
    )


def _line(name: str, sums: Mapping[str, int]) -> str:
    lines = f"{sums['covered_lines']:,} of {sums['num_statements']:,}, {_ratio(sums, 'lines'):.1%}"
    branches = f"{sums['covered_branches']:,} of {sums['num_branches']:,}, {_ratio(sums, 'branches'):.1%}"
    return f"| {name} | {sums['modules']} | {lines} | {branches} |"


def _ratio(sums: Mapping[str, int], what: str) -> float:
    of = sums["num_branches" if what == "branches" else "num_statements"]
    return sums[f"covered_{what}"] / of if of else 1.0
