"""The credentials of a configuration, before anything starts: can each file be used, and what is allowed but unwise.

Reads the files; keeps and repeats nothing of them. Whether a server takes the credentials only the server knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tailkeeper_exporter.credentials import CredentialError, auth_headers, read_by_all, secret_files, token_in
from tailkeeper_exporter.settings import Auth, is_loopback
from tailkeeper_exporter.tls import tls_context

if TYPE_CHECKING:
    from tailkeeper.config import Config
    from tailkeeper_exporter.settings import BackendSettings

_TLS = ("ca_file", "cert_file")


@dataclass(frozen=True, slots=True)
class Place:
    """Where credentials stand in the file, and where they go. ``key`` is the path of the settings that hold `auth`. The token of
    a ``token_file`` is sent by others, to us."""

    key: str
    auth: Auth
    urls: tuple[str, ...]
    api_key_file: Path | None = None
    token_file: Path | None = None
    other_secrets: tuple[tuple[str, Path], ...] = ()
    """Files that hold a secret of another kind, by their keys."""


def places(config: Config, example: BackendSettings | None) -> Iterator[Place]:
    """Every place with credentials, in the order of the file; ``example`` is what `defaults` makes of a found backend."""
    for index, backend in enumerate(config.backends):
        yield _of_backend(f"backends.{index}", backend)
    if example is not None:
        yield Place("defaults", example.auth, (), example.api_key_file)
    for index, entry in enumerate(config.discovery):
        yield Place(f"discovery.{index}", getattr(entry, "auth", Auth()), _urls(entry))
    for index, gateway in enumerate(config.gateways):
        yield Place(f"gateways.{index}", getattr(gateway, "auth", Auth()), _urls(gateway))
    source, alertmanager = config.watchdog.source, config.watchdog.alertmanager
    yield Place("watchdog.source", getattr(source, "auth", Auth()), _urls(source))
    yield Place("watchdog.alertmanager", alertmanager.auth, _urls(alertmanager))
    yield Place("exporter", Auth(), (), token_file=config.exporter.token_file)
    yield Place("watchdog", Auth(), (), token_file=config.watchdog.token_file)
    ledger = config.watchdog.ledger
    if ledger is not None:
        held = (("password_file", ledger.password_file), ("key_file", ledger.key_file))
        yield Place("watchdog.ledger", Auth(), (), other_secrets=tuple((key, file) for key, file in held if file is not None))


def _of_backend(key: str, backend: BackendSettings) -> Place:
    urls = (backend.url, *([backend.metrics_url] if backend.metrics_url else []))
    return Place(key, backend.auth, urls, backend.api_key_file)


def _urls(settings: object) -> tuple[str, ...]:
    """The addresses of one server and of its replicas, whatever its settings call them."""
    found = [getattr(settings, name, None) for name in ("url", "admin_url", "api_url")]
    found += list(getattr(settings, "urls", ()))
    for replica in getattr(settings, "replicas", ()):
        found += [replica] if isinstance(replica, str) else _urls(replica)
    return tuple(url for url in found if isinstance(url, str) and "://" in url)


def problems(found: Iterable[Place]) -> Iterator[str]:
    """Files that cannot be used, one sentence each with its key. The same files in many places are read once."""
    read: set[tuple[object, ...]] = set()
    for place in found:
        files = (place.auth, place.api_key_file, place.token_file)
        if files not in read:
            read.add(files)
            yield from _problems_of(place)


def _problems_of(place: Place) -> Iterator[str]:
    auth, key = place.auth, f"{place.key}.auth"
    if place.api_key_file is not None and (auth.bearer_file or auth.basic_file):
        yield f"{place.key}: api_key_file and auth are both for the header Authorization; leave one out"
    try:
        auth_headers(auth, key)
        if place.api_key_file is not None:
            token_in(place.api_key_file, f"{place.key}.api_key_file")
        if place.token_file is not None:
            token_in(place.token_file, f"{place.key}.token_file")
        if auth.ca_file is not None or auth.cert_file is not None:
            tls_context(auth, key)
    except CredentialError as error:
        yield str(error)


def warnings(found: Iterable[Place]) -> Iterator[str]:
    """What works and is unwise. The same sentence is said once."""
    said: set[str] = set()
    for place in found:
        for warning in _warnings_of(place):
            if warning not in said:
                said.add(warning)
                yield warning


def _warnings_of(place: Place) -> Iterator[str]:
    secrets = [(f"auth.{name}", file) for name, file in secret_files(place.auth)]
    secrets += [(name, file) for name in ("api_key_file", "token_file") if (file := getattr(place, name)) is not None]
    secrets += place.other_secrets
    for name, file in secrets:
        if read_by_all(file):
            yield f"{place.key}.{name}: {file} can be read by every user of this machine; chmod o-r {file}"
    sent = any((place.auth.bearer_file, place.auth.basic_file, place.auth.headers_file, place.api_key_file))
    for url in place.urls:
        parts = urlsplit(url)
        if parts.scheme == "https":
            continue
        if sent and not is_loopback(f"{parts.hostname}:0"):
            yield f"{place.key}: credentials go to {url} unencrypted; use https://, unless something else encrypts the way there"
        for name in (name for name in _TLS if getattr(place.auth, name) is not None):
            yield f"{place.key}.auth.{name}: has no effect on {url}, which is not https://"
