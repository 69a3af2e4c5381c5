"""A receiver as Alertmanager's document: what is sent, by which template, with which credentials. Pure.

Only fields that Alertmanager 0.25 (Debian's) and the release of the compose file both know. Secrets are files that
Alertmanager reads at each notification, so a missing one is an error in its log and not the end of its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailkeeper_alerts.document import Yaml
from tailkeeper_alerts.notifications.receivers import (
    AGAIN,
    WATCHDOG,
    AnyReceiver,
    Email,
    Opsgenie,
    PagerDuty,
    Receivers,
    Slack,
    Webhook,
)

MAX_ALERTS = 200
"""More alerts than this in one message help nobody; Alertmanager says in the message how many it left out."""


@dataclass(frozen=True, slots=True)
class WatchdogWebhook:
    """The watchdog's webhook and, inside Alertmanager's container, the file with its bearer token."""

    url: str = "http://watchdog:8088/api/v1/alerts"
    credentials_file: str = "/run/tailkeeper/token"


def documents(receivers: Receivers, watchdog: WatchdogWebhook) -> list[Yaml]:
    """Every receiver, and the reminded ones a second time under another name: they are not told of the end twice."""
    found: list[Yaml] = [{"name": WATCHDOG, "webhook_configs": [_webhook(watchdog.url, watchdog.credentials_file, True)]}]
    for receiver in receivers.receivers:
        found.append({"name": receiver.name, **_of(receiver, receivers, True)})
        if receiver.reminds:
            found.append({"name": receiver.name + AGAIN, **_of(receiver, receivers, False)})
    return found


def _of(receiver: AnyReceiver, receivers: Receivers, resolved: bool) -> dict[str, Yaml]:
    secret = receivers.secret
    if isinstance(receiver, Slack):
        return {"slack_configs": [_slack(receiver, secret, resolved)]}
    if isinstance(receiver, Email):
        return {"email_configs": [_email(receiver, secret, resolved)]}
    if isinstance(receiver, PagerDuty):
        return {"pagerduty_configs": [_pagerduty(receiver, secret)]}
    if isinstance(receiver, Opsgenie):
        return {"opsgenie_configs": [_opsgenie(receiver, secret)]}
    assert isinstance(receiver, Webhook)
    file = secret(receiver.credentials_file) if receiver.credentials_file is not None else None
    return {"webhook_configs": [_webhook(receiver.url, file, resolved)]}


Secret = Callable[[str], str]


def _template(name: str) -> str:
    return f'{{{{ template "tailkeeper.{name}" . }}}}'


def _webhook(url: str, credentials_file: str | None, resolved: bool) -> dict[str, Yaml]:
    authorization: Mapping[str, Yaml] = {"type": "Bearer", "credentials_file": credentials_file}
    return {
        "url": url,
        "send_resolved": resolved,
        "max_alerts": MAX_ALERTS,
        **({"http_config": {"authorization": authorization}} if credentials_file is not None else {}),
    }


def _slack(receiver: Slack, secret: Secret, resolved: bool) -> dict[str, Yaml]:
    return {
        "api_url_file": secret(receiver.api_url_file),
        "channel": receiver.channel,
        "send_resolved": resolved,
        "username": "Tailkeeper",
        "color": _template("slack.color"),
        "title": _template("slack.title"),
        "title_link": _template("board_url"),
        "text": _template("slack.text"),
        "fallback": _template("slack.title"),
        "footer": "",
        "mrkdwn_in": ["text"],
    }


def _email(receiver: Email, secret: Secret, resolved: bool) -> dict[str, Yaml]:
    login: dict[str, Yaml] = {}
    if receiver.username is not None and receiver.password_file is not None:
        login = {"auth_username": receiver.username, "auth_password_file": secret(receiver.password_file)}
    return {
        "to": receiver.to,
        "from": receiver.sender,
        "smarthost": receiver.smarthost,
        **login,
        "require_tls": receiver.require_tls,
        "send_resolved": resolved,
        "headers": {"Subject": _template("title")},
        "text": _template("email.text"),
        "html": _template("email.html"),
    }


def _pagerduty(receiver: PagerDuty, secret: Secret) -> dict[str, Yaml]:
    """One incident for each group, kept together by Alertmanager's deduplication key, closed when the group is over."""
    return {
        "routing_key_file": secret(receiver.routing_key_file),
        "send_resolved": True,
        "description": _template("title"),
        "severity": _template("pagerduty.severity"),
        "client": "Tailkeeper",
        "client_url": _template("console_url"),
        "class": "{{ .CommonLabels.alertname }}",
        "component": "{{ .GroupLabels.backend }}",
        "group": "{{ .CommonLabels.pool }}",
        # `firing` and `resolved` are Alertmanager's own keys; filled here, or it would add every label of every alert.
        "details": {"firing": _template("text.firing"), "resolved": _template("text.resolved")},
        "links": [
            {"href": _template("board_url"), "text": "Root-cause board"},
            {"href": _template("console_url"), "text": "Console: hold or release it"},
            {"href": _template("runbook_url"), "text": "Runbook"},
            {"href": _template("silence_url"), "text": "Silence"},
        ],
    }


def _opsgenie(receiver: Opsgenie, secret: Secret) -> dict[str, Yaml]:
    return {
        "api_key_file": secret(receiver.api_key_file),
        **({"api_url": receiver.api_url} if receiver.api_url is not None else {}),
        "send_resolved": True,
        # A change of band or cause is an update of the same alert; its alias is Alertmanager's group.
        "update_alerts": True,
        "message": _template("title"),
        "description": _template("email.text"),
        "priority": _template("opsgenie.priority"),
        "source": _template("board_url"),
        "entity": "{{ .GroupLabels.backend }}",
        "tags": "tailkeeper,{{ .CommonLabels.severity }}",
        **({"responders": [{"type": "team", "name": receiver.team}]} if receiver.team is not None else {}),
    }
