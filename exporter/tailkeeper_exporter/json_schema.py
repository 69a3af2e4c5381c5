"""Words for JSON Schema, so that an answer's shape is read at a glance. Exporter and watchdog describe their interfaces so."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {}


def maybe(schema: Schema) -> Schema:
    """``schema``, or null for what is not known."""
    return {"anyOf": [schema, {"type": "null"}]}


def rows(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def by_name(schema: Schema) -> Schema:
    """An object with any names, each with a ``schema``."""
    return {"type": "object", "additionalProperties": schema}


def words(*allowed: str) -> Schema:
    return {"type": "string", "enum": list(allowed)}


def record(more: Schema | None = None, /, **fields: Schema) -> Schema:
    """An object that has all ``fields``, and perhaps others later; ``more`` are those whose names are no Python names."""
    properties = {**fields, **(more or {})}
    return {"type": "object", "required": list(properties), "properties": properties}


def json_answer(description: str, schema: Schema) -> Schema:
    """One entry of an operation's ``responses``."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}
