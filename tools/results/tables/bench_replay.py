"""How much faster than life recorded fleets are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown, mebibytes, number


def table(figures: Mapping[str, Any]) -> str:
    return markdown(
        ("backends", "ticks of 5 s", "records", "CPU of the command", "times real time", "backend-ticks a second"),
        (
            (
                f"{size['backends']:,}",
                f"{size['ticks']:,}",
                mebibytes(size["records_bytes"]),
                f"{number(size['cpu_s'])} s",
                number(size["times_real_time"]),
                number(size["backend_ticks_per_second"]),
            )
            for size in figures["sizes"]
        ),
    )
