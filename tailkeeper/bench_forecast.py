"""``tailkeeper bench forecast``: the forecast against the last value, on simulated queues. It prints figures, no verdict.

A backend is a queue before 32 places of a batch: requests come at random with a load that the stream prescribes, prompts
and answers are log-normal, decoding slows down with the batch. What the watchdog would see of it each 15 s is given to the
same book that it uses, and trained as it trains, in this process.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import accumulate
from math import pi, sin
from typing import Any

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.forecast.book import AHEAD, STEP_S, ForecastBook, Page
from tailkeeper_watchdog.forecast.linear import read
from tailkeeper_watchdog.forecast.training import answer
from tailkeeper_watchdog.model import EMPTY, Backend, BackendObservation, FleetSnapshot, RequestRecord, Situation, Slo
from tailkeeper_watchdog.samples import OUTCOME_SLOT

PLACES = 32
CAPACITY_RPS = 10.5
"""What such a backend can just bear."""
TRAIN_EVERY_STEPS = 8
KV_TOKENS = 40_000.0

Load = Callable[[float], float]
STREAMS: Mapping[str, Load] = {
    "steady": lambda at: 0.75,
    "diurnal": lambda at: 0.7 + 0.27 * sin(2 * pi * at / 7_200),
    "bursts": lambda at: 1.25 if at % 600 < 60 else 0.6,
    "ramps": lambda at: 0.5 + 0.6 * min(1.0, (at % 1_800) / 1_200),
}
"""Share of what the backend can bear, by second."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Requests of one backend in the order of their arrival: seconds and tokens."""

    arrived: tuple[float, ...]
    started: tuple[float, ...]
    first: tuple[float, ...]
    ended: tuple[float, ...]
    prompts: tuple[int, ...]
    answers: tuple[int, ...]


def simulate(load: Load, seconds: float, rng: random.Random) -> Simulated:
    rows: list[tuple[float, float, float, float, int, int]] = []
    free = [0.0] * PLACES
    heapify(free)
    at = 0.0
    while (at := at + rng.expovariate(CAPACITY_RPS * load(at))) < seconds:
        prompt, answered = int(rng.lognormvariate(6.0, 0.8)) + 1, int(rng.lognormvariate(5.0, 0.6)) + 1
        start = max(at, free[0])
        running = sum(end > start for end in free)
        first = start + prompt / 8_000 * (1 + running / PLACES)
        end = first + answered * (0.01 + 0.0002 * running)
        heapreplace(free, end)
        rows.append((at, start, first, end, prompt, answered))
    return Simulated(*zip(*rows, strict=True))


@dataclass
class _Backend:
    """One simulated backend as an exporter would tell of it, step by step."""

    name: str
    of: Simulated
    done: tuple[int, ...] = field(init=False)
    told: int = 0

    def __post_init__(self) -> None:
        self.done = tuple(sorted(range(len(self.of.ended)), key=self.of.ended.__getitem__))
        self._ended = sorted(self.of.ended)
        self._prompted = (0, *accumulate(self.of.prompts))

    def until(self, now: float) -> tuple[BackendObservation, tuple[RequestRecord, ...]]:
        of, finished = self.of, bisect_right(self._ended, now)
        new = self.done[self.told : finished]
        self.told = finished
        records = tuple(
            RequestRecord(self.name, "ok", of.first[i] - of.arrived[i], None, of.ended[i] - of.arrived[i]) for i in new
        )
        arrived, started = bisect_right(of.arrived, now), bisect_right(of.started, now)
        held = sum(of.prompts[i] for i in range(max(0, started - 4 * PLACES), started) if of.ended[i] > now)
        values = {
            OUTCOME_SLOT["ok"]: float(finished),
            catalog.RUNNING.name: float(started - finished),
            catalog.WAITING.name: float(arrived - started),
            catalog.PROMPT_TOKENS.name: float(self._prompted[started]),
            catalog.KV_USAGE.name: min(1.0, held / KV_TOKENS),
        }
        readings = {name: present(value, now) for name, value in values.items()}
        return BackendObservation(self.name, State.SERVING, 0.0, None, readings), records


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What was said, until step ``due`` shows how it was."""

    due: int
    page: Page


@dataclass(frozen=True, slots=True)
class _Made:
    """What was said and what came of it, in seconds. The page has a prediction, and with it a last value."""

    page: Page
    actual_s: float

    @property
    def error_s(self) -> float:
        return abs((self.page.predicted_s or 0.0) - self.actual_s)

    @property
    def last_value_error_s(self) -> float:
        return abs((self.page.forecast.last_value_s or 0.0) - self.actual_s)

    @property
    def is_within_bound(self) -> bool:
        return self.error_s <= (self.page.forecast.error_bound_s or 0.0)


def _run(load: Load, backends: int, seconds: float, seed: int) -> list[_Made]:
    rng = random.Random(seed)  # noqa: S311  a simulation
    fleet = [_Backend(f"sim-{i}", simulate(load, seconds, rng)) for i in range(backends)]
    known = tuple(Backend(b.name, "m") for b in fleet)
    book, now, step = ForecastBook(), 0.0, 0
    waiting: list[_Waiting] = []
    made: list[_Made] = []
    while (now := now + STEP_S) < seconds:
        step += 1
        book.note(_situation(fleet, known, step, now))
        said = {page.forecast.backend: page for page in book.view(known)}
        actual = {name: page.forecast.last_value_s for name, page in said.items()}
        made += [_Made(w.page, a) for w in waiting if w.due == step and (a := actual[w.page.forecast.backend]) is not None]
        waiting = [w for w in waiting if w.due > step]
        waiting += [_Waiting(step + AHEAD, page) for page in said.values() if page.predicted_s is not None]
        if step % TRAIN_EVERY_STEPS == 0:
            _train(book)
    return made


def _situation(fleet: list[_Backend], known: tuple[Backend, ...], step: int, now: float) -> Situation:
    told = {b.name: b.until(now) for b in fleet}
    snapshot = FleetSnapshot(step, now, now, known, {name: seen for name, (seen, _) in told.items()})
    records = {name: rows for name, (_, rows) in told.items()}
    return Situation(snapshot, EMPTY, EMPTY, EMPTY, Slo(), 30.0, records=records)


def _train(book: ForecastBook) -> None:
    wanted = book.trainable()
    if not wanted:
        return
    groups = [{"rows": [list(r) for r in g.rows], "targets": list(g.targets)} for g in wanted.values()]
    for (group, rows), document in zip(wanted.items(), answer({"groups": groups})["models"], strict=True):
        model = read(document, len(rows.rows[0]))
        if model is not None:
            book.learn(group, model)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _p99(values: Sequence[float]) -> float | None:
    return sorted(values)[int(0.99 * (len(values) - 1))] if values else None


def _figures(made: list[_Made]) -> dict[str, Any]:
    shown = [m for m in made if m.page.forecast.p99_s is not None]
    return {
        "forecasts": len(made),
        "mean_p99_s": _mean([m.actual_s for m in made]),
        "all": _errors(made),
        "shown_share": len(shown) / len(made) if made else None,
        "shown": _errors(shown),
        "within_bound_share": _mean([float(m.is_within_bound) for m in shown]),
    }


def _errors(made: list[_Made]) -> dict[str, Any]:
    """Mean and 99th percentile of the absolute errors, of the forecast and of the last value."""
    ours, theirs = [m.error_s for m in made], [m.last_value_error_s for m in made]
    return {
        "forecast": {"mean_s": _mean(ours), "p99_s": _p99(ours)},
        "last_value": {"mean_s": _mean(theirs), "p99_s": _p99(theirs)},
    }


def forecast_bench(hours: float, backends: int, seed: int) -> dict[str, Any]:
    """Each stream with ``backends`` backends over ``hours``; training begins as it would in life, from nothing."""
    return {name: _figures(_run(load, backends, 3_600 * hours, seed)) for name, load in STREAMS.items()}
