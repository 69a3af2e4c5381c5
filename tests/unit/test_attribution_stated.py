"""Findings that say themselves what is wrong: stuck, gone, started anew, full."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

import pytest

from tailkeeper_exporter.state import State as BackendState
from tailkeeper_watchdog.attribution import attend
from tailkeeper_watchdog.attribution.attend import State, learn
from tailkeeper_watchdog.attribution.changes import MAX_CLAIM, Candidate
from tailkeeper_watchdog.attribution.hand_down import Given
from tailkeeper_watchdog.attribution.stated import attribute, sentence
from tailkeeper_watchdog.findings import Book
from tailkeeper_watchdog.model import (
    Backend,
    BackendObservation,
    Epoch,
    Finding,
    FindingKind,
    FleetSnapshot,
    Severity,
    Situation,
    Slo,
)
from tailkeeper_watchdog.scoring.epochs import follow

HUNG: dict[str, object] = {"running": 7.0, "waiting": 2.0, "reasons": ["work in flight and no token for 5.3 s"]}
DOWN: dict[str, object] = {"running": None, "waiting": None, "reasons": ["the engine's address refuses connections"]}
FULL: dict[str, object] = {"pressure_ratio": 1.0, "kv_usage_ratio": 0.97, "limit_ratio": 0.92}
PUT_BACK: dict[str, object] = {"pressure_ratio": 1.0, "kv_usage_ratio": 0.0, "limit_ratio": 0.92, "preemptions_per_s": 1.5}
HEADROOM: dict[str, object] = {"pressure_ratio": 0.95, "kv_usage_ratio": 0.4, "limit_ratio": 0.92}
DEPLOY = Candidate("deploy", "version 7", 10.0, MAX_CLAIM)
RESTART = Candidate("restart", "engine restart", 0.0, MAX_CLAIM)


def _finding(kind: FindingKind, evidence: dict[str, object]) -> Finding:
    return Finding(f"{kind}:a", kind, "a", Severity.PAGE, 0.0, "ill", evidence)


@pytest.mark.parametrize(
    ("kind", "evidence", "changes", "shares", "told"),
    [
        (FindingKind.HUNG, HUNG, (), {("engine", "stuck"): 1.0}, "no token progress while 7 requests are running and 2"),
        (
            FindingKind.HUNG,
            HUNG,
            (DEPLOY,),
            {("engine", "stuck"): 1 - MAX_CLAIM, ("change", "version 7"): MAX_CLAIM},
            "before: version 7",
        ),
        (FindingKind.DOWN, DOWN, (), {("engine", "not answering"): 1.0}, "refuses connections"),
        (FindingKind.DOWN, DOWN, (RESTART,), {("change", "engine restart"): 1.0}, "came back"),
        (FindingKind.MEMORY_PRESSURE, FULL, (), {("resource", "kv_usage"): 1.0}, "KV memory is full: pressure 100%, KV use 97%"),
        (
            FindingKind.MEMORY_PRESSURE,
            PUT_BACK,
            (),
            {("resource", "preemptions"): 1.0},
            "put back for want of KV memory, 1.5 a second",
        ),
        (FindingKind.MEMORY_PRESSURE, HEADROOM, (), {("resource", "gpu_memory"): 1.0}, "GPU memory is full: pressure 95%"),
    ],
)
def test_the_cause_is_what_was_measured_less_what_a_change_may_claim(
    kind: FindingKind,
    evidence: dict[str, object],
    changes: tuple[Candidate, ...],
    shares: dict[tuple[str, str], float],
    told: str,
) -> None:
    finding = _finding(kind, evidence)
    found = attribute(finding, Given("ttft", changes=changes))
    assert {(s.dimension, s.value): s.share for s in found.shares} == pytest.approx(shares)
    assert fsum(s.share for s in found.shares) == pytest.approx(1.0, abs=1e-9)
    assert told in sentence(finding, found)


class Life:
    """One backend of which a state is seen every second, and its open finding ``down``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = State()
        self.epoch: Epoch | None = None
        self.book = Book()

    def see(self, state: BackendState) -> None:
        self.now += 1.0
        seen = BackendObservation("a", state, 0.0)
        self.epoch = follow(self.epoch, seen, self.now)
        snapshot = FleetSnapshot(1, self.now, self.now, (Backend("a", "m"),), {"a": seen})
        situation = Situation(snapshot, {}, {}, {}, Slo(), 3.0, epochs={"a": self.epoch})
        self.state = learn(self.state, (), (), situation)
        if state is BackendState.DOWN:
            self.open(FindingKind.DOWN, DOWN)
        self.state, self.book = attend.attend(self.state, self.book, situation)

    def open(self, kind: FindingKind, evidence: dict[str, object]) -> None:
        known = self.book.open.get((kind, "a", ""))
        finding = known or replace(_finding(kind, evidence), since_unix_s=self.now)
        self.book = replace(self.book, open={**self.book.open, (kind, "a", ""): finding})

    @property
    def first(self) -> tuple[str, str]:
        share = self.book.open_findings[-1].shares[0]
        return share.dimension, share.value


def test_an_engine_that_comes_back_was_restarted_as_of_when_it_went_away() -> None:
    life = Life()
    for state in (BackendState.SERVING, BackendState.DOWN, BackendState.DOWN, BackendState.DOWN):
        life.see(state)
    assert life.first == ("engine", "not answering")
    for state in (BackendState.STARTING, BackendState.STARTING, BackendState.STARTING):
        life.see(state)
    assert life.first == ("change", "engine restart")
    for state in (BackendState.SERVING, BackendState.SERVING):
        life.see(state)
    assert life.first == ("change", "engine restart")
    (change,) = life.state.changes["a"]
    assert (change.kind, change.at) == ("restart", 102.0)


def test_a_kill_after_a_while_of_full_memory_is_a_restart_too() -> None:
    """The incident began with the memory, the absence with the kill."""
    life = Life()
    life.see(BackendState.SERVING)
    life.open(FindingKind.MEMORY_PRESSURE, FULL)
    for state in [BackendState.SERVING] * 20 + [BackendState.DOWN] * 3 + [BackendState.STARTING] * 3:
        life.see(state)
    assert life.first == ("change", "engine restart")


def test_an_engine_that_serves_all_the_time_changed_nothing() -> None:
    life = Life()
    for _ in range(5):
        life.see(BackendState.SERVING)
    assert not life.state.changes
    assert not life.state.away_at
