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
"""So long a value is remembered whose time is over while nobody can look whether it came: as long as a gateway may be away."""


class PendingWrites:
    """One entry for each value at each place, for ``MAY_COME_S``: some thousands where every call of the fastest tick fails.

    What came in that time may be seen only later, because ticks are seconds apart, and a gateway or we may be away: so a value is
    forgotten once its server was read after its time, and what came of that reading is noted (``forget``). ``wall`` gives epoch
    seconds: like leases, they outlive the process. While it lives it counts by ``monotonic``, which nobody sets.
    """

    def __init__(
        self,
        wall: Callable[[], float],
        noted: Pending = EMPTY,
        leases: Iterable[Lease] = (),
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """``noted`` was pending in the process before this one. Of a write that it died in, only the intent is in ``leases``."""
        self._wall, self._clock = wall, monotonic or wall
        self._until: dict[Place, dict[KnobValue, float]] = {}
        self._looked: dict[tuple[str, str], float] = {}
        """When the last reading of a server began; of servers where something is pending."""
        now, wall_now = self._clock(), wall()
        for place, values in noted.items():
            ends = {value: now + min(until - wall_now, MAY_COME_S) for value, until in values.items()}
            self._until[place] = {value: until for value, until in ends.items() if until > now - UNSEEN_S}
        for lease in leases:
            if not lease.confirmed and lease.written not in noted.get(lease.place, EMPTY):
                self.note(lease.place, lease.written)

    def note(self, place: Place, value: KnobValue) -> None:
        """A call that was to write ``value`` has just ended, and nobody knows what becomes of it."""
        self._until.setdefault(place, {})[value] = self._clock() + MAY_COME_S

    def looked(self, servers: Iterable[tuple[str, str]], began: float) -> None:
        """These servers, each with its gateway before it, were read; ``began`` by the clock that counts."""
        if self._until:
            here = {place[:2] for place in self._until}
            self._looked = {server: at for server, at in self._looked.items() if server in here}
            self._looked.update(dict.fromkeys(here.intersection(servers), began))

    def at(self, place: Place) -> Mapping[KnobValue, float]:
        """What may still come there, or may have come unseen, and until when. Epoch seconds."""
        return self._in_epoch(self._left(place))

    def everywhere(self) -> Pending:
        """What may still come, by place, and what the last reading may show for the first time."""
        return {place: self._in_epoch(values) for place, values in self._until.items() if values} if self._until else EMPTY

    def forget(self) -> None:
        """What the last reading showed is noted: of what cannot come any more nothing need be known."""
        self._until = {place: left for place in self._until if (left := self._left(place))}

    def _left(self, place: Place) -> dict[KnobValue, float]:
        now = self._clock()
        over = max(min(now, self._looked.get(place[:2], -inf)), now - UNSEEN_S)
        return {value: until for value, until in self._until.get(place, EMPTY).items() if until > over}

    def _in_epoch(self, values: Mapping[KnobValue, float]) -> dict[KnobValue, float]:
        now, wall_now = self._clock(), self._wall()
        return {value: wall_now + (until - now) for value, until in values.items()}


NOTED_WITHIN_S = 1.0
"""Ends that differ by less are the same: two clocks are read one after the other."""


def as_noted(pending: Pending, noted: Pending) -> bool:
    """Whether ``pending`` need not be noted anew."""
    return pending.keys() == noted.keys() and all(
        values.keys() == noted[place].keys()
        and all(abs(end - noted[place][value]) < NOTED_WITHIN_S for value, end in values.items())
        for place, values in pending.items()
    )


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
