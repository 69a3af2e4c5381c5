"""Who a request is: its id, and its place in a trace (W3C Trace Context, level 1 and what level 2 changes). Pure.

What a client sends is kept unchanged where it is ordinary. A hostile id is cut and cleaned rather than refused: an id must
never cost anybody an answer. Randomness is passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_ID_CHARS = 128
"""Enough for two UUIDs and an engine's prefix; what is longer is somebody's attempt to fill logs."""
_ORDINARY = re.compile(rf"[A-Za-z0-9._:/@+=~-]{{1,{MAX_ID_CHARS}}}")
_FOREIGN = re.compile(r"[^A-Za-z0-9._:/@+=~-]")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VERSION_0 = "00"
_NO_VERSION = "ff"
MAX_TRACESTATE_CHARS = 512
"""What the standard asks everyone to pass on at least."""

RandomHex = Callable[[int], str]
"""That many random bytes as lower-case hexadecimal digits; ``secrets.token_hex``."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a request stands in its trace. ``parent_span_id`` None: the trace begins here."""

    trace_id: str
    span_id: str
    """Of our own span, which is the backend's parent."""
    parent_span_id: str | None
    sampled: bool
    tracestate: str | None

    @property
    def traceparent(self) -> str:
        """What the backend gets. Flags other than `sampled` are of versions we do not know, and are not passed on."""
        return f"{_VERSION_0}-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def request_id(values: Sequence[str], random_hex: RandomHex) -> str:
    """The id of a request with these ``x-request-id`` headers: the first if ordinary, else what is left of it, else a new one."""
    given = values[0].strip() if values else ""
    if _ORDINARY.fullmatch(given):
        return given
    return _FOREIGN.sub("", given[: 8 * MAX_ID_CHARS])[:MAX_ID_CHARS] or random_hex(16)


def trace(traceparents: Sequence[str], tracestates: Sequence[str], random_hex: RandomHex) -> Trace:
    """Continue the trace in these headers, or begin one where there is none, or none that the standard allows."""
    parent = _parent(traceparents)
    if parent is None:
        return Trace(random_hex(16), random_hex(8), None, True, None)
    trace_id, parent_span_id, flags = parent
    state = ",".join(part for part in tracestates if part.strip())
    kept = state if state and len(state) <= MAX_TRACESTATE_CHARS and state.isascii() and state.isprintable() else None
    return Trace(trace_id, random_hex(8), parent_span_id, bool(flags & 1), kept)


def _parent(traceparents: Sequence[str]) -> tuple[str, str, int] | None:
    """Trace id, span id and flags; None without exactly one valid header. A later version is read by its first four fields."""
    if len(traceparents) != 1 or len(traceparents[0]) > MAX_TRACESTATE_CHARS:
        return None
    match = _TRACEPARENT.fullmatch(traceparents[0].strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _NO_VERSION or (version == _VERSION_0 and more is not None):
        return None
    return (trace_id, span_id, int(flags, 16)) if trace_id.strip("0") and span_id.strip("0") else None
