"""Never two leaders: whatever the clocks say, whatever fails, whoever is slow. The API is a store in memory with versions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ErrorKind
from tailkeeper_watchdog.actuators.kube_api import Ask, ConflictError, KubeApi
from tailkeeper_watchdog.leader_lease import CLOCK_DRIFT, KubernetesLeadership
from tailkeeper_watchdog.settings import ACTING_S, LeaderSettings

TICK_S = 3.3
"""Shorter than a third of the shortest lease, as the settings ask for."""


@dataclass
class Store(KubeApi):
    """One Lease. ``latency_s`` passes on the common clock in each call; ``fault`` is of the next ones."""

    now: float = 0.0
    latency_s: float = 0.0
    fault: str = ""
    lease: dict[str, Any] | None = None
    version: int = 0

    async def call(self, ask: Ask) -> Mapping[str, Any]:
        self.now += self.latency_s / 2
        if self.fault == "down":
            raise CallError(ErrorKind.UNREACHABLE, "cannot connect")
        answer = self._answer(ask)
        self.now += self.latency_s / 2
        if self.fault == "no answer" and ask.verb != "get":
            raise CallError(ErrorKind.PROTOCOL, "the connection broke before the answer")
        return answer

    def _answer(self, ask: Ask) -> Mapping[str, Any]:
        if ask.verb == "get":
            if self.lease is None:
                raise CallError(ErrorKind.NOT_FOUND, "404")
            return self.lease
        assert ask.body is not None
        there = self.lease is not None
        version = ask.body["metadata"].get("resourceVersion")
        if (ask.verb == "create") == there or (there and version != str(self.version)):
            raise ConflictError("409")
        self.version += 1
        self.lease = {**ask.body, "metadata": {"resourceVersion": str(self.version)}}
        return self.lease


@dataclass
class Way:
    store: Store

    async def opened(self) -> KubeApi:
        return self.store

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class Watchdog:
    leadership: KubernetesLeadership
    acts_until: float = -1.0


def fleet(store: Store, lease_s: int, offsets: list[float], rates: list[float]) -> list[Watchdog]:
    def watchdog(number: int, offset: float) -> Watchdog:
        def clock() -> float:
            return store.now * rates[number] + 1_000 * number

        def wall() -> float:
            return 1.8e9 + offset + (store.now if number else 0.0)  # the first one stands still

        config = LeaderSettings(namespace="llm", lease_s=lease_s)
        return Watchdog(KubernetesLeadership(config, f"watchdog-{number}", clock, wall, Way(store)))

    return [watchdog(number, offset) for number, offset in enumerate(offsets)]


OUTAGE = st.tuples(st.integers(0, 2), st.sampled_from(["down", "no answer"]), st.floats(0, 30), st.floats(0, 30))
"""Whose way to the API fails, how, from when on and for how long."""
STEP_DOWN = st.tuples(st.integers(0, 2), st.floats(0, 40))
TICKS_S = st.lists(st.floats(0.5, TICK_S), min_size=3, max_size=3)
LEASES_S = st.sampled_from([10, 15, 30])
RATES = st.lists(st.floats(1 - CLOCK_DRIFT / 2, 1 + CLOCK_DRIFT / 2), min_size=3, max_size=3)
"""How fast each clock runs: any two of them differ by no more than is allowed for."""
OFFSETS_S = st.lists(st.floats(-1e8, 1e8), min_size=3, max_size=3)
Outage = tuple[int, str, float, float]


async def run(
    lease_s: int,
    ticks_s: list[float],
    offsets_s: list[float],
    rates: list[float],
    latency_s: float,
    outages: list[Outage],
    leave: list[tuple[int, float]],
) -> int:
    """A minute and a half of three watchdogs, each acting as long as it may where it leads. Returns how many lead at the end."""
    store = Store(latency_s=latency_s)
    watchdogs = fleet(store, lease_s, offsets_s, rates)
    due = dict.fromkeys(range(3), 0.0)
    while store.now < 90.0:
        who = min(due, key=lambda number: due[number])
        store.now = max(store.now, due[who])
        one, others = watchdogs[who], [other for number, other in enumerate(watchdogs) if number != who]
        faults = [how for number, how, start, length_s in outages if number == who and 0 <= store.now - start < length_s]
        store.fault = faults[0] if faults else ""
        if any(number == who and due[who] <= at < due[who] + ticks_s[who] for number, at in leave):
            await one.leadership.step_down()  # between two ticks, so it does nothing more
            one.acts_until = store.now
        elif await one.leadership.try_lead() is None:
            assert all(other.acts_until <= store.now for other in others), "two act at once"
            one.acts_until = store.now + ACTING_S / rates[who]
        due[who] = store.now + ticks_s[who]
    return sum(watchdog.acts_until >= store.now - TICK_S for watchdog in watchdogs)


@settings(max_examples=50, deadline=None)
@example(15, [0.5] * 3, [0.0] * 3, [1 - CLOCK_DRIFT / 2, *[1 + CLOCK_DRIFT / 2] * 2], 0.0, [(0, "down", 0.2, 30.0)], [])
@given(LEASES_S, TICKS_S, OFFSETS_S, RATES, st.floats(0, 0.5), st.lists(OUTAGE, max_size=4), st.lists(STEP_DOWN, max_size=2))
def test_never_two_act_at_once_and_one_does_once_the_api_answers(
    lease_s: int,
    ticks_s: list[float],
    offsets_s: list[float],
    rates: list[float],
    latency_s: float,
    outages: list[Outage],
    leave: list[tuple[int, float]],
) -> None:
    assert asyncio.run(run(lease_s, ticks_s, offsets_s, rates, latency_s, outages, leave)) == 1
