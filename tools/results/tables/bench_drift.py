"""What one request costs each detector of drift; how often they are right stands in docs/drift.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown, number


def table(figures: Mapping[str, Any]) -> str:
    kinds = figures["kinds"]
    names = list(next(iter(kinds.values()))["detectors"])
    rows = ((f"`{name}`", *(_cell(kind["detectors"].get(name)) for kind in kinds.values())) for name in names)
    return markdown(("nanoseconds a request", *kinds), rows)


def _cell(detector: Mapping[str, Any] | None) -> str:
    told = None if detector is None else detector["ns_per_update"]
    return "not run" if told is None else number(told)
