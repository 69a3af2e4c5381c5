"""Make the gateways match the plan: note the intent, act, read back, note the outcome. The only place that acts.

Gateways work side by side; the changes of one gateway run one after the other, so that there are never two control calls
in flight for one backend. A gateway that fails costs only its own changes, and one that is slow begins none after the
deadline: they wait for the next tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.giving_back import MAY_STILL_COME, Kept, Reach, give_back
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.model import EMPTY, Backend, Decision, Knob, KnobValue, Lease, Outcome, Pending, Target
from tailkeeper_watchdog.pending import PendingWrites, arrivals, as_noted, may_end
from tailkeeper_watchdog.plan import RETURN_POLICY, Change, ChangeKind, same, written

MAX_CHANGES_PER_TICK = 64
"""At most this many calls a tick; the rest waits for the next one, worst backends first."""
CALLS = frozenset({ChangeKind.APPLY, ChangeKind.RELEASE, ChangeKind.EXPIRE})
"""What is done at a gateway. The other kinds are only written down, and take nobody's turn."""

AskLeader = Callable[[], Awaitable[str | None]]
"""None where we lead, else who does: ``Leadership.try_lead``."""


async def alone() -> str | None:
    """An ``AskLeader`` where nobody else can be there."""
    return None


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What the gateways said at one tick: state by target, and errors by gateway."""

    servers: Mapping[Target, ServerState]
    errors: Mapping[str, str]
    gone: frozenset[str] = frozenset()
    """Gateways that the configuration does not have any more; each has an error too."""

    @property
    def reach(self) -> Reach:
        return Reach(self.servers, self.errors, self.gone)


@dataclass(frozen=True, slots=True)
class Executed:
    """Outcome of one tick's changes. ``no_ramp`` are targets whose gateway cannot express a part of a weight."""

    decisions: tuple[Decision, ...]
    changed: frozenset[tuple[str, Knob]]
    failed: frozenset[tuple[Target, Knob]]
    contended: frozenset[tuple[str, Knob]]
    no_ramp: frozenset[Target]
    kept: tuple[Kept, ...] = ()
    """Leases that could not be ended, each with why and what to do."""


def support_of(knob: Knob, gateways: Sequence[Actuator]) -> Support:
    """Whether some gateway of a backend can turn this knob, else why not."""
    answers = [gateway.supports(knob) for gateway in gateways]
    if not answers:
        return Support(False, "no gateway is configured for this backend")
    return next((a for a in answers if a.enforceable), answers[0])


def _has_door(gateway: Actuator) -> bool:
    return gateway.supports(Knob.WEIGHT).enforceable or gateway.supports(Knob.ADMISSION).enforceable


class Reconciler:
    """Owns the actuators and the memory of what is pending there. ``wall`` gives epoch seconds. Raises LedgerError."""

    def __init__(
        self,
        actuators: Mapping[str, Actuator],
        ledger: Ledger,
        log: DecisionLog,
        lease_s: float,
        wall: Callable[[], float],
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """``monotonic`` counts how long a write may still come; ``wall`` does where it is not given."""
        self._actuators = actuators
        self._ledger = ledger
        self._log = log
        self._lease_s = lease_s
        self._wall = wall
        self._clock = monotonic or wall
        self.take_up()
        self.without_doors = frozenset(name for name, actuator in actuators.items() if not _has_door(actuator))
        """Gateways that carry no traffic, and so can take none away."""

    def take_up(self) -> None:
        """Go on from what the ledger says is pending, at the start and where somebody else has led meanwhile."""
        self._noted_pending = self._ledger.pending()
        self._pending = PendingWrites(self._wall, self._noted_pending, self._ledger.leases(), self._clock)

    def support(self, backends: tuple[Backend, ...]) -> dict[tuple[str, Knob], Support]:
        """For each backend and knob whether some gateway of it can turn it, else why not."""
        answers: dict[tuple[str, ...], dict[Knob, Support]] = {}  # a fleet of thousands has a handful of gateways
        found: dict[tuple[str, Knob], Support] = {}
        for backend in backends:
            gateways = tuple(t.gateway for t in backend.targets if t.gateway in self._actuators)
            if gateways not in answers:
                actuators = [self._actuators[gateway] for gateway in gateways]
                answers[gateways] = {knob: support_of(knob, actuators) for knob in Knob}
            found.update({(backend.name, knob): answer for knob, answer in answers[gateways].items()})
        return found

    def found_out(
        self, support: Mapping[tuple[str, Knob], Support], backends: tuple[Backend, ...], report: GatewayReport
    ) -> Mapping[tuple[str, Knob], Support]:
        """``support`` without what no server of a backend turned out to have; the very same where every one has everything."""
        if not any(state.cannot for state in report.servers.values()):
            return support
        corrected = dict(support)
        for backend in backends:
            for target in backend.targets:
                state = report.servers.get(target)
                for knob, why in (state.cannot if state else EMPTY).items():
                    if not any(self._may_have(other, knob, report) for other in backend.targets):
                        corrected[(backend.name, knob)] = Support(False, why)
        return corrected

    def _may_have(self, target: Target, knob: Knob, report: GatewayReport) -> bool:
        actuator, state = self._actuators.get(target.gateway), report.servers.get(target)
        return actuator is not None and actuator.supports(knob).enforceable and (state is None or knob not in state.cannot)

    def pending(self) -> Pending:
        """What we sent and what may still come to be in force."""
        return self._pending.everywhere()

    def note_arrived(self, leases: tuple[Lease, ...]) -> None:
        """See ``arrivals``. Once such a value is pending no more, nothing but the ledger tells that it is ours: where that cannot
        be written it stays pending."""
        if leases:
            with self._ledger.together():
                for lease in leases:
                    self._ledger.confirm(lease.id, lease.written)
        self._pending.forget()

    async def read(self, backends: tuple[Backend, ...], deadline_s: float) -> GatewayReport:
        """Ask every gateway about every server of ours, all at once; never raises."""
        by_gateway: dict[str, dict[Target, None]] = {}
        for backend in backends:
            for target in backend.targets:
                by_gateway.setdefault(target.gateway, {})[target] = None
        servers: dict[Target, ServerState] = {}
        errors: dict[str, str] = {}
        gone: set[str] = set()
        began = self._clock()

        async def one(gateway: str, targets: Mapping[Target, None]) -> None:
            actuator = self._actuators.get(gateway)
            if actuator is None:  # of a lease that has outlived the gateway's place in the configuration
                errors[gateway] = _not_configured(gateway, targets)
                gone.add(gateway)
                return
            try:
                states = await actuator.read(tuple(t.server for t in targets), deadline_s)
            except ActuatorError as error:
                errors[gateway] = str(error)
                return
            except Exception as error:  # the gateway boundary: an actuator's own mistake costs its gateway and no other
                errors[gateway] = f"{gateway}: {type(error).__name__}: {error}"
                return
            servers.update({t: states[t.server] for t in targets if t.server in states})

        async with asyncio.TaskGroup() as group:
            for gateway, targets in by_gateway.items():
                group.create_task(one(gateway, targets))
        self._pending.looked(((target.gateway, target.server) for target in servers), began)
        return GatewayReport(servers, errors, frozenset(gone))

    async def execute(
        self, changes: tuple[Change, ...], tick: int, deadline_s: float, leader: AskLeader | None = None
    ) -> Executed:
        """Carry out the plan. Never raises ActuatorError; LedgerError stops everything before it is done.

        With ``leader`` everything is done, however long it takes, as long as it says, asked again and again, that we lead.
        """
        if changes:  # what is over must not stand in the ledger for the write in which this process may die
            self._note_pending()
        run = _Run(self._actuators, self._ledger, self._log, self._lease_s, self._wall, self._pending, tick, deadline_s, leader)
        by_gateway: dict[str, list[Change]] = {}
        late = {id(c) for c in [c for c in changes if c.kind in CALLS][MAX_CHANGES_PER_TICK:]} if leader is None else set()
        run.renew([change for change in changes if change.kind is ChangeKind.RENEW])
        for change in changes:
            if id(change) not in late:
                by_gateway.setdefault(change.target.gateway, []).append(change)
        async with asyncio.TaskGroup() as group:
            for batch in by_gateway.values():
                group.create_task(run.batch(batch))
        if changes:  # else whoever leads now has the ledger
            self._note_pending()
        return Executed(
            tuple(run.decisions),
            frozenset(run.changed),
            frozenset(run.failed),
            frozenset(run.contended),
            frozenset(run.no_ramp),
            tuple(run.kept),
        )

    def _note_pending(self) -> None:
        """For whoever starts after us."""
        pending = self.pending()
        if not as_noted(pending, self._noted_pending):
            self._ledger.note_pending(pending)
            self._noted_pending = pending

    async def release(
        self, leases: tuple[Lease, ...], tick: int, why: str, deadline_s: float, leader: AskLeader = alone
    ) -> Executed:
        """Give back everything in ``leases`` that is still as we left it, and nothing else; say of the rest why it is kept.

        ``leader`` has just said that we lead; it is asked again before what is begun later.
        """
        report, pending = await self.read(as_backends(leases), deadline_s), self.pending()
        arrived = arrivals(leases, report.servers, pending)
        found = [arrived.get(lease.id, lease) for lease in leases]
        self.note_arrived(tuple(arrived.values()))
        self._note_pending()  # else each release anew would wait for the same write
        changes, kept = give_back(found, report.reach, why, self._wall(), self.pending())  # what has just been judged is over
        executed = await self.execute(changes, tick, deadline_s, leader)
        return replace(executed, kept=(*kept, *executed.kept))

    async def close(self) -> None:
        for actuator in self._actuators.values():
            await actuator.close()


def as_backends(leases: tuple[Lease, ...]) -> tuple[Backend, ...]:
    """The servers that leases are on, to be read, whether they are still in the configuration or not."""
    targets: dict[str, set[Target]] = {}
    for lease in leases:
        targets.setdefault(lease.backend, set()).add(lease.target)
    return tuple(Backend(name, targets=tuple(sorted(t, key=lambda t: t.server))) for name, t in targets.items())


MAX_SERVERS_NAMED = 10


def _not_configured(gateway: str, targets: Mapping[Target, None]) -> str:
    names = sorted({t.server for t in targets})
    more = f" and {len(names) - MAX_SERVERS_NAMED} more" if len(names) > MAX_SERVERS_NAMED else ""
    return (
        f"gateway {gateway!r} is not in the configuration any more, and changes of ours are left at its servers "
        f"{', '.join(names[:MAX_SERVERS_NAMED])}{more}: put it back, or set them back by hand"
    )


def has_arrived(change: Change) -> bool:
    """Whether ``change`` goes on with a lease of whose write nobody had heard, and which is found to be in force."""
    lease = change.lease
    if change.kind is not ChangeKind.RENEW or lease is None or lease.confirmed:
        return False
    return lease.before is None or not same(lease.knob, lease.written, lease.before)


class _Run:
    """One tick's execution: collects what came of it."""

    def __init__(
        self,
        actuators: Mapping[str, Actuator],
        ledger: Ledger,
        log: DecisionLog,
        lease_s: float,
        wall: Callable[[], float],
        pending: PendingWrites,
        tick: int,
        deadline_s: float,
        leader: AskLeader | None,
    ) -> None:
        self._actuators, self._ledger, self._log, self._lease_s, self._wall = actuators, ledger, log, lease_s, wall
        self._pending, self._tick, self._deadline_s, self._leader = pending, tick, deadline_s, leader
        self.failed: set[tuple[Target, Knob]] = set()
        self.decisions: list[Decision] = []
        self.changed: set[tuple[str, Knob]] = set()
        self.contended: set[tuple[str, Knob]] = set()
        self.no_ramp: set[Target] = set()
        self.kept: list[Kept] = []

    def renew(self, changes: list[Change]) -> None:
        """Leases that go on, in one commit: nothing is done at a gateway for them, so nothing waits for it to be written."""
        renewed = [(change, change.lease) for change in changes if change.lease is not None]
        if not renewed:
            return
        expires = self._wall() + self._lease_s
        with self._ledger.together():
            for change, lease in renewed:
                if not lease.confirmed:
                    self._ledger.confirm(lease.id, lease.written)  # as it was found, which need not be what was last intended
                self._ledger.renew(lease.id, expires)
                if has_arrived(change):
                    self._arrived(change, lease, expires)

    def _arrived(self, change: Change, lease: Lease, expires: float) -> None:
        """Done after all: said, and counted, as what was done at once."""
        self.changed.add((change.backend, change.knob))
        made = replace(change, value=lease.written, lease=None, prior=lease.prior if lease.before is None else lease.before)
        self._decide(made, Outcome.APPLIED, f"{lease.reason}; found in force, although no answer had come", expires)

    async def batch(self, changes: list[Change]) -> None:
        """The changes at one gateway. One is always begun; what is begun late needs a leader that says so."""
        clock = asyncio.get_running_loop().time
        # Where a leader can be asked its consent is from before the gateways were read, so it is asked soon.
        begin_until = clock() + (self._deadline_s if self._leader is None else 0.0)
        begun = False
        for change in changes:
            if change.kind in CALLS:
                if begun and clock() >= begin_until:
                    if not await self._may_go_on(change):
                        continue
                    begin_until = clock() + self._deadline_s
                begun = True
            try:
                await self._one(change)
            except LedgerError:
                raise  # what cannot be written down is not done, here or at any other gateway
            except Exception as error:  # the gateway boundary; the intent stays, for the effect is unknown
                self._decide(change, Outcome.FAILED, f"{change.reason}; {type(error).__name__}: {error}")

    async def _may_go_on(self, change: Change) -> bool:
        """False where ``change`` waits for the next tick, or is for whoever leads now."""
        if self._leader is None:
            return False
        why_not = await self._leader()
        if why_not is not None and change.lease is not None:
            self.kept.append((change.lease, why_not))
        return why_not is None

    async def _one(self, change: Change) -> None:
        if change.kind is ChangeKind.RENEW and change.lease is not None:
            return  # together with the others, before
        lease = change.lease
        if change.kind is ChangeKind.ALREADY:
            self._decide(change, Outcome.ALREADY, change.reason)
        elif change.kind is ChangeKind.APPLY:
            await self._apply(change)
        elif lease is None:
            raise AssertionError(f"{change.kind} without a lease")
        elif change.kind is ChangeKind.FORGET:
            self.contended.add((change.backend, change.knob))
            self._end(change, lease, Outcome.CONTENDED, f"a foreign hand keeps changing it; left alone ({change.reason})")
        elif change.kind is ChangeKind.LOST:
            self._end(change, lease, Outcome.EXPIRED, change.reason)
        else:
            await self._give_back(change, lease)

    async def _apply(self, change: Change) -> None:
        now = self._wall()
        expires = now + self._lease_s
        lease = self._ledger.intend(
            change.backend, change.target, change.knob, change.policy, change.prior, change.value, change.reason, now, expires,
            change.actual,
        )  # fmt: skip
        if change.reverts:
            self._ledger.note_reverts(lease.id, change.reverts)
        failure, actual = await self._write_and_read_back(change)
        if failure is None and actual is not None:
            self.changed.add((change.backend, change.knob))
            with self._ledger.together():  # done is done: one commit, and not two, before the next call
                self._ledger.confirm(lease.id, actual)
                self._decide(change, Outcome.APPLIED, f"{change.reason}; read back", expires)
            return
        before = change.lease.written if change.lease else change.prior
        unchanged = actual is not None and same(change.knob, actual, before) and not same(change.knob, actual, change.value)
        # A refusal of this write says nothing of those before it: else the next ticks see what becomes of them.
        is_over = (change.lease is None or change.lease.confirmed) and not self._pending.at(lease.place)
        if unchanged and is_over:
            self._undo_intent(lease, change)
        if failure is not None and failure.kind is ErrorKind.REFUSED and change.policy == RETURN_POLICY:
            self.no_ramp.add(change.target)
        self._decide(change, Outcome.FAILED, f"{change.reason}; {failure}")

    def _undo_intent(self, lease: Lease, change: Change) -> None:
        """Nothing happened at the gateway: the lease is again what it was before, or ends."""
        before = change.lease
        if before is None:
            self._ledger.end(lease.id, Outcome.FAILED, self._wall())
            return
        again = self._ledger.intend(
            before.backend, before.target, before.knob, before.policy, before.prior, before.written, before.reason,
            before.created_unix_s, before.expires_unix_s,
        )  # fmt: skip
        self._ledger.confirm(again.id, before.written)

    async def _give_back(self, change: Change, lease: Lease) -> None:
        outcome = Outcome.EXPIRED if change.kind is ChangeKind.EXPIRE else Outcome.RELEASED
        failure, _ = await self._write_and_read_back(change)
        if failure is not None:
            self._decide(change, Outcome.FAILED, f"giving back: {failure}")
        elif may_end(lease, self._pending.at(lease.place)):
            self._end(change, lease, outcome, f"{change.reason}; prior value read back")
        else:
            self._ledger.run_out(lease.id, self._wall())
            self.kept.append((lease, MAY_STILL_COME))
            self._decide(change, outcome, f"{change.reason}; prior value read back, and {MAY_STILL_COME}")

    def _end(self, change: Change, lease: Lease, outcome: Outcome, reason: str) -> None:
        """The end of a lease and the line that says so, or neither."""
        with self._ledger.together():
            self._ledger.end(lease.id, outcome, self._wall())
            self._decide(change, outcome, reason)

    async def _write_and_read_back(self, change: Change) -> tuple[ActuatorError | None, KnobValue | None]:
        """What went wrong, if anything, and what the gateway reports now, if it does.

        It is read also after an error: an error of any kind may leave a part of the write done. Raises LedgerError, before
        anything is done, where what was noted is not safe.
        """
        actuator, may_come = self._actuators[change.target.gateway], True
        await self._ledger.settled()
        try:
            said = await _error_of(actuator.write(change.target.server, {change.knob: change.value}, self._deadline_s))
            failure, actual = await self._read_back(actuator, change, said)
            may_come = failure is not None if said is None else said.may_be_done
            return failure, actual
        finally:
            if may_come:
                self._pending.note(change.place, change.value)

    async def _read_back(
        self, actuator: Actuator, change: Change, failure: ActuatorError | None
    ) -> tuple[ActuatorError | None, KnobValue | None]:
        """``failure`` is how the write failed, which is none where its value is there all the same."""
        target = change.target
        try:
            state = (await actuator.read((target.server,), self._deadline_s)).get(target.server)
        except ActuatorError as error:
            return failure or error, None
        actual = None if state is None else state.values.get(change.knob)
        doubt = "" if state is None else state.doubt_of(change.knob, giving_back=change.kind is not ChangeKind.APPLY)
        if doubt:
            # One of several replicas may have taken it, or it may be taken later: what was intended stays noted, or nobody would
            # give it back.
            unsettled = state is not None and any(d.knob is change.knob for d in state.doubts)
            unsure = ActuatorError(ErrorKind.PROTOCOL, target.gateway, target.server, doubt)
            return unsure, None if unsettled else actual
        # A value that is given back is one that the gateway had: it needs no room for rounding.
        there = written if change.kind is ChangeKind.APPLY else same
        if actual is not None and there(change.knob, actual, change.value):
            return None, actual
        said = f"read back {actual!r} instead of {change.value!r}"
        return failure or ActuatorError(ErrorKind.PROTOCOL, target.gateway, target.server, said), actual

    def _decide(self, change: Change, outcome: Outcome, reason: str, expires: float | None = None) -> None:
        if outcome is Outcome.FAILED:
            self.failed.add((change.target, change.knob))
        before = change.lease.written if change.lease else change.prior
        decision = self._log.note(
            self._tick,
            change.policy,
            change.backend,
            change.knob,
            before,
            change.value,
            outcome,
            reason,
            gateway=change.target.gateway,
            server=change.target.server,
            lease_expires=expires,
        )
        if decision is not None:
            self.decisions.append(decision)


async def _error_of(call: Awaitable[None]) -> ActuatorError | None:
    try:
        await call
    except ActuatorError as error:
        return error
    return None


MAX_BACKOFF_S = 30.0


class Backoff:
    """Knobs whose last change failed wait longer each time, 1 s at first, 30 s at most; success forgets."""

    def __init__(self) -> None:
        self._waits: dict[tuple[Target, Knob], tuple[int, float]] = {}

    def ready(self, changes: tuple[Change, ...], now: float) -> tuple[Change, ...]:
        """The changes whose knob need not wait any longer."""
        return tuple(c for c in changes if self._waits.get((c.target, c.knob), (0, 0.0))[1] <= now)

    def learn(self, tried: tuple[Change, ...], failed: frozenset[tuple[Target, Knob]], now: float) -> None:
        for key in {(c.target, c.knob) for c in tried}:
            if key in failed:
                times = self._waits.get(key, (0, 0.0))[0] + 1
                self._waits[key] = (times, now + min(MAX_BACKOFF_S, 2.0 ** min(times - 1, 10)))
            else:
                self._waits.pop(key, None)

    def keep(self, targets: frozenset[Target]) -> None:
        """Forget the waits at every other target: nothing will be tried there again."""
        self._waits = {key: wait for key, wait in self._waits.items() if key[0] in targets}
