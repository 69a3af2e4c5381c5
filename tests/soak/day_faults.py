"""What befalls the fleet of a day: faults of engines, gateway, disk, clock and watchdog; deploys, people, and a fleet that grows
and shrinks. Each begins and ends by itself; several go on at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tailkeeper_exporter import catalog
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import Knob
from tests.scenario.full_world import REQUESTS_PER_TICK
from tests.soak.day_world import ERRORS, NAMES, DayWorld, heal

End = Callable[[], None]
HOUR_S = 3_600.0
FEWEST = 8


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    often: float
    lasts_s: tuple[float, float]
    begin: Callable[[DayWorld, random.Random], End | None]
    """None where it cannot begin now."""


@dataclass
class Befalls:
    """Begins a fault every ``every_s`` seconds on average."""

    day: DayWorld
    every_s: float
    rng: random.Random
    begun: dict[str, int] = field(default_factory=dict)
    _ends: list[tuple[float, str, End]] = field(default_factory=list)
    _next_s: float = 60.0

    def carry_on(self) -> None:
        """Once a tick."""
        now_s = self.day.day_s
        while now_s >= self._next_s:
            self._next_s += self.rng.expovariate(1 / self.every_s)
            self.begin()
        due = [end for end in self._ends if end[0] <= now_s]
        for end in due:
            self._ends.remove(end)
            end[2]()

    def begin(self) -> None:
        going_on = {name for _, name, _ in self._ends}
        kind = self.rng.choices(KINDS, [k.often for k in KINDS])[0]
        if kind.name in going_on and not kind.name.startswith("engine"):
            return
        end = kind.begin(self.day, self.rng)
        if end is not None:
            self.begun[kind.name] = self.begun.get(kind.name, 0) + 1
            until_s = self.day.day_s + self.rng.uniform(*kind.lasts_s)
            self._ends.append((until_s, kind.name, end))
            self.day.note(f"{kind.name} until {until_s:.0f} s …")

    def end_all(self) -> None:
        for _, _, end in self._ends:
            end()
        self._ends.clear()


def _well(day: DayWorld, rng: random.Random) -> str | None:
    """A backend of the fleet that nothing befalls now."""
    names = [b.name for b in day.backends if day.sick[b.name].state is State.SERVING and not day.sick[b.name].silent]
    names = [
        n for n in names if day.sick[n].ttft_s < 1 and not day.sick[n].errors_per_tick and not day.sick[n].preemptions_per_tick
    ]
    return rng.choice(names) if names else None


def _engine(change: Callable[[DayWorld, str], None]) -> Callable[[DayWorld, random.Random], End | None]:
    def begin(day: DayWorld, rng: random.Random) -> End | None:
        name = _well(day, rng)
        if name is None:
            return None
        change(day, name)
        return lambda: heal(day.sick[name])

    return begin


def _state(state: State) -> Callable[[DayWorld, random.Random], End | None]:
    def change(day: DayWorld, name: str) -> None:
        day.sick[name].state = state

    return _engine(change)


def _slow(day: DayWorld, name: str) -> None:
    day.sick[name].itl_s, day.sick[name].ttft_s = 0.2, 5.0


def _fail(day: DayWorld, name: str) -> None:
    day.sick[name].ok_per_tick, day.sick[name].errors_per_tick = 0.0, REQUESTS_PER_TICK


def _fill(day: DayWorld, name: str) -> None:
    day.sick[name].preemptions_per_tick = 4.0
    day.sick[name].extra |= {catalog.VRAM_PRESSURE.name: 0.97, catalog.KV_USAGE.name: 0.97}


def _silent(day: DayWorld, name: str) -> None:
    day.sick[name].silent = True


def _restart(day: DayWorld, name: str) -> None:
    day.restart(name)


def _pages_gone(day: DayWorld, rng: random.Random) -> End | None:
    day.source_down = True

    def end() -> None:
        day.source_down = False

    return end


def _gateway_fails(day: DayWorld, rng: random.Random) -> End | None:
    day.gateway.fails = rng.choice(ERRORS)

    def end() -> None:
        day.gateway.fails = None

    return end


def _gateway_loses(day: DayWorld, rng: random.Random) -> End | None:
    day.checked.loses = True

    def end() -> None:
        day.checked.loses = False

    return end


def _gateway_late(day: DayWorld, rng: random.Random) -> End | None:
    day.checked.late = True

    def end() -> None:
        day.checked.late = False

    return end


def _watchdog_stands_still(day: DayWorld, rng: random.Random) -> End | None:
    day.clock.now += rng.uniform(2.0, 90.0)
    return lambda: None


def _gateway_anew(day: DayWorld, rng: random.Random) -> End | None:
    day.checked.begin_anew()
    day.put_back.update(server for server, _ in day.by_hand)
    return lambda: None


def _disk_full(day: DayWorld, rng: random.Random) -> End | None:
    day.ledger_fails = True

    def end() -> None:
        day.ledger_fails = False

    return end


def _clock(day: DayWorld, rng: random.Random) -> End | None:
    day.clock.step_s = rng.choice((-1, 1)) * rng.triangular(2, HOUR_S, 60)

    def end() -> None:
        day.clock.step_s = 0.0

    return end


def _watchdog_anew(day: DayWorld, rng: random.Random) -> End | None:
    if day.ledger_fails:
        return None  # it would not come up; that is tried on the real programs
    day.clock.now += rng.uniform(0.0, 10.0)
    day.start()
    return lambda: None


def _foreign_hand(day: DayWorld, rng: random.Random) -> End | None:
    """A person raises a weight at the gateway, and puts it back later. Not lowered: half of a lowered one is below half, and our
    part of that is no more than the contract allows."""
    ours = {lease.target.server for lease in day.ledger.leases()}
    free = [name for name in NAMES if name not in ours and day.is_quiet(name)]
    if not free:
        return None
    server = rng.choice(free)
    day.by_hand[(server, Knob.WEIGHT)] = day.gateway.values[server][Knob.WEIGHT] = 1.2
    return lambda: day.put_back.add(server)


def _paused(day: DayWorld, rng: random.Random) -> End | None:
    if day.ledger_fails:
        return None
    day.switches.pause("by a person")

    def end() -> None:
        failing, day.ledger_fails = day.ledger_fails, False
        day.switches.resume()
        day.ledger_fails = failing

    return end


def _deploy(day: DayWorld, rng: random.Random) -> End | None:
    """A backend is held, restarted, and let go."""
    name = _well(day, rng)
    if name is None or day.ledger_fails:
        return None
    day.switches.hold(name, "a deploy", 600.0)
    day.restart(name)

    def end() -> None:
        failing, day.ledger_fails = day.ledger_fails, False
        day.switches.unhold(name)
        day.ledger_fails = failing
        heal(day.sick[name])

    return end


def _fleet_changes(day: DayWorld, rng: random.Random) -> End | None:
    """As an autoscaler has it: some backends go, and come back later."""
    gone = set(rng.sample(NAMES, rng.randint(1, len(NAMES) - FEWEST)))
    day.find(*(name for name in NAMES if name not in gone))
    return lambda: day.find(*NAMES)


KINDS = (
    Kind("engine hung", 10, (6, 120), _state(State.HUNG)),
    Kind("engine down", 8, (6, 120), _state(State.DOWN)),
    Kind("engine slow", 8, (20, 180), _engine(_slow)),
    Kind("engine fails requests", 8, (10, 90), _engine(_fail)),
    Kind("engine out of memory", 6, (20, 120), _engine(_fill)),
    Kind("engine restarted", 6, (20, 90), _engine(_restart)),
    Kind("engine misconfigured", 3, (10, 120), _state(State.MISCONFIGURED)),
    Kind("engine's page lost", 8, (4, 90), _engine(_silent)),
    Kind("all pages lost", 3, (4, 60), _pages_gone),
    Kind("gateway fails", 5, (2, 60), _gateway_fails),
    Kind("gateway loses writes", 3, (2, 40), _gateway_loses),
    Kind("gateway does writes late", 4, (2, 60), _gateway_late),
    Kind("gateway reloaded", 3, (1, 2), _gateway_anew),
    Kind("disk full", 4, (2, 60), _disk_full),
    Kind("clock step", 4, (4, 300), _clock),
    Kind("watchdog killed and started", 6, (1, 2), _watchdog_anew),
    Kind("watchdog stands still", 4, (1, 2), _watchdog_stands_still),
    Kind("somebody changes a weight", 3, (20, 300), _foreign_hand),
    Kind("paused by a person", 1, (10, 120), _paused),
    Kind("deploy of a backend, held", 4, (20, 90), _deploy),
    Kind("fleet shrinks and grows", 2, (60, 1_200), _fleet_changes),
)
