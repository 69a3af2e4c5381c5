"""What a person's release does to each lease, and why some can only be kept; when a lease has nothing left to give back. Pure.

A lease never stays for ever and never ends in silence. One whose server or gateway cannot be found is kept until it runs out,
because a listing may flicker; then it ends, and its last words say what to set back by hand where there is still something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.model import EMPTY, Knob, KnobValue, Lease, Pending, Target
from tailkeeper_watchdog.pending import MAY_COME_S, ends_too_early
from tailkeeper_watchdog.plan import Change, ChangeKind, as_found, same

Kept = tuple[Lease, str]
MAY_STILL_COME = (
    f"a write from before may still be done within {MAY_COME_S:g} s; a running watchdog gives it back then, else release again"
)


@dataclass(frozen=True, slots=True)
class Reach:
    """What was found at the gateways: state by target, errors by gateway, and gateways that are configured no more."""

    servers: Mapping[Target, ServerState]
    errors: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    gone: frozenset[str] = frozenset()


def give_back(
    leases: Iterable[Lease], reach: Reach, why: str, now_unix_s: float, pending: Pending = EMPTY
) -> tuple[tuple[Change, ...], tuple[Kept, ...]]:
    """The changes of a release, weights first, so that traffic finds its door last; and what is kept, each with why."""
    changes: list[Change] = []
    kept: list[Kept] = []
    for lease in sorted(leases, key=lambda lease: lease.knob is Knob.ADMISSION):
        state = reach.servers.get(lease.target)
        actual = None if state is None else state.values.get(lease.knob)
        settled = None if actual is None else _settled(lease, actual, why)
        if settled is not None and ends_too_early(settled, pending):
            kept.append((lease, MAY_STILL_COME))
        elif settled is not None:
            changes.append(settled)
        elif (lost := nothing_left(lease, reach)) is not None and now_unix_s >= lease.expires_unix_s:
            changes.append(_change(ChangeKind.LOST, lease, f"{why}; {lost}"))
        else:
            kept.append((lease, _why_kept(lease, reach, lost)))
    return tuple(changes), tuple(kept)


def _settled(lease: Lease, actual: KnobValue, why: str) -> Change:
    if same(lease.knob, actual, as_found(lease, actual).written) or same(lease.knob, actual, lease.prior):
        return _change(ChangeKind.RELEASE, lease, why)
    return _change(ChangeKind.FORGET, lease, f"someone else set it to {actual}: it is theirs")


def _change(kind: ChangeKind, lease: Lease, reason: str) -> Change:
    return Change(kind, lease.backend, lease.target, lease.knob, lease.prior, lease.prior, lease.policy, reason, lease)


def nothing_left(lease: Lease, reach: Reach) -> str | None:
    """Why there is nothing that we could give back, or None where there is, or where that cannot be said now."""
    gateway, server = lease.target.gateway, lease.target.server
    if gateway in reach.gone:
        by_hand = f"if it still exists, set {lease.knob.value} of its server {server} back to {lease.prior} by hand"
        return f"gateway {gateway} is not in the configuration any more: {by_hand}"
    if gateway in reach.errors:
        return None
    state = reach.servers.get(lease.target)
    if state is None:
        return f"gateway {gateway} knows no server {server}: nothing is left to give back"
    if lease.knob in state.cannot and lease.knob not in state.values:
        return f"server {server} has no {lease.knob.value} any more ({state.cannot[lease.knob]}): nothing is left to give back"
    return None


def _why_kept(lease: Lease, reach: Reach, lost: str | None) -> str:
    if lost is not None:
        return f"{lost}; should it be back before this lease runs out, it is given back then"
    said = reach.errors.get(lease.target.gateway)
    state = reach.servers.get(lease.target)
    return said or (state.doubt if state else "") or "it cannot be read now"
