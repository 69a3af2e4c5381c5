"""A ledger in a file and one on a real PostgreSQL server: each does what every ledger must, and both do the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Decision, Knob, Lease, Outcome, Target
from tests.contract.postgres_world import Restarts, run_out, settings_for
from tests.e2e.postgres_server import PostgresServer
from tests.unit.ledger_cases import CASES, Opened, in_words


@pytest.fixture
def restarts(postgres: PostgresServer) -> Iterator[Restarts]:
    made = Restarts(settings_for(postgres))
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=in_words)
def test_a_server_is_a_ledger(case: Callable[[Opened], None], restarts: Restarts) -> None:
    case(restarts.opened)


NAMES = st.sampled_from(["a", "b", "ns/c", "ü"])
WEIGHTS = st.floats(0.0, 1.0)
TIMES = st.floats(0.0, 1e4)
VALUES = st.one_of(WEIGHTS, st.integers(0, 2**40), st.text(max_size=20))
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


VERBS = st.sampled_from(["confirm", "renew", "run_out", "reverts", "end"])


def nth(ledger: Ledger, which: int) -> int:
    """The number of one of its leases, of none where there is none."""
    leases = ledger.leases()
    return leases[which % len(leases)].id if leases else 0


def without_numbers(found: Any) -> Any:
    """Numbers are given by each ledger as it likes, in the same order."""
    if isinstance(found, Lease | Decision):
        return replace(found, id=0)
    return tuple(map(without_numbers, found)) if isinstance(found, tuple) else found


class BothLedgers(RuleBasedStateMachine):
    """Does everything to a file and to a server, and opens both anew now and then."""

    server: PostgresServer
    folder: Path

    @initialize()
    def begin(self) -> None:
        self.restarts = Restarts(settings_for(self.server))
        self.path = self.folder / f"{self.restarts.settings.in_schema}.db"
        self.file, self.shared = Ledger(self.path), self.restarts.opened()

    def teardown(self) -> None:
        self.file.close()
        self.restarts.close()

    def both(self, do: Callable[[Ledger], Any]) -> None:
        assert without_numbers(do(self.file)) == without_numbers(do(self.shared))

    @rule(name=NAMES, knob=st.sampled_from(list(Knob)), value=VALUES, before=st.none() | VALUES, at=TIMES, why=WORDS)
    def intend(self, name: str, knob: Knob, value: Any, before: Any, at: float, why: str) -> None:
        self.both(lambda x: x.intend(name, Target("g", name, "p"), knob, "policy", 1.0, value, why, at, at + 60, before))

    @rule(which=st.integers(0, 9), value=VALUES, at=TIMES, verb=VERBS)
    def change(self, which: int, value: Any, at: float, verb: str) -> None:
        done: dict[str, Callable[[Ledger, int], None]] = {
            "confirm": lambda x, number: x.confirm(number, value),
            "renew": lambda x, number: x.renew(number, at),
            "run_out": lambda x, number: x.run_out(number, at),
            "reverts": lambda x, number: x.note_reverts(number, int(at)),
            "end": lambda x, number: x.end(number, Outcome.RELEASED, at),
        }
        self.both(lambda x: done[verb](x, nth(x, which)))

    @rule(name=NAMES, at=TIMES, value=VALUES, tick=st.integers(0, 2**40), why=WORDS, verdict=st.sampled_from(list(Outcome)))
    def record(self, name: str, at: float, value: Any, tick: int, why: str, verdict: Outcome) -> None:
        self.both(lambda x: x.record(at, tick, "policy", name, Knob.WEIGHT, None, value, verdict, why))

    @rule(name=NAMES, at=TIMES)
    def count_attempt(self, name: str, at: float) -> None:
        self.both(lambda x: x.count_attempt(name, at))

    @rule(name=NAMES)
    def forget_attempts(self, name: str) -> None:
        self.both(lambda x: x.forget_attempts([name]))

    @rule(key=WORDS, value=st.none() | WORDS)
    def set_meta(self, key: str, value: str | None) -> None:
        self.both(lambda x: x.set_meta(f"of test {key}", value))

    @rule(at=TIMES, share=WEIGHTS)
    def record_weights(self, at: float, share: float) -> None:
        self.both(lambda x: x.record_weights(at, "maria", {"latency": 1.0}, {"latency": share}))

    @rule(name=NAMES, until=TIMES)
    def note_pending(self, name: str, until: float) -> None:
        self.both(lambda x: x.note_pending({("g", name, Knob.WEIGHT): {0.5: until}}))

    @rule(name=NAMES, at=TIMES, torn=st.booleans())
    def together(self, name: str, at: float, torn: bool) -> None:
        def do(ledger: Ledger) -> None:
            with contextlib.suppress(RuntimeError), ledger.together():
                ledger.record(at, 1, "policy", name, Knob.WEIGHT, None, 1.0, Outcome.OBSERVED, "r")
                ledger.renew(nth(ledger, 0), at)
                if torn:
                    raise RuntimeError("as if the disk were full")

        self.both(do)

    @rule()
    def restart(self) -> None:
        self.file.close()
        self.file, self.shared = Ledger(self.path), self.restarts.opened()

    @rule()
    def settle_and_be_killed(self) -> None:
        self.restarts.settle()
        run_out(self.server, self.restarts.settings)
        self.shared = self.restarts.killed()

    @invariant()
    def say_the_same(self) -> None:
        if hasattr(self, "shared"):
            self.both(lambda x: x.leases())
            self.both(lambda x: x.decisions(limit=1_000))
            self.both(lambda x: (x.attempts(3_600.0), x.attempts(7_200.0)))
            self.both(lambda x: x.weights_changes(100))
            self.both(lambda x: x.pending())
            self.both(lambda x: x._run("SELECT key, value FROM meta ORDER BY key"))


def test_whatever_is_done_both_ledgers_say_the_same(postgres: PostgresServer, tmp_path: Path) -> None:
    class OfThisTest(BothLedgers):
        server, folder = postgres, tmp_path

    run_state_machine_as_test(
        OfThisTest,
        settings=settings(max_examples=6, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)),
    )
