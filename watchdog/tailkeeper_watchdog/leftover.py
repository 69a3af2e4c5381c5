"""What becomes of a change of ours at a server that no backend of the fleet owns any more. Pure.

Nobody watches that server now, so nothing may be kept from it. Its prior value is given back once its backend has been
gone for the cooldown (a listing that flickers must not send traffic to what was drained), at the latest when the lease
runs out. Where the gateway does not know the server either, or is configured no more, the lease ends there, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailkeeper_watchdog.fleet import GONE, Fleet, Server, server_of
from tailkeeper_watchdog.giving_back import Reach, nothing_left
from tailkeeper_watchdog.model import Knob, KnobValue, Lease
from tailkeeper_watchdog.plan import CLOCK_SLACK_S, Change, ChangeKind, as_found, same
from tailkeeper_watchdog.settings import GuardsSettings


@dataclass(frozen=True, slots=True)
class LeftoverInput:
    """What the decision is made from. ``now`` is monotonic; ``held`` are names on which an operator's hold lies."""

    fleet: Fleet
    leases: tuple[Lease, ...]
    reach: Reach
    settings: GuardsSettings
    now: float
    time_unix_s: float
    held: frozenset[str] = frozenset()
    moved: frozenset[Server] = frozenset()
    """Servers of backends that another shard watches."""


def leftovers(given: LeftoverInput) -> tuple[Change, ...]:
    """The changes for leases on servers that nobody owns or no gateway knows; weights first: traffic finds its door last."""
    ordered = sorted(given.leases, key=lambda lease: lease.knob is Knob.ADMISSION)
    ordered = [lease for lease in ordered if not given.fleet.owns(lease) or _unreadable(lease, given)]
    return tuple(change for lease in ordered if (change := _one(lease, given)) is not None)


def _unreadable(lease: Lease, given: LeftoverInput) -> bool:
    """What the plan leaves alone: it works with what the gateways tell."""
    server = given.reach.servers.get(lease.target)
    return server is None or lease.knob not in server.values


def _one(lease: Lease, given: LeftoverInput) -> Change | None:
    server = given.reach.servers.get(lease.target)
    actual = None if server is None else server.values.get(lease.knob)
    if actual is None:
        return _not_to_be_read(lease, given)
    lease = as_found(lease, actual)
    if same(lease.knob, actual, lease.prior):
        return _change(ChangeKind.RELEASE, lease, f"{_why(lease, given)}; already back at its prior value", actual)
    if not same(lease.knob, actual, lease.written):
        return _change(
            ChangeKind.FORGET, lease, f"{_why(lease, given)}; someone else set it to {actual}: it is theirs now", actual
        )
    return _still_ours(lease, given, actual)


def _still_ours(lease: Lease, given: LeftoverInput, actual: KnobValue) -> Change | None:
    settings, left_s = given.settings, lease.expires_unix_s - given.time_unix_s
    if lease.backend in given.held and server_of(lease) not in given.fleet.left_at and server_of(lease) not in given.moved:
        is_due = left_s < settings.lease_s / 2 or left_s > settings.lease_s + CLOCK_SLACK_S
        return _change(ChangeKind.RENEW, lease, "an operator's hold is on it", actual) if is_due else None
    if left_s <= 0:
        return _change(ChangeKind.EXPIRE, lease, f"the lease ran out; {_why(lease, given)}", actual)
    if _gone_long_enough(lease, given):
        return _change(ChangeKind.RELEASE, lease, _why(lease, given), actual)
    if left_s > settings.lease_s + CLOCK_SLACK_S:
        return _change(ChangeKind.RENEW, lease, "the wall clock was set back: it ends within one lease from now", actual)
    return None


def _not_to_be_read(lease: Lease, given: LeftoverInput) -> Change | None:
    """A gateway that answered and left the server out knows no such server; one that did not answer says nothing.

    A gateway that is configured no more may still be there with our change in it, so its leases are kept to their end.
    """
    why = nothing_left(lease, given.reach)
    ran_out = given.time_unix_s >= lease.expires_unix_s
    early = lease.target.gateway not in given.reach.gone and _gone_long_enough(lease, given)
    if why is None or not (ran_out or early) or lease.backend in given.held:
        return None
    return _change(ChangeKind.LOST, lease, f"{_why(lease, given)}, and {why}", None)


def _gone_long_enough(lease: Lease, given: LeftoverInput) -> bool:
    if server_of(lease) in given.moved:
        return True  # nobody's listing can have flickered: whose it is follows from the configuration
    left_at = given.fleet.left_at.get(server_of(lease))
    return left_at is not None and given.now - left_at >= given.settings.cooldown_s


def _why(lease: Lease, given: LeftoverInput) -> str:
    if given.fleet.owns(lease):
        return "the lease ran out"
    if server_of(lease) in given.moved:
        return "its pool is another shard's now"
    if lease.backend in given.fleet.names:
        return f"{lease.backend} is not at server {lease.target.server} any more"
    return GONE


def _change(kind: ChangeKind, lease: Lease, reason: str, actual: KnobValue | None) -> Change:
    return Change(
        kind,
        lease.backend,
        lease.target,
        lease.knob,
        lease.prior,
        lease.prior,
        lease.policy,
        reason,
        lease,
        lease.reverts,
        actual,
    )
