"""One tick as an OpenTelemetry trace: the span ``tick``, its steps as children, what was done at gateways as events of ``act``.

Pure. Ids are derived and not drawn: whoever knows the run and the tick of a decision knows its trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from tailkeeper_exporter.otlp.attributes import Value, sendable, written
from tailkeeper_exporter.otlp.ids import TRACE_BYTES, derived_span_id
from tailkeeper_watchdog.happenings.names import SERVICE_NAME, TICK, Step

TICK_SPAN = "tick"
SCOPE: Final = InstrumentationScope(name="tailkeeper.watchdog")
SAMPLED_FLAG = 1
_PARENT_KNOWN = 0x100
"""A span's flag that says that it is known where the parent is: in this process."""
MAX_EVENTS = 128
"""Of one span, as OpenTelemetry's SDKs allow; the others are counted on it, and are in the log."""
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TickTrace:
    """When one tick began and ended, and each of its steps: name and end, in their order, in epoch seconds.

    ``instance`` is the run of the watchdog: ticks are counted from its start.
    """

    instance: str
    tick: int
    started_unix_s: float
    ended_unix_s: float
    steps: tuple[tuple[Step, float], ...] = ()
    error: str | None = None

    @property
    def trace_id(self) -> bytes:
        return trace_id_of(self.instance, self.tick)

    def span_id(self, step: Step | None = None) -> bytes:
        """Of the step's span; of the tick's where the tick did not come so far."""
        root = derived_span_id(self.trace_id, b"", TICK_SPAN)
        ran = step is not None and any(name is step for name, _ in self.steps)
        return derived_span_id(self.trace_id, root, step.value) if step is not None and ran else root


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened during a step; ``values`` are its attributes."""

    step: Step
    name: str
    at_unix_s: float
    values: dict[str, Value | None]


def trace_id_of(instance: str, tick: int) -> bytes:
    """Never all zeros, but for a chance of one in 2^128."""
    return blake2b(f"{instance}/{tick}".encode(), digest_size=TRACE_BYTES).digest()


def resource(instance: str) -> Resource:
    return Resource(attributes=written({"service.name": SERVICE_NAME, "service.instance.id": instance}))


def nanoseconds(seconds: float) -> int:
    """Never negative: the field has no sign."""
    return max(0, round(seconds * _NS))


def spans_of(trace: TickTrace, values: dict[str, Value | None], events: Iterable[Event]) -> ExportTraceServiceRequest:
    """``values`` are the tick's own attributes beside its number."""
    by_step: dict[Step, list[Event]] = {}
    for event in events:
        by_step.setdefault(event.step, []).append(event)
    root = _span(trace, None, trace.started_unix_s, trace.ended_unix_s)
    root.attributes.extend(written({TICK: trace.tick, **values}))
    if trace.error is not None:
        root.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=sendable(trace.error[:256])))
    scope = ScopeSpans(scope=SCOPE, spans=[root, *_steps(trace, by_step)])
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=resource(trace.instance), scope_spans=[scope])])


def _steps(trace: TickTrace, events: dict[Step, list[Event]]) -> Iterator[Span]:
    """Each begins where the one before it ended, and none outlasts the tick."""
    ends = [trace.started_unix_s, *(min(end, trace.ended_unix_s) for _, end in trace.steps)]
    for (step, _), (begins, end) in zip(trace.steps, pairwise(ends), strict=True):
        span = _span(trace, step, begins, max(begins, end))
        told = events.get(step, [])
        span.events.extend(_event(event) for event in told[:MAX_EVENTS])
        span.dropped_events_count = max(0, len(told) - MAX_EVENTS)
        yield span


def _span(trace: TickTrace, step: Step | None, begins: float, ends: float) -> Span:
    return Span(
        trace_id=trace.trace_id,
        span_id=trace.span_id(step),
        parent_span_id=b"" if step is None else trace.span_id(),
        flags=SAMPLED_FLAG | _PARENT_KNOWN,
        name=TICK_SPAN if step is None else step.value,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=nanoseconds(begins),
        end_time_unix_nano=nanoseconds(ends),
    )


def _event(event: Event) -> Span.Event:
    return Span.Event(time_unix_nano=nanoseconds(event.at_unix_s), name=event.name, attributes=written(event.values))
