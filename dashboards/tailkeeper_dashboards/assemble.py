"""Panels to a board: variables, annotations and the menu are the same on each, so that the boards are one system. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync

from tailkeeper_dashboards.panels import KEPT_VARIABLES, Builder, board_url, link
from tailkeeper_dashboards.settings import NAMES, BoardSettings
from tailkeeper_dashboards.variables import Variable, shared_annotations, shared_variables

PanelOf = Callable[[BoardSettings], Builder]
"""A panel of a board: one function, so that each can be read, moved and tested by itself."""


def board(
    settings: BoardSettings,
    uid: str,
    description: str,
    panels: Sequence[PanelOf],
    own_variables: Sequence[Variable] = (),
) -> dashboard.Dashboard:
    """The board ``uid`` as a builder, with ``panels`` in their order. ``own_variables`` come before the shared ones."""
    result = (
        dashboard.Dashboard(f"Tailkeeper / {NAMES[uid]}")
        .uid(uid)
        .description(description)
        .tags(["tailkeeper"])
        .readonly()
        .time("now-1h", "now")
        .refresh("10s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
    )
    built = [panel(settings) for panel in panels]
    for variable in (*own_variables, *shared_variables(_used(built))):
        result = result.with_variable(variable)
    for annotation in shared_annotations():
        result = result.annotation(annotation)
    for other, name in NAMES.items():
        if other != uid:
            result = result.link(link(name, board_url(other)))
    result = result.link(link("Watchdog console", settings.console_url))
    for panel in built:
        result = result.with_panel(panel)
    return result


def _used(panels: Sequence[Builder]) -> frozenset[str]:
    """Shared variables that stand in a query or as the data source of one; those in links count for nothing."""
    texts = [_asked(panel) for panel in panels]
    return frozenset(name for name in KEPT_VARIABLES if any(re.search(rf"\$\{{?{name}\b", text) for text in texts))


def _asked(panel: Builder) -> str:
    document = json.loads(JSONEncoder().encode(panel.build()))
    return json.dumps([document.get("datasource"), document.get("targets")])
