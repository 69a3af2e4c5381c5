"""The gateways' part of the configuration: where traffic, batching, caches and replicas are switched. No I/O.

One class a kind, with the actuator of the same name in ``actuators/``. ``Gateway`` is the only list.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from tailkeeper_exporter.settings import Auth, Settings, check_url


class HaproxyGateway(Settings):
    name: str
    kind: Literal["haproxy"]
    socket: str
    """Path of the stats socket, or HOST:PORT; level admin is needed to write."""
    replicas: tuple[str, ...] = ()


class WebhookGateway(Settings):
    name: str
    kind: Literal["webhook"]
    url: str
    auth: Auth = Auth()
    replicas: tuple[str, ...] = ()

    _check_url = field_validator("url")(check_url)


class TapGateway(Settings):
    """The taps of the backends themselves, each turned at the exporter that runs it."""

    name: str
    kind: Literal["tap"]
    urls: Annotated[tuple[str, ...], Field(max_length=10_000)] = ()
    """Of exporters; default those that the watchdog reads, else the exporter of the same file."""
    auth: Auth = Auth()
    """Default, where `urls` is left out too: the exporter's `token_file` of the same file."""

    @field_validator("urls")
    @classmethod
    def _check(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(check_url(url)) for url in urls)


Gateway = Annotated[HaproxyGateway | WebhookGateway | TapGateway, Field(discriminator="kind")]
