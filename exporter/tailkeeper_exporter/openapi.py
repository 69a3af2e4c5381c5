"""What the exporter answers, as OpenAPI 3.1: served at ``/openapi.json``, and held to what is answered by the tests. Pure."""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import fields

from tailkeeper_exporter.health import Status
from tailkeeper_exporter.json_schema import (
    ANY,
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    by_name,
    json_answer,
    maybe,
    record,
    rows,
    words,
)
from tailkeeper_exporter.metrics_page import Dialect
from tailkeeper_exporter.requests_ring import DEFAULT_LIMIT, MAX_CURSOR, MAX_RECORDS, RequestRecord
from tailkeeper_exporter.state import State
from tailkeeper_exporter.tap.knobs import CACHE_LOCAL, CACHE_OFF, DRAIN, MAX_CONCURRENCY, SERVE, Degrade

PATH = "/openapi.json"
BEARER = "token"
"""The security scheme's name in the document."""

_STATUS = words(*(status.value for status in Status))
_CHECK = record(status=_STATUS, value=maybe(NUMBER), threshold=maybe(NUMBER), unit=TEXT, age_s=maybe(NUMBER))
_HEALTH = record(
    backend=TEXT,
    state=words(*(state.value for state in State)),
    status=_STATUS,
    reasons=rows(TEXT),
    checks=by_name(_CHECK),
)
_FLEET = record(status=_STATUS, backends=rows(_HEALTH))
_REFUSAL = record(error=TEXT)
_OF_FIELD = {"str": TEXT, "int": WHOLE, "float": NUMBER, "bool": FLAG}
_REQUEST = record(**{field.name: maybe(_OF_FIELD[str(field.type).partition(" ")[0]]) for field in fields(RequestRecord)})
_BATCH = record(next=WHOLE, dropped=WHOLE, requests=rows(_REQUEST))
_KNOBS: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "weight": {"type": "number", "enum": [1]},
        "admission": words(SERVE, DRAIN),
        "concurrency_limit": {"type": "integer", "minimum": 0, "maximum": MAX_CONCURRENCY},
        "cache_mode": words(CACHE_OFF, CACHE_LOCAL),
        "degrade_level": {"type": "integer", "minimum": min(Degrade), "maximum": max(Degrade)},
    },
}
_IN_FORCE: Schema = {**_KNOBS, "required": list(_KNOBS["properties"])}
_TAP = record(backend=TEXT, document=_IN_FORCE, running=WHOLE, waiting=WHOLE, queued=WHOLE, age_s=NUMBER)
_BACKEND: Schema = {"name": "backend", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_GOOGLE = record(code=WHOLE, message=TEXT)
_TRACES: Schema = {
    "type": "object",
    "description": "OTLP's ExportTraceServiceRequest; names that are not known are passed over",
    "properties": {"resourceSpans": maybe(rows(ANY))},
}


def _get(summary: str, *parameters: Schema, **responses: Schema) -> Schema:
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": _by_status(responses)}}


def _by_status(responses: dict[str, Schema]) -> dict[str, Schema]:
    return {name.removeprefix("of_"): answer for name, answer in responses.items()}


def _number(name: str, low: int, high: int, default: int) -> Schema:
    schema = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _refused(**why: str) -> dict[str, Schema]:
    return {status: json_answer(text, _REFUSAL) for status, text in why.items()}


def _traces() -> Schema:
    def answered(description: str, schema: Schema) -> Schema:
        content = {"application/json": {"schema": schema}, "application/x-protobuf": {"schema": {}}}
        return {"description": description, "content": content}

    why = {
        "400": "It cannot be read as spans",
        "408": "The body did not come in time",
        "413": "The body is too large, plain or inflated",
        "415": "The content type or encoding is another",
        "503": "Too many posts at once; come again",
    }
    return {
        "post": {
            "summary": "Spans by OTLP/HTTP",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _TRACES}, "application/x-protobuf": {"schema": {}}},
            },
            "responses": {
                "200": answered("All was taken", {"type": "object"}),
                **{status: answered(text, _GOOGLE) for status, text in why.items()},
            },
        }
    }


def _turned() -> Schema:
    return {
        "summary": "Turn the tap: the whole document, a field that is left out has its default",
        "parameters": [_BACKEND],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _KNOBS}}},
        "security": [{BEARER: []}],
        "responses": _by_status(
            {
                "of_200": json_answer("What is in force now", _IN_FORCE),
                **_refused(
                    of_400="The body is not strict JSON",
                    of_401="The bearer token is missing or wrong",
                    of_403="Called by a page of another site, or nothing can be changed here",
                    of_404="No such tap",
                    of_408="The body did not come in time",
                    of_413="The body is too large",
                    of_422="What a tap cannot do, and what it can",
                    of_503="The tap cannot be reached",
                    of_504="The tap did not confirm in time",
                ),
            }
        ),
    }


PATHS: dict[str, Schema] = {
    "/metrics": _get(
        "All series, in the dialect that Accept asks for",
        of_200={"description": "The page", "content": {dialect.value: {"schema": TEXT} for dialect in Dialect}},
    ),
    "/healthz": _get(
        "Can every backend serve now?",
        of_200=json_answer("None fails", _FLEET),
        of_503=json_answer("At least one fails", _FLEET),
    ),
    "/healthz/{backend}": _get(
        "Can this backend serve now?",
        _BACKEND,
        of_200=json_answer("It does not fail", _HEALTH),
        of_503=json_answer("It fails", _HEALTH),
        **_refused(of_404="No such backend"),
    ),
    "/livez": _get("Is the exporter alive?", of_200=json_answer("It is", record(status=TEXT))),
    "/readyz": _get(
        "Has every backend been looked at?",
        of_200=json_answer("It has", record(status=TEXT)),
        of_503=json_answer("Not yet", record(status=TEXT, waiting_for=rows(TEXT))),
    ),
    "/api/v1/requests": _get(
        "The latest requests, by a cursor",
        _number("since", 0, MAX_CURSOR, 0),
        _number("limit", 1, MAX_RECORDS, DEFAULT_LIMIT),
        of_200=json_answer("Those after the cursor, and the next one", _BATCH),
        **_refused(of_400="A parameter is no such number"),
    ),
    "/v1/traces": _traces(),
    "/api/v1/taps": _get("All taps, and what is in force at each", of_200=json_answer("The taps", rows(_TAP))),
    "/api/v1/taps/{backend}": {
        **_get(
            "What is in force at this tap",
            _BACKEND,
            of_200=json_answer("What is in force", _IN_FORCE),
            **_refused(of_404="No such tap", of_503="It does not report, so what is in force is not known"),
        ),
        "put": _turned(),
    },
    PATH: _get("This document", of_200=json_answer("This document", {"type": "object"})),
}


def document(paths: Collection[str], *, has_token: bool) -> Schema:
    """The description of ``paths``, which are those that are served; KeyError for one that is not described here. Without a
    token nothing is said to need one."""
    described = {path: deepcopy(PATHS[path]) for path in sorted(paths)}
    if not has_token:
        for operations in described.values():
            for operation in operations.values():
                operation.pop("security", None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tailkeeper exporter", "version": "1"},
        "paths": described,
        "components": {"securitySchemes": {BEARER: {"type": "http", "scheme": "bearer"}}},
    }
