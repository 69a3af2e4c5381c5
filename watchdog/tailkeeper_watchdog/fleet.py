"""The fleet from one tick to the next: who is gone, who is new, and which gateway servers nobody owns any more. Pure.

A backend is the same one as long as its name, its address and its places at the gateways are. Whoever changed one of
them is gone and new under one name: what was known of the old one says nothing about the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailkeeper_watchdog.model import EMPTY, Backend, Lease

GONE = "the backend is gone"
"""Why what was open about it has ended."""

Server = tuple[str, str]
"""A server by gateway and its name there, whatever pool it is counted in."""


@dataclass(frozen=True, slots=True)
class Turnover:
    """What one change of the fleet brought. A backend under the same name with another identity is in both sets."""

    gone: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()

    @property
    def vanished(self) -> frozenset[str]:
        """Names that are in the fleet no more."""
        return self.gone - self.new


@dataclass(frozen=True, slots=True)
class Fleet:
    """The backends of one tick. ``backends`` is the very tuple that the provider gave."""

    backends: tuple[Backend, ...] = ()
    names: frozenset[str] = frozenset()
    servers: frozenset[Server] = frozenset()
    left_at: Mapping[Server, float] = field(default_factory=lambda: EMPTY)
    """When each server that still carries a change of ours lost its backend, monotonic. One that was nobody's already when
    the watchdog started is not in it: its backend may only not have been found yet."""

    def owns(self, lease: Lease) -> bool:
        return server_of(lease) in self.servers


def server_of(lease: Lease) -> Server:
    return lease.target.gateway, lease.target.server


def turnover(before: Fleet, after: tuple[Backend, ...]) -> Turnover:
    """Who is gone and who is new in ``after``."""
    old = {b.name: b.identity for b in before.backends}
    new = {b.name: b.identity for b in after}
    return Turnover(
        frozenset(name for name, identity in old.items() if new.get(name) != identity),
        frozenset(name for name, identity in new.items() if old.get(name) != identity),
    )


def succeeded(before: Fleet, after: tuple[Backend, ...], leases: Iterable[Lease], now: float) -> Fleet:
    """The fleet of ``after``. Of the servers that were left, those are remembered on which a lease still lies."""
    servers = frozenset((t.gateway, t.server) for b in after for t in b.targets)
    left = {**before.left_at, **dict.fromkeys(before.servers - servers, now)}
    left_at = {server: left[server] for server in map(server_of, leases) if server in left and server not in servers}
    return Fleet(after, frozenset(b.name for b in after), servers, left_at)
