"""Spans of engines and gateways as request records. Pure: a request in, values out; the wall clock is passed in.

Not every span is a request. Recognised are an engine's own (vLLM's ``llm_request``: ``gen_ai.latency.…``), an operation of
OpenTelemetry's GenAI conventions or of their forerunners that generates text (gateways, SDKs), OpenInference's kind ``LLM``,
and our own tap's from another exporter. Our own probes are none. ``gen_ai.response.time_to_first_chunk`` is no time to the first
token: a chunk with nothing but a role is one.

A time that cannot be is None and counted, and its record stays. An engine that ended a request before a milestone reports
the host's uptime for it, or a negative time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from tailkeeper_exporter import catalog
from tailkeeper_exporter.otlp import attributes as names
from tailkeeper_exporter.otlp.attributes import Attributes, flag_of, number_of, read, text_of
from tailkeeper_exporter.otlp.counts import Outcome
from tailkeeper_exporter.otlp.ids import SPAN_BYTES, TRACE_BYTES, clean_request_id, core_request_id, valid_id
from tailkeeper_exporter.otlp.known import Kin
from tailkeeper_exporter.otlp.match import Backends, NoBackend
from tailkeeper_exporter.otlp.spans import DECODE, PREFILL, QUEUE, STAGES
from tailkeeper_exporter.probe_plan import PROBE_ID_PREFIX
from tailkeeper_exporter.requests_ring import RequestRecord
from tailkeeper_exporter.settings import BackendSettings

MAX_SPANS = 20_000
"""Of one post that are looked at; the rest is only forwarded. A post of 4 MiB holds about 4,000 spans of vLLM."""
MAX_RECORDS = 2_000
"""Of one post, a fifth of the ring: one sender must not push out what all others have told."""
MAX_AHEAD_S, MAX_BEHIND_S = 3_600.0, 7 * 86_400.0
"""How far a start may lie from now: clocks are wrong, queues of collectors are long."""
MAX_TOKENS = 100_000_000
_STAGE_SLACK_S = 0.1
"""By how much a stage may outlast the whole, for roundings and the order in which clocks were read."""

_LATENCY_PREFIX = "gen_ai.latency."
_GENERATES = frozenset({"chat", "text_completion", "completion", "generate_content"})
"""Of ``gen_ai.operation.name``, and of ``llm.request.type`` and ``gen_ai.request.type`` of OpenLLMetry."""
_REQUEST_IDS = (names.REQUEST_ID, "gen_ai.response.id", "http.request.header.x-request-id")
_MODELS = ("gen_ai.response.model", names.REQUEST_MODEL, "llm.response.model_name", "llm.model_name")
_PROMPT = (names.INPUT_TOKENS, "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens", "llm.token_count.prompt")
_GENERATED = (names.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens", "llm.token_count.completion")
_CACHED = (names.CACHED_TOKENS, "gen_ai.usage.cached_tokens", "llm.token_count.prompt_details.cache_read")
_STREAM = (names.REQUEST_STREAM, "gen_ai.request.streaming", "llm.is_streaming")
_ABORTED = ("abort", "cancel", "disconnect")
"""Parts of ``error.type`` and of finish reasons, in lower case: how an end by the client is called."""

Stages = Mapping[tuple[bytes, bytes], Mapping[str, float]]
"""Seconds of stages that are spans of their own, by the trace and the id of their parent."""


@dataclass(frozen=True, slots=True)
class Told:
    """One request that a span tells of."""

    record: RequestRecord
    kin: Kin


@dataclass(frozen=True, slots=True)
class _World:
    """What is known besides the span that is read."""

    backends: Backends
    gpus: Mapping[str, str | None]
    stages: Stages
    now_unix_s: float


@dataclass(slots=True)
class Reading:
    """What one post told. ``counts`` are of its spans, and of times that cannot be."""

    told: list[Told] = field(default_factory=list)
    counts: Counter[Outcome] = field(default_factory=Counter)
    spans: int = 0


def read_spans(
    request: ExportTraceServiceRequest, backends: Backends, gpus: Mapping[str, str | None], now_unix_s: float
) -> Reading:
    """The requests in a post. ``gpus`` is the GPU of each backend, for a span that names none."""
    reading = Reading()
    world = _World(backends, gpus, _stages_of(request), now_unix_s)
    for group in request.resource_spans:
        resource = read(group.resource.attributes)
        for span in _spans(group):
            reading.spans += 1
            if reading.spans <= MAX_SPANS:
                _read_span(span, resource, world, reading)
            else:
                reading.counts[Outcome.LIMITED] += 1
    reading.counts[Outcome.RECEIVED] = reading.spans
    return reading


def _spans(group: ResourceSpans) -> Iterator[Span]:
    for scope in group.scope_spans:
        yield from scope.spans


def _stages_of(request: ExportTraceServiceRequest) -> Stages:
    """Seconds of the tap's stages by their parent: another exporter's tap tells them as child spans."""
    found: dict[tuple[bytes, bytes], dict[str, float]] = {}
    for group in request.resource_spans:
        for number, span in enumerate(_spans(group)):
            if number >= MAX_SPANS:
                break
            if span.name in STAGES and span.parent_span_id:
                found.setdefault((span.trace_id, span.parent_span_id), {})[span.name] = _lasted_s(span)
    return found


def _lasted_s(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def _read_span(span: Span, resource: Attributes, world: _World, reading: Reading) -> None:
    attributes = read(span.attributes)
    is_engine = is_engines_own(attributes)
    if (not is_engine and not _generates(attributes)) or _is_our_probe(attributes):
        reading.counts[Outcome.OTHER] += 1
        return
    backend = world.backends.find(attributes, resource, is_engine)
    if isinstance(backend, NoBackend):
        reading.counts[Outcome(backend.value)] += 1
    elif len(reading.told) >= MAX_RECORDS:
        reading.counts[Outcome.LIMITED] += 1
    else:
        times = _Times(span, attributes, world)
        reading.told.append(_told(span, attributes, resource, backend, world.gpus.get(backend.name), times))
        reading.counts[Outcome.IMPLAUSIBLE] += times.implausible


def is_engines_own(attributes: Attributes) -> bool:
    """Whether an engine, or a tap, made the span of its own request: it knows of stages."""
    return names.OUTCOME in attributes or any(name.startswith(_LATENCY_PREFIX) for name in attributes)


def _is_our_probe(attributes: Attributes) -> bool:
    """An engine tells of our own probes as of any request, and they are none of a user's."""
    return core_request_id(text_of(attributes, *_REQUEST_IDS) or "").startswith(PROBE_ID_PREFIX)


def _generates(attributes: Attributes) -> bool:
    operation = text_of(attributes, names.OPERATION_NAME, "gen_ai.request.type", "llm.request.type")
    return operation in _GENERATES or text_of(attributes, "openinference.span.kind") == "LLM"


class _Times:
    """The seconds of one span, each None where it is unknown or cannot be; ``implausible`` counts the latter."""

    def __init__(self, span: Span, attributes: Attributes, world: _World) -> None:
        self.implausible = 0
        self._longest_s = catalog.MAX_REQUEST_S
        self._attributes = attributes
        self.start = self._start(span.start_time_unix_nano, world.now_unix_s)
        lasted = _lasted_s(span) if span.start_time_unix_nano and span.end_time_unix_nano else None
        self.e2e_s = self._seconds(number_of(attributes, "gen_ai.latency.e2e"), lasted)
        if self.e2e_s is not None:
            self._longest_s = self.e2e_s + _STAGE_SLACK_S
        children = world.stages.get((span.trace_id, span.span_id), {})
        self.queue_s = self._latency("time_in_queue", children.get(QUEUE))
        self.prefill_s = self._latency("time_in_model_prefill", children.get(PREFILL))
        self.decode_s = self._latency("time_in_model_decode", children.get(DECODE))
        self.ttft_s = self._latency("time_to_first_token", number_of(attributes, names.TTFT))
        self.itl_s = self._seconds(number_of(attributes, names.ITL))

    def _latency(self, name: str, other: float | None) -> float | None:
        return self._seconds(number_of(self._attributes, _LATENCY_PREFIX + name), other)

    def _seconds(self, *values: float | None) -> float | None:
        """The first of ``values`` that is known and can be."""
        for value in values:
            if value is None:
                continue
            if math.isfinite(value) and 0 <= value <= self._longest_s:
                return value
            self.implausible += 1
        return None

    def _start(self, start_ns: int, now_unix_s: float) -> float | None:
        if not start_ns:
            return None
        start = start_ns / 1e9
        if now_unix_s - MAX_BEHIND_S <= start <= now_unix_s + MAX_AHEAD_S:
            return start
        self.implausible += 1
        return None


def _told(
    span: Span, attributes: Attributes, resource: Attributes, backend: BackendSettings, gpu: str | None, times: _Times
) -> Told:
    trace_id = valid_id(span.trace_id, TRACE_BYTES) or b""
    request_id = clean_request_id(text_of(attributes, *_REQUEST_IDS) or "")
    generated = _count(attributes, *_GENERATED)
    record = RequestRecord(
        backend=backend.name,
        request_id=request_id,
        trace_id=trace_id.hex() or None,
        model=text_of(attributes, *_MODELS) or backend.model,
        tenant=_said(attributes, resource, backend, names.SEMANTIC_TENANT, "tenant"),
        modality=_said(attributes, resource, backend, names.MODALITY, "modality"),
        canary_revision=_said(attributes, resource, backend, names.CANARY, "canary_revision"),
        operation=_said(attributes, resource, backend, names.SEMANTIC_OPERATION, "operation"),
        sensitivity=_whole(_said(attributes, resource, backend, names.SEMANTIC_SENSITIVITY, "sensitivity")),
        streaming=flag_of(attributes, *_STREAM),
        start=times.start,
        queue_s=times.queue_s,
        prefill_s=times.prefill_s,
        ttft_s=times.ttft_s,
        itl_s=times.itl_s if times.itl_s is not None else _mean_gap_s(times.decode_s, generated),
        e2e_s=times.e2e_s,
        prompt_tokens=_count(attributes, *_PROMPT),
        cached_tokens=_count(attributes, *_CACHED),
        generated_tokens=generated,
        running=_count(attributes, names.RUNNING),
        waiting=_count(attributes, names.WAITING),
        backlog_tokens=_count(attributes, names.BACKLOG),
        outcome=outcome_of(span, attributes),
        gpu=text_of(attributes, names.GPU) or text_of(resource, names.GPU) or gpu,
    )
    end = None if times.start is None or times.e2e_s is None else times.start + times.e2e_s
    span_id, parent_id = (valid_id(raw, SPAN_BYTES) or b"" for raw in (span.span_id, span.parent_span_id))
    return Told(record, Kin(trace_id if span_id else b"", span_id, parent_id, request_id, times.start, end))


def _said(attributes: Attributes, resource: Attributes, backend: BackendSettings, name: str, label: str) -> str | None:
    """What the request says of itself, before its resource, before its backend's label."""
    return text_of(attributes, name) or text_of(resource, name) or backend.labels.get(label)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 9 else None


def _count(attributes: Attributes, *keys: str) -> int | None:
    """A number of tokens or requests; None where there is none, or it cannot be."""
    value = number_of(attributes, *keys)
    return int(value) if value is not None and 0 <= value <= MAX_TOKENS else None


def _mean_gap_s(decode_s: float | None, generated: int | None) -> float | None:
    """The engine's decode time is that of all tokens but the first."""
    return decode_s / (generated - 1) if decode_s is not None and generated is not None and generated > 1 else None


def outcome_of(span: Span, attributes: Attributes) -> str:
    """One of ``catalog.OUTCOMES``. An end by the client is an abort even where the span calls it an error."""
    ours = text_of(attributes, names.OUTCOME)
    if ours in catalog.OUTCOMES:
        return ours
    status = _count(attributes, names.HTTP_STATUS, "http.status_code")
    if status == 499 or _was_aborted(attributes):
        return "aborted"
    if status == 429:
        return "rejected"
    failed = span.status.code == Status.STATUS_CODE_ERROR or (status is not None and status >= 400)
    return "error" if failed or text_of(attributes, names.ERROR_TYPE) else "ok"


def _was_aborted(attributes: Attributes) -> bool:
    reasons = attributes.get("gen_ai.response.finish_reasons", ())
    texts = [*(reasons if isinstance(reasons, tuple) else (str(reasons),)), text_of(attributes, names.ERROR_TYPE) or ""]
    return any(word in text.lower() for text in texts for word in _ABORTED)
