"""Whatever is wished, released, restarted or set by hand, and however late the gateway does what it was told: all comes back."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailkeeper_watchdog.guards import cap_of
from tailkeeper_watchdog.model import Knob
from tailkeeper_watchdog.pending import MAY_COME_S
from tests.scenario.slow_gateway import GUARDS, NAMES, Says, SlowWorld
from tests.scenario.world import TICK_S

LATEST_S = MAY_COME_S - 1
"""Later than that nobody waits for a write."""
LAGS = st.lists(st.one_of(st.none(), st.floats(0.0, LATEST_S)), min_size=1, max_size=12)
ONE = GUARDS.model_copy(update={"max_fraction": 0.3})
UNITS = 20
"""The gateway rounds what is no multiple of 0.05, such as a share of what a foreign hand set."""


@dataclass(frozen=True, slots=True)
class Part:
    """What happens next: a weight that is wished (1.0 is none) or a drain, a release by hand, a restart, a foreign hand."""

    what: str
    backend: str
    weight: float
    seconds: float
    says: Says


PARTS = st.builds(
    Part,
    st.sampled_from(["want"] * 6 + ["out", "release", "restart", "foreign"]),
    st.sampled_from("bbc"),
    st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.0]),
    st.sampled_from([0.5, 1.0, 1.5, 3.0, 8.0]),
    st.sampled_from(Says),
)


async def _runs(world: SlowWorld, seconds: float) -> None:
    for _ in range(round(seconds / TICK_S)):
        await world.run(TICK_S)
        assert len(world.out()) <= cap_of(len(NAMES), ONE)


async def _lives(world: SlowWorld, parts: list[Part]) -> dict[str, float]:
    """The weights that foreign hands set last."""
    theirs: dict[str, float] = {}
    for part in parts:
        world.slow.says = part.says
        if part.what in ("want", "out"):
            world.want(part.backend, part.weight, out=part.what == "out")
        elif part.what == "release":
            await world.loop.release("by hand", part.backend)
        elif part.what == "restart":
            world.start()
        elif world.slow.is_idle:  # what is under way cannot be called back, whatever it overwrites
            theirs[part.backend] = 0.85 if theirs.get(part.backend) == 0.95 else 0.95  # nothing that we would write
            world.slow.set_by_hand(part.backend, Knob.WEIGHT, theirs[part.backend])
        await _runs(world, part.seconds)
    return theirs


async def _all_comes_back(path: Path, lags_s: list[float | None], parts: list[Part]) -> None:
    left = iter(lags_s)
    world = SlowWorld(path, lambda: next(left, 0.6), units=UNITS, guards=ONE)
    await world.run(2)
    theirs = await _lives(world, parts)
    await world.settle(500)  # a gateway that loses a dozen of writes is asked ever more seldom
    told = (parts, world.verdicts("b"), world.slow.writes)
    assert world.slow.is_idle
    assert all(world.is_as_it_was(name, theirs.get(name, 1.0)) for name in NAMES), told
    assert world.ledger.leases() == (), told
    world.ledger.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LAGS, st.lists(PARTS, min_size=1, max_size=10))
def test_every_knob_is_back_at_its_prior_once_wishes_end(lags_s: list[float | None], parts: list[Part]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_all_comes_back(Path(folder) / "ledger.db", lags_s, parts))
