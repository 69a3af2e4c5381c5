"""Trace, span and request ids in one spelling, so that the same request is found whoever wrote its id. Pure.

A trace id is 32 lower-case hexadecimal digits and a span id 16, padded on the left; all zeros is no id.
"""

from __future__ import annotations

import re
from hashlib import blake2b

TRACE_BYTES, SPAN_BYTES = 16, 8
MAX_REQUEST_ID_CHARS = 128
_PREFIXES = ("chatcmpl-", "cmpl-", "embd-")
"""What OpenAI-compatible servers put before the caller's own id."""
_HEX = re.compile(r"[0-9a-fA-F]+")


def hex_id(text: str, size: int) -> bytes | None:
    """The id of ``size`` bytes in hexadecimal ``text``, shorter ones padded on the left; None for what is no id."""
    if not _HEX.fullmatch(text) or len(text) > 2 * size:
        return None
    return valid_id(bytes.fromhex(text.rjust(2 * size, "0")), size)


def valid_id(raw: bytes, size: int) -> bytes | None:
    """``raw`` where it is an id of ``size`` bytes and not all zeros."""
    return raw if len(raw) == size and any(raw) else None


def derived_span_id(trace_id: bytes, span_id: bytes, name: str) -> bytes:
    """The id of a child span: the same for the same request whenever it is made, so that sending twice makes no second child."""
    found = blake2b(trace_id + span_id + name.encode(), digest_size=SPAN_BYTES).digest()
    return found if any(found) else b"\1".rjust(SPAN_BYTES, b"\0")


def clean_request_id(text: str) -> str | None:
    """A request id fit to be kept: printable, without spaces at its ends, and not longer than ``MAX_REQUEST_ID_CHARS``."""
    cleaned = "".join(char for char in text[: 4 * MAX_REQUEST_ID_CHARS] if char.isprintable()).strip()[:MAX_REQUEST_ID_CHARS]
    return cleaned or None


def core_request_id(request_id: str) -> str:
    """The caller's part of an id: without ``chatcmpl-`` and the like, which engines put before the ``x-request-id`` they got."""
    for prefix in _PREFIXES:
        if request_id.startswith(prefix) and len(request_id) > len(prefix):
            return request_id[len(prefix) :]
    return request_id


def same_request(one: str, other: str) -> bool:
    """Whether two ids name one request. vLLM appends ``-0`` and the like for each prompt of a request."""
    a, b = core_request_id(one), core_request_id(other)
    return a == b or a.startswith(b + "-") or b.startswith(a + "-")
