"""Which configured backend a span is about. Pure. Never a guess between two, and none against what the span says.

In this order, each on the span before its resource: our own attribute; the address that the span names; the resource's
instance, then its service, where it is a backend's name; the host. Where a span says nothing of where it was served, an
engine's own span goes to the one configured backend, if there is exactly one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from urllib.parse import urlsplit

from tailkeeper_exporter.otlp import attributes as names
from tailkeeper_exporter.otlp.attributes import Attributes, text_of
from tailkeeper_exporter.settings import BackendSettings

_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL_NAMES = ("url.full", "http.url")
_PORT_NAMES = ("server.port", "net.peer.port")
_HOST_NAMES = ("server.address", "net.peer.name")


class NoBackend(StrEnum):
    """Why a span is nobody's."""

    UNMATCHED = "unmatched"
    AMBIGUOUS = "ambiguous"


class Backends:
    """The watched backends by everything that a span may call them."""

    def __init__(self, backends: Iterable[BackendSettings]) -> None:
        self._by_name = {backend.name: backend for backend in backends}
        self._by_address: dict[str, set[str]] = {}
        self._by_host: dict[str, set[str]] = {}
        for backend in self._by_name.values():
            for address in _addresses(backend):
                self._by_address.setdefault(address, set()).add(backend.name)
                self._by_host.setdefault(address.rpartition(":")[0], set()).add(backend.name)

    def engine_of(self, name: str) -> str:
        """The engine of a backend; empty for one that is not watched."""
        backend = self._by_name.get(name)
        return "" if backend is None else backend.engine

    def find(self, span: Attributes, resource: Attributes, is_engine: bool) -> BackendSettings | NoBackend:
        """The backend of a span. ``is_engine``: the span was made by an inference engine of its own request."""
        named = text_of(span, names.BACKEND) or text_of(resource, names.BACKEND)
        if named is not None:
            return self._by_name.get(named, NoBackend.UNMATCHED)
        ambiguous = False
        for candidates in self._clues(span, resource):
            if len(candidates) == 1:
                return self._by_name[next(iter(candidates))]
            ambiguous = ambiguous or len(candidates) > 1
        if ambiguous:
            return NoBackend.AMBIGUOUS
        if is_engine and len(self._by_name) == 1 and not _says_where(span, resource):
            return next(iter(self._by_name.values()))
        return NoBackend.UNMATCHED

    def _clues(self, span: Attributes, resource: Attributes) -> Iterator[set[str]]:
        """The backends that each clue may mean, the strongest clue first."""
        nobody: set[str] = set()
        for attributes in (span, resource):
            address = _named_address(attributes)
            if address is not None:
                yield self._by_address.get(address, nobody)
            else:
                yield self._by_host.get((text_of(attributes, *_HOST_NAMES) or "").lower(), nobody)
        instance = text_of(resource, "service.instance.id") or ""
        yield {instance} if instance in self._by_name else self._by_address.get(_address_of(instance) or "", nobody)
        service = text_of(resource, "service.name") or ""
        yield {service} if service in self._by_name else nobody
        host = text_of(resource, "host.name") or ""
        yield {host} if host in self._by_name else self._by_host.get(host.lower(), nobody)


def _says_where(span: Attributes, resource: Attributes) -> bool:
    return any(text_of(attributes, *_URL_NAMES, *_HOST_NAMES) for attributes in (span, resource))


def _addresses(backend: BackendSettings) -> Iterator[str]:
    """``host:port`` of the engine, and of the tap before it: to a gateway the tap is the backend."""
    for text in (backend.url, backend.tap.listen if backend.tap is not None else None):
        address = _address_of(text or "")
        if address is not None:
            yield address


def _named_address(attributes: Attributes) -> str | None:
    url = text_of(attributes, *_URL_NAMES)
    if url is not None and _address_of(url) is not None:
        return _address_of(url)
    host, port = text_of(attributes, *_HOST_NAMES), text_of(attributes, *_PORT_NAMES)
    return _address_of(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") if host and port else None


def _address_of(text: str) -> str | None:
    """``host:port`` of a URL or an address, in lower case; None where there is no port to be known."""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    return f"{parts.hostname}:{port}" if parts.hostname and port else None
