"""Attributes of spans: read into plain values, written from plain values. Pure.

Names that several modules need stand here. Where a span has an attribute twice, the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]

BACKEND = "tailkeeper.backend"
OUTCOME = "tailkeeper.outcome"
TTFT = "tailkeeper.ttft_s"
ITL = "tailkeeper.itl_s"
MODALITY = "tailkeeper.modality"
CANARY = "tailkeeper.canary_revision"
PRIORITY = "tailkeeper.priority"
RUNNING = "tailkeeper.running"
WAITING = "tailkeeper.waiting"
BACKLOG = "tailkeeper.backlog_tokens"
CACHE_HIT = "tailkeeper.cache_hit"
GPU = "gpu.uuid"
SEMANTIC_OPERATION = "semantic.operation"
SEMANTIC_TENANT = "semantic.tenant"
SEMANTIC_SENSITIVITY = "semantic.pii_sensitivity"
REQUEST_ID = "gen_ai.request.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
OPERATION_NAME = "gen_ai.operation.name"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
HTTP_STATUS = "http.response.status_code"
ERROR_TYPE = "error.type"

MAX_TEXT_CHARS = 256
"""Of a value that is kept: a name, an id, a revision. A prompt in an attribute is not carried about."""
MAX_ATTRIBUTES = 256
"""Of one span that are looked at; OpenTelemetry's SDKs allow 128."""
_MAX_ITEMS = 16


def read(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    """The scalar and string-list attributes by name; what has another shape is left out."""
    found: dict[str, Value] = {}
    for number, pair in enumerate(attributes):
        if number >= MAX_ATTRIBUTES:
            break
        value = _value(pair.value)
        if value is not None:
            found[pair.key] = value
    return found


def _value(value: AnyValue) -> Value | None:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value[:MAX_TEXT_CHARS]
    if kind == "int_value":
        return value.int_value
    if kind == "double_value":
        return value.double_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "array_value":
        return tuple(item.string_value[:MAX_TEXT_CHARS] for item in value.array_value.values[:_MAX_ITEMS])
    return None


def written(values: Mapping[str, Value | None]) -> list[KeyValue]:
    """The attributes that are known: None and the empty string are left out."""
    return [KeyValue(key=key, value=_any(value)) for key, value in values.items() if value is not None and value != ""]


def _any(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, tuple):
        return AnyValue(array_value=ArrayValue(values=[_any(item) for item in value]))
    # A client's number may be larger than the field.
    return AnyValue(string_value=sendable(str(value)))


def sendable(text: str) -> str:
    """``text`` without half characters, which JSON can hold and protobuf refuses."""
    return text.encode("utf-8", "replace").decode()


def text_of(attributes: Attributes, *names: str) -> str | None:
    """The first of ``names`` that holds a text; a number is written out, because ids come as both."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, tuple) and value and value[0].strip():
            return value[0].strip()
    return None


def number_of(attributes: Attributes, *names: str) -> float | None:
    """The first of ``names`` that holds a number, or a text that is one."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                continue
    return None


def flag_of(attributes: Attributes, *names: str) -> bool | None:
    """The first of ``names`` that holds true or false."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    return None
