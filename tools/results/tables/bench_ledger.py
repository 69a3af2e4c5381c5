"""What writing a change down costs, beside bare SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown, number


def table(figures: Mapping[str, Any]) -> str:
    lines = figures["lines_in_a_commit"]
    told = {
        "intent": "an intent, written before the call to a gateway (one commit)",
        "change": "a change: intent and confirmation (two commits)",
        "log_lines_together": f"{lines} lines of the decision log in one commit",
        "sqlite_full": "bare SQLite, one row, the same settings (WAL, `synchronous=FULL`)",
        "sqlite_off": "bare SQLite, one row, `synchronous=OFF`: nothing waits for the disk",
    }
    rows = (
        (
            what,
            f"{number(figures[name]['p50_ms'])} ms",
            f"{number(figures[name]['p99_ms'])} ms",
            f"{number(figures[name]['per_second'])}{' lines' if name == 'log_lines_together' else ''}",
        )
        for name, what in told.items()
    )
    return markdown((f"on {figures['filesystem'] or 'an unknown file system'}", "p50", "p99", "a second"), rows)
