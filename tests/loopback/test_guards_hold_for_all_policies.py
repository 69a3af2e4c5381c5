"""All seven policies enforced, every knob there, two gateways a backend, one of them with replicas: the same promises hold.

Beside what `test_guards_hold` does to a watchdog: memory, caches and speeds that move weights, writes whose answer is lost, one
of two replicas away, foreign hands at every knob, zones, and an absolute cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import Actuator, ActuatorError, ErrorKind, Support
from tailkeeper_watchdog.actuators.replicas import replicated
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.guards import cap_of
from tailkeeper_watchdog.model import DRAIN, SERVE, Backend, BackendObservation, Knob, KnobValue, Mode, Target
from tailkeeper_watchdog.policies import POLICIES
from tailkeeper_watchdog.settings import GuardsSettings, PoliciesSettings
from tests.loopback.test_guards_hold import STALE_S, Watching
from tests.scenario.world import FakeGateway, Sick, World

NORMAL: Mapping[Knob, KnobValue] = {
    Knob.WEIGHT: 1.0,
    Knob.ADMISSION: SERVE,
    Knob.CONCURRENCY_LIMIT: 0.0,
    Knob.BATCH_WINDOW_S: 0.05,
    Knob.CACHE_MODE: "hbm",
    Knob.DEGRADE_LEVEL: 0.0,
    Knob.REPLICAS: 1.0,
    Knob.TAINT: "",
    Knob.ANNOTATION: "",
}
ZONES = {name: "z1" if name < "d" else "z2" for name in "abcdefg"}
KEPT_WHILE_WELL = frozenset({Knob.ANNOTATION, Knob.BATCH_WINDOW_S})
"""What policies turn at backends that are well too."""
FOREIGN: list[tuple[Knob, KnobValue]] = [
    (Knob.CONCURRENCY_LIMIT, 4.0),
    (Knob.DEGRADE_LEVEL, 2.0),
    (Knob.CACHE_MODE, "cpu"),
    (Knob.REPLICAS, 3.0),
    (Knob.TAINT, "theirs=1:NoSchedule"),
    (Knob.ANNOTATION, "theirs=1"),
]


class FullGateway(FakeGateway):
    """A fake with every knob that can lose its answers: what was asked for is done, and nobody is told."""

    def __init__(self, name: str, servers: tuple[str, ...]) -> None:
        super().__init__(())
        self.name = name
        self.loses_answers = False
        for server in servers:
            self.add(server)

    def add(self, server: str) -> None:
        self.values.setdefault(server, dict(NORMAL))
        self.in_service.setdefault(server, True)

    def remove(self, server: str) -> None:
        self.values.pop(server, None)
        self.in_service.pop(server, None)

    def supports(self, knob: Knob) -> Support:
        return Support(True)

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        await super().write(server, values, deadline_s)
        if self.loses_answers:
            raise ActuatorError(ErrorKind.TIMEOUT, self.name, server, "done, and nobody was told")


class ManyGateways(World):
    """Each backend is at ``edge``, which is two replicas, and at ``engine``."""

    def __init__(self, path: Path, names: tuple[str, ...], guards: GuardsSettings) -> None:
        defaults = PoliciesSettings()
        policies = {p.name: PolicySetting(Mode.ENFORCE, getattr(defaults, p.name).params) for p in POLICIES}
        super().__init__(path, names, guards=guards, zones=ZONES, stale_after_s=STALE_S, policies=policies)
        self.gateway = FullGateway("edge#1", names)
        self.others = (FullGateway("edge#2", names), FullGateway("engine", names))
        edge = replicated("edge", ("edge#1", "edge#2"), self._replica)
        self.actuators = {"edge": edge, "engine": self.others[1]}
        self.start()

    def _replica(self, name: str, address: str) -> Actuator:
        replica = self.gateway if address == "edge#1" else self.others[0]
        replica.name = name
        return replica

    @property
    def every(self) -> tuple[FakeGateway, ...]:
        return (self.gateway, *self.others)

    def backend(self, name: str, server: str = "", url: str = "") -> Backend:
        one = super().backend(name, server, url)
        return Backend(one.name, one.model, (*one.targets, Target("engine", server or name, "all")), one.labels, one.url)

    def find(self, *names: str) -> None:
        super().find(*names)
        for name in names:
            for gateway in self.every:
                gateway.add(name)

    def _observe(self, name: str, sick: Sick) -> BackendObservation:
        seen = super()._observe(name, sick)
        tokens = {catalog.GENERATED_TOKENS.name: present(20.0 * sick.itl_count, self.clock.now)}
        return BackendObservation(
            seen.backend,
            seen.state,
            seen.age_s,
            None,
            {**seen.readings, **tokens},
            seen.histograms,
            (),
            seen.reasons,
            seen.models,
        )


def _kept_out(gateway: FakeGateway) -> set[str]:
    """Who is drained or below half there, by whatever hand."""
    return {n for n, v in gateway.values.items() if v[Knob.ADMISSION] == DRAIN or float(v[Knob.WEIGHT]) < 0.5}


class WatchingAll(Watching):
    world: ManyGateways

    @initialize(
        size=st.integers(1, 7),
        fraction=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
        least=st.integers(0, 2),
        cap=st.sampled_from([None, 1, 2]),
    )
    def begin(self, size: int, fraction: float, least: int, cap: int | None) -> None:
        self.guards = GuardsSettings(
            max_fraction=fraction, min_healthy=least, max_backends=cap, cooldown_s=2, return_ramp_s=2, lease_s=10
        )
        self.world = ManyGateways(Path(self.folder.name) / "ledger.db", tuple("abcdefg"[:size]), self.guards)
        self.heard = dict.fromkeys(self.world.sick, (State.SERVING, self.world.clock.now))
        self.problems = []
        for gateway in self.world.every:
            self._watch(gateway)

    def _watch(self, gateway: FakeGateway) -> None:
        write = gateway.write

        async def checked(server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
            before = _kept_out(gateway)
            try:
                await write(server, values, deadline_s)
            finally:
                if server in _kept_out(gateway) - before:
                    self._judge_at(gateway, server, self._out_at(gateway))

        gateway.write = checked  # type: ignore[method-assign]

    def _out_at(self, gateway: FakeGateway) -> set[str]:
        down = {n for n, there in gateway.in_service.items() if not there}
        return (_kept_out(gateway) | down) & self.world.loop.fleet.names

    def _judge_at(self, gateway: FakeGateway, server: str, after: set[str]) -> None:
        """A write that took somebody out must have been allowed to, also where the gateway's own check had found it down."""
        if server not in after:
            return  # it has left the fleet
        names = self.world.loop.fleet.names
        where = f"at {gateway.name}, by taking out {server}"
        if len(after) > cap_of(len(names), self.guards):
            self.problems.append(f"{sorted(after)} out of {len(names)} {where}")
        if len(names - after) < max(1, self.guards.min_healthy):
            self.problems.append(f"{sorted(names - after)} left of {len(names)} {where}")
        zones = {ZONES[n] for n in names}
        if len(zones) > 1 and not any(ZONES[n] == ZONES[server] for n in names - after):
            self.problems.append(f"nobody left in {ZONES[server]} {where}")
        state, at = self.heard[server]
        if state is State.UNKNOWN or self.world.clock.now - at > STALE_S + 1:
            self.problems.append(f"{where} on {state} heard {self.world.clock.now - at} s ago")

    def _sick(self, data: st.DataObject) -> Sick:
        return self.world.sick[data.draw(st.sampled_from(sorted(self.world.sick)))]

    @rule(data=st.data(), kv=st.sampled_from([0.0, 0.3, 0.7, 0.95]), memory=st.sampled_from([0.1, 0.86, 0.93, 0.99]))
    def memory_fills(self, data: st.DataObject, kv: float, memory: float) -> None:
        self._sick(data).extra = {catalog.KV_USAGE.name: kv, catalog.VRAM_PRESSURE.name: memory}
        self.time_passes(1.0)

    @rule(data=st.data(), itl_s=st.sampled_from([0.02, 0.1, 0.3]), ttft_s=st.sampled_from([0.2, 1.8]))
    def speed_changes(self, data: st.DataObject, itl_s: float, ttft_s: float) -> None:
        sick = self._sick(data)
        sick.itl_s, sick.ttft_s = itl_s, ttft_s
        self.time_passes(3.0)

    @rule(data=st.data(), errors=st.sampled_from([0.0, 2.0]))
    def requests_fail(self, data: st.DataObject, errors: float) -> None:
        self._sick(data).errors_per_tick = errors
        self.time_passes(3.0)

    @precondition(lambda self: self.world.gateway.values)
    @rule(data=st.data(), change=st.sampled_from(FOREIGN))
    def foreign_knob(self, data: st.DataObject, change: tuple[Knob, KnobValue]) -> None:
        knob, value = change
        gateway = data.draw(st.sampled_from(self.world.every))
        server = self._server(data)
        if server in gateway.values:
            gateway.values[server][knob] = value

    @rule(index=st.integers(0, 2), fault=st.sampled_from([None, "lies", "loses answers", "is away"]))
    def one_gateway_fails(self, index: int, fault: str | None) -> None:
        gateway = self.world.every[index]
        assert isinstance(gateway, FullGateway)
        gateway.lies, gateway.loses_answers = fault == "lies", fault == "loses answers"
        gateway.fails = ErrorKind.UNREACHABLE if fault == "is away" else None

    def _recovery_is_never_blocked(self) -> None:
        """All well again: nothing that takes traffic away is left. All silent: nothing at all is left."""
        for gateway in self.world.every:
            assert isinstance(gateway, FullGateway)
            gateway.fails, gateway.lies, gateway.loses_answers = None, False, False
            for backend in self.world.backends:
                gateway.add(backend.name)
        for sick in self.world.sick.values():
            sick.state, sick.silent, sick.extra = State.SERVING, False, {}
            sick.itl_s, sick.ttft_s, sick.errors_per_tick = 0.02, 0.2, 0.0
        self.time_passes(800.0)  # weights come back by ever smaller steps, and repeaters wait longer
        left = [lease for lease in self.world.ledger.leases() if lease.knob not in KEPT_WHILE_WELL]
        assert left == []
        for sick in self.world.sick.values():
            sick.silent = True
        self.time_passes(STALE_S + self.guards.lease_s + 1)
        assert self.world.ledger.leases() == ()


WatchingAll.TestCase.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestWhateverHappens = WatchingAll.TestCase
