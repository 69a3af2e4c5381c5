"""From allowed wishes, leases in force and what the gateways report to the changes that close the difference. Pure.

Level-triggered: the plan is made anew each tick from what is there, so it is the same after a restart. Four things
happen to a lease: it is renewed while wanted, stepped back to normal after good evidence, expired when nobody can say
that it is still needed, or forgotten when a foreign hand has made the knob its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Protocol

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState
from tailkeeper_watchdog.model import (
    DRAIN,
    EMPTY,
    SERVE,
    Backend,
    DesiredState,
    FleetSnapshot,
    Knob,
    KnobValue,
    Lease,
    Place,
    Situation,
    Target,
)
from tailkeeper_watchdog.quarantine import WHY
from tailkeeper_watchdog.settings import GuardsSettings

WEIGHT_DEADBAND = 0.05
"""A weight is not rewritten for less: a derating that trembles must not make the gateway tremble."""
WEIGHT_TOLERANCE = 0.02
"""Gateways keep whole numbers: a weight read back within this is the weight that was written."""
REVERTS_BEFORE_CONTENDED = 2
CLOCK_SLACK_S = 5.0
"""A lease that ends later than one lease and this from now was written under another clock."""
MAX_RETURN_WAIT_S = 600.0
RETURN_STEPS = (0.25, 0.5, 1.0)
"""Slow start: a quarter, a half, all."""
RETURN_POLICY = "return"


class ChangeKind(StrEnum):
    APPLY = "apply"
    RENEW = "renew"
    ALREADY = "already"
    RELEASE = "release"
    EXPIRE = "expire"
    FORGET = "forget"
    LOST = "lost"
    """Nothing is left to give back: neither the fleet nor the gateway knows the server any more."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to do at one server. ``value`` is the gateway's own; ``prior`` goes into the lease of a new change."""

    kind: ChangeKind
    backend: str
    target: Target
    knob: Knob
    value: KnobValue
    prior: KnobValue
    policy: str
    reason: str
    lease: Lease | None = None
    reverts: int = 0
    actual: KnobValue | None = None
    """What the gateway reported when this was planned; the prior value unless given."""

    @property
    def place(self) -> Place:
        return self.target.gateway, self.target.server, self.knob


@dataclass(frozen=True, slots=True)
class ReturnMemory:
    """Since when each leased knob has seen good evidence, when its return began, and who cannot be ramped."""

    good_since: Mapping[tuple[str, Knob], float] = field(default_factory=lambda: EMPTY)
    ramp_since: Mapping[tuple[str, Knob], float] = field(default_factory=lambda: EMPTY)
    no_ramp: frozenset[Target] = frozenset()


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What the plan is made from. ``wishes`` are allowed ones, ``blocked`` those a guard refused that speak against a return."""

    situation: Situation
    settings: GuardsSettings
    wishes: tuple[DesiredState, ...]
    blocked: frozenset[tuple[str, Knob]]
    leases: tuple[Lease, ...]
    servers: Mapping[Target, ServerState]
    attempts: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    held: frozenset[str] = frozenset()
    """Backends on which an operator's hold lies: nothing is done to them, and their leases do not run out."""
    cooling: frozenset[tuple[str, Knob]] = frozenset()
    """Those of ``blocked`` whose refusal ends by itself, and soon: with the cooldown."""
    kept_out: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    """Backends in quarantine, with how often they were taken out."""

    _worked_out: dict[str, frozenset[str]] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.situation.snapshot

    @property
    def lightened(self) -> frozenset[str]:
        """Backends of which a policy wishes a weight; looked up once, for a thousand may return together."""
        found = self._worked_out.get("lightened")
        if found is None:
            found = self._worked_out["lightened"] = frozenset(w.backend for w in self.wishes if w.knob is Knob.WEIGHT)
        return found


def plan(given: PlanInput, memory: ReturnMemory) -> tuple[ReturnMemory, tuple[Change, ...]]:
    """The changes of this tick. Servers that no gateway reported are left alone: nothing can be read back there."""
    leases = {(lease.target, lease.knob): lease for lease in given.leases}
    before, memory = memory, _remember(given, memory)
    returning = _returning(given.leases)
    wishes = tuple(wish for wish in given.wishes if not _waits_for_ramp(wish, given, before, memory, returning))
    if len(wishes) < len(given.wishes):
        given = replace(given, wishes=wishes)
        memory = _remember(given, before)
    changes: list[Change] = []
    wanted: set[tuple[Target, Knob]] = set()
    targets = {b.name: b.targets for b in given.snapshot.backends} if given.wishes else {}
    for wish in given.wishes:
        for target in targets.get(wish.backend, ()):
            wanted.add((target, wish.knob))
            server = given.servers.get(target)
            if server is not None and wish.knob in server.values:
                changes.extend(_toward(wish, target, server, leases.get((target, wish.knob)), given))
    for key, lease in leases.items():
        if key not in wanted:
            changes.extend(_back(lease, leases, given, memory))
    return memory, tuple(changes)


def adopted(leases: tuple[Lease, ...], backends: tuple[Backend, ...]) -> tuple[Lease, ...]:
    """The leases under the names that their servers have now: a backend or a pool may have been renamed since."""
    if not leases:
        return ()
    of_backend = {backend.name: backend.targets for backend in backends}
    if all(_is_at_home(lease, of_backend.get(lease.backend, ())) for lease in leases):
        return leases  # at nearly every tick
    now: dict[tuple[str, str], dict[str, Target]] = {}
    for backend in backends:
        for target in backend.targets:
            now.setdefault((target.gateway, target.server), {})[backend.name] = target
    return tuple(_adopted(lease, now.get((lease.target.gateway, lease.target.server), {})) for lease in leases)


def _is_at_home(lease: Lease, targets: tuple[Target, ...]) -> bool:
    """Whether its backend has its server, and has it once, under the name and pool that the lease knows."""
    at = lease.target
    return [target for target in targets if target.server == at.server and target.gateway == at.gateway] == [at]


def _adopted(lease: Lease, owners: Mapping[str, Target]) -> Lease:
    """Unchanged where nobody owns the server any more."""
    if not owners:
        return lease
    name = lease.backend if lease.backend in owners else next(iter(owners))
    return replace(lease, backend=name, target=owners[name])


def forgotten(memory: ReturnMemory, gone: frozenset[str], targets: frozenset[Target]) -> ReturnMemory:
    """Without what was known of backends that are gone; of ``no_ramp`` the ``targets`` stay that there still are."""
    return ReturnMemory(
        {key: at for key, at in memory.good_since.items() if key[0] not in gone},
        {key: at for key, at in memory.ramp_since.items() if key[0] not in gone},
        memory.no_ramp & targets,
    )


def _returning(leases: tuple[Lease, ...]) -> frozenset[str]:
    return frozenset(lease.backend for lease in leases if lease.policy == RETURN_POLICY)


def _waits_for_ramp(
    wish: DesiredState, given: PlanInput, before: ReturnMemory, memory: ReturnMemory, returning: frozenset[str]
) -> bool:
    """Whether a return gives a backend less, for now, than a policy would: its wish counts once the ramp has come that far."""
    if wish.knob is not Knob.WEIGHT or given.settings.return_ramp_s <= 0:
        return False
    if (wish.backend, Knob.ADMISSION) in memory.ramp_since:  # it is about to be let in
        return float(wish.value) > RETURN_STEPS[0]
    if wish.backend not in returning:
        return False
    since = before.ramp_since.get((wish.backend, Knob.WEIGHT))
    share = RETURN_STEPS[0] if since is None else ramp_share(given.snapshot.now - since, given.settings.return_ramp_s)
    return float(wish.value) > share


def _remember(given: PlanInput, memory: ReturnMemory) -> ReturnMemory:
    """Good evidence counts from the first tick at which a backend serves and nobody wants this knob of it restricted."""
    now = given.snapshot.now
    wanted = {(wish.backend, wish.knob) for wish in given.wishes} | given.blocked
    returning = _returning(given.leases)
    # A weight that a guard refuses for good is not to come, so whoever is let in already need not stay below it.
    wanted -= {(backend, Knob.WEIGHT) for backend in returning} & (given.blocked - given.cooling)
    good_since, ramp_since = {}, {}
    for key in {(lease.backend, lease.knob) for lease in given.leases}:
        backend, knob = key
        seen = given.situation.fresh(backend)
        if seen is None or not seen.state.takes_work or key in wanted:
            continue
        if knob is not Knob.ADMISSION and (backend, Knob.ADMISSION) in wanted:
            continue
        # A weight that a return has just lowered has waited with its drain: the wait is not served twice.
        since = memory.good_since.get((backend, Knob.ADMISSION), now) if backend in returning else now
        good_since[key] = memory.good_since.get(key, since)
        if knob is Knob.WEIGHT:
            good_since[key] = min(good_since[key], since)
        if now - good_since[key] >= return_wait_s(given.settings, given.attempts.get(backend, 1)):
            ramp_since[key] = memory.ramp_since.get(key, now)
    return ReturnMemory(good_since, ramp_since, memory.no_ramp)


def return_wait_s(settings: GuardsSettings, attempts: int) -> float:
    """How long good evidence must last before traffic returns: doubled for each repeat, ten minutes at most."""
    return min(max(MAX_RETURN_WAIT_S, settings.cooldown_s), settings.cooldown_s * 2.0 ** min(16, max(0, attempts - 1)))


def same(knob: Knob, a: KnobValue, b: KnobValue) -> bool:
    """Whether two values of a knob are the same to a gateway that keeps whole numbers."""
    if knob is Knob.WEIGHT:
        return abs(float(a) - float(b)) <= WEIGHT_TOLERANCE
    return a == b


ROUNDING_SHARE = 0.1
"""A gateway may round a weight by this share of it and still have done what was asked."""


def written(knob: Knob, actual: KnobValue, wanted: KnobValue) -> bool:
    """Whether what is read back is what was asked for, as near as the gateway can express it."""
    if knob is Knob.WEIGHT:
        return abs(float(actual) - float(wanted)) <= max(WEIGHT_TOLERANCE, ROUNDING_SHARE * float(wanted))
    return actual == wanted


def _toward(wish: DesiredState, target: Target, server: ServerState, lease: Lease | None, given: PlanInput) -> list[Change]:
    """What brings the server to the wish, or nothing."""
    actual = server.values[wish.knob]
    if lease is None and wish.knob is Knob.WEIGHT and Knob.WEIGHT in server.lowest:
        return []  # its replicas differ: a share of one of them, written to all, would spread what somebody did at one
    if lease is None:
        return [_first(wish, target, actual)]
    lease = as_found(lease, actual)
    value = _value(wish, lease.prior)

    def change(kind: ChangeKind, reverts: int = lease.reverts) -> Change:
        return Change(kind, wish.backend, target, wish.knob, value, lease.prior, wish.policy, wish.reason, lease, reverts, actual)

    if same(wish.knob, actual, lease.written):
        doubted = server.doubt_of(wish.knob, giving_back=False)
        if doubted or _differs_enough(wish.knob, value, lease.written) or lease.policy == RETURN_POLICY:  # now a policy's again
            return [change(ChangeKind.APPLY)]
        return [change(ChangeKind.RENEW)] if _due(lease, given) or not lease.confirmed else []
    if not lease.confirmed and same(wish.knob, actual, lease.prior):
        return [change(ChangeKind.APPLY)]  # the write never arrived
    deliberate = not same(wish.knob, actual, lease.prior)
    if deliberate or lease.reverts + 1 >= REVERTS_BEFORE_CONTENDED:
        return [change(ChangeKind.FORGET, lease.reverts + 1)]
    return [change(ChangeKind.APPLY, lease.reverts + 1)]


def as_found(lease: Lease, actual: KnobValue) -> Lease:
    """The lease as the gateway shows it: an unconfirmed write that never arrived left the value before it, which is ours."""
    lost = not lease.confirmed and lease.before is not None and not same(lease.knob, actual, lease.written)
    if lost and lease.before is not None and same(lease.knob, actual, lease.before):
        return replace(lease, written=lease.before)
    return lease


def _first(wish: DesiredState, target: Target, actual: KnobValue) -> Change:
    value = _value(wish, actual)
    kind = ChangeKind.ALREADY if same(wish.knob, actual, value) else ChangeKind.APPLY
    return Change(kind, wish.backend, target, wish.knob, value, actual, wish.policy, wish.reason)


def _value(wish: DesiredState, prior: KnobValue) -> KnobValue:
    """The gateway's own value. A knob that only ever limits stays as tight as somebody had it."""
    if wish.knob is Knob.CONCURRENCY_LIMIT:
        return min(prior, wish.value, key=lambda limit: float(limit) or inf)  # 0 is no limit
    if wish.knob is Knob.DEGRADE_LEVEL:
        return max(prior, wish.value, key=float)
    return float(prior) * float(wish.value) if wish.knob is Knob.WEIGHT else wish.value


def _differs_enough(knob: Knob, value: KnobValue, written: KnobValue) -> bool:
    if knob is Knob.WEIGHT:
        return abs(float(value) - float(written)) > WEIGHT_DEADBAND
    return value != written


def _due(lease: Lease, given: PlanInput) -> bool:
    """A lease is renewed once half of it is gone, and where a wall clock that was set back has put its end too far away."""
    left_s = lease.expires_unix_s - given.snapshot.time_unix_s
    return left_s < given.settings.lease_s / 2 or left_s > given.settings.lease_s + CLOCK_SLACK_S


def _back(lease: Lease, leases: Mapping[tuple[Target, Knob], Lease], given: PlanInput, memory: ReturnMemory) -> list[Change]:
    """What becomes of a lease that no allowed wish asks for."""
    server = given.servers.get(lease.target)
    if server is None or lease.knob not in server.values:
        return []
    actual = server.values[lease.knob]
    lease = as_found(lease, actual)

    def change(kind: ChangeKind, reason: str, value: KnobValue = lease.prior) -> Change:
        return Change(
            kind, lease.backend, lease.target, lease.knob, value, lease.prior, lease.policy, reason, lease, lease.reverts, actual
        )

    if lease.backend in given.held:
        ours = same(lease.knob, actual, lease.written)
        return [change(ChangeKind.RENEW, "an operator's hold is on it")] if ours and _due(lease, given) else []
    if same(lease.knob, actual, lease.prior):
        return [change(ChangeKind.RELEASE, "already back at its prior value")]
    if not same(lease.knob, actual, lease.written):
        return [change(ChangeKind.FORGET, f"someone else set it to {actual}: it is theirs now")]
    if given.snapshot.time_unix_s >= lease.expires_unix_s:
        return [change(ChangeKind.EXPIRE, "the lease ran out and nothing asked for it any more")]
    if lease.backend in given.kept_out:
        words = WHY.format(attempts=given.kept_out[lease.backend])
        return [change(ChangeKind.RENEW, words)] if _due(lease, given) else []
    steps = _return_steps(lease, leases, given, memory, change)
    if not steps and _due(lease, given) and _known_to_wait(lease, given, memory):
        return [change(ChangeKind.RENEW, "waiting for its return")]
    if not steps and lease.expires_unix_s - given.snapshot.time_unix_s > given.settings.lease_s + CLOCK_SLACK_S:
        return [change(ChangeKind.RENEW, "the wall clock was set back: it ends within one lease from now")]
    return steps


def _known_to_wait(lease: Lease, given: PlanInput, memory: ReturnMemory) -> bool:
    """Whether fresh evidence says that the return is still to come: it waits, it is on its way, or the engine starts.

    Such a lease does not run out: its end would be a jump to all of the traffic.
    """
    seen = given.situation.fresh(lease.backend)
    starting = seen is not None and seen.state is State.STARTING
    return starting or (lease.backend, lease.knob) in memory.good_since


def _return_steps(
    lease: Lease, leases: Mapping[tuple[Target, Knob], Lease], given: PlanInput, memory: ReturnMemory, change: _MakeChange
) -> list[Change]:
    """The next step back to normal, if there has been good evidence for long enough."""
    since = memory.ramp_since.get((lease.backend, lease.knob))
    if since is None:
        return []
    if lease.knob is Knob.ADMISSION:
        return _readmit(lease, leases, given, memory, change(ChangeKind.RELEASE, "serving again"))
    if lease.knob is Knob.WEIGHT:
        return _ramp(lease, leases, given.snapshot.now - since, given.settings.return_ramp_s, change)
    return [change(ChangeKind.RELEASE, "not needed any more")]


def _readmit(
    lease: Lease,
    leases: Mapping[tuple[Target, Knob], Lease],
    given: PlanInput,
    memory: ReturnMemory,
    release: Change,
) -> list[Change]:
    """Traffic comes back only once the weight is down at the first step, so that a return is never a jump."""
    server = given.servers[lease.target]
    weight = server.values.get(Knob.WEIGHT)
    if weight is None or given.settings.return_ramp_s <= 0 or lease.target in memory.no_ramp or lease.prior != SERVE:
        return [release]
    held = leases.get((lease.target, Knob.WEIGHT))
    if held is not None and not same(Knob.WEIGHT, weight, as_found(held, weight).written):
        return []  # what became of that lease is settled first
    prior = weight if held is None else held.prior
    first = float(prior) * RETURN_STEPS[0]
    if lease.backend in given.lightened or float(weight) <= first or same(Knob.WEIGHT, weight, first):
        return [release]  # low enough already, or somebody's zero, or a policy says how low
    reason = f"serving again: returning at {RETURN_STEPS[0]:.0%}"
    return [
        Change(
            ChangeKind.APPLY, lease.backend, lease.target, Knob.WEIGHT, first, prior, RETURN_POLICY, reason, held, actual=weight
        )
    ]


class _MakeChange(Protocol):
    def __call__(self, kind: ChangeKind, reason: str, value: KnobValue = ...) -> Change: ...


def _ramp(
    lease: Lease, leases: Mapping[tuple[Target, Knob], Lease], elapsed_s: float, ramp_s: float, change: _MakeChange
) -> list[Change]:
    drained = leases.get((lease.target, Knob.ADMISSION))
    if drained is not None and drained.written == DRAIN:
        return []  # first the door, then the ramp
    share = ramp_share(elapsed_s, ramp_s)
    if share >= 1.0:
        return [change(ChangeKind.RELEASE, "back at its prior weight")]
    value = share * float(lease.prior)
    if value > float(lease.written) and not same(Knob.WEIGHT, value, lease.written):
        return [change(ChangeKind.APPLY, f"returning at {share:.0%}", value)]
    return []


def ramp_share(elapsed_s: float, ramp_s: float) -> float:
    """Share of its prior weight that a returning backend may have, by equal steps of time."""
    if ramp_s <= 0 or elapsed_s >= ramp_s:
        return 1.0
    return RETURN_STEPS[int(elapsed_s / ramp_s * (len(RETURN_STEPS) - 1))]
