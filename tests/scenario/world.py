"""A small world for scenarios: time that we turn, backends that we make ill, and a gateway held in memory.

The gateway is a fake of the actuator contract (labelled so): it keeps weights and admissions, and can be told to lie,
to fail, or to be changed by a foreign hand. The real programs are in tests/e2e and tests/contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, Reading, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, ServerState, Support
from tailkeeper_watchdog.collect.base import Collected, LastWord
from tailkeeper_watchdog.core import PolicySetting, Rules
from tailkeeper_watchdog.decision_log import DecisionLog, Told
from tailkeeper_watchdog.leadership import Leadership
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.loop import Loop, Parts
from tailkeeper_watchdog.model import DRAIN, EMPTY, SERVE, Backend, BackendObservation, Knob, KnobValue, Mode, Slo, Target
from tailkeeper_watchdog.policy_params import GpuHealthGateParams
from tailkeeper_watchdog.reconcile import Reconciler
from tailkeeper_watchdog.settings import GuardsSettings
from tailkeeper_watchdog.switches import Switches
from tailkeeper_watchdog.weighing import Weighing

TICK_S = 0.5
WEIGHTS = {"latency": 0.35, "error_rate": 0.40, "cpu_usage": 0.15, "uptime": 0.10}


class Clock:
    """Monotonic and wall time that move only when told."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.step_s = 0.0
        """By how much somebody set the wall clock."""

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now + self.step_s


class FakeGateway:
    """In-memory fake of an actuator; see the module's docstring."""

    name = "edge"
    kind = "fake"

    def __init__(self, servers: tuple[str, ...], more: Mapping[Knob, KnobValue] = EMPTY) -> None:
        """``more`` are knobs that it has beside weight and admission, with their normal values."""
        self.normal: Mapping[Knob, KnobValue] = {Knob.WEIGHT: 1.0, Knob.ADMISSION: SERVE, **more}
        self.values: dict[str, dict[Knob, KnobValue]] = {s: dict(self.normal) for s in servers}
        self.in_service = dict.fromkeys(servers, True)
        self.writes: list[tuple[str, Knob, KnobValue]] = []
        self.lies = False
        self.fails: ErrorKind | None = None
        self.partial_weights = True

    def add(self, server: str) -> None:
        """A server with its normal weight, unless it is there already."""
        self.values.setdefault(server, dict(self.normal))
        self.in_service.setdefault(server, True)

    def remove(self, server: str) -> None:
        """As a person takes a server out of the gateway's own configuration."""
        del self.values[server], self.in_service[server]

    def supports(self, knob: Knob) -> Support:
        return Support(True) if knob in self.normal else Support(False, f"a fake gateway has no {knob}")

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        if self.fails is not None:
            raise ActuatorError(self.fails, self.name, "*", "told to fail")
        return {s: ServerState(dict(self.values[s]), self.in_service[s], normal_weight=1.0) for s in servers if s in self.values}

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        if self.fails is not None:
            raise ActuatorError(self.fails, self.name, server, "told to fail")
        if server not in self.values:
            raise ActuatorError(ErrorKind.NOT_FOUND, self.name, server, "no such server")
        for knob, value in values.items():
            if knob is Knob.WEIGHT and not self.partial_weights and value not in (0.0, 1.0):
                raise ActuatorError(ErrorKind.REFUSED, self.name, server, "whole weights only")
            self.writes.append((server, knob, value))
            if not self.lies:
                self.values[server][knob] = value

    async def close(self) -> None:
        return None


@dataclass
class Sick:
    """What one backend reports now."""

    state: State = State.SERVING
    ok: float = 0.0
    errors: float = 0.0
    ok_per_tick: float = 2.0
    errors_per_tick: float = 0.0
    itl_s: float = 0.02
    ttft_s: float = 0.2
    silent: bool = False
    preemptions_per_tick: float = 0.0
    preemptions: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)
    itl_count: float = 0.0
    itl_sum: float = 0.0
    ttft_counts: dict[float, float] = field(default_factory=lambda: dict.fromkeys((0.1, 0.5, 1.0, 2.0, 10.0, inf), 0.0))
    ttft_sum: float = 0.0


class World:
    """Backends, a gateway and a watchdog over them. ``await world.run(seconds)``."""

    def __init__(
        self,
        path: object,
        names: tuple[str, ...] = ("a", "b", "c", "d"),
        *,
        mode: Mode = Mode.ENFORCE,
        guards: GuardsSettings | None = None,
        params: GpuHealthGateParams | None = None,
        zones: Mapping[str, str] | None = None,
        stale_after_s: float = 3.0,
        policies: Mapping[str, PolicySetting] | None = None,
        servers: Mapping[str, str] | None = None,
        knobs: Mapping[Knob, KnobValue] = EMPTY,
    ) -> None:
        """``policies`` run beside the gate, which runs in ``mode`` unless they hold it too. ``servers`` are the backends' names
        at the gateway, their own unless given. ``knobs``: see ``FakeGateway``."""
        self._servers = dict(servers or {})
        self._policies = dict(policies or {})
        self.clock = Clock()
        self.gateway = FakeGateway(names, knobs)
        self.sick = {name: Sick() for name in names}
        self._names, self._path, self._stale = names, path, stale_after_s
        self._mode, self._params = mode, params or GpuHealthGateParams()
        self._guards = guards or GuardsSettings(cooldown_s=5, return_ramp_s=6, lease_s=60)
        self._zones = dict(zones or {})
        self.pool = "llm"
        self.leadership: Leadership | None = None
        self.elsewhere: frozenset[tuple[str, str]] = frozenset()
        """Gateway servers whose backends another shard watches."""
        self.told: Told = lambda decision, gateway, server: None
        """Who hears of each decision that is written down."""
        self.actuators: dict[str, Actuator] = {"edge": self.gateway}
        """Gateways by name; those that are taken out here are out of the configuration from the next start on."""
        self.ledger_of: Callable[[], Ledger] = lambda: Ledger(str(self._path))
        """Opens the ledger at each start."""
        self.start()

    def reconfigure(self, names: tuple[str, ...]) -> None:
        """Restart with other backends in the configuration; the gateway keeps all of its servers."""
        self._names = names
        self.start()

    def start(self) -> None:
        """(Re)start the watchdog on the same ledger: what a crash leaves is what the ledger and the gateway hold."""
        self.ledger = self.ledger_of()
        self.backends = tuple(self.backend(n) for n in self._names)
        log = DecisionLog(self.ledger, self.clock.wall, lambda *heard: self.told(*heard))
        self._last = LastWord(self._names, self._stale)
        self.switches = Switches(self.ledger, self._guards.pause_file, self.clock.wall)
        self.loop = Loop(
            Parts(
                fleet=lambda: self.backends,
                source=self,
                reconciler=Reconciler(
                    dict(self.actuators), self.ledger, log, self._guards.lease_s, self.clock.wall, self.clock.monotonic
                ),
                ledger=self.ledger,
                decisions=log,
                switches=self.switches,
                rules=Rules(
                    Slo(),
                    WEIGHTS,
                    {"gpu_health_gate": PolicySetting(self._mode, self._params), **self._policies},
                    self._stale,
                ),
                weighing=Weighing(self.ledger, WEIGHTS, self.clock.wall),
                guards=self._guards,
                tick_s=TICK_S,
                leadership=self.leadership,
                monotonic=self.clock.monotonic,
                wall=self.clock.wall,
                elsewhere=lambda: self.elsewhere,
            )
        )

    def backend(self, name: str, server: str = "", url: str = "") -> Backend:
        """A backend as the configuration would have it, at the server of its own name unless another is given."""
        labels = {"az": self._zones[name]} if name in self._zones else {}
        return Backend(name, "m", (Target("edge", server or self._servers.get(name, name), self.pool),), labels, url)

    def find(self, *names: str) -> None:
        """From the next tick on the fleet is these, whatever the gateway knows; those that stay are the same ones."""
        known = {b.name: b for b in self.backends}
        self._names = names
        self.backends = tuple(known.get(n) or self.backend(n) for n in names)
        for name in names:
            self.sick.setdefault(name, Sick())
            self.gateway.add(name)

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        self._last.follow(backends, new, now)

    def slow_weight(self, share: float) -> None:
        """Restart with another weight for what is slow or under pressure."""
        self._params = self._params.model_copy(update={"slow_weight": share})
        self.start()

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.clock.now += TICK_S
            record = await self.loop.tick()
            assert record.error is None, record.error

    async def collect(self, now: float, deadline_s: float) -> Collected:
        heard = {n: self._observe(n, s) for n, s in self.sick.items() if not s.silent}
        self._last.hear(heard, dict.fromkeys(heard, self.clock.now))
        return Collected(self._last.tell(self.clock.now, {}, "the exporter does not answer"))

    async def close(self) -> None:
        return None

    def _observe(self, name: str, sick: Sick) -> BackendObservation:
        now = self.clock.now
        if sick.state.takes_work and self.gateway.values.get(name, {}).get(Knob.ADMISSION) != DRAIN:
            _serve(sick)
        values = {
            f"{catalog.REQUESTS.name}{{ok}}": sick.ok,
            f"{catalog.REQUESTS.name}{{error}}": sick.errors,
            catalog.RUNNING.name: 3.0,
            catalog.WAITING.name: 0.0,
            catalog.PREEMPTIONS.name: sick.preemptions,
            **sick.extra,
        }
        readings: dict[str, Reading[float]] = {k: present(v, now) for k, v in values.items()}
        bounds = tuple(sorted(sick.ttft_counts))
        histograms = {
            catalog.TTFT.name: Histogram(bounds, tuple(sick.ttft_counts[b] for b in bounds), sick.ttft_sum),
            catalog.ITL.name: Histogram((0.05, 0.1, inf), (0.0, sick.itl_count, sick.itl_count), sick.itl_sum),
        }
        reasons = ("3 in flight, no token for 10.0 s, own probe unanswered",) if sick.state is State.HUNG else ()
        return BackendObservation(name, sick.state, 0.0, None, readings, histograms, (), reasons, frozenset({"m"}))

    def verdicts(self, backend: str) -> list[str]:
        """The decision log of one backend, oldest first."""
        return [d.verdict.value for d in reversed(self.ledger.decisions(backend, limit=1_000))]

    def weight(self, name: str) -> KnobValue:
        return self.gateway.values[name][Knob.WEIGHT]

    def admission(self, name: str) -> KnobValue:
        return self.gateway.values[name][Knob.ADMISSION]

    def out(self) -> set[str]:
        """Backends that get less than half of their traffic."""
        return {n for n, v in self.gateway.values.items() if v[Knob.ADMISSION] == DRAIN or float(v[Knob.WEIGHT]) < 0.5}

    def guards_with(self, **changes: object) -> GuardsSettings:
        return self._guards.model_copy(update=changes)


def _serve(sick: Sick) -> None:
    sick.ok += sick.ok_per_tick
    sick.errors += sick.errors_per_tick
    sick.preemptions += sick.preemptions_per_tick
    sick.itl_count += 10 * sick.ok_per_tick
    sick.itl_sum += 10 * sick.ok_per_tick * sick.itl_s
    sick.ttft_sum += sick.ok_per_tick * sick.ttft_s
    for bound in sick.ttft_counts:
        if sick.ttft_s <= bound:
            sick.ttft_counts[bound] += sick.ok_per_tick
