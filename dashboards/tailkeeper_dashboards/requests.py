"""Queries for single requests, in TraceQL for Tempo and in LogQL for Loki, from the names that our spans and logs have. Pure.

``$request_id`` is what somebody typed or clicked, and empty before that. Engines put a prefix before an id, so each is found
with and without one. A backend's name is a regular expression here as in PromQL, with ``.*`` for all.
"""

from __future__ import annotations

from tailkeeper_alerts.slo import FAILED
from tailkeeper_dashboards.style import seconds_in_query
from tailkeeper_exporter.otlp import attributes as names
from tailkeeper_exporter.otlp.spans import REQUEST_SPAN, SERVICE_NAME, STAGES

TYPED = "(cmpl-|chatcmpl-)?$request_id"
"""The typed id as a regular expression that matches the whole; it matches no id while nothing is typed."""
SHOWN = (names.BACKEND, names.REQUEST_ID, names.TTFT, names.OUTCOME, names.GPU, names.REQUEST_MODEL)
"""Attributes that the tables of requests have as columns."""
MOST_FOUND = 500
"""Requests that are fetched; of these the worst are shown. Tempo and Loki give the newest, they cannot sort by an attribute."""


def label(attribute: str) -> str:
    """An attribute as Loki names it."""
    return attribute.replace(".", "_")


def slow_spans(slo_s: float) -> str:
    """Requests that came late or went wrong, of the chosen backends and models; the one that was typed, whatever it was like."""
    slow = f'span.{names.TTFT} > {seconds_in_query(slo_s)} || span.{names.OUTCOME} =~ "{FAILED.value}"'
    chosen = " && ".join(
        (
            f'name = "{REQUEST_SPAN}"',
            f'span.{names.BACKEND} =~ "${{backend:pipe}}"',
            f'span.{names.REQUEST_MODEL} =~ "${{model:pipe}}"',
            f'span.{names.REQUEST_ID} =~ "{TYPED}.*"',
            f'({slow} || span.{names.REQUEST_ID} =~ "{TYPED}")',
        )
    )
    return f"{{ {chosen} }} | select({', '.join(f'span.{name}' for name in SHOWN)})"


def stages_of_request() -> str:
    """The child spans of the request that was typed or clicked."""
    stages = "|".join(STAGES)
    return f'{{ name = "{REQUEST_SPAN}" && span.{names.REQUEST_ID} =~ "{TYPED}" }} > {{ name =~ "{stages}" }}'


def slow_lines(slo_s: float) -> str:
    """The same from the access log, which has every request, whether its trace was kept or not."""
    request = label(names.REQUEST_ID)
    slow = f'{label(names.TTFT)} > {seconds_in_query(slo_s)} or {label(names.OUTCOME)} =~ "{FAILED.value}"'
    stages = (
        f'{{service_name="{SERVICE_NAME}"}}',
        f'{label(names.BACKEND)} =~ "$backend"',
        f'{label(names.REQUEST_MODEL)} =~ "$model"',
        f'{request} =~ "{TYPED}.*"',
        f'({slow} or {request} =~ "{TYPED}")',
    )
    return " | ".join(stages)


def lines_of_request() -> str:
    """What our programs logged about the request, by its id or by its trace's; nothing while neither is given."""
    request = label(names.REQUEST_ID)
    by_id = f'({request} != "" and {request} =~ "{TYPED}")'
    by_trace = '(trace_id != "" and trace_id = "$trace_id")'
    return f'{{service_name=~"tailkeeper-.+"}} | {by_id} or {by_trace}'
