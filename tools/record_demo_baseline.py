"""Records the drift baseline that the demo ships with, from the demo's own engines.

    python tools/record_demo_baseline.py [--out demo/tailkeeper_demo/baselines.json]

The engines are those of the demo, with its driver, its trace and its rates, and the tap before each keeps the book that the real
one keeps; only their clock is simulated, so that hours pass in a minute or two and the file is the same wherever it is made.
Besides the demo's usual rate it records the higher ones that an engine gets while its siblings are out: a load that a baseline
never saw is a load under which ``block_e`` abstains. And for longest the lower one of an engine that gets half of its share,
because that is where a slow one is put within seconds: blocks of so few requests scatter more, and are as many as they are
because the most that one block can prove grows with their number.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from tailkeeper_demo.engine import Engine
from tailkeeper_demo.engine_driver import EngineDriver
from tailkeeper_demo.engine_stats import FinishReason
from tailkeeper_demo.engine_types import Arrival, EngineParams, Token
from tailkeeper_demo.faults import Fault
from tailkeeper_demo.stack import ENGINES, MODEL, REQUESTS_PER_S
from tailkeeper_demo.trace import arrivals, load_trace
from tailkeeper_exporter.tap.book import Book
from tailkeeper_watchdog.baseline_set import BaselineSet, Form
from tailkeeper_watchdog.detectors.block_e import rows_of
from tailkeeper_watchdog.drift import AS_WRITTEN, Rows, fit
from tailkeeper_watchdog.model import RequestRecord

SEED = 101
SHARES = ((1.0, 2 * 3_600.0), (0.5, 3.5 * 3_600.0), (1.35, 1_800.0), (2.0, 600.0), (3.0, 200.0))
"""How much of its usual rate an engine gets, and for how long (seconds)."""
APART_S = 700.0
"""Between two engines' times, so that no block has requests of both."""
DECIMALS = 4
"""Of the blocks' statistics: what differs by less is a tie, and the file a third as large."""
CREATED_S = 1_767_225_600.0
"""A fixed date (2026-01-01), so that the file does not change with the day on which it is made."""
BODY_BYTES = 190
"""Of a request of the load: all are as long, whatever their prompt counts as."""
RELAY_S = 0.002
"""What gateway, tap and two event loops add to a first token."""
PATIENCE_S = 20.0
"""After so long a client of the load gives up."""
OUT = Path(__file__).parents[1] / "demo" / "tailkeeper_demo" / "baselines.json"


@dataclass(order=True)
class _Timer:
    at_s: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class SimulatedClock:
    """What a driver uses of an event loop, with time that passes only when nothing is left to do."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._now_s

    def call_at(self, when: float, callback: Callable[[], None], /) -> _Timer:
        timer = _Timer(max(when, self._now_s), next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, callback: Callable[[], None], /) -> _Timer:
        return self.call_at(self._now_s, callback)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> _Timer:
        return self.call_at(self._now_s + delay, callback)

    def run_until(self, end_s: float) -> None:
        while self._timers and self._timers[0].at_s <= end_s:
            timer = heapq.heappop(self._timers)
            self._now_s = timer.at_s
            if not timer.is_cancelled:
                timer.callback()
        self._now_s = end_s


@dataclass(slots=True)
class _Flying:
    """A request in flight, with what a tap saw when it came. Times on the simulated clock."""

    arrival: Arrival
    backlog_tokens: int | None
    running: int
    waiting: int
    first_s: float | None = None
    tokens: int = 0


class SimulatedTap:
    """What the tap before an engine would record: the tap's own book, and a record for each request as it ends."""

    def __init__(self, backend: str, clock: SimulatedClock) -> None:
        self._backend, self._clock = backend, clock
        self._book = Book()
        self._flying: dict[str, _Flying] = {}
        self._ended: list[RequestRecord] = []

    def came(self, arrival: Arrival) -> None:
        book = self._book
        self._flying[arrival.request_id] = _Flying(arrival, book.backlog_tokens, book.running, book.waiting)
        book.enter()
        book.add(BODY_BYTES)
        book.send()

    def passed(self, tokens: list[Token]) -> None:
        for token in tokens:
            flying = self._flying.get(token.request_id)
            if flying is None:
                continue
            flying.tokens += 1
            if flying.first_s is None:
                flying.first_s = self._clock.time() + RELAY_S
                self._book.first_token(BODY_BYTES)
            if token.finish is not None:
                self._book.learn(BODY_BYTES, flying.arrival.prompt_tokens)
                self._end(token.request_id, "ok", flying.arrival.prompt_tokens)

    def left(self, request_id: str) -> bool:
        """Whether the client gave up just now. Engines tell a prompt's length at the end, so of this one it is not known."""
        if request_id not in self._flying:
            return False
        self._end(request_id, "aborted", None)
        return True

    def _end(self, request_id: str, outcome: str, prompt_tokens: int | None) -> None:
        flying, end_s = self._flying.pop(request_id), self._clock.time() + RELAY_S
        start_s, first_s = flying.arrival.arrived_s, flying.first_s
        self._book.leave(sent=True, first_token=first_s is not None, size=BODY_BYTES)
        ttft_s = None if first_s is None else first_s - start_s
        itl_s = None if first_s is None or flying.tokens < 2 else (end_s - first_s) / (flying.tokens - 1)
        self._ended.append(
            RequestRecord(
                self._backend,
                outcome,
                ttft_s,
                itl_s,
                end_s - start_s,
                start_unix_s=start_s,
                queue_s=0.0,
                prefill_s=ttft_s,
                prompt_tokens=prompt_tokens,
                generated_tokens=flying.tokens,
                running=flying.running,
                waiting=flying.waiting,
                backlog_tokens=flying.backlog_tokens,
            )
        )

    def take(self) -> tuple[RequestRecord, ...]:
        """The requests that ended since the last call, in the order in which they did."""
        ended, self._ended = tuple(self._ended), []
        return ended


class SimulatedEngine:
    """One engine under the trace at ``rate_per_s``, behind a tap.

    From ``halved_at_s`` on it gets every second request only: what the policy does to an engine that got slow.
    """

    def __init__(self, seed: int, rate_per_s: float, duration_s: float, halved_at_s: float = inf, backend: str = "sim-a") -> None:
        self.clock = SimulatedClock()
        self.tap = SimulatedTap(backend, self.clock)
        self.engine = Engine(EngineParams(), random.Random(seed))  # noqa: S311  simulated noise, not a secret
        self.driver = EngineDriver(self.engine, self.clock, self.tap.passed, lambda: None)
        rows = arrivals(load_trace(), rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)
        for number, row in enumerate(rows):
            if row.at_s < halved_at_s or number % 2:
                request = Arrival(str(number), row.prompt_tokens, row.output_tokens, FinishReason.STOP, row.at_s)
                self.clock.call_at(row.at_s, lambda request=request: self._submit(request))  # type: ignore[misc]

    def _submit(self, request: Arrival) -> None:
        self.tap.came(request)
        self.driver.submit(request)
        self.clock.call_later(PATIENCE_S, lambda: self._leave(request.request_id))

    def _leave(self, request_id: str) -> None:
        if self.tap.left(request_id):
            self.driver.abort(request_id)

    def records(self, until_s: float) -> tuple[RequestRecord, ...]:
        """Let time pass until then, and what a watchdog hears of at that time."""
        self.clock.run_until(until_s)
        return self.tap.take()

    def slow(self, fault: Fault | None) -> None:
        self.driver.set_fault(fault)


def record(seed: int, share: float, duration_s: float, since_s: float) -> Iterator[tuple[float | None, ...]]:
    """Requests of the demo's engines, each for so long at that share of its usual rate, one after the other from ``since_s``."""
    for number in range(ENGINES):
        simulated = SimulatedEngine(seed + number, share * REQUESTS_PER_S / ENGINES, duration_s)
        start_s = since_s + number * (duration_s + APART_S)
        for at_s, *rest in rows_of(simulated.records(duration_s), duration_s):
            yield (start_s + (at_s or 0.0), *rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    out: Path = parser.parse_args().out
    rows: list[tuple[float | None, ...]] = []
    since_s = 0.0
    for number, (share, duration_s) in enumerate(SHARES):
        rows.extend(record(SEED + 10 * number, share, duration_s, since_s))
        since_s += ENGINES * (duration_s + APART_S)
    baseline = fit(Rows.of(rows), model_id=MODEL, created_at_s=CREATED_S, design=AS_WRITTEN)
    statistics = tuple(tuple(round(value, DECIMALS) for value in column) for column in baseline.statistics)
    document = BaselineSet({}, {(MODEL, Form.ROWS): replace(baseline, statistics=statistics)}).document()
    out.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{out}: {baseline.blocks} blocks, {baseline.requests} requests, fit {baseline.fit_ratio:.2f}")


if __name__ == "__main__":
    main()
