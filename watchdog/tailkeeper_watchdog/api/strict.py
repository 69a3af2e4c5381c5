"""Strict JSON for every answer: no NaN, no Infinity, no half characters, and no value that keeps an answer from leaving.

What cannot be said in JSON becomes null, because unknown is null. Pure but for the response class, which only encodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from starlette.responses import Response

MAX_DEPTH = 32
"""Evidence is three levels deep; anything deeper refers to itself."""
TEXT_LIMIT_CHARS = 300


def encode(content: object) -> bytes:
    """``content`` as JSON text. Never raises for what a detector put into its evidence."""
    try:
        text = _dumps(content)
    except (ValueError, TypeError, RecursionError):
        # Only then: walking every value of a large fleet on every request would be for nothing.
        text = _dumps(_clean(content, 0))
    # Half a surrogate pair (an engine's reason may hold one) is no character: it leaves as a question mark.
    return text.encode("utf-8", "replace")


def _dumps(content: object) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    """What ``json`` does not know: read-only mappings, sets, NumPy's numbers; anything else as its text."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else str(value)[:TEXT_LIMIT_CHARS]


def _clean(value: object, depth: int) -> object:
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if depth >= MAX_DEPTH:
        return str(type(value).__name__)
    if isinstance(value, Mapping):
        return {str(key): _clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, depth + 1) for item in value]
    return _clean(_plain(value), depth + 1)


class StrictJson(Response):
    """A JSON answer that no cache keeps: it describes one moment."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, {"cache-control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        return encode(content)
