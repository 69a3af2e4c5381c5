"""A day without a fault, with a load that follows the sun, through the pure core with every detector: nobody is woken."""

from __future__ import annotations

import random
from math import cos, pi
from typing import Any

from tailkeeper_watchdog import core
from tailkeeper_watchdog.baseline_set import BaselineSet, Form
from tailkeeper_watchdog.detectors import block_e, growth
from tailkeeper_watchdog.detectors.block_e import rows_of
from tailkeeper_watchdog.drift import Rows, fit
from tailkeeper_watchdog.model import RequestRecord, Severity
from tests.unit.watched_fleet import WALL_S, WatchedFleet, record

DAY_S = 86_400.0
TICK_S = 20.0


def requests(rng: random.Random, at_s: float, name: str) -> list[RequestRecord]:
    """What is finished in a tick: 3 to 15 requests and 2 to 12 in flight, by the time of day. The load explains the latency."""
    share = 0.5 - 0.5 * cos(2 * pi * at_s / DAY_S)
    made = []
    for number in range(3 + round(12 * share)):
        running, prompt = rng.randint(1, 2 + round(10 * share)), int(rng.lognormvariate(6.0, 0.8))
        ttft_s = (0.02 + 0.02 * running + 5e-5 * prompt) * rng.lognormvariate(0.0, 0.2)
        start = WALL_S + at_s + number - ttft_s
        load: dict[str, Any] = {"prompt_tokens": prompt, "running": running, "waiting": 0, "backlog_tokens": 0}
        made.append(record(ttft_s, name, e2e_s=ttft_s + 4.0, itl_s=0.02, start_unix_s=start, **load))
    return made


def day_before(rng: random.Random) -> BaselineSet:
    told = [r for tick in range(int(DAY_S / TICK_S)) for r in requests(rng, tick * TICK_S, "a")]
    return BaselineSet({}, {("m", Form.ROWS): fit(Rows.of(rows_of(told, 0.0)), model_id="m", created_at_s=1.0)})


def test_nobody_is_woken_on_a_day_without_a_fault() -> None:
    rng = random.Random(1)
    watched = WatchedFleet(growth.DETECTOR, names=("a", "b"))
    memory = core.Memory(detectors={"block_e": block_e.Memory(given=day_before(rng))})
    told = []
    for tick in range(int(DAY_S / TICK_S)):
        for name in watched.seen:
            made = requests(rng, tick * TICK_S, name)
            # One request in a thousand fails, a fifth of the budget.
            watched.did(name, ttft_s=[r.ttft_s for r in made if r.ttft_s is not None], errors=rng.random() < 0.001 * len(made))
            watched.told(*made)
        situation = watched.situation(TICK_S)
        memory, symptoms = core.detect_all(situation, memory, ())
        told += [s for s in symptoms if s.severity is not Severity.INFO]
    assert [s for s in told if s.severity is Severity.PAGE] == []
    # One nominal false alarm a day for each backend is what block_e promises; more than that would be a defect.
    assert len({(s.kind, s.backend, s.evidence.get("rising_since")) for s in told}) <= 2
    held = memory.detectors["block_e"]
    assert all(watch.test.evidence.blocks > 300 for watch in held.rows.values())
