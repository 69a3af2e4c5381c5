"""Boards as file texts, the same bytes on each run. Pure: nothing is read or written here."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tailkeeper_dashboards.boards import BOARDS
from tailkeeper_dashboards.settings import BoardSettings

FOLDER = "dashboards/generated"


def render(settings: BoardSettings | None = None) -> dict[str, str]:
    """Every board: path from the project's root → JSON text."""
    settings = settings or BoardSettings()
    documents = [_document(build(settings)) for build in BOARDS]
    return {f"{FOLDER}/{document['uid']}.json": _text(document) for document in documents}


def _document(board: dashboard.Dashboard) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(JSONEncoder().encode(board.build()))
    for number, panel in enumerate(document["panels"], 1):
        panel["id"] = number  # The SDK gives none, and a link to one panel needs it.
    return document


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
