"""Alerts that Alertmanager told us of: information for people, never a command. Bounded; the oldest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_ALERTS_KEPT = 500
"""Three times what a busy night brings; about 1 MB at most."""
MAX_LABELS = 32
NAME_LIMIT_CHARS = 128
VALUE_LIMIT_CHARS = 256
FINGERPRINT_LIMIT_CHARS = 64
STATUSES = ("firing", "resolved")
WEBHOOK = {
    "requestBody": {
        "content": {"application/json": {"schema": {"required": ["alerts"], "properties": {"alerts": {"type": "array"}}}}}
    }
}
"""What a body must be, for ``/openapi.json``; of its alerts those that are none are counted as refused."""


class NotAWebhookError(ValueError):
    """The document is not Alertmanager's webhook; the message says what is expected where."""


@dataclass(frozen=True, slots=True)
class Taken:
    """How many alerts of one webhook were understood, and how many were not."""

    taken: int
    refused: int


class Received:
    """One entry per incident (fingerprint and start), so that a repeated notification stays one."""

    def __init__(self) -> None:
        self._alerts: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

    def take(self, document: Mapping[str, Any], now_unix_s: float) -> Taken:
        """Keep the alerts of one webhook. Raises NotAWebhookError."""
        rows = document.get("alerts")
        if not isinstance(rows, list):
            raise NotAWebhookError('alerts: must be a list of alerts, each with "fingerprint", "status", "startsAt" and "labels"')
        understood = [alert for row in rows[:MAX_ALERTS_KEPT] if (alert := _alert(row, now_unix_s)) is not None]
        for alert in understood:
            key = (alert["fingerprint"], alert["starts_at"])
            self._alerts[key] = alert
            self._alerts.move_to_end(key)
        while len(self._alerts) > MAX_ALERTS_KEPT:
            self._alerts.popitem(last=False)
        return Taken(len(understood), len(rows) - len(understood))

    def newest_first(self) -> list[dict[str, Any]]:
        """``GET /api/v1/alerts``."""
        return list(reversed(self._alerts.values()))


def _alert(row: object, now_unix_s: float) -> dict[str, Any] | None:
    if not isinstance(row, dict) or row.get("status") not in STATUSES:
        return None
    fingerprint = row.get("fingerprint")
    if not isinstance(fingerprint, str) or not 0 < len(fingerprint) <= FINGERPRINT_LIMIT_CHARS:
        return None
    labels = row.get("labels")
    return {
        "fingerprint": fingerprint,
        "starts_at": str(row.get("startsAt", ""))[:NAME_LIMIT_CHARS],
        "status": row["status"],
        "labels": _labels(labels) if isinstance(labels, dict) else {},
        "received": now_unix_s,
    }


def _labels(labels: Mapping[Any, Any]) -> dict[str, str]:
    return {str(k)[:NAME_LIMIT_CHARS]: str(v)[:VALUE_LIMIT_CHARS] for k, v in list(labels.items())[:MAX_LABELS]}
