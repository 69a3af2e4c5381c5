"""A world whose gateway does what it is told later than it is waited for, and whose weights and doors are wished directly.

Labelled a fake, as the one that it is made from. A foreign hand is ``set_by_hand``; nobody else turns a knob there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState
from tailkeeper_watchdog.core import PolicySetting
from tailkeeper_watchdog.model import SERVE, Knob, KnobValue, Mode
from tailkeeper_watchdog.policy_params import ContextLengthRoutingParams
from tailkeeper_watchdog.settings import GuardsSettings
from tests.scenario.world import Clock, FakeGateway, World

NAMES = ("a", "b", "c", "d")
GUARDS = GuardsSettings(cooldown_s=1, return_ramp_s=1, lease_s=30, max_fraction=0.5)
AT_ONCE = ContextLengthRoutingParams(lower_s=0.001, raise_s=0.001)


class Says(Enum):
    """What comes of a write at once; all but ``DONE`` are done later."""

    NOTHING = auto()
    BROKEN = auto()
    YES = auto()
    DONE = auto()


FAILURES = {Says.NOTHING: ErrorKind.TIMEOUT, Says.BROKEN: ErrorKind.PROTOCOL}


class SlowGateway(FakeGateway):
    """Each write is done ``lag_s()`` after it was sent, or lost where that is None. It keeps weights in so many ``units``."""

    def __init__(
        self, clock: Clock, lag_s: Callable[[], float | None], says: Says = Says.NOTHING, units: int | None = None
    ) -> None:
        super().__init__(NAMES)
        self._clock, self.lag_s, self.says, self._units = clock, lag_s, says, units
        self.to_do: list[tuple[float, str, dict[Knob, KnobValue]]] = []

    @property
    def is_idle(self) -> bool:
        """Whether everything that was ever sent has been done or lost."""
        self._do_what_is_due()
        return not self.to_do

    def _do_what_is_due(self) -> None:
        for due in sorted((w for w in self.to_do if w[0] <= self._clock.now), key=lambda w: w[0]):
            self.to_do.remove(due)
            self.values[due[1]].update(due[2])

    async def read(self, servers: tuple[str, ...], deadline_s: float) -> Mapping[str, ServerState]:
        self._do_what_is_due()
        return await super().read(servers, deadline_s)

    async def write(self, server: str, values: Mapping[Knob, KnobValue], deadline_s: float) -> None:
        self._do_what_is_due()
        kept = {knob: self._kept(knob, value) for knob, value in values.items()}
        if self.says is Says.DONE:
            await super().write(server, kept, deadline_s)
            return
        lag_s = self.lag_s()
        self.writes.extend((server, knob, value) for knob, value in values.items())
        if lag_s is not None:
            self.to_do.append((self._clock.now + lag_s, server, kept))
        if self.says in FAILURES:
            raise ActuatorError(FAILURES[self.says], self.name, server, "no answer")

    def _kept(self, knob: Knob, value: KnobValue) -> KnobValue:
        return round(float(value) * self._units) / self._units if knob is Knob.WEIGHT and self._units else value

    def set_by_hand(self, server: str, knob: Knob, value: KnobValue) -> None:
        self._do_what_is_due()
        self.values[server][knob] = value


class SlowWorld(World):
    """``want`` says what is wished of a backend from the next tick on."""

    def __init__(
        self,
        path: object,
        lag_s: Callable[[], float | None],
        says: Says = Says.NOTHING,
        *,
        units: int | None = None,
        guards: GuardsSettings = GUARDS,
    ) -> None:
        super().__init__(path, NAMES, guards=guards, policies={"context_length_routing": PolicySetting(Mode.ENFORCE, AT_ONCE)})
        self.slow = SlowGateway(self.clock, lag_s, says, units)
        self.gateway, self.actuators = self.slow, {"edge": self.slow}
        for name in NAMES:
            self.want(name)
        self.start()

    def want(self, name: str, weight: float = 1.0, *, out: bool = False) -> None:
        """A share of its prior weight, 1.0 for no wish at all; ``out``: its engine hangs, and no request may reach it."""
        self.sick[name].state = State.HUNG if out else State.SERVING
        self.sick[name].extra = {catalog.KV_USAGE.name: 1.0 - weight}

    async def settle(self, limit_s: float = 200) -> None:
        """Nothing is wished any more: run until nothing is under way and no lease is left, but at most so long."""
        for name in NAMES:
            self.want(name)
        until = self.clock.now + limit_s
        while self.clock.now < until and not (self.slow.is_idle and not self.ledger.leases()):
            await self.run(2)
        await self.run(3)

    def is_as_it_was(self, name: str, weight: float = 1.0) -> bool:
        return (self.admission(name), self.weight(name)) == (SERVE, weight)
