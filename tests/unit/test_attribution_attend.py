"""Attribution from tick to tick: at opening, again while open, bounded, and forgotten with its backend."""

from __future__ import annotations

from dataclasses import replace
from math import fsum, inf

import numpy as np
import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import present
from tailkeeper_exporter.state import State as BackendState
from tailkeeper_watchdog.attribution import attend
from tailkeeper_watchdog.attribution.attend import BLUR_S, MAX_PER_TICK, REFRESH_S, State, learn
from tailkeeper_watchdog.findings import Book
from tailkeeper_watchdog.forgetting import forget
from tailkeeper_watchdog.model import (
    Backend,
    BackendObservation,
    Decision,
    Finding,
    FindingKind,
    FleetSnapshot,
    Knob,
    Outcome,
    RequestRecord,
    Severity,
    Situation,
    Slo,
    Target,
)
from tailkeeper_watchdog.window import Window

NAMES = ("a", "b", "c", "d")


def _situation(now: float, backends: tuple[Backend, ...], cpu: float = 0.3, generated: float = 1e6) -> Situation:
    values = {catalog.GENERATED_TOKENS.name: generated, catalog.KV_USAGE.name: 0.5}
    seen = {
        b.name: BackendObservation(
            b.name,
            BackendState.SERVING,
            0.0,
            readings={k: present(v, now) for k, v in {**values, catalog.CPU_USAGE.name: cpu if b.name == "a" else 0.3}.items()},
        )
        for b in backends
    }
    windows = {b.name: Window() for b in backends}
    return Situation(FleetSnapshot(1, now, 1_700_000_000.0 + now, backends, seen), windows, windows, {}, Slo(), 3.0)


def _fleet(**labels: str) -> tuple[Backend, ...]:
    return tuple(Backend(name, "m", (Target("edge", name, "llm"),), labels if name == "a" else {}) for name in NAMES)


FLEET = _fleet()


def _records(now: float, factor: float, count: int = 25, canary: str = "v1", backend: str = "a") -> tuple[RequestRecord, ...]:
    rng = np.random.default_rng(int(now))
    prefill, network = factor * rng.lognormal(-1.5, 0.4, count), rng.lognormal(-4.0, 0.3, count)
    return tuple(
        RequestRecord(
            backend,
            "ok",
            float(p + n + 0.001),
            0.02,
            float(p + n + 2.0),
            start_unix_s=now + i / count,
            queue_s=0.001,
            prefill_s=float(p),
            canary_revision=canary,
        )
        for i, (p, n) in enumerate(zip(prefill, network, strict=True))
    )


def _finding(backend: str = "a", kind: FindingKind = FindingKind.BLOCK_E, signal: str = "ttft", since: float = 0.0) -> Finding:
    return Finding(f"{kind}:{backend}:{signal}", kind, backend, Severity.TICKET, since, "slow", {"p99_s": 1.0}, signal=signal)


def _book(*findings: Finding) -> Book:
    return Book({(f.kind, f.backend, f.signal): f for f in findings}, {})


def _healthy(until: float, state: State | None = None) -> State:
    state = state or State()
    for now in np.arange(0.0, until, 5.0).tolist():
        state = learn(state, _records(now, 1.0), (), _situation(now, FLEET))
    return state


def _ill(state: State, start: float, end: float) -> State:
    for now in np.arange(start, end, 5.0).tolist():
        state = learn(state, _records(now, 3.0), (), _situation(now, FLEET))
    return state


def test_a_finding_gets_shares_a_sentence_and_the_numbers_when_it_opens() -> None:
    state = _ill(_healthy(600.0), 600.0, 640.0)
    state, book = attend.attend(state, _book(_finding()), _situation(640.0, FLEET))
    (found,) = book.open_findings
    assert (found.shares[0].dimension, found.shares[0].value) == ("stage", "prefill")
    assert fsum(s.share for s in found.shares) == pytest.approx(1.0, abs=1e-9)
    assert found.evidence["cause"].startswith("Mostly stage prefill (")
    assert found.evidence["p99_s"] == 1.0
    assert found.evidence["attribution"]["records"]["before"] == (640 - BLUR_S) / 5 * 25


def test_it_is_told_at_every_tick_and_found_anew_every_half_minute() -> None:
    state = _ill(_healthy(600.0), 600.0, 640.0)
    state, _ = attend.attend(state, _book(_finding()), _situation(640.0, FLEET))
    first = state.results["a", _finding().id]
    state = _ill(state, 640.0, 660.0)
    state, book = attend.attend(state, _book(_finding()), _situation(660.0, FLEET))
    assert state.results["a", _finding().id] is first
    assert book.open_findings[0].shares == first.shares
    state, _ = attend.attend(_ill(state, 660.0, 670.0), _book(_finding()), _situation(640.0 + REFRESH_S, FLEET))
    again = state.results["a", _finding().id]
    assert again.at == 670.0
    assert again.evidence["attribution"]["records"]["now"] > first.evidence["attribution"]["records"]["now"]


def test_when_the_trouble_is_over_an_open_finding_keeps_the_cause_of_its_bad_time() -> None:
    state = _ill(_healthy(600.0), 600.0, 640.0)
    state, book = attend.attend(state, _book(_finding()), _situation(640.0, FLEET, cpu=0.95))
    bad = book.open_findings[0]
    for now in np.arange(640.0, 700.0, 5.0).tolist():
        state = learn(state, _records(now, 1.0), (), _situation(now, FLEET))
    state, book = attend.attend(state, _book(_finding()), _situation(700.0, FLEET))

    assert book.open_findings[0].shares == bad.shares
    assert book.open_findings[0].evidence["attribution"] == bad.evidence["attribution"]


def test_what_is_usual_is_frozen_while_the_incident_lasts() -> None:
    state = _ill(_healthy(600.0), 600.0, 640.0)
    state, _ = attend.attend(state, _book(_finding()), _situation(640.0, FLEET))
    state = _ill(state, 640.0, 2_000.0)
    state, book = attend.attend(state, _book(_finding()), _situation(2_000.0, FLEET))
    found = book.open_findings[0]
    assert (found.shares[0].dimension, found.shares[0].value) == ("stage", "prefill")
    assert found.evidence["attribution"]["before_s"] < 0.7
    state, _ = attend.attend(state, _book(), _situation(2_001.0, FLEET))
    assert (state.results, state.incidents) == ({}, {})


def test_a_tick_attributes_a_few_the_oldest_first() -> None:
    findings = [_finding(name, since=float(age)) for age, name in enumerate(reversed(NAMES))]
    state, book = attend.attend(State(), _book(*findings), _situation(10.0, FLEET))
    assert [f.backend for f in book.open_findings if f.shares] == ["d", "c"]
    assert len(state.results) == MAX_PER_TICK
    _, book = attend.attend(state, _book(*findings), _situation(11.0, FLEET))
    assert all(f.shares for f in book.open_findings)


@pytest.mark.parametrize("kind", [FindingKind.TELEMETRY_LOST, FindingKind.CONTENDED])
def test_other_kinds_have_no_shares(kind: FindingKind) -> None:
    _, book = attend.attend(State(), _book(_finding(kind=kind)), _situation(10.0, FLEET))
    assert book.open_findings[0].shares == ()


def test_without_records_the_cpu_that_is_unlike_itself_and_its_pool_is_named() -> None:
    state = State()
    for minute in range(12):
        state = learn(state, (), (), _situation(60.0 * minute, FLEET))
    _, book = attend.attend(state, _book(_finding(kind=FindingKind.GROWTH, signal="")), _situation(800.0, FLEET, cpu=0.99))
    (found,) = book.open_findings
    assert (found.shares[0].dimension, found.shares[0].value) == ("resource", "cpu_usage")
    assert found.shares[0].confidence <= 0.5
    assert "means and gauges alone" in found.evidence["cause"]


def test_a_change_shortly_before_is_a_candidate() -> None:
    state = _healthy(600.0)
    decision = Decision(1, 0.0, 1, "slo_guardian", "a", Knob.WEIGHT, 0.5, 1.0, Outcome.APPLIED, "good again")
    state = learn(state, _records(600.0, 3.0, canary="v2"), (decision,), _situation(600.0, _fleet(version="7")))
    state = learn(state, (), (), _situation(661.0, _fleet(version="7"), generated=10.0))
    _, book = attend.attend(state, _book(_finding()), _situation(661.0, _fleet(version="7"), generated=10.0))
    told = {row["what"] for row in book.open_findings[0].evidence["attribution"]["changes"]}
    assert told == {"version 7", "canary_revision v2", "weight 1 (slo_guardian, applied)", "engine restart"}


def test_nothing_is_kept_of_backends_that_are_gone_or_were_never_there() -> None:
    stranger = tuple(replace(r, backend="x") for r in _records(0.0, 1.0))
    state = learn(_ill(_healthy(600.0), 600.0, 640.0), stranger, (), _situation(640.0, FLEET))
    assert set(state.logs) == {"a"}
    state, _ = attend.attend(state, _book(_finding()), _situation(640.0, FLEET))
    state = forget(state, frozenset({"a"}))
    assert not state.logs
    assert not state.incidents
    assert not state.results
    assert set(state.lines) == {"b", "c", "d"}


def test_an_error_finding_is_about_the_share_of_failures() -> None:
    failed = tuple(replace(r, outcome="error") for r in _records(620.0, 1.0, canary="v2"))
    state = learn(_healthy(600.0), (*failed, *_records(621.0, 1.0, 60)), (), _situation(620.0, FLEET))
    finding = _finding(kind=FindingKind.IMPROVED_BUT_BROKEN)
    _, book = attend.attend(state, _book(replace(finding, signal="")), _situation(640.0, FLEET))
    (found,) = book.open_findings
    assert found.evidence["attribution"]["signal"] == "errors"
    assert (found.shares[0].dimension, found.shares[0].value) == ("canary_revision", "v2")


def _young(outcomes: tuple[str, ...] = ("ok",), factor: float = 3.0, canary: str = "v1") -> State:
    """A fleet that is watched for half a minute only, in which ``a`` is not well."""
    state = State()
    for now in np.arange(600.0, 640.0, 5.0).tolist():
        mine = [replace(r, outcome=outcomes[i % len(outcomes)]) for i, r in enumerate(_records(now, factor))]
        others = [r for i, b in enumerate("bcd") for r in _records(now + 0.1 * i, 1.0, canary=canary, backend=b)]
        state = learn(state, (*mine, *others), (), _situation(now, FLEET))
    return state


def test_without_a_past_of_its_own_a_backend_is_compared_with_its_pool_and_says_so() -> None:
    _, book = attend.attend(_young(), _book(_finding()), _situation(640.0, FLEET))
    (found,) = book.open_findings
    assert (found.shares[0].dimension, found.shares[0].value) == ("stage", "prefill")
    assert found.shares[0].share > 0.9
    assert fsum(s.share for s in found.shares) == pytest.approx(1.0, abs=1e-9)
    assert found.evidence["attribution"]["before_is"] == "its pool now"
    assert found.evidence["attribution"]["records"] == {"before": 450, "now": 150}
    assert "where the rest of its pool has" in found.evidence["cause"]


def test_labels_that_only_it_has_are_compared_by_their_text() -> None:
    """Each log has codes of its own: v1 here and v2 there are both the first that was seen."""
    _, book = attend.attend(_young(canary="v2"), _book(_finding()), _situation(640.0, FLEET))
    found = {row["value"] for row in book.open_findings[0].evidence["attribution"]["segments"]}
    assert found <= {"v1", "unlabelled"}


def test_those_of_the_pool_that_are_ill_themselves_are_no_yardstick() -> None:
    state = _young()
    ill = [_finding(name) for name in "bcd"]
    for now in (640.0, 640.5):
        state, _ = attend.attend(state, _book(*ill), _situation(now, FLEET))
    _, book = attend.attend(state, _book(*ill, _finding()), _situation(641.0, FLEET))
    mine = next(f for f in book.open_findings if f.backend == "a")
    assert mine.evidence["attribution"]["records"] is None
    assert (mine.shares[0].dimension, mine.shares[0].share) == ("unknown", 1.0)


@pytest.mark.parametrize(
    ("outcomes", "named"), [(("ok", "error"), ("outcome", "error")), (("rejected", "rejected", "ok"), ("outcome", "rejected"))]
)
def test_failures_of_one_backend_are_told_by_how_they_ended(outcomes: tuple[str, ...], named: tuple[str, str]) -> None:
    state = _young(outcomes, factor=1.0)
    finding = replace(_finding(kind=FindingKind.SLO_BURN), signal="errors")
    _, book = attend.attend(state, _book(finding), _situation(640.0, FLEET))
    (found,) = book.open_findings
    assert (found.shares[0].dimension, found.shares[0].value) == named
    assert found.shares[0].share > 0.9
    assert "has 0 (n 450)" in found.evidence["cause"]


@pytest.mark.parametrize(("failed", "least", "most"), [(5, 0.95, 1.0), (1, 0.0, 0.2), (0, 0.0, 0.0)])
def test_a_clump_of_failures_is_no_chance_and_a_single_one_may_be(failed: int, least: float, most: float) -> None:
    """Five of twenty, all at once, before the breaker took it out; and a backend of which one request in twenty failed, as
    one in forty does everywhere."""
    mine = _records(620.0, 1.0, 20)
    mine = (*mine[: 20 - failed], *(replace(r, outcome="error") for r in mine[20 - failed :]))
    others = [r for b in "bcd" for r in _records(620.0, 1.0, 80, backend=b)]
    if failed == 1:
        others = [replace(r, outcome="error") if i % 40 == 0 else r for i, r in enumerate(others)]
    state = learn(State(), (*mine, *others), (), _situation(620.0, FLEET))
    finding = replace(_finding(kind=FindingKind.SLO_BURN), signal="")
    _, book = attend.attend(state, _book(finding), _situation(625.0, FLEET))
    share = sum(s.share for s in book.open_findings[0].shares if s.dimension == "outcome")
    assert least <= share <= most


def test_where_too_few_records_could_be_compared_it_is_tried_again_soon() -> None:
    state, _ = attend.attend(State(), _book(_finding()), _situation(600.0, FLEET))
    first = state.results["a", _finding().id]
    state, _ = attend.attend(state, _book(_finding()), _situation(600.0 + first.again_s, FLEET))
    assert state.results["a", _finding().id].at == 602.0


def test_the_records_of_a_tick_are_between_its_times() -> None:
    state = _healthy(100.0)
    assert len(state.logs["a"].between(0.0, inf)) == 20 * 25
    assert len(state.logs["a"].between(50.0, 60.0)) == 2 * 25
