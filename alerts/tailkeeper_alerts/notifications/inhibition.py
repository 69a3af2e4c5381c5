"""Which alert makes another one superfluous. Pure.

Alertmanager takes a label that is missing on both sides for equal, and so silences strangers (field report D3). Therefore
each rule demands of both sides every label that it compares: an alert without the label takes no part. ``cluster`` is the
one that is there or not by set-up, so each rule stands twice, for alerts with it and for alerts without it. Source and
target of a rule differ in a label's value, so no alert can silence itself or its equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_alerts.document import Yaml


@dataclass(frozen=True, slots=True)
class Side:
    """The alerts of one side: matchers in Alertmanager's notation."""

    matchers: tuple[str, ...]

    @classmethod
    def of(cls, name: str, *more: str) -> Side:
        return cls((f'alertname="{name}"', *more))


@dataclass(frozen=True, slots=True)
class Inhibition:
    """``source`` firing silences ``target`` of the same backend, and of the same ``equal`` beside that."""

    source: Side
    target: Side
    equal: tuple[str, ...] = ()

    def documents(self) -> list[Yaml]:
        """Once for alerts that carry a cluster, once for those that do not."""
        labels = ("backend", *self.equal)
        return [
            self._document(labels, 'cluster=""'),
            self._document(("cluster", *labels)),
        ]

    def _document(self, labels: tuple[str, ...], *more: str) -> dict[str, Yaml]:
        carried = [*(f'{label}=~".+"' for label in labels), *more]
        return {
            "source_matchers": [*self.source.matchers, *carried],
            "target_matchers": [*self.target.matchers, *carried],
            "equal": list(labels),
        }


OF_RULES = 'source=""'
"""Only the rules tell a backend at every level that it has passed; the watchdog tells the one that it is at. Were the watchdog's
alerts targets here, too, the two sources could silence each other, and nobody would be told."""
BURN_OF_WATCHDOG = ('source="watchdog"', 'kind="slo_burn"', 'alertname=~"SLO.+"')
"""Without a burst, which has the name of a bad score and is something else."""
NOT_LATE = 'signal=""'
"""Requests that failed; those that are late carry which latency it is."""

INHIBITIONS = (
    Inhibition(
        Side.of("HealthDegraded", 'score_band="0.2"', OF_RULES),
        Side.of("HealthDegraded", 'score_band=~"0[.]4|0[.]6"', OF_RULES),
    ),
    Inhibition(
        Side.of("HealthDegraded", 'score_band="0.4"', OF_RULES),
        Side.of("HealthDegraded", 'score_band="0.6"', OF_RULES),
    ),
    Inhibition(
        Side.of("MemoryPressure", 'severity="page"', OF_RULES),
        Side.of("MemoryPressure", 'severity="ticket"', OF_RULES),
    ),
    # A hung backend has a score of 0 by definition; telling both would be telling it twice.
    Inhibition(Side.of("BackendHung"), Side.of("HealthDegraded")),
    # The watchdog's alert has the causes and what was done; the rule's alert of the same name and severity says no more. Only
    # where both are about the same: advice, for one, has the name of a bad score (an empty kind) and is something else.
    Inhibition(
        Side(('source="watchdog"', 'kind=~"|hung|down|memory_pressure|telemetry_lost|block_e"')),
        Side((OF_RULES,)),
        ("alertname", "severity"),
    ),
    # Likewise one burn, seen by both: of the same signal, or of none on both sides, because late and failed requests are two.
    Inhibition(Side(BURN_OF_WATCHDOG), Side((OF_RULES,)), ("alertname", "severity", "signal")),
    Inhibition(Side((*BURN_OF_WATCHDOG, NOT_LATE)), Side((OF_RULES, NOT_LATE)), ("alertname", "severity")),
)
