"""JSON that every reader understands in the same way: each key once, no NaN, no infinity, UTF-8. Pure."""

from __future__ import annotations

import json


def loads(body: bytes) -> object:
    """What ``body`` says. Raises ValueError, with what is wrong, where it is not strict JSON."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_once_each, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document: dict[str, object] = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"the key {key[:64]!r} is there twice")
        document[key] = value
    return document


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
