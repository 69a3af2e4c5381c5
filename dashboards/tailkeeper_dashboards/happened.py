"""LogQL of what the watchdog did and what a cluster said, in the words that both write. Pure text.

Loki makes a resource's ``service.name`` the stream label ``service_name``; all else is structured metadata.
"""

from __future__ import annotations

from tailkeeper_dashboards.requests import label
from tailkeeper_exporter.otlp import attributes
from tailkeeper_exporter.otlp.spans import SERVICE_NAME as TAP
from tailkeeper_watchdog.happenings import names
from tailkeeper_watchdog.happenings.names import Phase

WATCHDOG = f'{{service_name="{names.SERVICE_NAME}"}}'
KUBERNETES = f'{{service_name="{names.KUBERNETES_SERVICE_NAME}"}}'
OF_BACKENDS = f'{names.BACKEND} =~ "$backend"'
"""What is about no backend, such as a common cause, stays when all are chosen."""
WINDOW = "$__auto"
"""Grafana's own choice for a query over time in Loki."""


def decisions() -> str:
    """The decision log and the findings."""
    return f"{WATCHDOG} | {OF_BACKENDS}"


def refusals() -> str:
    """Only what a guard did not allow."""
    return f'{WATCHDOG} | {names.VERDICT} = "refused" | {OF_BACKENDS}'


def changes() -> str:
    """How many changes were made in each stretch of time."""
    return f'sum(count_over_time({WATCHDOG} | {names.PHASE} = "{Phase.APPLIED}" [{WINDOW}]))'


def cluster_events() -> str:
    """How many events a cluster had in each stretch of time."""
    return f"sum(count_over_time({KUBERNETES} [{WINDOW}]))"


def p99_by_revision() -> str:
    """P99 to the first token in seconds over the access log's requests that name a revision."""
    backend, model, revision = label(attributes.BACKEND), label(attributes.REQUEST_MODEL), label(attributes.CANARY)
    chosen = f'{backend} =~ "$backend" | {model} =~ "$model" | {revision} != "" | {revision} =~ "$canary"'
    values = f'{{service_name="{TAP}"}} | {chosen} | unwrap {label(attributes.TTFT)} [{WINDOW}]'
    return f"quantile_over_time(0.99, {values}) by ({revision})"
