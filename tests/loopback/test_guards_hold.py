"""Whatever happens, in whatever order: the cap holds after every action, a pool is never emptied, unknown harms nobody.

A hypothesis state machine over the whole watchdog with a fake gateway: faults, silence, foreign hands, crashes, and
backends that vanish from the fleet, from the gateway or from both, and come back.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.guards import cap_of
from tailkeeper_watchdog.model import DRAIN, SERVE, FindingKind, Knob, KnobValue
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import World

STALE_S = 3.0


class Watching(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()

    @initialize(size=st.integers(1, 7), fraction=st.sampled_from([0.1, 0.3, 0.5, 1.0]), least=st.integers(0, 2))
    def begin(self, size: int, fraction: float, least: int) -> None:
        guards = GuardsSettings(max_fraction=fraction, min_healthy=least, cooldown_s=2, return_ramp_s=2, lease_s=10)
        self.guards = guards
        self.world = World(Path(self.folder.name) / "ledger.db", tuple("abcdefg"[:size]), guards=guards, stale_after_s=STALE_S)
        self.heard = dict.fromkeys(self.world.sick, (State.SERVING, self.world.clock.now))
        self.foreign: set[str] = set()
        self.problems: list[str] = []
        self._watch_writes()

    def _watch_writes(self) -> None:
        gateway, write = self.world.gateway, self.world.gateway.write

        async def checked(server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
            before = self.world.out()
            await write(server, values, deadline_s)
            if server in self.world.out() - before:
                self._judge(server, self._out())

        gateway.write = checked  # type: ignore[method-assign]

    def _out(self) -> set[str]:
        """Members of the fleet that get less than half of their traffic: whoever has left it counts in no pool."""
        gateway = self.world.gateway
        out = self.world.out() | {n for n, there in gateway.in_service.items() if not there}
        return out & self.world.loop.fleet.names

    def _judge(self, server: str, after: set[str]) -> None:
        """A write that took somebody out must have been allowed to, also where the gateway's own check had found it down."""
        if server not in after:
            return  # it has left the fleet
        size = len(self.world.loop.fleet.names)
        if len(after) > cap_of(size, self.guards):
            self.problems.append(f"{sorted(after)} out of {size} after taking out {server}")
        if len(after) >= size:
            self.problems.append(f"the pool was emptied by taking out {server}")
        state, at = self.heard[server]
        if not state.is_dead or self.world.clock.now - at > STALE_S + 1:
            self.problems.append(f"{server} was taken out on {state} heard {self.world.clock.now - at} s ago")

    @rule(data=st.data(), state=st.sampled_from(list(State)))
    def change_state(self, data: st.DataObject, state: State) -> None:
        self.world.sick[data.draw(st.sampled_from(sorted(self.world.sick)))].state = state

    @rule(data=st.data(), silent=st.booleans())
    def silence(self, data: st.DataObject, silent: bool) -> None:
        self.world.sick[data.draw(st.sampled_from(sorted(self.world.sick)))].silent = silent

    @precondition(lambda self: self.world.gateway.values)
    @rule(data=st.data(), admission=st.sampled_from([SERVE, DRAIN]))
    def foreign_admission(self, data: st.DataObject, admission: str) -> None:
        self.world.gateway.values[self._server(data)][Knob.ADMISSION] = admission

    @precondition(lambda self: self.world.gateway.values)
    @rule(data=st.data(), weight=st.sampled_from([0.0, 0.2, 0.8, 1.0]))
    def foreign_weight(self, data: st.DataObject, weight: float) -> None:
        self.world.gateway.values[self._server(data)][Knob.WEIGHT] = weight

    @precondition(lambda self: self.world.gateway.values)
    @rule(data=st.data(), there=st.booleans())
    def health_check_of_the_gateway(self, data: st.DataObject, there: bool) -> None:
        self.world.gateway.in_service[self._server(data)] = there

    def _server(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.gateway.values)))

    @rule(name=st.sampled_from("abcdefg"), seconds=st.sampled_from([0.5, 1.0, 8.0]))
    def one_comes_or_goes(self, name: str, seconds: float) -> None:
        self._find({b.name for b in self.world.backends} ^ {name})
        self.time_passes(seconds)

    @rule(names=st.sets(st.sampled_from("abcdefg")))
    def many_come_and_go(self, names: set[str]) -> None:
        self._find(names)

    def _find(self, names: set[str]) -> None:
        """Whoever comes back is new: what was heard of it before is no evidence. Between two ticks nobody is seen to go."""
        self.heard.update(dict.fromkeys(names - self.world.loop.fleet.names, (State.UNKNOWN, -1000000000.0)))
        self.world.find(*sorted(names))

    @precondition(lambda self: self.world.backends)
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def one_hangs(self, data: st.DataObject, seconds: float) -> None:
        """Without this, chance alone seldom finds somebody to take out."""
        sick = self.world.sick[data.draw(st.sampled_from([b.name for b in self.world.backends]))]
        sick.state, sick.silent = State.HUNG, False
        self.time_passes(seconds)

    @precondition(lambda self: self.world.gateway.values)
    @rule(data=st.data())
    def the_gateway_forgets_a_server(self, data: st.DataObject) -> None:
        self.world.gateway.remove(self._server(data))

    @rule(kind=st.sampled_from([None, ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT]), lies=st.booleans())
    def gateway_fault(self, kind: ErrorKind | None, lies: bool) -> None:
        self.world.gateway.fails, self.world.gateway.lies = kind, lies

    @rule()
    def crash_and_restart(self) -> None:
        self.world.start()

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        if paused:
            self.world.switches.pause("test")
        else:
            self.world.switches.resume()

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 8.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            now = self.world.clock.now + 0.5
            for name, sick in self.world.sick.items():
                if not sick.silent:
                    self.heard[name] = (sick.state, now)
            self.runner.run(self.world.run(0.5))

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def nothing_forbidden_was_done(self) -> None:
        assert not self.problems, self.problems

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def there_is_at_most_one_lease_for_each_knob(self) -> None:
        keys = [(lease.target, lease.knob) for lease in self.world.ledger.leases()]
        assert len(keys) == len(set(keys))

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def nothing_is_known_of_whoever_is_gone(self) -> None:
        loop, names = self.world.loop, self.world.loop.fleet.names
        about = {f.backend for f in loop.memory.book.open_findings if f.kind is not FindingKind.COMMON_CAUSE}
        assert about <= names, about - names
        assert {*(name for name, _ in loop._changed_at), *loop._released_at} <= names

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self._recovery_is_never_blocked()
        self.runner.close()
        self.folder.cleanup()

    def _recovery_is_never_blocked(self) -> None:
        """All well again, nobody meddling: within a bounded time nothing of ours is left, even while paused."""
        self.world.gateway.fails, self.world.gateway.lies = None, False
        for backend in self.world.backends:
            self.world.gateway.add(backend.name)
        for sick in self.world.sick.values():
            sick.state, sick.silent = State.SERVING, False
        self.time_passes(700.0 if self.world.ledger.attempts(self.world.clock.wall()) else 60.0)
        assert self.world.ledger.leases() == (), self.world.ledger.leases()


Watching.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestWhateverHappens = Watching.TestCase
