"""An exact sliding P99 by window and structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown, number

NAMES = {
    "tail_ring": "ring and sorted tail (ours)",
    "ring_partition": "ring, partial sort at each query",
    "numpy_percentile": "`numpy.percentile`",
    "sorted_list": "`SortedList`",
}


def table(figures: Mapping[str, Any]) -> str:
    rows = []
    for window in figures["windows"]:
        for place, (name, of_it) in enumerate(window["structures"].items()):
            ticks = (f"{number(of_it[f'us_per_tick_of_{batch}'], 2)} us" for batch in (5, 50))
            update, query = f"{number(of_it['ns_per_update'])} ns", f"{number(of_it['us_per_query'], 2)} us"
            rows.append(("" if place else f"{window['window']:,}", NAMES[name], update, query, *ticks))
    head = ("window", "structure", "update, batches of 200", "query", "tick, 5 new samples", "tick, 50 new samples")
    return markdown(head, rows)
