"""Why a request waited: its stages beside what is usual, and what open findings are put down to."""

from __future__ import annotations

from grafana_foundation_sdk.builders import barchart, common, table
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, DynamicConfigValue
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from tailkeeper_alerts.promql import CLUSTER, by, quantile, series
from tailkeeper_dashboards import queries, requests, style
from tailkeeper_dashboards.panels import (
    COLORED_TEXT,
    MIXED,
    About,
    Column,
    Place,
    fill_table,
    fixed_color,
    framed,
    now,
    search,
    stacked_bars,
)
from tailkeeper_dashboards.settings import BACKEND_UID, HEALING_UID, BoardSettings
from tailkeeper_dashboards.tiles import elsewhere
from tailkeeper_exporter.catalog import BACKEND, DECODE_TIME, PREFILL_TIME, QUEUE_TIME, Metric
from tailkeeper_exporter.otlp.spans import DECODE, PREFILL, QUEUE
from tailkeeper_watchdog.metrics import DIMENSION, FINDING_CONFIDENCE, FINDING_KIND, FINDING_SHARE, VALUE

STAGES: tuple[tuple[str, Metric], ...] = ((QUEUE, QUEUE_TIME), (PREFILL, PREFILL_TIME), (DECODE, DECODE_TIME))
"""A stage as the spans call it, and the histogram of all requests' same stage."""
THIS, MEDIAN, TAIL = "this request", "P50 of its backend", "P99 of its backend"
NS_PER_S = 1_000_000_000
CONFIDENCE = ((0.8, 1.0, "high", style.GREEN), (0.5, 0.8, "medium", style.NEUTRAL), (0.0, 0.5, "low", style.ORANGE))
"""From, to, and the word that the watchdog's own sentences have for it. Grafana takes the first that fits, ends included."""


def stages(settings: BoardSettings, place: Place) -> barchart.Panel:
    """The request's stages as one bar, over those of its backend's requests."""
    about = About(
        "Where did its time go?",
        "Queue, prefill and decode of this request, beside the P50 and P99 of each stage over 5 minutes on the chosen backends; "
        "a proxy cannot see into the engine, so its prefill includes the engine's own queue.",
        style.unit_of(QUEUE_TIME),
        "choose a request above",
        place,
    )
    panel = stacked_bars().with_target(search(requests.stages_of_request(), "A"))
    for ref, q in (("B", 0.5), ("C", 0.99)):
        panel = panel.with_target(now(_usual(q), ref).format(PromQueryFormat.TABLE))
    for transformation in _one_bar_each():
        panel = panel.with_transformation(transformation)
    for stage, color in style.STAGE_COLORS.items():
        panel = panel.override_by_regexp(f"/{stage}/", [fixed_color(color), DynamicConfigValue("displayName", stage)])
    return framed(panel, about, elsewhere(settings, BACKEND_UID), MIXED)


def _usual(q: float) -> str:
    """One series a stage, named as the spans are, so that both join."""
    each = (quantile(q, metric, (), "5m", *queries.OF_MODEL) for _, metric in STAGES)
    named = (f'label_replace({asked}, "name", "{stage}", "", "")' for (stage, _), asked in zip(STAGES, each, strict=True))
    return " or ".join(named)


def _one_bar_each() -> tuple[DataTransformerConfig, ...]:
    """Rows are stages at first: joined by the stage's name, brought to seconds, then turned so that a row is a bar."""
    seconds = {
        "mode": "binary",
        "alias": THIS,
        "binary": {"left": "Duration", "operator": "/", "right": str(NS_PER_S)},
        "replaceFields": False,
    }
    # Tempo's column `name` is shown as Name, and transformations go by what is shown.
    names = {"Name": "stage", THIS: THIS, "Value #B": MEDIAN, "Value #C": TAIL}
    organize = {"excludeByName": {}, "indexByName": {name: i for i, name in enumerate(names)}, "renameByName": names}
    return (
        DataTransformerConfig(id_val="merge", options={}),
        DataTransformerConfig(id_val="calculateField", options=seconds),
        DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(names)}}),
        DataTransformerConfig(id_val="organize", options=organize),
        DataTransformerConfig(id_val="transpose", options={"firstFieldName": "whose"}),
    )


def shares(settings: BoardSettings, place: Place) -> table.Panel:
    """What the open findings about the chosen backends are put down to."""
    about = About(
        "Why is the backend slow? Shares of its open findings",
        "What explains each open finding, its five largest shares and the rest, adding to 100 %; unknown is what nothing "
        "explains, and sure says how far to trust a share.",
        style.unit_of(FINDING_SHARE),
        "no open finding has causes",
        place,
    )
    labels = (*queries.BY_BACKEND, FINDING_KIND, DIMENSION, VALUE)
    bar = {"custom.cellOptions": {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}, "min": 0, "max": 1}
    sure = {"mappings": _confidence_words(), **COLORED_TEXT}
    share = by("max", labels, series(FINDING_SHARE, *queries.OF_BACKEND))
    confidence = by("max", labels, series(FINDING_CONFIDENCE, *queries.OF_BACKEND))
    columns = (
        Column("Cluster", None, source=CLUSTER.name),
        Column("Backend", None, source=BACKEND.name, width=95),
        Column("Finding", None, source=FINDING_KIND.name, width=95),
        Column("Cause", None, source=DIMENSION.name, width=80),
        Column("Which", None, source=VALUE.name),
        Column("Share", share, style.unit_of(FINDING_SHARE), width=130, overrides=bar),
        Column("Sure", confidence, style.unit_of(FINDING_CONFIDENCE), width=70, overrides=sure),
    )
    panel = fill_table(table.Panel(), columns).thresholds(style.steps()).mappings([style.missing("–")])
    order = (("Backend", False), ("Finding", False), ("Share", True))
    panel = panel.sort_by([common.TableSortByFieldState().display_name(name).desc(desc) for name, desc in order])
    return framed(panel, about, elsewhere(settings, HEALING_UID))


def _confidence_words() -> list[object]:
    return [*(style.range_map(*bound) for bound in CONFIDENCE), style.missing("–")]
