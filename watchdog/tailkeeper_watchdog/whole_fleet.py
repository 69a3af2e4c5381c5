"""The backends of the settings and those that were found, as the loop wants them and as they are written. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailkeeper_watchdog.model import Backend, Target
from tailkeeper_watchdog.settings import GatewayRef, WatchedBackend

ALL_SERVERS = "all"
"""Pool of a gateway whose servers are not grouped."""


def target_of(ref: GatewayRef, backend: str, kinds: Mapping[str, str]) -> Target:
    """Where the backend of that name is switched."""
    server = ref.server or backend  # left out for a tap, whose name is the backend's own
    before_slash = server.partition("/")[0] if kinds.get(ref.name) == "haproxy" else ALL_SERVERS
    return Target(ref.name, server, ref.pool or before_slash)


def backend_of(settings: WatchedBackend, kinds: Mapping[str, str]) -> Backend:
    """A configured backend as the core knows it. ``kinds`` maps gateway names to their kind."""
    targets = [target_of(ref, settings.name, kinds) for ref in settings.gateway]
    shape = settings.model_shape
    token_bytes = None if shape is None else 2 * shape.layers * shape.kv_heads * shape.head_dim * shape.dtype_bytes
    return Backend(
        settings.name,
        settings.model or "",
        tuple(targets),
        dict(settings.labels),
        settings.url,
        token_bytes,
        settings.quantization or "",
    )


Found = Callable[[], tuple[WatchedBackend, ...]]
"""The backends that something else than the configuration has found, as of now; the same tuple while nothing changes."""


class WholeFleet:
    """The configured backends and the found ones as the loop wants them; worked out anew only when the found ones change.

    ``kinds`` maps gateway names to their kind. Who finds them sees to it that no name is there twice.
    """

    def __init__(self, configured: tuple[WatchedBackend, ...], found: Found | None, kinds: Mapping[str, str]) -> None:
        self._found, self._kinds = found, kinds
        self._configured = tuple(backend_of(b, kinds) for b in configured)
        self._given: tuple[WatchedBackend, ...] = ()
        self._backends = self._configured

    def __call__(self) -> tuple[Backend, ...]:
        given = self._given if self._found is None else self._found()
        if given is not self._given:
            self._given = given
            self._backends = (*self._configured, *(backend_of(b, self._kinds) for b in given))
        return self._backends


class Listed:
    """The settings of the whole fleet, likewise. A state of its own, because a source asks for them in another thread."""

    def __init__(self, configured: tuple[WatchedBackend, ...], found: Found | None) -> None:
        self._configured, self._found = configured, found
        self._given: tuple[WatchedBackend, ...] = ()
        self._all = configured

    def __call__(self) -> tuple[WatchedBackend, ...]:
        given = self._given if self._found is None else self._found()
        if given is not self._given:
            self._given, self._all = given, (*self._configured, *given)
        return self._all
