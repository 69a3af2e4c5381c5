"""What Grafana's own models and JSON schemas say of a board: keys that they do not know, and values that they do not allow."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

SCHEMAS = Path(__file__).parents[3] / "shared" / "grafana_schemas"
WITHOUT_SCHEMA = ("traces",)
"""Panel types of which Grafana publishes no schema."""
QUERIES = {"prometheus": "Dataquery", "tempo": "Dataquery", "loki": "dataquery"}
"""Types of data sources, and what the schema of each calls a query."""
SDK_FILLS_IN = {"align": ("auto",), "inspect": (False,), "lineWidth": (0, 1), "fillOpacity": (70, 80)}
"""Defaults of fields that the SDK writes only when it has read a board."""

Json = dict[str, Any]
needs_schemas = pytest.mark.skipif(not SCHEMAS.is_dir(), reason="Grafana's JSON schemas do not lie beside this checkout")


def differences(ours: Any, theirs: Any, path: str = "$") -> Iterator[str]:
    """What of ``ours`` came back otherwise, was lost, or was added beyond defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() | theirs.keys():
            if key in ours and key in theirs:
                yield from differences(ours[key], theirs[key], f"{path}.{key}")
            elif key in ours:
                yield f"lost {path}.{key}"
            elif not _is_default(theirs[key]):
                yield f"added {path}.{key}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif ours != theirs:
        yield f"changed {path}: {ours!r} → {theirs!r}"


def _is_default(value: Any) -> bool:
    return isinstance(value, dict) and all(item in SDK_FILLS_IN.get(key, ()) for key, item in value.items())


def lost_or_changed(board: Json) -> list[str]:
    """The differences after Grafana's models have read a board and written it again."""
    register_default_plugins()
    given = copy.deepcopy(board)
    for panel in given["panels"]:
        if panel["datasource"]["uid"] == "-- Mixed --":
            del panel["datasource"]["type"]  # The models would read every query of the panel as one of this type.
    read: Json = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    return list(differences(given, read))


def set_at(node: Any, path: str, value: object) -> None:
    """Put ``value`` at a path such as ``panels.0.title``."""
    *parents, last = path.split(".")
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node[key]
    node[last] = value


def _loosened(schema: Any) -> Any:
    """The schemas write 'anything' as an object without properties."""
    if isinstance(schema, dict):
        bare = {key: value for key, value in schema.items() if key not in ("description", "default")}
        if bare == {"type": "object", "additionalProperties": {}}:
            return {}
        return {key: _loosened(value) for key, value in schema.items()}
    return [_loosened(item) for item in schema] if isinstance(schema, list) else schema


@cache
def _document(name: str) -> Json:
    document: Json = _loosened(json.loads((SCHEMAS / f"{name}.jsonschema.json").read_text(encoding="utf-8")))
    return document


def _errors(name: str, definition: str, value: object) -> Iterator[str]:
    document = _document(name)
    if definition in document["definitions"]:
        validator = Draft7Validator({**document, "$ref": f"#/definitions/{definition}"})
        yield from (f"{definition}: {error.message}" for error in validator.iter_errors(value))


def schema_errors(board: Json) -> Iterator[str]:
    """The board by its schema, each panel's options and fields by its type's, each query by its data source's."""
    yield from (f"$: {error}" for error in _errors("dashboard", "Dashboard", board))
    for panel in board["panels"]:
        parts = [(panel["type"].replace("-", ""), "Options", panel.get("options"))]
        parts += [(panel["type"].replace("-", ""), "FieldConfig", panel.get("fieldConfig", {}).get("defaults", {}).get("custom"))]
        parts = [part for part in parts if panel["type"] not in WITHOUT_SCHEMA and part[2] is not None]
        for target in panel.get("targets", []):
            kind = target["datasource"]["type"]
            parts.append((kind, QUERIES[kind], target))
        for schema, definition, value in parts:
            yield from (f"{panel['title']} {error}" for error in _errors(schema, definition, value))
