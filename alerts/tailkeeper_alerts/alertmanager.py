"""Alertmanager's files, put together: configuration, templates, and the file of receivers before anybody edits it. Pure."""

from __future__ import annotations

from importlib import resources

from tailkeeper_alerts.document import Yaml, to_yaml
from tailkeeper_alerts.notifications.inhibition import INHIBITIONS
from tailkeeper_alerts.notifications.integrations import WatchdogWebhook, documents
from tailkeeper_alerts.notifications.receivers import Receivers
from tailkeeper_alerts.notifications.routes import Timing, route

FOLDER = "deploy/alertmanager"
CONFIGURATION_PATH = f"{FOLDER}/alertmanager.yml"
RECEIVERS_PATH = f"{FOLDER}/receivers.yaml"
TEMPLATES_FOLDER = f"{FOLDER}/templates"
TEMPLATES = ("common.tmpl", "email.tmpl", "pagers.tmpl", "slack.tmpl")
TEMPLATES_GLOB = "templates/*.tmpl"
"""Relative to the configuration, so that the folder can lie anywhere."""


def configuration(
    receivers: Receivers | None = None, watchdog: WatchdogWebhook | None = None, timing: Timing | None = None
) -> str:
    """The whole file as YAML text. Without receivers only the watchdog is told."""
    receivers = receivers or Receivers()
    rules: list[Yaml] = [document for inhibition in INHIBITIONS for document in inhibition.documents()]
    return to_yaml(
        {
            "templates": [TEMPLATES_GLOB],
            "route": route(receivers, timing),
            "inhibit_rules": rules,
            "receivers": documents(receivers, watchdog or WatchdogWebhook()),
        }
    )


def templates() -> dict[str, str]:
    """File name → text, as they lie in the package."""
    folder = resources.files("tailkeeper_alerts.notifications") / "templates"
    return {name: (folder / name).read_text(encoding="utf-8") for name in TEMPLATES}


def default_receivers() -> str:
    """The text of `receivers.yaml` as it is written where there is none: every kind, none of it on."""
    return (resources.files("tailkeeper_alerts.notifications") / "receivers.yaml").read_text(encoding="utf-8")


def render(receivers: Receivers | None = None, watchdog: WatchdogWebhook | None = None) -> dict[str, str]:
    """Every generated file of Alertmanager: path from the project's root → text."""
    texts = {f"{TEMPLATES_FOLDER}/{name}": text for name, text in templates().items()}
    return {CONFIGURATION_PATH: configuration(receivers, watchdog), **texts}
