"""Whether anybody would be told: Alertmanager is set, answers, and has a receiver for people. Sends nothing."""

from __future__ import annotations

from typing import Any

import yaml

from tailkeeper.asking import Asker, AskError
from tailkeeper.doctor.findings import Finding, Findings, Mistake, Severity
from tailkeeper.doctor.sentences import skewed, unreachable
from tailkeeper_exporter.clients import Clients
from tailkeeper_watchdog.settings import AlertmanagerSettings

ASK_S = 5.0
KEY = "watchdog.alertmanager.url"
OWN_PATH = "/api/v1/alerts"
"""Of the watchdog, where Alertmanager may tell it of alerts: nobody reads them there."""
TEST = "`tailkeeper notify-test -c FILE` then shows whether a message arrives"


async def check_alertmanager(settings: AlertmanagerSettings, clients: Clients) -> Findings:
    if settings.url is None:
        what = "it is not set, so nobody is told of anything"
        return [Finding(Mistake.ALERTMANAGER_NOT_SET, KEY, what, f"set it to Alertmanager's address; {TEST}", Severity.WARNING)]
    try:
        async with Asker(settings.url, settings.auth, clients) as asker:
            answer = await asker.get("/api/v2/status", ASK_S)
            document = answer.json()
    except AskError as error:
        auth = "watchdog.alertmanager.auth"
        return [unreachable(error, Mistake.ALERTMANAGER_UNREACHABLE, KEY, settings.url, "Alertmanager", auth)]
    config = document.get("config") if isinstance(document, dict) else None
    original = config.get("original") if isinstance(config, dict) else None
    if not isinstance(original, str):
        what = f"{settings.url} answers, and not as Alertmanager's API does"
        return [Finding(Mistake.ALERTMANAGER_UNREACHABLE, KEY, what, f"correct {KEY}: its port is 9093 unless changed")]
    return [*skewed(answer.clock, KEY, "Alertmanager"), *_receivers(original)]


def _receivers(original: str) -> Findings:
    """Of its configuration, in which it hides every secret itself. What cannot be read there is not judged."""
    try:
        rows = yaml.safe_load(original)["receivers"]
        people = [row["name"] for row in rows if any(_reaches_people(kind, entries) for kind, entries in row.items())]
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        return []
    if people:
        return []
    what = "none of its receivers reaches a person: alerts are taken, and end there"
    do = f"turn one on (Slack, e-mail, PagerDuty, …): docs/notifications.md; {TEST}"
    return [Finding(Mistake.NO_RECEIVER, KEY, what, do, Severity.WARNING)]


def _reaches_people(kind: str, entries: Any) -> bool:
    if not kind.endswith("_configs") or not isinstance(entries, list):
        return False
    if kind != "webhook_configs":
        return bool(entries)
    return any(not str(entry.get("url", "")).split("?")[0].endswith(OWN_PATH) for entry in entries)
