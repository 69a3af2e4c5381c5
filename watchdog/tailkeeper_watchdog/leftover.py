"""What becomes of a change of ours at a server that no backend of the fleet owns any more. Pure.

Nobody watches that server now, so nothing may be kept from it. Its prior value is given back once its backend has been
gone for the cooldown (a listing that flickers must not send traffic to what was drained), at the latest when the lease
runs out. Where the gateway does not know the server either, there is nothing to give back, and the lease ends there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.fleet import GONE, Fleet, server_of
from tailkeeper_watchdog.model import Knob, KnobValue, Lease, Target
from tailkeeper_watchdog.plan import CLOCK_SLACK_S, Change, ChangeKind, as_found, same
from tailkeeper_watchdog.settings import GuardsSettings


@dataclass(frozen=True, slots=True)
class LeftoverInput:
    """What the decision is made from. ``now`` is monotonic; ``held`` are names on which an operator's hold lies."""

    fleet: Fleet
    leases: tuple[Lease, ...]
    servers: Mapping[Target, ServerState]
    silent: frozenset[str]
    """Gateways that could not be read at this tick."""
    settings: GuardsSettings
    now: float
    time_unix_s: float
    held: frozenset[str] = frozenset()


def leftovers(given: LeftoverInput) -> tuple[Change, ...]:
    """The changes for leases on servers that nobody owns; weights first, so that traffic finds its door last."""
    ordered = sorted(given.leases, key=lambda lease: lease.knob is Knob.ADMISSION)
    return tuple(change for lease in ordered if (change := _one(lease, given)) is not None)


def _one(lease: Lease, given: LeftoverInput) -> Change | None:
    server = given.servers.get(lease.target)
    if server is None:
        return _without_server(lease, given)
    actual = server.values.get(lease.knob)
    if actual is None:
        return None  # unknown: it cannot be said whether what is there is ours
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
    if lease.backend in given.held and server_of(lease) not in given.fleet.left_at:
        return _change(ChangeKind.RENEW, lease, "an operator's hold is on it", actual) if left_s < settings.lease_s / 2 else None
    if left_s <= 0:
        return _change(ChangeKind.EXPIRE, lease, f"the lease ran out; {_why(lease, given)}", actual)
    if _gone_long_enough(lease, given):
        return _change(ChangeKind.RELEASE, lease, _why(lease, given), actual)
    if left_s > settings.lease_s + CLOCK_SLACK_S:
        return _change(ChangeKind.RENEW, lease, "the wall clock was set back: it ends within one lease from now", actual)
    return None


def _without_server(lease: Lease, given: LeftoverInput) -> Change | None:
    """A gateway that answered and left the server out knows no such server; one that did not answer says nothing."""
    gateway = lease.target.gateway
    due = given.time_unix_s >= lease.expires_unix_s or _gone_long_enough(lease, given)
    if gateway in given.silent or not due:
        return None
    reason = f"{_why(lease, given)}, and gateway {gateway} knows no server {lease.target.server}: nothing is left to give back"
    return _change(ChangeKind.LOST, lease, reason, None)


def _gone_long_enough(lease: Lease, given: LeftoverInput) -> bool:
    left_at = given.fleet.left_at.get(server_of(lease))
    return left_at is not None and given.now - left_at >= given.settings.cooldown_s


def _why(lease: Lease, given: LeftoverInput) -> str:
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
