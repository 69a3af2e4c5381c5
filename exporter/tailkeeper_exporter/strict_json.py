"""JSON that every reader understands alike: each key once, no NaN, no infinity, UTF-8. Pure."""

from __future__ import annotations

import json
from typing import Any


def loads(body: bytes) -> object:
    """What ``body`` says. Raises ValueError, with what is wrong, where it is not strict JSON."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_once_each, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def loads_any(body: bytes) -> Any:
    """What ``body`` says, with the last of keys that are there twice. Raises ValueError, RecursionError.

    A function of Python for each object, as above: the parser alone would keep an event loop from its turn from any thread.
    """
    return json.loads(body, object_pairs_hook=_last_of_each)


def _last_of_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return dict(pairs)


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document: dict[str, object] = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"the key {key[:64]!r} is there twice")
        document[key] = value
    return document


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
