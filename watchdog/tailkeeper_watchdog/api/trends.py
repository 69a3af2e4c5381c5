"""P99 of the first token over the last five minutes by backend, so that a console that was just opened shows a line.

Kept in memory and lost with a restart: it is for the eye. Boards have the whole history from ``/metrics``. Bounded:
``POINTS`` of four bytes for each backend of the latest record.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from math import isfinite, nan
from typing import Any

from tailkeeper_watchdog.api.documents import known_p99
from tailkeeper_watchdog.model import TickRecord

SPACING_S = 2.0
"""The console's own period, so that it can go on where this ends."""
POINTS = 150
DIGITS = 4
Identity = tuple[str, frozenset[tuple[str, str]]]


class Trends:
    """``note`` the latest record every ``SPACING_S``."""

    def __init__(self) -> None:
        self._points: dict[str, tuple[Identity, array[float]]] = {}

    def note(self, record: TickRecord) -> None:
        situation = record.situation
        kept: dict[str, tuple[Identity, array[float]]] = {}
        for backend in situation.snapshot.backends:
            identity, points = self._points.get(backend.name, (backend.identity, array("f")))
            if identity != backend.identity:  # another one under its name begins its own line
                points = array("f")
            kept[backend.name] = (backend.identity, points)
            p99 = known_p99(situation, backend.name, "ttft")
            points.append(nan if p99 is None else p99.value)
            del points[:-POINTS]
        self._points = kept

    def document(self) -> dict[str, Any]:
        """``GET /api/v1/trends``: seconds by backend, oldest first, null where not known."""
        lines = {name: [_rounded(p) for p in points] for name, (_, points) in self._points.items()}
        return {"spacing_s": SPACING_S, "p99_s": lines}

    async def follow(self, latest: Callable[[], TickRecord | None]) -> None:
        """Note what ``latest`` gives, for ever; cancel it to end."""
        while True:
            record = latest()
            if record is not None:
                self.note(record)
            await asyncio.sleep(SPACING_S)


def _rounded(value: float) -> float | None:
    return round(value, DIGITS) if isfinite(value) else None
