"""Backends from a DNS name: each of its A and AAAA addresses is one, named by address and port.

Whether there is nothing or nothing is known is told by the resolver's own word: "no such name" and "no address" are a list of
nothing, a name server that fails or keeps silent is a failure. Resolving blocks, so it runs in a thread, one at a time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from tailkeeper_exporter.discovery.base import MAX_TARGETS, DiscoveryError, Found, Listing, SingleFlight, host_port
from tailkeeper_exporter.settings import DnsDiscovery

Resolve = Callable[[str, int], list[str]]
_NOTHING = frozenset(
    code for code in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None), getattr(socket, "EAI_ADDRFAMILY", None)) if code
)
"""What a resolver answers when it is sure: no such name, and a name without an address."""


def resolve(name: str, port: int) -> list[str]:
    """The addresses of ``name``. Blocks. Raises ``socket.gaierror``."""
    return [str(info[4][0]) for info in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]


class DnsLister:
    """A ``Lister`` over one name."""

    def __init__(self, settings: DnsDiscovery, resolve: Resolve = resolve) -> None:
        self._settings = settings
        self._resolve = resolve
        self._flight: SingleFlight[list[str]] = SingleFlight("dns")

    async def list(self, deadline_s: float) -> Listing:
        name, port = self._settings.name, self._settings.port
        try:
            answered = await self._flight.call(lambda: self._resolve(name, port), deadline_s)
        except socket.gaierror as error:
            if error.errno in _NOTHING:
                return Listing((), (f"{name}: {error.strerror}",))
            raise DiscoveryError(f"{name}: {error.strerror}") from error
        except (OSError, UnicodeError) as error:
            raise DiscoveryError(f"{name}: {type(error).__name__}: {error}") from error
        # An address with a scope (fe80::1%eth0) is of this machine's links only, and no part of a URL.
        addresses = sorted({address for address in answered if "%" not in address})
        if len(addresses) > MAX_TARGETS:
            raise DiscoveryError(f"{name}: has more than {MAX_TARGETS} addresses")
        return Listing(tuple(Found(host_port(a, port), f"http://{host_port(a, port)}") for a in addresses))
