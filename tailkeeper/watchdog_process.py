"""The watchdog as a process of its own, from a configuration: what keeps two from leading at once, then the watchdog itself.

What cannot be is a line on stderr and the end of the command (``ending``).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from tailkeeper.config import Config
from tailkeeper.ending import FAILED, USAGE, fail, need
from tailkeeper_exporter.change_rights import read_token
from tailkeeper_watchdog.weights_file import WeightsFile

log = structlog.get_logger("tailkeeper.watchdog")

if TYPE_CHECKING:
    from tailkeeper.sharding import Sharded
    from tailkeeper_exporter.discovery import Discoverer
    from tailkeeper_watchdog.leadership import Leadership
    from tailkeeper_watchdog.ledger import Ledger
    from tailkeeper_watchdog.postgres.leadership import PostgresLeadership
    from tailkeeper_watchdog.settings import WatchedBackend


def watchdog_of(
    file: WeightsFile, config: Config, discoverer: Discoverer[WatchedBackend] | None, part: Sharded | None = None
) -> Any:
    """A watchdog, over what is listed and what ``discoverer`` finds; who calls runs both. ``file`` is followed.

    It is built once no other one leads that has the same ledger. ``part`` says of which shard ``config`` is.
    """
    try:
        import tailkeeper_watchdog.app  # noqa: F401 - now, for who takes over a dead leader's place has no second for it
        from tailkeeper_watchdog.leader_lease import KubernetesLeadership, new_identity
        from tailkeeper_watchdog.leadership import AllOf, FileLock, ShardsLock
        from tailkeeper_watchdog.standby import TRY_EVERY_S, TRY_SERVER_EVERY_S, Standby, pause_by_file
    except ImportError as error:
        need("watchdog", error)
    settings = config.watchdog
    lock = FileLock(settings.state, settings.listen, time.time)
    try:
        token = read_token(settings.token_file, "watchdog.token_file")
    except (ValueError, OSError) as error:
        fail(USAGE, str(error))
    try:
        lock.check()
    except OSError as error:
        fail(FAILED, f"watchdog.state: {settings.state}: {error.strerror}; is the folder there and writable?")
    lease, shared = settings.leader, shared_ledger(config, settings.listen)
    parts: list[Leadership] = (
        [lock] if part is None else [ShardsLock(part.whole_state, settings.listen, time.time, part.shard.of), lock]
    )
    if lease is not None:
        if part is not None:
            whole = lease.model_copy(update={"name": part.whole_lease})
            parts.append(KubernetesLeadership(whole, f"a layout of {part.shard.of} shards", shared=True))
        parts.append(KubernetesLeadership(lease, new_identity()))
    if shared is not None:
        parts += [*_layout(part), shared]
    leadership = AllOf(*parts)
    build = partial(_built, file, config, discoverer, leadership, part, None if shared is None else shared.ledger)
    pause = partial(pause_by_file, settings.state) if shared is None else shared.ask_to_pause
    every_s = TRY_EVERY_S if lease is None and shared is None else TRY_SERVER_EVERY_S
    return Standby(leadership, build, settings.listen, pause, token, every_s)


def _layout(part: Sharded | None) -> list[Leadership]:
    """What of a ledger in PostgreSQL all shards have together."""
    from tailkeeper_watchdog.postgres.layout import LayoutRow

    return [] if part is None or part.whole_ledger is None else [LayoutRow(part.whole_ledger, part.shard.of)]


def shared_ledger(config: Config, listen: str) -> PostgresLeadership | None:
    """What leads by the ledger in PostgreSQL, where one is configured. ``listen`` is told to those that stand by."""
    if config.watchdog.ledger is None:
        return None
    try:
        from tailkeeper_watchdog.postgres.leadership import PostgresLeadership, holder_words
    except ImportError as error:
        need("postgres", error)
    return PostgresLeadership(config.watchdog.ledger, holder_words(listen))


def _built(
    file: WeightsFile,
    config: Config,
    discoverer: Discoverer[WatchedBackend] | None,
    leadership: Leadership,
    part: Sharded | None,
    ledger: Ledger | None,
) -> Any:
    from tailkeeper_watchdog.actuators.calls import CallError
    from tailkeeper_watchdog.app import Watchdog
    from tailkeeper_watchdog.ledger import LedgerError

    if part is not None and part.shard.index == 0:  # one of them says it
        from tailkeeper.sharding import abandoned

        for sentence in abandoned(part):
            log.warning("a ledger without a watchdog", ledger=sentence)
    try:
        found = None if discoverer is None else lambda: discoverer.backends
        return Watchdog(config.for_watchdog(), found, file, leadership, None if part is None else part.neighbours, ledger)
    except LedgerError as error:
        fail(FAILED, f"watchdog.state: {error}")
    except (ValueError, OSError, CallError) as error:
        fail(USAGE, str(error))
