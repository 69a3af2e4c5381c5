"""What the causes of a finding cost, and the exact shares beside enumeration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown, number


def table(figures: Mapping[str, Any]) -> str:
    sizes = markdown(
        ("requests since the finding", "all causes: p50", "max", "named first (planted: tenant t2)"),
        (
            (
                f"{size['requests']:,}",
                f"{number(size['ms']['p50'])} ms",
                f"{number(size['ms']['max'])} ms",
                size["named_first"] if size["compared"] else "too few to compare: nothing is claimed",
            )
            for size in figures["sizes"]
        ),
    )
    peers = markdown(
        ("requests", "Shapley value of five segments, all 1,024 coalitions", "the same by enumeration", "ratio"),
        (
            (
                f"{size['requests']:,}",
                f"{number(size['ours_ms'])} ms",
                f"{number(size['enumeration_ms'])} ms",
                number(size["ratio"], 2),
            )
            for size in figures["segments"]
        ),
    )
    return f"{sizes}\n\n{peers}"
