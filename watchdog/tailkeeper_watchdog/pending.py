"""Writes of ours that may still come to be in force: the gateway may have them, and has neither refused nor shown them.

They are remembered here, and in the ledger for the next start. No new write waits for an old one. But as long as a value may
come, three things hold: where it is found it is ours, and no foreign hand's (``arrivals``); no lease ends before it
(``may_end``); and it counts for the caps (`guards`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf

from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.model import EMPTY, KnobValue, Lease, Pending, Place, Target
from tailkeeper_watchdog.plan import Change, ChangeKind, same, written

MAY_COME_S = 10.0
"""How long after the end of its call a write may still be done. Longer than one change of ours may take (6 s), so that a gateway
that is merely slow is waited for. One that is done later looks like a foreign hand. So long a lease may outlive its use.
"""


UNSEEN_S = 600.0
"""As long is a value remembered whose time is over while nobody can look whether it came: as long as a gateway may be away."""


NEVER = (-inf, -inf)


class PendingWrites:
    """One entry for each value at each place, for ``MAY_COME_S``: some thousands where every call of the fastest tick fails.

    What came in that time may be seen only later, because ticks are seconds apart and a gateway may be away: so it is forgotten
    once its server was read after its time, and that reading has been judged. ``wall`` gives epoch seconds: like leases, they
    outlive the process.
    """

    def __init__(self, wall: Callable[[], float], noted: Pending = EMPTY, leases: Iterable[Lease] = ()) -> None:
        """``noted`` was pending in the process before this one. Of a write that it died in, only the intent is in ``leases``."""
        self._wall = wall
        self._until: dict[Place, dict[KnobValue, float]] = {place: dict(values) for place, values in noted.items()}
        self._looked: dict[tuple[str, str], tuple[float, float]] = {}
        """When the last reading of a server began, and the one before it; of servers where something is pending."""
        for lease in leases:
            if not lease.confirmed and lease.written not in noted.get(lease.place, EMPTY):
                self.note(lease.place, lease.written)
        self.everywhere()  # what was over before the start has been waited for

    def note(self, place: Place, value: KnobValue) -> None:
        """A call that was to write ``value`` has just ended, and nobody knows what becomes of it."""
        self._until.setdefault(place, {})[value] = self._wall() + MAY_COME_S

    def looked(self, servers: Iterable[tuple[str, str]], began: float) -> None:
        """These servers, each with its gateway before it, were read, from ``began`` on, epoch seconds."""
        if not self._until:
            self._looked = {}
            return
        here = {place[:2] for place in self._until}
        last = {server: self._looked.get(server, NEVER)[1] for server in here.intersection(servers)}
        kept = {server: times for server, times in self._looked.items() if server in here}
        self._looked = {**kept, **{server: (before, began) for server, before in last.items()}}

    def at(self, place: Place) -> Mapping[KnobValue, float]:
        """What may still come there, or may have come unseen, and until when.

        An end further away than it was ever set: the clock was set back.
        """
        now = self._wall()
        values = self._until.get(place, EMPTY)
        judged = self._looked.get(place[:2], (now, now))[0]
        over = max(min(now, judged), now - UNSEEN_S)
        return {value: min(until, now + MAY_COME_S) for value, until in values.items() if over < until}

    def everywhere(self) -> Pending:
        """What may still come, by place. What cannot any more is forgotten."""
        if not self._until:
            return EMPTY
        found = {place: values for place in self._until if (values := self.at(place))}
        self._until = {place: dict(values) for place, values in found.items()}
        return found


def arrivals(leases: Iterable[Lease], servers: Mapping[Target, ServerState], pending: Pending) -> dict[int, Lease]:
    """The leases where a value of ours is in force that is not the last one that we wrote, by id; as they are then."""
    if not pending:
        return {}
    found = {}
    for lease in leases:
        server = servers.get(lease.target)
        actual = None if server is None else server.values.get(lease.knob)
        if actual is None or same(lease.knob, actual, lease.written):
            continue
        if not lease.confirmed and same(lease.knob, actual, lease.prior):
            continue  # as it was before: what was written last has not come yet, and must stay known
        if any(_is(lease, actual, value) for value in pending.get(lease.place, ())):
            found[lease.id] = replace(lease, written=actual, confirmed=True)
    return found


def _is(lease: Lease, actual: KnobValue, value: KnobValue) -> bool:
    """Whether ``actual`` is what a gateway makes of ``value``. The prior value is one that it had, and needs no rounding."""
    return (same if value == lease.prior else written)(lease.knob, actual, value)


def may_end(lease: Lease, values: Iterable[KnobValue]) -> bool:
    """Whether, of ``values`` that may still come, none is another one than its prior value."""
    return all(same(lease.knob, value, lease.prior) for value in values)


def ends_too_early(change: Change, pending: Pending) -> bool:
    """Whether ``change`` would end a lease and write nothing that is not there, while another value of ours may still come."""
    lease, actual = change.lease, change.actual
    if lease is None or may_end(lease, pending.get(lease.place, ())):
        return False
    if change.kind in (ChangeKind.RELEASE, ChangeKind.EXPIRE):
        return actual is not None and same(lease.knob, actual, lease.prior)
    return change.kind is ChangeKind.FORGET
