"""OTLP/HTTP bodies: bytes to messages and back, in protobuf and in JSON, plain or gzipped. Pure; anything in, no surprise out.

OTLP's JSON is protobuf's with three differences: trace and span ids are hexadecimal, names that are not known are passed
over, and enumerations are numbers. What cannot be read raises ``BodyError``, with the HTTP status that says so.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from enum import Enum
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError, EncodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tailkeeper_exporter.otlp.ids import SPAN_BYTES, TRACE_BYTES, hex_id

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED = 3, 8, 14, 4
"""Codes of google.rpc."""
_MAX_DETAIL_CHARS = 200


class Encoding(Enum):
    """How a body is written. The value is the content type."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


MAX_INFLATED_BYTES = {Encoding.PROTOBUF: 8 * 1024 * 1024, Encoding.JSON: 4 * 1024 * 1024}
"""Of a gzipped body; a bomb ends here. JSON takes the interpreter ten times as long to read as protobuf, and for up to a tenth of
a second (4 MiB, 2,000 spans) holds up the event loop too; 4 MiB of protobuf do so for 20 ms."""
ALLOWED = " or ".join(encoding.value for encoding in Encoding)


class BodyError(Exception):
    """A body that is not taken. ``status`` is HTTP's, ``code`` google.rpc's."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def encoding_of(content_type: str) -> Encoding:
    """Raises BodyError (415) for a content type that is neither."""
    media = content_type.partition(";")[0].strip().lower()
    try:
        return Encoding(media)
    except ValueError:
        raise BodyError(415, INVALID_ARGUMENT, f"content-type {media[:64]!r}; allowed: {ALLOWED}") from None


def inflated(body: bytes, content_encoding: str, limit: int) -> bytes:
    """The body without its compression. Raises BodyError: 415 where it is unknown, 400 where broken, 413 above ``limit``."""
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip"):
        raise BodyError(415, INVALID_ARGUMENT, f"content-encoding {name[:64]!r}; allowed: gzip or none")
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        found = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise BodyError(400, INVALID_ARGUMENT, f"the body is not gzip: {error}") from None
    if len(found) > limit:
        raise BodyError(413, RESOURCE_EXHAUSTED, f"the body is larger than {limit} bytes once inflated; send smaller batches")
    if not inflater.eof or inflater.unused_data:
        raise BodyError(400, INVALID_ARGUMENT, "the gzipped body ends too early, or goes on after its end")
    return found


def request_of(body: bytes, encoding: Encoding) -> ExportTraceServiceRequest:
    """The spans in a body. Raises BodyError (400)."""
    try:
        if encoding is Encoding.JSON:
            return _from_json(body)
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        return request
    except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
        # UnicodeDecodeError and JSONDecodeError are ValueErrors.
        raise BodyError(400, INVALID_ARGUMENT, f"not an ExportTraceServiceRequest: {str(error)[:_MAX_DETAIL_CHARS]}") from None


def _from_json(body: bytes) -> ExportTraceServiceRequest:
    # The hook is Python, so other threads get their turn; without it a large body is one call that stops them all.
    document = json.loads(body, object_hook=_ids_to_base64)
    if not isinstance(document, dict):
        raise ValueError("the body is not a JSON object")
    request = ExportTraceServiceRequest()
    json_format.ParseDict(document, request, ignore_unknown_fields=True)
    return request


_ID_SIZES = {
    **dict.fromkeys(("traceId", "trace_id"), TRACE_BYTES),
    **dict.fromkeys(("spanId", "span_id", "parentSpanId", "parent_span_id"), SPAN_BYTES),
}


def _ids_to_base64(found: dict[str, Any]) -> dict[str, Any]:
    """Of a span or a link, the ids as protobuf's JSON wants them; every other object passes unchanged."""
    for name in _ID_SIZES.keys() & found.keys():
        text, size = found[name], _ID_SIZES[name]
        if isinstance(text, str) and text:
            raw = hex_id(text, size)
            if raw is None and text.strip("0"):
                raise ValueError(f"{name}: {text[:64]!r} is not {2 * size} hexadecimal digits")
            found[name] = b64encode(raw or bytes(size)).decode()
    return found


def bytes_of(request: ExportTraceServiceRequest) -> bytes:
    """As protobuf. Raises ValueError where it cannot be written, such as a lone surrogate in JSON's text."""
    try:
        return bytes(request.SerializeToString())
    except EncodeError as error:
        raise ValueError(str(error)) from None


def success(encoding: Encoding) -> bytes:
    """An ExportTraceServiceResponse without a partial success: all was taken."""
    return b"{}" if encoding is Encoding.JSON else b""


def failure(code: int, message: str, encoding: Encoding) -> bytes:
    """A google.rpc.Status, written by hand: two fields are not worth a dependency."""
    if encoding is Encoding.JSON:
        return json.dumps({"code": code, "message": message}, separators=(",", ":")).encode()
    text = message.encode("utf-8", "replace")
    return b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return found + bytes((number,))
