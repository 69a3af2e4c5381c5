"""What a lister of backends promises, and what it finds. Values and their bounds; no I/O but the one helper for blocking calls.

A list is full: what is not on it is not there. A lister that cannot be sure of that raises ``DiscoveryError`` and says nothing
about any backend. Labels are bounded here, so that whatever a cluster or a file says about a backend stays small.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Generic, Protocol, TypeVar

MAX_TARGETS = 10_000
"""Backends on one list: as many as a configuration may name."""
MAX_NAME_CHARS = 128
"""As for a configured backend: the name is a label value."""
MAX_LABELS = 16
"""As for a configured backend."""
MAX_LABEL_CHARS = 128
MAX_NOTES = 20
"""Sentences kept of one listing; the rest is a number."""
_HASH_CHARS = 8
_FIRST_LABELS = ("canary_revision", "az", "namespace", "node", "job")
"""Kept where there are too many: those that something here reads, and those that tell where a backend runs."""
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]


class DiscoveryError(Exception):
    """A listing failed, and nothing is known by it. The message is one sentence for the log, without credentials."""


@dataclass(frozen=True, slots=True)
class Found:
    """One backend that a lister has found.

    ``keys`` set keys of the backend's configuration (``engine``, ``model``, ``quantization``, ``metrics_url``,
    ``gateway_server``, ``gateway_pool``), ``labels`` are its labels; both sorted. ``name`` is the same at every listing and
    after every restart.
    """

    name: str
    url: str
    keys: Pairs = ()
    labels: Pairs = ()

    def key(self, name: str) -> str | None:
        return dict(self.keys).get(name)


@dataclass(frozen=True, slots=True)
class Listing:
    """A full list, in an order that is the same each time, and what has to be said about it, in sentences."""

    found: tuple[Found, ...]
    notes: tuple[str, ...] = ()


class Lister(Protocol):
    """Lists all backends of one discovery."""

    async def list(self, deadline_s: float) -> Listing:
        """All that is there now, within ``deadline_s`` seconds. Raises ``DiscoveryError`` where that cannot be told."""
        ...


KEY_LABELS = ("engine", "model", "quantization", "metrics_url", "gateway_server", "gateway_pool")
"""What may set a key of the backend; every other label is a label."""


def found(name: str, url: str, said: Mapping[str, str]) -> tuple[Found, tuple[str, ...]]:
    """A ``Found`` from what its source says of it, and the names of the labels for which there was no room."""
    keys = tuple(sorted((key, value) for key, value in said.items() if key in KEY_LABELS and value))
    labels, cut = bounded_labels({name: value for name, value in said.items() if name not in KEY_LABELS})
    return Found(fitted(name), url, keys, labels), cut


def bounded_labels(labels: Mapping[str, str]) -> tuple[Pairs, tuple[str, ...]]:
    """At most ``MAX_LABELS`` labels, sorted, with names that Prometheus accepts; and the names of those left out."""
    named = {_NOT_IN_A_NAME.sub("_", name): value[:MAX_LABEL_CHARS] for name, value in sorted(labels.items()) if name}
    order = sorted(named, key=lambda name: (name not in _FIRST_LABELS, name))
    kept = sorted(order[:MAX_LABELS])
    return tuple((name, named[name]) for name in kept), tuple(order[MAX_LABELS:])


def fitted(name: str) -> str:
    """``name``, or where it is too long its beginning and a hash of the whole, which is the same each time."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_HASH_CHARS]
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1]}-{digest}"


def host_port(address: str, port: int) -> str:
    """``address:port`` as it stands in a URL; an IPv6 address in brackets."""
    try:
        return f"[{address}]:{port}" if isinstance(ip_address(address), IPv6Address) else f"{address}:{port}"
    except ValueError:
        return f"{address}:{port}"


def cut_note(cuts: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """One sentence about labels that had to be left out, of all the backends together; none where there was room."""
    names = [(backend, left) for backend, left in cuts if left]
    if not names:
        return ()
    backend, left = names[0]
    shown = ", ".join(left[:5]) + (" …" if len(left) > 5 else "")
    return (f"{len(names)} backends have more than {MAX_LABELS} labels; of {backend!r} these are left out: {shown}",)


def few(notes: list[str]) -> tuple[str, ...]:
    """The first ``MAX_NOTES`` sentences, and how many more there were."""
    more = len(notes) - MAX_NOTES
    return tuple(notes) if more <= 0 else (*notes[:MAX_NOTES], f"and {more} more of this kind")


class SingleFlight(Generic[T]):
    """Runs a blocking call in a thread of its own, one at a time.

    A call that hangs (a name server, a network file system) costs its thread and nothing else: the caller goes on at its
    deadline, no second call is started beside it, and the daemon thread does not hold up the end of the process.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pending: asyncio.Future[T] | None = None

    async def call(self, work: Callable[[], T], deadline_s: float) -> T:
        """What ``work`` returns or raises. Raises ``DiscoveryError`` past the deadline, or while an older call still hangs."""
        if self._pending is not None and not self._pending.done():
            raise DiscoveryError(f"{self._what}: the last attempt still hangs")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        # An error that comes after the deadline has nobody waiting for it, and is not worth a warning.
        future.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        self._pending = future

        def run() -> None:
            settle = _outcome(work, future)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle)

        threading.Thread(target=run, daemon=True, name=self._what).start()
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.shield(future)
        except TimeoutError as error:
            raise DiscoveryError(f"{self._what}: no answer within {deadline_s:g} s") from error


def _outcome(work: Callable[[], T], future: asyncio.Future[T]) -> Callable[[], None]:
    """Run ``work`` here; what to do with the future in its own loop."""
    try:
        result = work()
    except Exception as error:
        failure = error
        return lambda: None if future.done() else future.set_exception(failure)
    return lambda: None if future.done() else future.set_result(result)
