"""Which of several watchdogs watches which backends: pools are shared out by rendezvous hashing. Pure.

What a backend falls to is worked out from its own settings and the number of shards, and from nothing that is found or happens:
so all shards agree at every moment, without a word between them. A pool falls to one shard as a whole, because the guards' caps
are of a pool. Where n shards become n + 1, one pool in n + 1 moves, to the new shard; all others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from tailkeeper_watchdog.settings import GatewayRef, WatchedBackend
from tailkeeper_watchdog.whole_fleet import target_of

MAX_SHARDS = 64
"""Each pool is hashed once for each of them, about 1 us; and each is a process with a ledger of its own."""
MAX_SPLIT_NAMED = 5
SINGLE = frozenset({"engine", "triton"})
"""Kinds of gateways that take no traffic away and turn each server by itself: their servers are no pool."""
WHOLE = frozenset({"ray_serve", "traefik"})
"""Kinds that are written as one document, or whose servers' weights stand in one proportion, without a lock that two watchdogs
share: all servers of such a gateway are one pool here, whatever pools they are counted in."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``of``, counted from 0, as ``--shard`` of kube-state-metrics and the remainders of Prometheus' ``hashmod`` are."""

    index: int
    of: int

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


def shard_named(text: str) -> Shard:
    """The shard that ``0/3`` names. Raises ValueError with a sentence."""
    index, _, of = text.partition("/")
    if not (index.isdecimal() and of.isdecimal() and index.isascii() and of.isascii() and len(text) < 10):
        raise ValueError("must be INDEX/NUMBER, counted from 0: of three shards 0/3, 1/3 and 2/3")
    shard = Shard(int(index), int(of))
    if not 1 <= shard.of <= MAX_SHARDS:
        raise ValueError(f"{shard.of} shards are not possible; allowed are 1 to {MAX_SHARDS}")
    if shard.index >= shard.of:
        raise ValueError(f"of {shard.of} shards the last one is {shard.of - 1}/{shard.of}, for they are counted from 0")
    return shard


@lru_cache(maxsize=65_536)
def owner_of(unit: str, of: int) -> int:
    """The shard, of ``of``, to which ``unit`` falls: the one whose number gives the highest hash together with it."""
    return max(range(of), key=lambda index: blake2b(f"{index}\0{unit}".encode(), digest_size=8).digest())


def unit_of(ref: GatewayRef, backend: WatchedBackend, kinds: Mapping[str, str]) -> str | None:
    """What must be watched as a whole where ``backend`` is switched; None where its server stands for itself."""
    kind = kinds.get(ref.name, "")
    if kind in SINGLE:
        return None
    if kind in WHOLE:
        return f"{ref.name}:*"
    target = target_of(ref, backend.name, kinds)
    return f"{target.gateway}:{target.pool}"


def units_of(backend: WatchedBackend, kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Those of all of its gateways. The first one says where it falls to; one in no pool stands for itself, by its name."""
    found = tuple(unit for ref in backend.gateway if (unit := unit_of(ref, backend, kinds)) is not None)
    return found or (backend.name,)


@dataclass(frozen=True, slots=True)
class Left:
    """What a shard leaves to the others. ``servers`` are gateways and names there; ``split`` pools that it has only a part of."""

    backends: int
    servers: frozenset[tuple[str, str]]
    split: tuple[str, ...]


class Neighbours:
    """One shard of a fleet and what it leaves to the others. ``kinds`` maps gateway names to their kind.

    ``others`` gives those of the configured and the found backends that are not ours; the same tuple while nothing changes.
    """

    def __init__(self, shard: Shard, kinds: Mapping[str, str], others: Callable[[], tuple[WatchedBackend, ...]]) -> None:
        self.shard = shard
        self._kinds, self._others = kinds, others
        self._of: tuple[object, object] = (None, None)
        self._left = Left(0, frozenset(), ())

    def left(self, own: tuple[WatchedBackend, ...]) -> Left:
        """Worked out anew only when one of the two changes."""
        others = self._others()
        if self._of[0] is not own or self._of[1] is not others:
            self._of = (own, others)
            servers = frozenset((ref.name, ref.server or one.name) for one in others for ref in one.gateway)
            self._left = Left(len(others), servers, split_pools((*own, *others), self._kinds, self.shard.of))
        return self._left


def is_own(backend: WatchedBackend, shard: Shard, kinds: Mapping[str, str]) -> bool:
    return owner_of(units_of(backend, kinds)[0], shard.of) == shard.index


def divided(
    backends: Iterable[WatchedBackend], shard: Shard, kinds: Mapping[str, str]
) -> tuple[tuple[WatchedBackend, ...], tuple[WatchedBackend, ...]]:
    """Those that fall to ``shard``, and the others."""
    own: list[WatchedBackend] = []
    others: list[WatchedBackend] = []
    for backend in backends:
        (own if is_own(backend, shard, kinds) else others).append(backend)
    return tuple(own), tuple(others)


def split_pools(backends: Iterable[WatchedBackend], kinds: Mapping[str, str], of: int) -> tuple[str, ...]:
    """Pools whose backends fall to several shards, because each goes by the first of its gateways and these differ."""
    falls_to: dict[str, set[int]] = {}
    for backend in backends:
        units = units_of(backend, kinds)
        for unit in units:
            falls_to.setdefault(unit, set()).add(owner_of(units[0], of))
    return tuple(sorted(unit for unit, shards in falls_to.items() if len(shards) > 1))
