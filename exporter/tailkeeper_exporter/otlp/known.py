"""Which requests have been recorded lately, so that one request told by several parties is recorded once. Pure state, bounded.

A trace may hold many requests to one backend (an agent's steps, retries) and several spans of one request (gateway, tap,
engine). Spans are of one request where one is the other or its parent, or where they overlap and their request ids are alike;
without that, where one lasts within the other, unless they are siblings. Whoever comes first is recorded. So an engine's queue
and prefill times are not in the record of a request that the tap has told of; they are in its trace.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from tailkeeper_exporter.otlp.ids import same_request

MAX_TRACES = 4_096
"""Pairs of trace and backend: half a minute at 100 requests a second, and engines send their spans every 5 s."""
MAX_PER_TRACE = 32
"""Requests of one trace that are compared; an agent's steps are fewer at a time."""
TOLERANCE_S = 0.05
"""Clocks of two processes on one machine, and the way between them. Machines farther apart need an id in common."""


@dataclass(frozen=True, slots=True)
class Kin:
    """What tells one span of a request from another. Seconds are epoch seconds; ids are raw bytes, empty for none."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    request_id: str | None
    start_s: float | None
    end_s: float | None


class KnownRequests:
    """The recent ones. Written in the event loop only."""

    def __init__(self, max_traces: int = MAX_TRACES) -> None:
        self._max_traces = max_traces
        self._traces: OrderedDict[tuple[bytes, str], deque[Kin]] = OrderedDict()

    def is_new(self, backend: str, kin: Kin) -> bool:
        """Whether a span is of no known request of ``backend``; it is known from now on. One without a trace is always new."""
        if any(_same(one, kin) for one in self._traces.get((kin.trace_id, backend), ())):
            return False
        self.remember(backend, kin)
        return True

    def remember(self, backend: str, kin: Kin) -> None:
        """Take a request for known."""
        if kin.trace_id:
            self._traces.setdefault((kin.trace_id, backend), deque(maxlen=MAX_PER_TRACE)).append(kin)
            self._traces.move_to_end((kin.trace_id, backend))
            if len(self._traces) > self._max_traces:
                self._traces.popitem(last=False)


def _same(one: Kin, other: Kin) -> bool:
    if one.span_id in (other.span_id, other.parent_id) or (one.parent_id and one.parent_id == other.span_id):
        return True
    if one.request_id is not None and other.request_id is not None and same_request(one.request_id, other.request_id):
        # An agent may give one id to all its steps, which follow each other.
        return _overlap(one, other)
    siblings = bool(one.parent_id) and one.parent_id == other.parent_id
    return not siblings and (_within(one, other) or _within(other, one))


def _overlap(one: Kin, other: Kin) -> bool:
    """Whether both lasted at one moment, or may have."""
    if one.start_s is None or one.end_s is None or other.start_s is None or other.end_s is None:
        return True
    return one.start_s < other.end_s and other.start_s < one.end_s


def _within(inner: Kin, outer: Kin) -> bool:
    if inner.start_s is None or inner.end_s is None or outer.start_s is None or outer.end_s is None:
        return False
    return outer.start_s - TOLERANCE_S <= inner.start_s and inner.end_s <= outer.end_s + TOLERANCE_S
