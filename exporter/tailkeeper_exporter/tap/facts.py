"""What a request says of itself, in its headers and in its body. Pure; reads, and refuses nothing.

Every value is capped and cleaned here, once, because it goes into records, logs and labels. What is missing, malformed or
in a body too large to be kept is None.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_CHARS = 128
MAX_BODY_BYTES = 262_144
"""Bodies up to this are kept while they pass, to be read and to be sent again. Some 60,000 tokens; images are larger."""
MAX_TOKENS = 1 << 40
MAX_SENSITIVITY = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """From the request's headers."""

    tenant: str | None = None
    operation: str | None = None
    sensitivity: int | None = None
    modality: str | None = None
    canary_revision: str | None = None
    model_hint: str | None = None
    priority: str | None = None


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """From the request's JSON. ``streaming`` None: the body could not be read."""

    model: str | None = None
    streaming: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None


UNREAD = BodyFacts()


def header_facts(headers: Mapping[bytes, bytes]) -> HeaderFacts:
    """``headers`` by lower-case name."""
    return HeaderFacts(
        tenant=clean(headers.get(b"x-tenant")),
        operation=clean(headers.get(b"x-operation")),
        sensitivity=sensitivity_of(headers.get(b"x-sensitivity")),
        modality=clean(headers.get(b"x-modality-signature")),
        canary_revision=clean(headers.get(b"x-canary-revision")),
        model_hint=clean(headers.get(b"x-model-hint")),
        priority=clean(headers.get(b"x-priority")),
    )


def clean(value: bytes | str | None) -> str | None:
    """Without control characters, and of bounded length; None where nothing is left."""
    if value is None:
        return None
    text = value[: 4 * MAX_CHARS].decode("utf-8", "replace") if isinstance(value, bytes) else value
    return _CONTROL.sub("", text).strip()[:MAX_CHARS].strip() or None


def is_json(content_type: bytes | None) -> bool:
    """Whether a body of this type is JSON."""
    return content_type is not None and content_type.partition(b";")[0].strip().lower() == b"application/json"


def body_facts(body: bytes) -> BodyFacts:
    """The facts in a whole JSON body. Left out is what the interface says it is: not streamed."""
    document = json_object(body)
    if document is None:
        return UNREAD
    model, stream = document.get("model"), document.get("stream", False)
    most = document.get("max_tokens")
    return BodyFacts(
        model=clean(model) if isinstance(model, str) else None,
        streaming=bool(stream) if isinstance(stream, bool) or stream is None else None,
        temperature=_number(document.get("temperature")),
        top_p=_number(document.get("top_p")),
        max_tokens=whole(document.get("max_completion_tokens") if most is None else most),
    )


def json_object(data: bytes) -> dict[str, object] | None:
    """The JSON object in ``data``, or None. Whatever is in it, this returns."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def whole(value: object) -> int | None:
    """A count of tokens: a whole number from 0 on that a float holds exactly."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > MAX_TOKENS or math.isnan(value):
        return None
    return float(value)


def sensitivity_of(value: bytes | None) -> int | None:
    """A level from 0 to 5; None for all else."""
    text = b"" if value is None else value.strip()
    return int(text) if len(text) == 1 and text.isdigit() and int(text) <= MAX_SENSITIVITY else None
