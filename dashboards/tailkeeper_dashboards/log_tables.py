"""Tables of log lines: one row a line, the newest first, what both sides have as attributes in columns, and the sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, DynamicConfigValue

from tailkeeper_dashboards import happened, style
from tailkeeper_dashboards.panels import COLORED_TEXT, LOKI, About, Place, cell_link, framed, labels_as_columns, log_lines
from tailkeeper_dashboards.settings import BoardSettings
from tailkeeper_dashboards.tiles import CELL, this_backend, why
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.happenings.names import Phase

SENTENCE, TIME = "Line", "Time"
"""Grafana's names for a log line and its time."""
PHASE_COLORS: Mapping[str, str] = {Phase.TRIGGERED: style.ORANGE, Phase.APPLIED: style.BLUE, Phase.RESOLVED: style.GREEN}
ENDED: Mapping[str, str] = {
    **style.VERDICT_COLORS,
    "released": style.GREEN,
    "expired": style.YELLOW,
    "contended": style.PURPLE,
}
"""How a decision may end that changed something, or should have."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One column: which attribute as Loki names it, how wide, and the colours of its words."""

    header: str
    attribute: str
    width: int | None = None
    colors: Mapping[str, str] = field(default_factory=dict)


_WHEN = Shown("When", TIME, 80)
_PHASE = Shown("Phase", names.PHASE, 90, PHASE_COLORS)
_BACKEND = Shown("Backend", names.BACKEND, 90)
_STRATEGY = Shown("Strategy", names.STRATEGY, 175)
_TRIGGER = Shown("Trigger", names.TRIGGER, 140)
_SENTENCE = Shown("What, and why", SENTENCE)


def decisions(settings: BoardSettings, place: Place) -> table.Panel:
    """The decision log and the findings."""
    about = About(
        "What was decided, and why?",
        "The decision log and the findings, newest first; one matter has one strategy and one trigger from finding to release.",
        "none",
        "nothing decided, or the watchdog sends no logs to Loki",
        place,
    )
    verdict = Shown("Verdict", names.VERDICT, 85, ENDED)
    return _table(settings, about, happened.decisions(), (_WHEN, _PHASE, _BACKEND, _STRATEGY, _TRIGGER, verdict, _SENTENCE))


def refusals(settings: BoardSettings, place: Place) -> table.Panel:
    """What the guards did not allow."""
    about = About(
        "Why did nothing happen?",
        "Changes that a guard did not allow, newest first, with the guard that kept them.",
        "none",
        "nothing refused, or the watchdog sends no logs to Loki",
        place,
    )
    kept_by, knob = Shown("Kept by", names.REFUSAL, 150), Shown("Knob", names.KNOB, 130)
    return _table(settings, about, happened.refusals(), (_WHEN, kept_by, _BACKEND, _STRATEGY, knob, _SENTENCE))


def cluster_events(settings: BoardSettings, place: Place) -> table.Panel:
    """What Kubernetes said of its objects, and which of it was ours."""
    about = About(
        "What did Kubernetes say?",
        "Events of the cluster, newest first; those that the watchdog made carry its strategy and phase.",
        "none",
        "no events, or no cluster is watched",
        place,
    )
    reason, name = Shown("Reason", "k8s_event_reason", 120), Shown("Object", "k8s_object_name", 120)
    ours = Shown("Strategy", names.STRATEGY, 120)
    return _table(settings, about, happened.KUBERNETES, (_WHEN, reason, name, ours, _PHASE, _SENTENCE))


def _table(settings: BoardSettings, about: About, logql: str, columns: tuple[Shown, ...]) -> table.Panel:
    panel = table.Panel().with_target(log_lines(logql)).thresholds(style.steps()).mappings([style.missing("–")])
    only = DataTransformerConfig(
        id_val="filterFieldsByName", options={"include": {"names": [column.attribute for column in columns]}}
    )
    order = {column.attribute: index for index, column in enumerate(columns)}
    renamed = {column.attribute: column.header for column in columns}
    organize = {"excludeByName": {}, "indexByName": order, "renameByName": renamed}
    for transformation in (labels_as_columns(), only, DataTransformerConfig(id_val="organize", options=organize)):
        panel = panel.with_transformation(transformation)
    for column in columns:
        cells = [DynamicConfigValue(name, value) for name, value in _cells(column).items()]
        panel = panel.override_by_name(column.header, cells) if cells else panel
    return framed(panel, about, why(settings), LOKI)


def _cells(column: Shown) -> Mapping[str, object]:
    found: dict[str, object] = {} if column.width is None else {"custom.width": column.width}
    if column.attribute == SENTENCE:
        found["custom.inspect"] = True  # A sentence is longer than its cell.
    if column.attribute == TIME:
        found["unit"] = "time:HH:mm:ss"
    if column.attribute == names.BACKEND:
        found["links"] = [cell_link(this_backend(CELL))]
    if column.colors:
        found["mappings"] = [style.value_map({word: (word, color) for word, color in column.colors.items()})]
        found |= COLORED_TEXT
    return found
