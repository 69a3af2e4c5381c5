"""What no policy can skip. Pure: wishes in, verdicts out, each refusal with its reason and its numbers.

Guards stop harm, never recovery: a value at or above what is in force passes. The cap is computed after the action,
others' removals counted. A renewal of what is in force already is not a new action. Wishes are judged worst backend
first, and each allowed one counts against the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ServerState, Support
from tailkeeper_watchdog.model import (
    DRAIN,
    EMPTY,
    Backend,
    DesiredState,
    FleetSnapshot,
    Knob,
    KnobValue,
    Lease,
    Pending,
    Pool,
    Refusal,
    Target,
    Verdict,
)
from tailkeeper_watchdog.settings import GuardsSettings

ACTED_ON_SHARE = 0.5
"""A backend counts as acted on while drained or below this share of its prior weight (public contract)."""
SIGNALS_FOR_DRAIN = 2
CUT_BACK_WEIGHT = 0.6
"""What a weight is cut back to where the pool can spare no more: by whole numbers of a gateway, from a weight of 1 up, never
rounded to less than half, so that nobody is acted on by it."""
CUT_BACK = frozenset({Refusal.CAP, Refusal.MIN_HEALTHY, Refusal.ZONE})
DISMISSED = frozenset({Refusal.SIGNALS, Refusal.PANIC})
"""Refusals for which a drain is no evidence against its backend: one sign is none yet, and what most of a pool has is not its."""
GRADED = frozenset({Knob.CONCURRENCY_LIMIT, Knob.BATCH_WINDOW_S, Knob.DEGRADE_LEVEL})
"""Knobs of controllers that go by small steps and have a pace of their own: the cooldown is not theirs."""


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What the guards look at beside the wishes. Times are monotonic seconds."""

    snapshot: FleetSnapshot
    settings: GuardsSettings
    stale_after_s: float
    leases: tuple[Lease, ...] = ()
    servers: Mapping[Target, ServerState] = field(default_factory=lambda: EMPTY)
    support: Mapping[tuple[str, Knob], Support] = field(default_factory=lambda: EMPTY)
    paused: str | None = None
    holds: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Backend → the operator's reason."""
    contended: frozenset[tuple[str, Knob]] = frozenset()
    changed_at: Mapping[tuple[str, Knob], float] = field(default_factory=lambda: EMPTY)
    """When each knob of a backend was last changed by us."""
    released_at: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    """When a person last had a backend released."""
    pending: Pending = field(default_factory=lambda: EMPTY)
    without_doors: frozenset[str] = frozenset()
    """Gateways that carry no traffic: whoever is set up there shares no load, so the servers of one are no pool. What such a
    gateway says of a server in service counts all the same."""
    _held: dict[tuple[str, Knob], list[Lease]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def leases_on(self, backend: str, knob: Knob) -> Sequence[Lease]:
        """Sorted at the first question: at most ticks nobody asks, and in a bad hour thousands do."""
        if not self._held:
            for lease in self.leases:
                self._held.setdefault((lease.backend, lease.knob), []).append(lease)
        return self._held.get((backend, knob), ())


@dataclass(slots=True)
class _Tally:
    """Sets of backend names, looked up once; ``acted_on`` is filled up while judging."""

    drained_in: set[tuple[Pool, str]]
    """Drained or without weight there, whoever wanted that: to say so once more takes nobody out. Not who is down for the
    gateway's own checks: when they let it in again, our drain would keep it out."""
    acted_on_in: set[tuple[Pool, str]]
    """Likewise below half of their weight."""
    acted_on: set[str]
    """Acted on or out of service in some pool: whoever is out anywhere is nobody to rely on elsewhere. A lease counts also where
    the gateway shows nothing of it: its write may still arrive."""
    bad: frozenset[str]
    """Looks bad, cannot be seen, or is wanted out."""
    serving: frozenset[str]
    backends: Mapping[str, Backend]
    members: Mapping[Pool, tuple[Backend, ...]]
    order: Mapping[Pool, int]
    """Of the pools, as the fleet has them."""
    pools: Mapping[str, frozenset[Pool]]
    silent_in: frozenset[tuple[Pool, str]]
    """Whose gateway answers and does not say what it gives them: nobody to rely on."""


def judge(wishes: tuple[DesiredState, ...], context: GuardContext) -> tuple[Verdict, ...]:
    """One verdict per enforced wish, in the order of judging."""
    if not wishes:
        return ()
    tally = _tally(wishes, context)
    verdicts = []
    for wish in sorted(wishes, key=lambda w: _urgency(w, context.snapshot)):
        refusal, detail = _first_refusal(wish, context, tally)
        verdict = _cut_back(wish, refusal, detail) if refusal in CUT_BACK else Verdict(wish, refusal, detail)
        verdicts.append(verdict)
        if verdict.allowed and takes_out(verdict.desired):
            tally.acted_on.add(wish.backend)
    return tuple(verdicts)


def _cut_back(wish: DesiredState, refusal: Refusal, detail: str) -> Verdict:
    """A weight that the pool cannot spare is had in part: as low as it goes without taking anybody out."""
    if wish.knob is not Knob.WEIGHT:
        return Verdict(wish, refusal, detail)
    reason = f"{wish.reason}; cut back from {float(wish.value):.0%} to {CUT_BACK_WEIGHT:.0%}: {refusal.value} ({detail})"
    return Verdict(replace(wish, value=CUT_BACK_WEIGHT, reason=reason))


def _tally(wishes: tuple[DesiredState, ...], context: GuardContext) -> _Tally:
    bad = {w.backend for w in wishes if is_drain(w.knob, w.value)}
    serving: set[str] = set()
    members: dict[Pool, list[Backend]] = {}
    pools_of = {b.name: _pools(b, context.without_doors) for b in context.snapshot.backends}
    for backend in context.snapshot.backends:
        for pool in pools_of[backend.name]:
            members.setdefault(pool, []).append(backend)
        if _looks_bad(backend, context):
            bad.add(backend.name)
        elif context.snapshot.observations[backend.name].state.takes_work:
            serving.add(backend.name)
    drained_in, acted_on_in, down_in, silent_in = _out(context)
    return _Tally(
        drained_in,
        acted_on_in,
        {name for _, name in acted_on_in | down_in} | {lease.backend for lease in context.leases if _may_act(lease, context)},
        frozenset(bad),
        frozenset(serving),
        {backend.name: backend for backend in context.snapshot.backends},
        {pool: tuple(found) for pool, found in members.items()},
        {pool: number for number, pool in enumerate(members)},
        pools_of,
        silent_in,
    )


def _pool(target: Target) -> Pool:
    return target.gateway, target.pool


def _pools(backend: Backend, without_doors: frozenset[str]) -> frozenset[Pool]:
    return frozenset(_pool(target) for target in backend.targets if target.gateway not in without_doors)


def _urgency(wish: DesiredState, snapshot: FleetSnapshot) -> tuple[bool, bool, str]:
    """The smallest is judged first."""
    seen = snapshot.observations.get(wish.backend)
    alive = seen is None or not seen.state.is_dead
    return (alive, wish.knob is not Knob.ADMISSION, wish.backend)


def is_drain(knob: Knob, value: KnobValue) -> bool:
    return knob is Knob.ADMISSION and value == DRAIN


def holds_up(verdict: Verdict) -> bool:
    """Whether a refused wish speaks against giving its backend back what it had: recovery is blocked by no guard's doubt."""
    wish = verdict.desired
    return not verdict.allowed and not (is_drain(wish.knob, wish.value) and verdict.refusal in DISMISSED)


def takes_out(wish: DesiredState) -> bool:
    """Whether the wish, done, makes its backend count as acted on."""
    return is_drain(wish.knob, wish.value) or (wish.knob is Knob.WEIGHT and float(wish.value) < ACTED_ON_SHARE)


def acted_on_by(lease: Lease) -> bool:
    """Whether a lease keeps its backend acted on."""
    if is_drain(lease.knob, lease.written):
        return True
    return lease.knob is Knob.WEIGHT and float(lease.written) < ACTED_ON_SHARE * float(lease.prior)


def _may_act(lease: Lease, context: GuardContext) -> bool:
    """Whether it keeps its backend acted on, or something that we wrote there earlier may yet."""
    pending = context.pending.get(lease.place, ()) if context.pending else ()
    return acted_on_by(lease) or any(acted_on_by(replace(lease, written=value)) for value in pending)


def _gets_nothing(server: ServerState) -> bool:
    return server.least(Knob.ADMISSION) == DRAIN or server.least(Knob.WEIGHT) == 0


def _gets_little(server: ServerState) -> bool:
    """Nothing, or less than half of the normal share, whoever wanted that."""
    weight = server.least(Knob.WEIGHT)
    lowered = weight is not None and server.normal_weight is not None and float(weight) < ACTED_ON_SHARE * server.normal_weight
    return lowered or _gets_nothing(server)


Places = set[tuple[Pool, str]]


def _out(context: GuardContext) -> tuple[Places, Places, Places, frozenset[tuple[Pool, str]]]:
    """Who is drained, who is acted on, who is out of service whatever was wanted, and whom a gateway that answers does not tell
    of, by pool: one pass over the fleet."""
    drained = _by_lease(context, lambda lease: is_drain(lease.knob, lease.written))
    acted_on = _by_lease(context, acted_on_by)
    down: Places = set()
    silent: Places = set()
    answering = {target.gateway for target in context.servers}
    for backend in context.snapshot.backends:
        for target in backend.targets:
            server = context.servers.get(target)
            if target.gateway in answering and (server is None or not server.values):
                silent.add((_pool(target), backend.name))
            if server is None:
                continue
            if not server.in_service:
                down.add((_pool(target), backend.name))
            if _gets_little(server):
                acted_on.add((_pool(target), backend.name))
                if _gets_nothing(server):
                    drained.add((_pool(target), backend.name))
    return drained, acted_on, down, frozenset(silent)


def _by_lease(context: GuardContext, out: Callable[[Lease], bool]) -> set[tuple[Pool, str]]:
    """Pools and backends that a lease of ours takes out, where the gateway does not tell of that knob.

    Where it tells, its word is taken instead: what a foreign hand let back in would be taken out anew, and must be allowed to.
    """
    return {
        (_pool(lease.target), lease.backend)
        for lease in context.leases
        if out(lease) and not (lease.target in context.servers and lease.knob in context.servers[lease.target].values)
    }


def _first_refusal(wish: DesiredState, context: GuardContext, tally: _Tally) -> tuple[Refusal | None, str]:
    for check in (_who_may, _evidence, _timing):
        refusal, detail = check(wish, context)
        if refusal is not None:
            return refusal, detail
    if not takes_out(wish):
        return None, ""
    for pool in sorted(tally.pools.get(wish.backend, ()), key=tally.order.__getitem__):
        refusal, detail = _pool_refusal(wish, tally.backends[wish.backend], pool, context.settings, tally)
        if refusal is not None:
            return refusal, detail
    return None, ""


def _who_may(wish: DesiredState, context: GuardContext) -> tuple[Refusal | None, str]:
    support = context.support.get((wish.backend, wish.knob))
    if support is None or not support.enforceable:
        return Refusal.NOT_ENFORCEABLE, support.why_not if support else "no gateway is configured for it"
    if context.paused:
        return Refusal.PAUSED, context.paused
    if wish.backend in context.holds:
        return Refusal.HELD, context.holds[wish.backend]
    if (wish.backend, wish.knob) in context.contended:
        return Refusal.CONTENDED, "it was changed back; waiting until the lease time is over"
    return None, ""


def _evidence(wish: DesiredState, context: GuardContext) -> tuple[Refusal | None, str]:
    if wish.evidence_age_s is None or wish.evidence_age_s > context.stale_after_s:
        age = "unknown" if wish.evidence_age_s is None else f"{wish.evidence_age_s:.1f} s"
        return Refusal.STALE, f"age {age}, limit {context.stale_after_s:g} s"
    # To take a backend out needs two; one keeps it out, because without traffic it has nothing left to show the other with.
    if is_drain(wish.knob, wish.value) and len(set(wish.signals)) < SIGNALS_FOR_DRAIN and not _in_force(wish, context):
        return Refusal.SIGNALS, f"only {', '.join(wish.signals) or 'none'}"
    return None, ""


def _timing(wish: DesiredState, context: GuardContext) -> tuple[Refusal | None, str]:
    now, wait = context.snapshot.now, context.settings.cooldown_s
    released = context.released_at.get(wish.backend)
    if released is not None and now - released < wait:
        return Refusal.COOLDOWN, f"released by hand {now - released:.0f} s ago, {wait:g} s must pass"
    changed = context.changed_at.get((wish.backend, wish.knob))
    if changed is None or now - changed >= wait or wish.knob in GRADED or _in_force(wish, context):
        return None, ""
    if is_drain(wish.knob, wish.value):
        return None, ""  # it has two signals and is not made to wait
    return Refusal.COOLDOWN, f"changed {now - changed:.0f} s ago, {wait:g} s must pass"


def _in_force(wish: DesiredState, context: GuardContext) -> bool:
    """Whether a lease of ours restricts this knob at least as much already. One whose write has not arrived does not."""
    for lease in context.leases_on(wish.backend, wish.knob):
        if not _is_under_way(lease, context):
            if wish.knob is Knob.WEIGHT:
                return float(lease.written) <= float(wish.value) * float(lease.prior) + 1e-9
            return lease.written == wish.value
    return False


def _is_under_way(lease: Lease, context: GuardContext) -> bool:
    """Whether its gateway says that the knob is as it was before."""
    server = context.servers.get(lease.target)
    told = None if server is None else server.values.get(lease.knob)
    before = lease.prior if lease.before is None else lease.before
    return not lease.confirmed and told == before != lease.written


MAX_NAMES = 5
"""In one sentence; a decision that lists three hundred names is read by nobody."""


def _pool_refusal(
    wish: DesiredState, backend: Backend, pool: Pool, settings: GuardsSettings, tally: _Tally
) -> tuple[Refusal | None, str]:
    members = tally.members[pool]
    size, names = len(members), {m.name for m in members}
    if size <= 1:
        return Refusal.POOL_OF_ONE, f"pool {pool[0]}:{pool[1]}"
    drains = is_drain(wish.knob, wish.value)
    place = (pool, backend.name)
    if place in tally.drained_in or (place in tally.acted_on_in and not drains):
        return None, ""  # counted already: this is a renewal, or a lighter touch on the same backend
    bad = len(names & tally.bad)
    if bad > settings.panic_fraction * size:
        return Refusal.PANIC, f"{bad} of {size} in {pool[0]}:{pool[1]} bad or unobservable"
    others_out = (names & tally.acted_on) - {backend.name}
    cap = cap_of(size, settings)
    if len(others_out) + 1 > cap:
        return Refusal.CAP, f"{len(others_out)} of {size} out already ({_some(others_out)}), cap {cap}"
    silent = {name for name in names if (pool, name) in tally.silent_in} if tally.silent_in else set()
    left = (names & tally.serving) - tally.acted_on - silent - {backend.name}
    least = max(1, settings.min_healthy)
    if len(left) < least:
        return Refusal.MIN_HEALTHY, f"{len(left)} of {size} would be left serving, at least {least}"
    if _last_of_zone(backend, members, left):
        return Refusal.ZONE, f"zone {backend.zone}"
    return None, ""


def _some(names: set[str]) -> str:
    listed = ", ".join(sorted(names)[:MAX_NAMES])
    return listed if len(names) <= MAX_NAMES else f"{listed} and {len(names) - MAX_NAMES} more"


def cap_of(size: int, settings: GuardsSettings) -> int:
    """How many backends of a pool of ``size`` may be acted on at once: max(1, ⌊fraction · size⌋), and the absolute cap."""
    cap = max(1, floor(settings.max_fraction * size + 1e-9))
    return cap if settings.max_backends is None else min(cap, settings.max_backends)


def _looks_bad(backend: Backend, context: GuardContext) -> bool:
    seen = context.snapshot.observations.get(backend.name)
    if seen is None or seen.age_s is None or seen.age_s > context.stale_after_s:
        return True
    return seen.state.is_dead or seen.state in (State.UNKNOWN, State.MISCONFIGURED)


def _last_of_zone(backend: Backend, members: tuple[Backend, ...], left: set[str]) -> bool:
    zones = {m.zone for m in members}
    return bool(backend.zone) and len(zones) > 1 and not any(m.zone == backend.zone and m.name in left for m in members)
