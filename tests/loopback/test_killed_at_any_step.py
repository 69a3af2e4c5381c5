"""The watchdog dies before every single write of the ledger and around every write at a gateway, in the story of a real death.

In one process, with an exception that nobody catches; `tests/loopback/test_killed_watchdog.py` tells the same story with SIGKILL.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

from tailkeeper_watchdog.actuators.contract import Actuator
from tailkeeper_watchdog.model import DRAIN, Knob
from tests.loopback.killed_watchdog import GUARDS, NAMES, Death, Told, live, world_of
from tests.loopback.test_killed_watchdog import LENGTH_S, START, STORY, WELL
from tests.scenario.world import FakeGateway, World


class Killed(BaseException):
    """What ``kill -9`` looks like from inside: nothing catches it, and nothing after it runs."""


class Raised(Death):
    def die(self) -> None:
        raise Killed


def fresh_gateway() -> FakeGateway:
    gateway = FakeGateway((*NAMES, "x"))
    gateway.values["d"][Knob.WEIGHT] = 0.8
    gateway.values["x"] = {Knob.WEIGHT: 0.25, Knob.ADMISSION: DRAIN}
    return gateway


async def lived(told: Told, death: Death, gateway: Actuator) -> tuple[bool, World]:
    """Whether it came to its end, and what it leaves."""
    world = world_of(told, death, gateway)
    ended = False
    try:
        await live(told, world)
        ended = True
    except* Killed:
        pass
    return ended, world


async def test_a_death_before_any_step_leaves_nothing_behind(tmp_path: Path) -> None:
    normal, ended, step = fresh_gateway().values, False, 0
    seen: set[str] = set()
    while not ended:
        gateway, ledger = fresh_gateway(), str(tmp_path / f"{step}.db")
        ended, dead = await lived(Told(ledger, "", {}, START, STORY, step), Raised(step), gateway)
        leases = dead.ledger.leases()
        ours = {(lease.target.server, lease.knob) for lease in leases}
        changed = {(s, k) for s, values in gateway.values.items() for k, value in values.items() if value != normal[s][k]}
        assert changed <= ours, f"step {step}: changed, and not in the ledger"
        state = repr((gateway.values, leases, dead.ledger.attempts(dead.clock.wall())))
        step += 1
        if state in seen:
            continue
        seen.add(state)
        await _starts_again(Told(ledger, "", {}, START + LENGTH_S, WELL), gateway, step)
    assert step > 30, "the story has become short; does it still act?"


async def _starts_again(told: Told, gateway: FakeGateway, step: int) -> None:
    """At once, and with a ledger and a gateway as they were then, after every lease has run out."""
    found = deepcopy(gateway.values)
    late = FakeGateway(())
    late.values, late.in_service = found, dict.fromkeys(found, True)
    copy = Path(told.ledger).with_suffix(".late.db")
    World(told.ledger).ledger._db.execute(f"VACUUM INTO '{copy}'")
    for at, place, path in ((told.now, gateway, told.ledger), (told.now + GUARDS.lease_s + 1, late, str(copy))):
        _, world = await lived(Told(path, "", {}, at, told.story), Death(None), place)
        assert world.ledger.leases() == (), f"killed before step {step}"
        assert place.values == fresh_gateway().values, f"killed before step {step}"
        assert "contended" not in {verdict for name in NAMES for verdict in world.verdicts(name)}
