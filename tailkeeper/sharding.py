"""One shard's part of a configuration: its backends, its files, its lease. All else is as the file says, for all shards alike.

Files and leases are named by the shard's index alone, so that one of another number of shards finds its predecessor's ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailkeeper.config import MAX_BACKENDS, Config
from tailkeeper_watchdog.gateways import RouterGateway
from tailkeeper_watchdog.settings import LedgerSettings
from tailkeeper_watchdog.shard import MAX_SHARDS, MAX_SPLIT_NAMED, Neighbours, Shard, divided, is_own, split_pools

if TYPE_CHECKING:
    from tailkeeper_exporter.discovery import Discoverer
    from tailkeeper_watchdog.settings import WatchedBackend


class SplitPoolsError(Exception):
    """Listed backends of one pool would fall to several shards. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """``config`` is that of the shard. ``whole_state`` is the file's own state: what the shards of a fleet know each other by."""

    config: Config
    discoverer: Discoverer[WatchedBackend] | None
    neighbours: Neighbours
    whole_state: Path
    whole_lease: str | None
    """The name of the Lease of the whole fleet, where there is one."""
    whole_ledger: LedgerSettings | None = None
    """The ledger of the whole fleet in PostgreSQL, where there is one: of it the shards have the leader's row together."""

    @property
    def shard(self) -> Shard:
        return self.neighbours.shard


def sharded(config: Config, shard: Shard) -> Sharded:
    """Raises SplitPoolsError."""
    kinds = config.gateway_kinds
    split = split_pools(config.backends, kinds, shard.of)
    if split:
        raise SplitPoolsError(
            f"--shard: {', '.join(split[:MAX_SPLIT_NAMED])}: backends of one pool would fall to several shards, because a "
            "backend falls where the first of its gateways does; name the same one first in all of them, or give the others a "
            "`pool` of their own"
        )
    own, others = divided(config.backends, shard, kinds)
    discoverer = config.discoverer(MAX_BACKENDS * shard.of, lambda backend: is_own(backend, shard, kinds))
    lease = config.watchdog.leader
    neighbours = Neighbours(shard, kinds, _Others(others, discoverer))
    name = None if lease is None else lease.name
    return Sharded(_own(config, own, shard), discoverer, neighbours, config.watchdog.state, name, config.watchdog.ledger)


class _Others:
    """The listed and the found backends of the other shards; another tuple only when the found ones change."""

    def __init__(self, listed: tuple[WatchedBackend, ...], discoverer: Discoverer[WatchedBackend] | None) -> None:
        self._listed, self._discoverer = listed, discoverer
        self._found: tuple[WatchedBackend, ...] = ()
        self._all = listed

    def __call__(self) -> tuple[WatchedBackend, ...]:
        found = self._found if self._discoverer is None else self._discoverer.elsewhere
        if found is not self._found:
            self._found, self._all = found, (*self._listed, *found)
        return self._all


def named(path: Path, shard: Shard) -> Path:
    """``tailkeeper.db`` is ``tailkeeper-0.db`` of shard 0, of however many."""
    return path.with_name(f"{path.stem}-{shard.index}{path.suffix}")


def abandoned(part: Sharded) -> Iterator[str]:
    """Sentences about ledgers of shards that are no more, and of a watchdog for all, in which changes are in force still: files
    beside ours; those in PostgreSQL are not looked at.

    Nobody opens them any more. Ask while leading: then nobody of another number of shards leads.
    """
    from tailkeeper_watchdog.ledger import Ledger, LedgerError

    whole = part.whole_state
    known = {whole: "stop all shards and run `tailkeeper release-all -c FILE`"}
    for index in range(part.shard.of, MAX_SHARDS):
        known[named(whole, Shard(index, MAX_SHARDS))] = f"run `tailkeeper release-all -c FILE --shard {index}/{index + 1}`"
    for path, do in known.items():
        if not path.is_file():
            continue
        try:
            ledger = Ledger(path)
            left = len(ledger.leases())
            ledger.close()
        except LedgerError as error:
            yield f"{path}: {error}"
        else:
            if left:
                yield f"{path}: changes are in force that nobody gives back ({left}); {do}"


def _own(config: Config, backends: tuple[WatchedBackend, ...], shard: Shard) -> Config:
    watchdog = config.watchdog
    changed: dict[str, Any] = {"state": named(watchdog.state, shard)}
    if watchdog.records.path is not None:
        changed["records"] = watchdog.records.model_copy(update={"path": named(watchdog.records.path, shard)})
    if watchdog.leader is not None:
        changed["leader"] = watchdog.leader.model_copy(update={"name": f"{watchdog.leader.name}-{shard.index}"})
    if watchdog.ledger is not None:
        changed["ledger"] = watchdog.ledger.model_copy(update={"in_schema": f"{watchdog.ledger.in_schema}_{shard.index}"})
    gateways = tuple(
        gateway.model_copy(update={"removed_file": named(gateway.removed_file, shard)})
        if isinstance(gateway, RouterGateway) and gateway.removed_file is not None
        else gateway
        for gateway in config.gateways
    )
    return config.model_copy(update={"backends": backends, "gateways": gateways, "watchdog": watchdog.model_copy(update=changed)})
