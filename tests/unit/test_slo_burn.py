"""Burn of the error budget: when it pages, when it is a ticket, and when it sleeps."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.detectors import Symptom, slo_burn
from tailkeeper_watchdog.model import Knob, Severity, Slo
from tests.unit.watched_fleet import WatchedFleet, record

MINUTE_S = 60.0


def fleet(**slo: float) -> WatchedFleet:
    return WatchedFleet(slo_burn.DETECTOR, slo=Slo(**slo))


def minutes(fleet: WatchedFleet, count: int, good: int, late: int = 0, errors: int = 0) -> tuple[Symptom, ...]:
    """``count`` minutes with so many requests in each; the symptoms at the end."""
    symptoms: tuple[Symptom, ...] = ()
    for _ in range(count):
        fleet.did(ttft_s=[0.1] * good + [5.0] * late, errors=errors)
        symptoms = fleet.look(MINUTE_S)
    return symptoms


def rules(symptoms: tuple[Symptom, ...]) -> dict[str, str]:
    return {s.signal: s.evidence["rule"] for s in symptoms}


def test_a_healthy_backend_burns_nothing() -> None:
    assert minutes(fleet(), 400, good=60) == ()


def test_late_requests_burn_fast_and_page() -> None:
    watched = fleet()
    minutes(watched, 60, good=60)
    (found,) = minutes(watched, 8, good=20, late=40)
    assert (found.severity, found.signal, found.evidence["rule"]) == (Severity.PAGE, "ttft", "fast")
    assert found.evidence["burn_short"] > 14.4
    assert found.evidence["bad"] == 320


def test_failed_requests_burn_fast_and_page() -> None:
    watched = fleet()
    minutes(watched, 60, good=60)
    assert rules(minutes(watched, 10, good=30, errors=30)) == {"": "fast"}


@pytest.mark.parametrize("objective", [0.5, 0.9, 0.93])
def test_however_loose_the_slo_nine_failures_of_ten_page_within_the_hour(objective: float) -> None:
    watched = fleet(objective=objective)
    minutes(watched, 60, good=20)
    assert rules(minutes(watched, 61, good=1, errors=19)) == {"": "fast"}


def test_a_slow_burn_is_a_ticket() -> None:
    watched = fleet()
    found = minutes(watched, 6 * 60, good=192, errors=8)  # 4 %: burn 8
    assert [(s.severity, s.evidence["rule"]) for s in found] == [(Severity.TICKET, "slow")]


def test_a_burn_below_both_rates_is_silent() -> None:
    assert minutes(fleet(), 6 * 60, good=99, errors=1) == ()  # 1 %: burn 2


def test_a_burn_that_is_over_is_silent_within_minutes() -> None:
    watched = fleet()
    minutes(watched, 60, good=60)
    assert rules(minutes(watched, 8, good=20, errors=40)) == {"": "fast"}
    assert "fast" not in rules(minutes(watched, 7, good=60)).values()


@pytest.mark.parametrize("failed", [1, 2, 4])
def test_a_few_failed_requests_at_night_wake_nobody(failed: int) -> None:
    watched = fleet()
    for _ in range(failed):
        assert minutes(watched, 30, good=0) == ()
        assert minutes(watched, 1, good=0, errors=1) == ()
    assert minutes(watched, 400, good=0) == ()


@pytest.mark.parametrize("objective", [0.995, 0.51, 0.5, 0.3])
def test_most_requests_failing_at_a_trickle_page(objective: float) -> None:
    watched = fleet(objective=objective)
    found: tuple[Symptom, ...] = ()
    for number in range(12):  # one request in ten minutes, eleven of twelve fail
        found = minutes(watched, 1, good=number == 3, errors=number != 3)
        found = minutes(watched, 9, good=0)
    assert [(s.severity, s.evidence["rule"]) for s in found] == [(Severity.PAGE, "trickle")]


@pytest.mark.parametrize(("objective", "told"), [(0.51, {"trickle"}), (0.5, set()), (0.3, set())])
def test_a_trickle_of_which_half_fails_is_silent_where_the_slo_allows_half(objective: float, told: set[str]) -> None:
    watched, rules_told = fleet(objective=objective), set[str]()
    for number in range(40):
        rules_told |= set(rules(minutes(watched, 1, good=number % 2, errors=1 - number % 2)).values())
        minutes(watched, 9, good=0)
    assert rules_told == told


def test_a_trickle_that_fails_now_and_then_is_silent() -> None:
    watched = fleet()
    for number in range(40):
        assert minutes(watched, 1, good=number % 5 > 0, errors=number % 5 == 0) == ()
        assert minutes(watched, 9, good=0) == ()


def test_one_failed_request_a_minute_of_many_is_not_a_trickle() -> None:
    assert minutes(fleet(), 30, good=200, errors=1) == ()


@pytest.mark.parametrize("burst", [6, 12, 99])
def test_one_burst_of_late_requests_as_a_cold_engine_gives_wakes_nobody(burst: int) -> None:
    watched = fleet()
    for _ in range(3):
        watched.told(*[record(5.0)] * (burst // 3))
        assert watched.look(10.0) == ()
    for _ in range(60):
        watched.told(*[record(0.1)] * 100)
        assert [s for s in watched.look(MINUTE_S) if s.severity is Severity.PAGE] == []


def test_records_count_each_late_request_exactly_and_buckets_are_then_left_out() -> None:
    watched = fleet(ttft_p99_s=1.2)
    found: tuple[Symptom, ...] = ()
    for _ in range(20):
        watched.told(*[record(1.21)] * 3, *[record(0.5)] * 7, record(5.0, outcome="aborted"), record(None, outcome="error"))
        watched.did(ttft_s=[0.1] * 10)  # the same requests, as buckets that know it less well
        found = watched.look(MINUTE_S)
    (late,) = found
    assert late.evidence["counted"] == "from request records"
    assert (late.evidence["bad"], late.evidence["requests"]) == (80.0, 220.0)


def test_a_bound_inside_a_bucket_counts_what_was_surely_late_and_says_so() -> None:
    watched = fleet(ttft_p99_s=1.2)  # the buckets end at 1.28
    found: tuple[Symptom, ...] = ()
    for _ in range(20):
        watched.did(ttft_s=[0.1] * 10 + [1.25] * 5)
        assert watched.look(MINUTE_S) == ()
    for _ in range(20):
        watched.did(ttft_s=[1.3] * 15)
        found = watched.look(MINUTE_S)
    (late,) = found
    assert late.evidence["bucket_bound_s"] == 1.28
    assert "up to 1.28 s count as in time" in late.evidence["counted"]


def test_a_bound_above_all_buckets_cannot_be_judged() -> None:
    watched = fleet(ttft_p99_s=1e4)
    for _ in range(30):
        watched.did(ttft_s=[2e4] * 10)
        assert watched.look(MINUTE_S) == ()


def test_counters_that_fall_and_a_gap_are_no_failures() -> None:
    watched = fleet()
    minutes(watched, 30, good=100, errors=0)
    watched.seen["a"].ok = watched.seen["a"].errors = 0.0
    watched.seen["a"].counts = [0.0] * len(watched.seen["a"].counts)
    assert minutes(watched, 5, good=10) == ()
    watched.seen["a"].silent = True
    assert watched.look(4 * 3_600.0) == ()
    watched.seen["a"].silent = False
    assert minutes(watched, 5, good=10) == ()


@pytest.mark.parametrize("told", [(None, 500.0), (500.0, None), (None, None)])
def test_refusals_that_are_told_now_and_then_are_no_bursts(told: tuple[float | None, ...]) -> None:
    """A page that leaves out what it refused says nothing about it, and the next one that tells tells of all time."""
    watched = fleet()
    minutes(watched, 30, good=60)
    for tick in range(40):
        watched.seen["a"].rejected = told[tick % 2]
        assert minutes(watched, 1, good=60) == ()


def test_ticks_of_half_a_second_find_the_same() -> None:
    watched = fleet()
    found: tuple[Symptom, ...] = ()
    for _ in range(600):
        watched.did(ttft_s=[0.1] * 2, errors=1)
        found = watched.look(0.5)
    assert rules(found) == {"": "fast"}


def test_memory_stays_within_its_bound_however_long_it_watches() -> None:
    watched = fleet()
    for _ in range(9 * 120):
        watched.look(30.0)
    assert len(watched.state.snapshots) <= 40
    oldest = watched.state.snapshots[0]
    assert watched.now - oldest.at <= 6 * 3_600 + 3_600


def test_a_backend_that_is_gone_takes_its_counts_along_and_a_new_one_starts_at_nothing() -> None:
    watched = WatchedFleet(slo_burn.DETECTOR, names=("a", "b"))
    for _ in range(20):
        watched.did("b", ttft_s=[0.1] * 5, errors=20)
        watched.look(MINUTE_S)
    assert {s.backend for s in watched.look(MINUTE_S)} == {"b"}
    watched.forget("b")
    assert watched.look(MINUTE_S) == ()
    assert watched.state.counts.shape[0] == 1
    watched.seen["b"] = type(watched.seen["a"])()
    assert watched.look(MINUTE_S) == ()
    assert watched.look(MINUTE_S) == ()


@pytest.mark.parametrize(
    ("good", "errors", "told"),
    [(10, 5, {"": "surge"}), (10, 4, {}), (4, 5, {}), (100, 10, {}), (0, 12, {"": "surge"}), (200, 0, {})],
)
def test_a_moment_in_which_many_fail_is_a_ticket_at_once(good: int, errors: int, told: dict[str, str]) -> None:
    """The breaker has taken such a backend out after a few: the windows of minutes and hours would never know."""
    watched = fleet()
    watched.look(5.0)
    watched.did(ttft_s=[0.1] * good, errors=errors)
    found = watched.look(10.0)
    assert rules(found) == told
    assert all(s.severity is Severity.TICKET for s in found)


def test_a_surge_is_told_at_the_tick_at_which_a_request_is_told_to_have_failed() -> None:
    """Half a second later the backend may be drained, and the short window past when the next look at all of them comes."""
    watched = fleet()
    watched.look(5.0)
    watched.did(ttft_s=[0.1] * 10, errors=5)
    assert watched.look(0.5) == ()
    watched.told(record(None, outcome="error"))
    assert rules(watched.look(0.5)) == {"": "surge"}


def test_a_surge_that_goes_on_becomes_the_page_of_the_fast_burn() -> None:
    watched = fleet()
    minutes(watched, 60, good=60)
    assert rules(minutes(watched, 1, good=30, errors=30)) == {"": "surge"}
    assert rules(minutes(watched, 9, good=30, errors=30)) == {"": "fast"}


@pytest.mark.parametrize("sick_looks", range(1, 14))
def test_nothing_is_told_for_the_first_time_of_a_backend_that_has_healed(sick_looks: int) -> None:
    watched = fleet()
    minutes(watched, 30, good=6)
    told: list[dict[str, str]] = []
    for look in range(sick_looks + 40):
        late = 10 if look < sick_looks else 0
        watched.did(ttft_s=[5.0] * late + [0.1] * (10 - late))
        told.append(rules(watched.look(10.0)))
    first = next((look for look, of_look in enumerate(told) if of_look), None)
    assert first is None or first < sick_looks, "what is not told while it is slow is not told afterwards"


@pytest.mark.parametrize("knob", [Knob.DEGRADE_LEVEL, Knob.CONCURRENCY_LIMIT, Knob.ADMISSION, None])
def test_what_we_have_refused_is_no_failure_and_what_is_refused_for_want_of_room_is(knob: Knob | None) -> None:
    watched = fleet()
    minutes(watched, 30, good=60)
    watched.ordered = {("a", knob)} if knob else set()
    told: set[str] = set()
    for _ in range(60):
        watched.did(ttft_s=[0.1] * 5, rejected=5)
        watched.told(record(None, outcome="rejected"))
        told |= set(rules(watched.look(10.0)).values())
    assert told == (set() if knob else {"surge", "fast"})


def test_what_fails_while_we_have_others_refused_still_counts() -> None:
    watched = fleet()
    minutes(watched, 30, good=60)
    watched.ordered = {("a", Knob.DEGRADE_LEVEL)}
    told: set[str] = set()
    for _ in range(30):
        watched.did(ttft_s=[0.1] * 5, rejected=50, errors=5)
        told |= set(rules(watched.look(10.0)).values())
    assert told == {"surge", "fast"}


def test_what_was_refused_before_the_order_ended_is_no_failure_afterwards() -> None:
    watched = fleet()
    minutes(watched, 30, good=60)
    watched.ordered = {("a", Knob.DEGRADE_LEVEL)}
    for tick in range(60):
        watched.did(ttft_s=[0.1] * 2, rejected=4 if tick < 33 else 0)
        if tick == 32:
            watched.ordered = set()
        watched.told(record(None, outcome="rejected"))
        assert watched.look(1.0) == ()


def test_a_bucket_without_an_end_is_no_bound_to_count_by() -> None:
    """The page has fewer buckets than it had when the late requests were counted."""
    watched = fleet(ttft_p99_s=1.2)
    for _ in range(20):
        watched.did(ttft_s=[5.0] * 15)
        watched.look(MINUTE_S)
    situation = watched.situation(MINUTE_S)
    now = replace(
        situation.snapshot.observations["a"], histograms={catalog.TTFT.name: Histogram((0.5, inf), (0.0, 300.0), 1_500.0)}
    )
    found = slo_burn.detect(replace(situation, snapshot=replace(situation.snapshot, observations={"a": now})), watched.state)[1]
    (late,) = found
    assert late.evidence["counted"] == "from buckets"
    assert "bucket_bound_s" not in late.evidence
