"""Times as people give them on a command line. Pure: the present is passed in."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import isfinite

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_RELATIVE = re.compile(r"-(\d+(?:\.\d+)?)([smhdw])")
FORMS = "allowed: RFC 3339 (2026-08-22T14:00:00Z), epoch seconds, now, or how long ago (-2d, -90m)"
_MAX_UNIX_S = 32_503_680_000.0
"""The year 3000; milliseconds in place of seconds are beyond it."""


def parse_time(text: str, now_unix_s: float) -> float:
    """Epoch seconds. Raises ValueError with a sentence. A time without a zone is UTC."""
    given = text.strip()
    relative = _RELATIVE.fullmatch(given)
    if given == "now":
        return now_unix_s
    if relative is not None:
        return now_unix_s - float(relative[1]) * _UNITS[relative[2]]
    found = _absolute(given)
    if found is None or not isfinite(found) or not 0 <= found < _MAX_UNIX_S:
        raise ValueError(f"{text!r} is no time; {FORMS}")
    return found


def _absolute(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
