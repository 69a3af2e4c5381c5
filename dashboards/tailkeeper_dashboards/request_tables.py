"""Tables of single requests, from traces and from the access log. A row's link chooses request, trace, GPU, backend and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.cog import builder as cog
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.models.dashboard import DataSourceRef, DataTransformerConfig, DynamicConfigValue

from tailkeeper_dashboards import requests, style
from tailkeeper_dashboards.panels import (
    COLORED_TEXT,
    LOKI,
    TEMPO,
    About,
    Place,
    board_url,
    framed,
    labels_as_columns,
    log_lines,
    search,
    threshold_steps,
)
from tailkeeper_dashboards.settings import BACKEND_UID, FLEET_UID, ROOT_CAUSE_UID, BoardSettings
from tailkeeper_dashboards.tiles import elsewhere
from tailkeeper_exporter.otlp import attributes as names

WORST = 20
AROUND_MS = 240_000
"""Two minutes before and after."""


@dataclass(frozen=True, slots=True)
class Fields:
    """What one data source calls the columns that the table shows, and those that only its links need.

    Transformations go by the name that a column is shown under, which ``when_shown`` is for the time; links by its own.
    """

    when: str
    when_shown: str
    header: str
    backend: str
    request: str
    ttft: str
    outcome: str
    gpu: str
    trace: str


SPAN_FIELDS = Fields(
    when="time",
    when_shown="Start time",
    header="Started",
    backend=names.BACKEND,
    request=names.REQUEST_ID,
    ttft=names.TTFT,
    outcome=names.OUTCOME,
    gpu=names.GPU,
    trace="traceIdHidden",
)
LINE_FIELDS = Fields(
    when="Time",
    when_shown="Time",
    header="Ended",
    backend=requests.label(names.BACKEND),
    request=requests.label(names.REQUEST_ID),
    ttft=requests.label(names.TTFT),
    outcome=requests.label(names.OUTCOME),
    gpu=requests.label(names.GPU),
    trace="trace_id",
)


def traced(settings: BoardSettings, place: Place) -> table.Panel:
    """Slow and failed requests whose traces were kept."""
    about = About(
        f"Which request? The worst {WORST}, or the one you typed",
        f"Requests that waited longer than {style.seconds_text(settings.slo_ttft_s)} for the first token or failed, of the "
        f"newest {requests.MOST_FOUND} such traces in this time range; click a request id to see why.",
        "none",
        "no slow or failed request, and none with that id, was traced in this time",
        place,
    )
    query = search(requests.slow_spans(settings.slo_ttft_s), limit=requests.MOST_FOUND)
    return _table(settings, about, TEMPO, query, SPAN_FIELDS, ())


def logged(settings: BoardSettings, place: Place) -> table.Panel:
    """The same from the access log, so that nothing hangs on sampling."""
    about = About(
        "The same from the access log, traced or not",
        f"The worst {WORST} of the newest {requests.MOST_FOUND} slow or failed requests that were logged; sampling loses none "
        "of them, and the time is when the answer ended.",
        "none",
        "no slow or failed request, and none with that id, was logged in this time",
        place,
    )
    query = log_lines(requests.slow_lines(settings.slo_ttft_s), limit=requests.MOST_FOUND)
    return _table(settings, about, LOKI, query, LINE_FIELDS, (labels_as_columns(),))


def _table(
    settings: BoardSettings,
    about: About,
    source: DataSourceRef,
    query: cog.Builder[variants.Dataquery],
    fields: Fields,
    first: Sequence[DataTransformerConfig],
) -> table.Panel:
    panel = table.Panel().with_target(query).thresholds(style.steps()).mappings([style.missing("–")])
    for transformation in (*first, *_worst_first(fields)):
        panel = panel.with_transformation(transformation)
    for header, properties in _cells(settings, fields).items():
        panel = panel.override_by_name(header, [DynamicConfigValue(name, value) for name, value in properties.items()])
    return framed(panel, about, elsewhere(settings, FLEET_UID, BACKEND_UID), source)


def _worst_first(fields: Fields) -> tuple[DataTransformerConfig, ...]:
    """Attributes come as text, so that 10 would stand before 9."""
    number = {"targetField": fields.ttft, "destinationType": "number"}
    shown = {
        fields.when_shown: fields.header,
        fields.request: "Request",
        fields.backend: "Backend",
        fields.ttft: "First token",
        fields.outcome: "Outcome",
        fields.gpu: "GPU",
        fields.trace: "Trace",
    }
    only = {"include": {"names": list(shown)}}
    organize = {"excludeByName": {}, "indexByName": {name: i for i, name in enumerate(shown)}, "renameByName": shown}
    return (
        DataTransformerConfig(id_val="convertFieldType", options={"conversions": [number], "fields": {}}),
        DataTransformerConfig(id_val="filterFieldsByName", options=only),
        DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": fields.ttft, "desc": True}]}),
        DataTransformerConfig(id_val="limit", options={"limitField": WORST}),
        DataTransformerConfig(id_val="organize", options=organize),
    )


def _cells(settings: BoardSettings, fields: Fields) -> Mapping[str, Mapping[str, object]]:
    late = threshold_steps((settings.slo_ttft_s, style.RED))
    outcome = {name: (name, color) for name, color in style.OUTCOME_COLORS.items() if name != "ok"}
    for_links_only = {"custom.hidden": True, "custom.hideFrom": {"viz": True}}  # Grafana 11 and 12 call it differently.
    return {
        fields.header: {"unit": "time:HH:mm:ss", "custom.width": 80},
        "Request": {"links": [{"title": "Why did this request wait?", "url": request_url(fields)}]},
        "Backend": {"custom.width": 90},
        "First token": {"unit": "s", "custom.width": 95, "thresholds": late, **COLORED_TEXT},
        "Outcome": {
            "custom.width": 80,
            "mappings": [style.value_map({"ok": ("ok", style.NEUTRAL), **outcome})],
            **COLORED_TEXT,
        },
        "GPU": for_links_only,
        "Trace": for_links_only,
    }


def request_url(fields: Fields) -> str:
    """This board for the clicked row: its request, trace, backend and GPU, and the minutes around it."""
    chosen = {"request_id": fields.request, "trace_id": fields.trace, "backend": fields.backend, "gpu": fields.gpu}
    values = "".join(f'&var-{name}=${{__data.fields["{column}"]:percentencode}}' for name, column in chosen.items())
    around = f'&time=${{__data.fields["{fields.when}"].numeric}}&time.window={AROUND_MS}'
    return board_url(ROOT_CAUSE_UID, "backend", time=False) + values + around
