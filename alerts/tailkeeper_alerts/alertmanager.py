"""Alertmanager's configuration: who is told, how often, and which alert makes another one superfluous. Pure.

Every inhibition compares ``backend``, and only alerts that always carry it stand in one: Alertmanager takes a label that
is missing on both sides for equal, and would silence strangers (field report D3).
"""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_alerts.document import Yaml, to_yaml
from tailkeeper_alerts.groups.health import SCORE_BANDS

GROUP_BY = ("alertname", "backend")
REPEAT_INTERVALS = {"0.2": "5m", "0.4": "15m", "0.6": "1h"}
"""The worse the score, the sooner people hear of it again (product description 3.1). One entry a band."""
DEFAULT_REPEAT = "4h"
MAX_ALERTS = 200
"""More alerts than this in one message help nobody; Alertmanager says in the message how many it left out."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """The watchdog's webhook and, inside Alertmanager's container, the file with its bearer token."""

    url: str = "http://watchdog:8088/api/v1/alerts"
    credentials_file: str = "/run/tailkeeper/token"


@dataclass(frozen=True, slots=True)
class Inhibition:
    """``source`` firing silences ``target`` of the same ``equal`` labels. Each is (alert name, extra matcher)."""

    source: tuple[str, str | None]
    target: tuple[str, str | None]
    equal: tuple[str, ...] = ("backend",)

    def document(self) -> dict[str, Yaml]:
        return {
            "source_matchers": _matchers(self.source),
            "target_matchers": _matchers(self.target),
            "equal": list(self.equal),
        }


INHIBITIONS = (
    Inhibition(("HealthDegraded", 'score_band="0.2"'), ("HealthDegraded", 'score_band=~"0[.]4|0[.]6"')),
    Inhibition(("HealthDegraded", 'score_band="0.4"'), ("HealthDegraded", 'score_band="0.6"')),
    Inhibition(("MemoryPressure", 'severity="page"'), ("MemoryPressure", 'severity="ticket"')),
    # A hung backend has a score of 0 by definition; telling both would be telling it twice.
    Inhibition(("BackendHung", None), ("HealthDegraded", None)),
)


def _matchers(side: tuple[str, str | None]) -> list[Yaml]:
    name, extra = side
    return [f'alertname="{name}"', *([extra] if extra is not None else [])]


def configuration(receiver: Receiver) -> str:
    """The whole file as YAML text."""
    bands: list[Yaml] = [
        {"matchers": [f'score_band="{band}"'], "repeat_interval": REPEAT_INTERVALS[band]} for band in sorted(SCORE_BANDS)
    ]
    webhook: dict[str, Yaml] = {
        "url": receiver.url,
        "send_resolved": True,
        "max_alerts": MAX_ALERTS,
        "http_config": {"authorization": {"type": "Bearer", "credentials_file": receiver.credentials_file}},
    }
    route: dict[str, Yaml] = {
        "receiver": "watchdog",
        "group_by": list(GROUP_BY),
        "group_wait": "5s",
        "group_interval": "1m",
        "repeat_interval": DEFAULT_REPEAT,
        "routes": bands,
    }
    return to_yaml(
        {
            "route": route,
            "inhibit_rules": [inhibition.document() for inhibition in INHIBITIONS],
            "receivers": [{"name": "watchdog", "webhook_configs": [webhook]}],
        }
    )
