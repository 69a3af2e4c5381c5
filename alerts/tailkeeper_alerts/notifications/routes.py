"""Who hears of which alert, and how often. Pure.

One incident is one notification: everything about one backend is one group, at each receiver, whatever its severity, its
band or its cause, so that a change of those updates the group instead of opening another one. A group repeats at one
interval, but the worse the score, the sooner people are to hear again. So reminders are routes of their own, one for each
band: they wait for one interval before they first speak, they never speak of the end, and they end with the band.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailkeeper_alerts.document import Yaml
from tailkeeper_alerts.notifications.receivers import AGAIN, WATCHDOG, AnyReceiver, Receivers
from tailkeeper_watchdog.alert_terms import NONE

GROUP_BY = ("cluster", "backend")
NO_BACKEND_GROUP_BY = ("cluster", "alertname")
"""Alerts about no backend, such as WatchdogDown, have nothing in common but that."""
NO_BACKEND = f'"|{NONE}"'
"""As a pattern: ours say so in a word, because every alert carries every label; those of others leave the label out."""
REPEAT_INTERVALS: Mapping[str, str] = {"0.2": "5m", "0.4": "15m", "0.6": "1h"}
"""The worse the score, the sooner people hear of it again (product description 3.1). One entry a band."""
REMINDER_GROUP_INTERVALS: Mapping[str, str] = {band: f"{interval}10s" for band, interval in REPEAT_INTERVALS.items()}
"""Alertmanager looks at a group once in this time and repeats what is older than the repeat interval. The ten seconds are for
sending: equal intervals would find the last notification a moment too young, and skip every second one."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a group gathers before it first speaks, before it speaks of a change, and before it repeats itself."""

    group_wait: str = "5s"
    group_interval: str = "1m"
    repeat_interval: str = "4h"

    def document(self) -> dict[str, Yaml]:
        return {
            "group_wait": self.group_wait,
            "group_interval": self.group_interval,
            "repeat_interval": self.repeat_interval,
        }


def route(receivers: Receivers, timing: Timing | None = None) -> dict[str, Yaml]:
    """The routing tree. The watchdog's own webhook hears of everything, people of what their receiver is for."""
    people = [branch for receiver in receivers.receivers for branch in _of(receiver)]
    return {
        "receiver": WATCHDOG,
        "group_by": list(GROUP_BY),
        **(timing or Timing()).document(),
        "routes": [_of_watchdog(), *people],
    }


def _of_watchdog() -> dict[str, Yaml]:
    bands: list[Yaml] = [
        {"matchers": [_band(band)], "repeat_interval": interval} for band, interval in sorted(REPEAT_INTERVALS.items())
    ]
    return {"receiver": WATCHDOG, "continue": True, "routes": bands}


def _of(receiver: AnyReceiver) -> list[Yaml]:
    matchers = _matchers(receiver)
    alone: dict[str, Yaml] = {"matchers": [f"backend=~{NO_BACKEND}"], "group_by": list(NO_BACKEND_GROUP_BY)}
    first: dict[str, Yaml] = {
        "receiver": receiver.name,
        "matchers": matchers,
        "continue": True,
        # A receiver of chosen backends never sees an alert about none.
        **({"routes": [alone]} if receiver.backends is None else {}),
    }
    again = [_reminder(receiver.name, matchers, band) for band in sorted(REPEAT_INTERVALS)] if receiver.reminds else []
    return [first, *again]


def _reminder(name: str, matchers: list[Yaml], band: str) -> Yaml:
    interval = REMINDER_GROUP_INTERVALS[band]
    return {
        "receiver": name + AGAIN,
        "matchers": [*matchers, _band(band)],
        "continue": True,
        **Timing(interval, interval, REPEAT_INTERVALS[band]).document(),
    }


def _band(band: str) -> str:
    return f'score_band="{band}"'


def _matchers(receiver: AnyReceiver) -> list[Yaml]:
    severities = "|".join(severity.value for severity in receiver.severities)
    chosen = [] if receiver.backends is None else [f'backend=~"{_escaped(receiver.backends)}"', f"backend!~{NO_BACKEND}"]
    return [f'severity=~"{severities}"', *chosen]


def _escaped(expression: str) -> str:
    """Within the quotes of a matcher."""
    return expression.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
