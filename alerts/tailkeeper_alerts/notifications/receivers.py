"""``receivers.yaml``: who is to be told. Parsed strictly; every secret is the name of a file, never the secret itself.

The file is the only part of the notifications that people edit. What it becomes is in ``integrations``.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from tailkeeper_alerts.model import Severity
from tailkeeper_exporter.settings import Settings, check_url

WATCHDOG = "watchdog"
AGAIN = "-again"
"""Ending of the name under which a receiver is reminded: reminders are routes of their own."""
SECRETS_DIR = "/etc/alertmanager/secrets"
MAX_RECEIVERS = 50
"""Each has up to four routes, and every alert is held against every route."""
NOT_OF_GO = re.compile(
    r"\(\?(?:[=!>(#]|<[=!]|P=|[a-zL-]*[aLux])"
    r"|(?<!\\)(?:\\\\)*\\[1-9ZuUN]"
    r"|(?<![\\(])[*+?}]\+"
    r"|\{(?:[0-9]+,)?[0-9]{4}"
)
"""What Python's regular expressions have and Alertmanager's have not: looking around, references back, `a++`, `(?x)`, `\\Z`."""

Text = Annotated[str, Field(min_length=1, max_length=500)]


class ReceiverFileError(ValueError):
    """The file is not one of receivers; each line names the key, and what is allowed there."""


class Receiver(Settings):
    """What every kind of receiver has."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = ""
    """Default: its kind. Must differ from the others'."""
    severities: Annotated[tuple[Severity, ...], Field(min_length=1)] = (Severity.PAGE, Severity.TICKET)
    backends: Text | None = None
    """A regular expression that the whole name of the backend matches; alerts about no backend do not. Default: all alerts."""

    @field_validator("backends")
    @classmethod
    def _is_an_expression(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"is no regular expression: {error}") from None
            missing = NOT_OF_GO.search(value)
            if missing is not None:
                raise ValueError(f"{missing[0]!r} is nothing that Alertmanager's regular expressions (RE2) know; do without it")
        return value

    @property
    def reminds(self) -> bool:
        """Whether it hears again by score band. A pager does not: it has its own escalation, and would open a second incident."""
        return True


class Slack(Receiver):
    kind: Literal["slack"]
    channel: Text
    api_url_file: Text
    """Holds the URL of an incoming webhook."""


class Email(Receiver):
    kind: Literal["email"]
    to: Text
    """Several addresses are separated by commas."""
    sender: Text
    smarthost: Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")]
    username: Text | None = None
    password_file: Text | None = None
    require_tls: bool = True

    @model_validator(mode="after")
    def _both_or_none(self) -> Email:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file go together; give both or none")
        return self


class Pager(Receiver):
    """Woken at night, so pages only unless said otherwise."""

    severities: Annotated[tuple[Severity, ...], Field(min_length=1)] = (Severity.PAGE,)

    @property
    def reminds(self) -> bool:
        return False


class PagerDuty(Pager):
    kind: Literal["pagerduty"]
    routing_key_file: Text
    """Holds the integration key of an `Events API v2` integration."""


class Opsgenie(Pager):
    kind: Literal["opsgenie"]
    api_key_file: Text
    api_url: str | None = None
    """Default: Alertmanager's, https://api.opsgenie.com/. In Europe https://api.eu.opsgenie.com/."""
    team: Text | None = None

    _check_url = field_validator("api_url")(check_url)


class Webhook(Receiver):
    kind: Literal["webhook"]
    url: str
    """Not secret: Alertmanager before 0.26 reads no URL from a file. Put the secret into credentials_file."""
    credentials_file: Text | None = None
    """Holds a bearer token."""

    _check_url = field_validator("url")(check_url)


AnyReceiver = Annotated[Slack | Email | PagerDuty | Opsgenie | Webhook, Field(discriminator="kind")]


class Receivers(Settings):
    """The whole file."""

    secrets_dir: Text = SECRETS_DIR
    """Where Alertmanager sees the files that are named without a folder."""
    receivers: Annotated[tuple[AnyReceiver, ...], Field(max_length=MAX_RECEIVERS)] = ()

    @field_validator("receivers", mode="before")
    @classmethod
    def _none_is_empty(cls, value: object) -> object:
        return () if value is None else value

    @field_validator("receivers")
    @classmethod
    def _named_and_different(cls, receivers: tuple[AnyReceiver, ...]) -> tuple[AnyReceiver, ...]:
        named = tuple(r if r.name else r.model_copy(update={"name": r.kind}) for r in receivers)
        names = [r.name for r in named]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two receivers have the name {twice!r}; give each a `name` of its own")
        taken = next((name for name in names if name == WATCHDOG or name.endswith(AGAIN)), None)
        if taken is not None:
            raise ValueError(f"the name {taken!r} is taken: {WATCHDOG!r} and names ending in {AGAIN!r} are built in")
        return named

    def secret(self, file: str) -> str:
        """The path of a secret as Alertmanager sees it."""
        return str(PurePosixPath(self.secrets_dir) / file)


def parse(text: str) -> Receivers:
    """The receivers of a file's text. Raises ReceiverFileError with one line for each wrong key."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ReceiverFileError(f"is no YAML: {str(error).splitlines()[0]}") from None
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ReceiverFileError("must be a mapping with the key `receivers`")
    try:
        return Receivers.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise ReceiverFileError("\n".join(_said(problem) for problem in problems)) from None


def _said(problem: object) -> str:
    """One problem in words, without the value: somebody may have put a secret where the name of its file belongs."""
    assert isinstance(problem, dict)
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where or 'receivers.yaml'}: {problem['msg'].removeprefix('Value error, ')}"
