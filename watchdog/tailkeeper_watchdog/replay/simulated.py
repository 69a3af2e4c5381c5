"""A configuration decides over history: the live loop with its guards, plan, ledger and reconciler, and gateways in memory.

A simulated gateway holds what was written to it over what the real one had without us. What the decisions would have changed
about the evidence is not simulated: the load that a drained backend would not have had is still in its history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.collect.base import Collected
from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.loop import Loop, Parts
from tailkeeper_watchdog.model import EMPTY, SERVE, Backend, Knob, KnobValue, Lease, Target, TickRecord
from tailkeeper_watchdog.reconcile import Reconciler
from tailkeeper_watchdog.records.in_force import InForce
from tailkeeper_watchdog.settings import WatchedBackend
from tailkeeper_watchdog.switches import Hold, Switches
from tailkeeper_watchdog.tick import TickInputs
from tailkeeper_watchdog.weighing import Weighing

ASSUMED = "assumed"
"""Name of the gateway that a fleet is taken to have of which no gateway is known."""
_NORMAL: Mapping[Knob, KnobValue] = {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE}


@dataclass(frozen=True, slots=True)
class Step:
    """One tick's evidence. ``now`` is monotonic; ``servers`` are what gateways had without us, as far as that is known."""

    now: float
    time_unix_s: float
    backends: tuple[Backend, ...]
    collected: Collected
    servers: Mapping[Target, ServerState] = field(default_factory=lambda: EMPTY)
    errors: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    paused: str | None = None
    holds: Mapping[str, str] = field(default_factory=lambda: EMPTY)


def step_of(inputs: TickInputs, backends: tuple[Backend, ...]) -> Step:
    """A recorded tick's evidence for another configuration: our own changes of then are taken off the gateways."""
    report = inputs.report
    return Step(
        inputs.now, inputs.time_unix_s, backends, inputs.collected, without_us(report.servers, inputs.leases), report.errors,
        inputs.paused, inputs.holds,
    )  # fmt: skip


def without_us(servers: Mapping[Target, ServerState], leases: Iterable[Lease]) -> dict[Target, ServerState]:
    """The servers as they would be: each knob on which a lease of ours lies at its prior value."""
    found = dict(servers)
    for lease in leases:
        state = found.get(lease.target)
        if state is not None and lease.knob in state.values:
            found[lease.target] = replace(state, values={**state.values, lease.knob: lease.prior})
    return found


class SimulatedGateway:
    """One gateway in memory. ``supports`` is what the real kind can do."""

    kind = "simulated"

    def __init__(self, name: str, can: Callable[[Knob], Support]) -> None:
        self._name = name
        self._can = can
        self._base: dict[str, ServerState] = {}
        self._written: dict[str, dict[Knob, KnobValue]] = {}
        self._error: str | None = None

    @property
    def name(self) -> str:
        return self._name

    def now_has(self, servers: Mapping[str, ServerState], error: str | None) -> None:
        """The gateway of this tick without us. A knob that somebody else has changed since is as they set it."""
        self._error = error
        for server, state in servers.items():
            before, ours = self._base.get(server), self._written.get(server)
            if before is not None and ours:
                for knob in [k for k in ours if before.values.get(k) != state.values.get(k)]:
                    del ours[knob]
            self._base[server] = state

    def supports(self, knob: Knob) -> Support:
        return self._can(knob)

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        self._reachable("*")
        return {server: self._state(server) for server in servers}

    def _state(self, server: str) -> ServerState:
        base = self._base.get(server)
        if base is None:
            able = {knob: value for knob, value in _NORMAL.items() if self._can(knob).enforceable}
            base = self._base[server] = ServerState(able, normal_weight=1.0 if Knob.WEIGHT in able else None)
        return replace(base, values={**base.values, **self._written.get(server, {})})

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        self._reachable(server)
        self._written.setdefault(server, {}).update(values)

    def _reachable(self, server: str) -> None:
        if self._error is not None:
            raise ActuatorError(ErrorKind.UNREACHABLE, self._name, server, f"could not be reached then: {self._error}")

    async def close(self) -> None:
        return None


class _Evidence:
    """The source, the clock and the switches of the tick that is being simulated."""

    def __init__(self, step: Step) -> None:
        self.step = step

    async def collect(self, now: float, deadline_s: float) -> Collected:
        return self.step.collected

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        return None

    async def close(self) -> None:
        return None

    def monotonic(self) -> float:
        return self.step.now

    def wall(self) -> float:
        return self.step.time_unix_s


class _Switches(Switches):
    """People's switches were as they were; nothing is switched here."""

    def __init__(self, ledger: Ledger, evidence: _Evidence) -> None:
        super().__init__(ledger, None, evidence.wall)
        self._evidence = evidence

    def paused(self) -> str | None:
        return self._evidence.step.paused

    def holds(self) -> dict[str, Hold]:
        return {name: Hold(reason, inf) for name, reason in self._evidence.step.holds.items()}

    def end_holds(self, backends: frozenset[str]) -> None:
        return None


Abilities = Mapping[str, Callable[[Knob], Support]]
"""What each gateway can do, by its name."""


def weight_and_admission(knob: Knob) -> Support:
    """What nearly every gateway can do; taken for granted where nothing is known of it."""
    return Support(True) if knob in _NORMAL else Support(False, "the gateway is not known, and this is more than most can do")


@dataclass(frozen=True, slots=True)
class Decider:
    """A configuration that decides: its name for people, what is in force, its backends by name and as configured."""

    name: str
    in_force: InForce
    fleet: Mapping[str, Backend]
    abilities: Abilities
    backends: tuple[WatchedBackend, ...] = ()


class NothingToReplayError(Exception):
    """Nothing could be read. The message says why, and what to do."""


class Simulation:
    """Runs the loop over steps. ``told`` is called after each with its record."""

    def __init__(self, rules: InForce, abilities: Abilities, told: Callable[[TickRecord, Loop], None]) -> None:
        self._rules, self._abilities, self._told = rules, abilities, told
        self._gateways: dict[str, SimulatedGateway] = {}
        self._loop: Loop | None = None
        self._evidence: _Evidence | None = None

    async def take(self, step: Step) -> TickRecord:
        """One tick."""
        if self._evidence is None:
            self._evidence = _Evidence(step)
        self._evidence.step = step
        self._set_gateways(step)
        if self._loop is None:
            self._loop = self._build(self._evidence)
        record = await self._loop.tick()
        self._told(record, self._loop)
        return record

    def restart(self) -> None:
        """Forget everything, as at the start of another run."""
        self._loop, self._gateways = None, {}

    def _set_gateways(self, step: Step) -> None:
        by_name: dict[str, dict[str, ServerState]] = {t.gateway: {} for b in step.backends for t in b.targets}
        for target, state in step.servers.items():
            by_name.setdefault(target.gateway, {})[target.server] = state
        for name, servers in by_name.items():
            if name not in self._gateways:
                self._gateways[name] = SimulatedGateway(name, self._abilities.get(name, weight_and_admission))
            self._gateways[name].now_has(servers, step.errors.get(name))

    def _build(self, evidence: _Evidence) -> Loop:
        ledger = Ledger(":memory:")
        log = DecisionLog(ledger, evidence.wall)
        rules = self._rules
        return Loop(
            Parts(
                fleet=lambda: evidence.step.backends,
                source=evidence,
                # The mapping itself, so that a gateway that comes up later is there as well.
                reconciler=Reconciler(self._gateways, ledger, log, rules.guards.lease_s, evidence.wall),
                ledger=ledger,
                decisions=log,
                switches=_Switches(ledger, evidence),
                rules=rules.rules,
                weighing=Weighing(ledger, rules.rules.weights, evidence.wall),
                guards=rules.guards,
                tick_s=rules.tick_s,
                monotonic=evidence.monotonic,
                wall=evidence.wall,
            )
        )
