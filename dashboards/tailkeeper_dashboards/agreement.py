"""Whether three sources say the same of a strategy: what the watchdog finds, what Prometheus tells people, what was done.

At three in the morning they agree about a strategy when all are quiet, when all three speak, or when the last change is just
being given back. Anything else means that one of them is blind, silent or not allowed, and a person has to look: an alert that
names a strategy promises that somebody acts. Pure text.
"""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.models.dashboard import ValueMapping

from tailkeeper_alerts.promql import CLUSTER, by, eq, regex, series
from tailkeeper_dashboards import queries, style
from tailkeeper_dashboards.prometheus_own import STRATEGY, firing
from tailkeeper_watchdog.metrics import DECISIONS, FINDING_KIND, FINDINGS_OPEN, PAUSED, POLICY, VERDICT

STRATEGIES: Mapping[str, tuple[str, ...]] = {
    "gpu_health_gate": ("hung", "down"),
    "memory_breaker": ("memory_pressure",),
    "slo_guardian": ("slo_burn",),
}
"""Each strategy that an alert names, with the findings that the same alert is about."""

WORDS: Mapping[str, tuple[str, str]] = {
    "0": ("yes: all quiet", style.GREEN),
    "1": ("yes: kept or given back", style.GREEN),
    "2": ("no: an alert, and nothing is found", style.RED),
    "3": ("no: told and acted, and nothing is found", style.RED),
    "4": ("no: found, and nobody is told or acts", style.ORANGE),
    "5": ("no: found and acted, and nobody is told", style.ORANGE),
    "6": ("no: found and told, and nothing is done", style.ORANGE),
    "7": ("yes: found, told and acted", style.BLUE),
    "8": ("yes: just over", style.GREEN),
    "9": ("yes: just over", style.GREEN),
    "10": ("yes: just over, the alert ends", style.GREEN),
    "11": ("yes: just over, the alert ends", style.GREEN),
}
"""By 4 for found, 2 for told, 1 for acted, and 8 for what was found within the last 5 minutes and is not any more: alerts go on
for up to two minutes, so that one incident does not fire twice."""


def words() -> list[ValueMapping]:
    return [style.value_map(WORDS)]


def code(strategy: str) -> str:
    """A number a cluster as in ``WORDS``; nothing at all where no watchdog is seen."""
    found, lately, told, acted = _found(strategy), _lately(strategy), _told(strategy), _acted(strategy)
    return f"4 * ({found}) + 8 * (({lately}) > bool ({found})) + 2 * ({told}) + ({acted})"


def differing() -> str:
    """How many strategies the sources differ about."""
    return " + ".join(f"({differs(strategy)})" for strategy in STRATEGIES)


def differs(strategy: str) -> str:
    """Told and not found lately, or found and not both told and acted."""
    found, lately, told, acted = _found(strategy), _lately(strategy), _told(strategy), _acted(strategy)
    return f"(({told}) > bool ({lately})) + (({found}) > bool (({told}) * ({acted})))"


def _found(strategy: str) -> str:
    return _is(by("sum", (CLUSTER,), _findings(strategy)))


def _lately(strategy: str) -> str:
    return _is(by("sum", (CLUSTER,), f"max_over_time({_findings(strategy)}[5m])"))


def _findings(strategy: str) -> str:
    return series(FINDINGS_OPEN, queries.IN_CLUSTER, regex(FINDING_KIND, "|".join(STRATEGIES[strategy])))


def _told(strategy: str) -> str:
    told = firing(eq(STRATEGY, strategy), queries.IN_CLUSTER)
    return _is(by("sum", (CLUSTER,), told))


def _acted(strategy: str) -> str:
    done = series(DECISIONS, eq(POLICY, strategy), regex(VERDICT, "applied|already"), queries.IN_CLUSTER)
    return _is(by("sum", (CLUSTER,), f"increase({done}[5m])"))


def _is(expression: str) -> str:
    """1 or 0, and 0 where there is no such series while a watchdog is there."""
    quiet = f"0 * {by('max', (CLUSTER,), series(PAUSED, queries.IN_CLUSTER))}"
    return f"({expression} or {quiet}) > bool 0"
