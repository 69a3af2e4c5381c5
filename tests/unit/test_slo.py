"""Compliance by tier: which promise a request was made, what counts, and what survives a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter import catalog
from tailkeeper_exporter.readings import Histogram, present
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.insights import Insights
from tailkeeper_watchdog.model import EMPTY, Backend, BackendObservation, FleetSnapshot, RequestRecord, Situation, Slo, TickRecord
from tailkeeper_watchdog.samples import OUTCOME_SLOT
from tailkeeper_watchdog.settings import TIER_ATTRIBUTES
from tailkeeper_watchdog.slo.bins import SPANS, Bins, Row, oldest_kept
from tailkeeper_watchdog.slo.compliance import SloBook
from tailkeeper_watchdog.slo.store import SloStore
from tailkeeper_watchdog.slo.tiers import ATTRIBUTES, FIRST_OUTPUT_S, NOTHING, Counts, judged, tier_of, tiers_of, worth

T0 = 1_800_000_000.0
SLO = Slo()
TIERS = tiers_of(
    (("gold", {"tenant": "premium", "operation": "payment.submit"}, 0.3), ("secret", {"sensitivity": "5"}, 0.5)), SLO
)
HOUR, DAY, MONTH = SPANS


def record(outcome: str | None = "ok", ttft_s: float | None = 0.1, backend: str = "a", **more: Any) -> RequestRecord:
    return RequestRecord(backend, outcome, ttft_s, None, more.pop("e2e_s", 1.0), **more)


def situation(
    at: float, *records: RequestRecord, seen: Mapping[str, BackendObservation] = EMPTY, names: tuple[str, ...] = ("a",)
) -> Situation:
    by: dict[str, tuple[RequestRecord, ...]] = {}
    for one in records:
        by[one.backend] = (*by.get(one.backend, ()), one)
    snapshot = FleetSnapshot(1, at, T0 + at, tuple(Backend(n) for n in names), seen)
    return Situation(snapshot, EMPTY, EMPTY, EMPTY, SLO, 3.0, EMPTY, by)


def observation(ok: tuple[float, ...], failed: float = 0.0, name: str = "a", refused: float | None = None) -> BackendObservation:
    """``ok`` are cumulative counts of first tokens by 0.5 s, 1 s, 2 s, +Inf."""
    readings = {OUTCOME_SLOT["error"]: present(failed, 0.0)}
    if refused is not None:
        readings[OUTCOME_SLOT["rejected"]] = present(refused, 0.0)
    return BackendObservation(
        name, State.SERVING, 0.0, None, readings, {catalog.TTFT.name: Histogram((0.5, 1.0, 2.0, inf), ok, 1.0)}
    )


@pytest.mark.parametrize(
    ("attributes", "tier"),
    [
        ({"tenant": "premium", "operation": "payment.submit"}, "gold"),
        ({"tenant": "premium", "operation": "payment.submit", "sensitivity": 5}, "gold"),  # the first match wins
        ({"tenant": "premium", "operation": "login"}, "default"),
        ({"tenant": "premium"}, "default"),
        ({"sensitivity": 5, "modality": "text"}, "secret"),
        ({"modality": "speech"}, "default-speech"),
        ({"modality": "smell"}, "default"),
        ({}, "default"),
    ],
)
def test_the_first_tier_that_matches_all_attributes_is_the_tier(attributes: dict[str, Any], tier: str) -> None:
    assert tier_of(record(**attributes), TIERS).name == tier


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        (record(ttft_s=1.2), Counts(1, 1, 1)),
        (record(ttft_s=2.4), Counts(1, 0, 0.5)),
        (record("error", None), Counts(1, 0, 0)),
        (record("error", 0.01), Counts(1, 0, 0)),  # failing fast is no speed
        (record("rejected", None), Counts(1, 0, 0)),
        (record("aborted", 9.0), NOTHING),
        (record(None, 0.1), NOTHING),
        (record("ok", None, e2e_s=None), NOTHING),
        (record("ok", None, e2e_s=29.0), Counts(1, 1, 1)),  # not streamed: judged as a whole
        (record("ok", None, e2e_s=60.0), Counts(1, 0, 0.5)),
    ],
)
def test_failures_break_the_promise_and_aborts_count_neither_way(told: RequestRecord, counts: Counts) -> None:
    assert judged(told, TIERS[-1]) == counts


def test_an_answer_at_the_discomfort_of_its_modality_is_worth_half() -> None:
    for limit_s, discomfort_s in FIRST_OUTPUT_S.values():
        assert worth(limit_s, limit_s, discomfort_s) == 1.0
        assert worth(discomfort_s, limit_s, discomfort_s) == pytest.approx(0.5)
        assert worth(100 * discomfort_s, limit_s, discomfort_s) < 0.001


def test_settings_and_matching_know_the_same_attributes() -> None:
    assert set(ATTRIBUTES) == set(TIER_ATTRIBUTES)


def test_compliance_and_budget_of_a_tier_are_those_of_its_requests() -> None:
    book = SloBook(TIERS, 0.9)
    gold = {"tenant": "premium", "operation": "payment.submit"}
    book.note(situation(0, *[record(ttft_s=0.2, **gold)] * 95, *[record(ttft_s=0.6, **gold)] * 5, *[record(ttft_s=9.0)] * 50))
    hour, day, month = book.windows(T0)[TIERS[0].name]
    assert (hour.requests, hour.compliance, hour.weighted) == (100, 0.95, pytest.approx(0.975))  # type: ignore[comparison-overlap]
    assert hour.budget_left == pytest.approx(0.5)  # 5 broken of 10 allowed
    assert (day.requests, month.requests) == (100, 100)
    overspent = book.windows(T0)[TIERS[-1].name][0]
    assert (overspent.compliance, overspent.budget_left, overspent.budget_used) == (0.0, 0.0, pytest.approx(10.0))  # type: ignore[comparison-overlap]
    assert book.windows(T0)[TIERS[1].name][0].compliance is None  # nobody asked: not 100 %
    assert book.source == "records"


def test_a_tier_tells_how_long_its_answered_requests_waited_and_nobody_elses() -> None:
    book = SloBook(TIERS, 0.995)
    gold = {"tenant": "premium", "operation": "payment.submit"}
    book.note(
        situation(
            0.0,
            record(ttft_s=0.1, **gold),
            record(ttft_s=1.28, **gold),  # on a bucket's bound, which is its own
            record(ttft_s=None, e2e_s=3.0, **gold),  # not streamed: the whole answer
            record("error", ttft_s=0.01, **gold),  # a failure is not a fast answer
            record("aborted", ttft_s=0.01, **gold),
            record(ttft_s=7_000.0),
        )
    )
    waits = book.waits()
    at = dict(zip(waits["gold"].bounds, waits["gold"].counts, strict=True))
    assert (at[0.08], at[0.16], at[0.64], at[1.28], at[2.5], at[5.0], at[inf]) == (0, 1, 1, 2, 2, 3, 3)
    assert waits["gold"].sum == pytest.approx(4.38)
    assert (waits["default"].counts[-2:], waits["secret"].count) == ((0, 1), 0)


def test_requests_leave_each_window_when_their_time_is_over() -> None:
    book = SloBook(TIERS, 0.995)
    book.note(situation(0, record()))
    counted = [[w.requests for w in book.windows(T0 + at)[TIERS[-1].name]] for at in (0, 3_700, 90_000, 31 * 86_400)]
    assert counted == [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_a_request_is_counted_when_it_ended_and_not_when_it_was_heard_of() -> None:
    book = SloBook(TIERS, 0.995)
    book.note(situation(0, record(start_unix_s=T0 - 7_200, e2e_s=1.0), record(start_unix_s=T0 + 9e9)))
    assert [w.requests for w in book.windows(T0)[TIERS[-1].name]] == [1, 2, 2]


def test_time_in_which_the_fleet_was_not_seen_is_missing_from_the_coverage() -> None:
    book = SloBook(TIERS, 0.995)
    for at in range(0, 1_805, 5):
        book.note(situation(at, seen={"a": observation((0,) * 4)} if at <= 900 else {}, names=("a", "b")))
    assert book.coverage(HOUR, T0 + 1_800) == pytest.approx(450 / 3_540, rel=0.02)  # one of two, for 900 s
    assert book.windows(T0 + 1_800)[TIERS[-1].name][0].compliance is None


def test_a_long_pause_between_ticks_is_not_covered() -> None:
    book = SloBook(TIERS, 0.995)
    seen = {"a": observation((0,) * 4)}
    for at in (0, 5, 1_000, 1_005):
        book.note(situation(at, seen=seen))
    assert book.coverage(HOUR, T0 + 1_005) * (3_540 + (T0 + 1_005) % 60) == pytest.approx(10)


def test_without_records_the_buckets_count_and_only_whole_buckets_within_the_limit_are_good() -> None:
    book = SloBook(TIERS, 0.995)
    book.note(situation(0, seen={"a": observation((10, 10, 10, 10), failed=3)}))
    book.note(situation(30, seen={"a": observation((60, 80, 100, 110), failed=5)}))
    found = book.windows(T0 + 10)[TIERS[-1].name][0]
    assert (found.requests, found.good) == (102, 70)  # the limit of 1.2 s lies inside a bucket that ends at 2 s
    assert found.weighted == pytest.approx((70 + 20 * worth(2.0, 1.2, 2.4)) / 102)
    assert book.source == "histograms"
    assert all(w.requests == 0 for t in TIERS[:-1] for w in book.windows(T0 + 10)[t.name])


@pytest.mark.parametrize(
    "after",
    [
        observation((1, 1, 1, 1)),  # an engine that restarted
        observation((20, 20, 20, 20), failed=-1),
        BackendObservation("a", State.SERVING, 0.0),  # its buckets are gone
        BackendObservation("a", State.UNKNOWN, None),
    ],
)
def test_counters_that_cannot_be_compared_count_nothing(after: BackendObservation) -> None:
    book = SloBook(TIERS, 0.995)
    book.note(situation(0, seen={"a": observation((10, 10, 10, 10))}))
    book.note(situation(30, seen={"a": after}))
    assert book.windows(T0 + 10)[TIERS[-1].name][0].requests == 0


def test_failures_that_are_told_for_the_first_time_did_not_all_happen_since_the_last_look() -> None:
    book = SloBook(TIERS, 0.995)
    untold = replace(observation((10, 10, 10, 10)), readings=EMPTY)
    book.note(situation(0, seen={"a": untold}))
    book.note(situation(30, seen={"a": observation((60, 60, 60, 60), failed=5_000)}))
    found = book.windows(T0 + 10)[TIERS[-1].name][0]
    assert (found.requests, found.good) == (50, 50)


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        ((0, 3, 7), 7),
        ((None, 5_000, 5_001), 1),  # not all of them since the last look
        ((5_000, None, 5_003), 0),  # a page without them is no new beginning
        ((5_000, 0, 2), 2),  # an engine that restarted
        ((None, None, None), 0),
    ],
)
def test_what_was_refused_counts_as_far_as_it_is_told_at_both_ends(told: tuple[float | None, ...], refused: float) -> None:
    book = SloBook(TIERS, 0.995)
    for step, count in enumerate(told):
        seen = observation((10 * (step + 1),) * 4, failed=1, refused=count)
        book.note(situation(30 * step, seen={"a": seen}))
    found = book.windows(T0 + 70)[TIERS[-1].name][0]
    assert (found.requests, found.good) == (20 + refused, 20)


def test_what_happened_while_a_backend_was_silent_for_long_is_unknown() -> None:
    book = SloBook(TIERS, 0.995)
    book.note(situation(0, seen={"a": observation((10, 10, 10, 10))}))
    book.note(situation(500, seen={"a": observation((90, 90, 90, 90))}))
    assert book.windows(T0 + 500)[TIERS[-1].name][0].requests == 0


def test_a_backend_with_request_records_is_not_counted_from_its_buckets_too() -> None:
    book = SloBook(TIERS, 0.995)
    for at, count in ((0, 0), (30, 5), (60, 10)):
        records = [record(backend="a")] * 5 if at else []
        seen = {name: observation((count,) * 4, name=name) for name in ("a", "b")}
        book.note(situation(at, *records, seen=seen, names=("a", "b")))
    assert book.windows(T0 + 60)[TIERS[-1].name][0].requests == 10 + 10
    assert book.source == "mixed"


def test_a_backend_that_is_gone_leaves_nothing_behind_but_its_counts() -> None:
    book = SloBook(TIERS, 0.995)
    book.note(situation(0, record(backend="b"), seen={"a": observation((1,) * 4)}, names=("a", "b")))
    book.forget(frozenset(("a", "b")))
    assert book.source is None
    assert book.windows(T0)[TIERS[-1].name][0].requests == 1


def test_a_clock_that_is_set_back_finds_no_requests_of_the_future() -> None:
    bins = Bins("x")
    bins.add(Counts(1, 1, 1), T0, T0)
    assert bins.total(HOUR, T0 - 7_200) == NOTHING
    bins.add(Counts(2, 2, 2), T0 - 7_200, T0 - 7_200)
    assert bins.total(HOUR, T0 - 7_200) == Counts(2, 2, 2)


def test_counts_survive_a_restart_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    store = SloStore(tmp_path / "t.db")
    old = record(start_unix_s=T0 - 2, e2e_s=1.0)
    first = SloBook(TIERS, 0.995)
    first.note(situation(0, old, record("error")))
    store.save(first.take_changed(), T0, oldest_kept(T0))
    assert first.take_changed() == ()
    kept = store.load()
    second = SloBook(TIERS, 0.995, kept.rows, kept.counted_until_unix_s)
    second.note(situation(10, old, record(start_unix_s=T0 + 5, e2e_s=1.0)))  # the exporter tells its whole ring again
    found = second.windows(T0 + 10)[TIERS[-1].name]
    assert [(w.requests, w.good) for w in found] == [(3, 2)] * 3


def test_bins_that_left_their_window_are_dropped_from_the_file(tmp_path: Path) -> None:
    store = SloStore(tmp_path / "t.db")
    book = SloBook(TIERS, 0.995)
    book.note(situation(0, record()))
    store.save(book.take_changed(), T0, oldest_kept(T0))
    store.save((), T0, oldest_kept(T0 + 2 * 86_400))
    assert [row.span for row in store.load().rows] == ["30d"]


def tick(of: Situation) -> TickRecord:
    return TickRecord(1, of.snapshot.time_unix_s, 0.1, of, (), (), (), ())


async def test_what_could_not_be_saved_is_saved_when_the_disk_is_well_again(tmp_path: Path) -> None:
    class Store(SloStore):
        broken = True

        def save(self, *given: Any) -> None:
            if self.broken:
                raise sqlite3.OperationalError("database or disk is full")
            super().save(*given)

    store = Store(tmp_path / "t.db")
    insights = Insights(TIERS, 0.995, store)
    insights.note(tick(situation(0, record())))
    await insights.save()
    assert store.load().rows == ()
    store.broken = False
    await insights.save()
    assert {row.span for row in store.load().rows if row.key == "default"} == {"1h", "1d", "30d"}


def test_a_file_that_cannot_be_read_begins_anew_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "t.db").write_bytes(b"this is no database at all, whatever its name says" * 50)
    insights = Insights(TIERS, 0.995, SloStore(tmp_path / "t.db"))
    insights.note(tick(situation(0, record())))
    assert insights.slo.windows(T0)[TIERS[-1].name][0].requests == 1


def test_another_backend_under_a_known_name_is_not_compared_with_the_old_one() -> None:
    insights = Insights(TIERS, 0.995)
    for url, count in (("http://one", 10), ("http://two", 90)):
        before = situation(count, seen={"a": observation((count,) * 4)})
        snapshot = FleetSnapshot(1, count, T0 + count, (Backend("a", url=url),), before.snapshot.observations)
        insights.note(tick(Situation(snapshot, EMPTY, EMPTY, EMPTY, SLO, 3.0)))
    assert insights.slo.windows(T0 + 90)[TIERS[-1].name][0].requests == 0


def test_what_is_kept_of_a_tier_or_a_span_that_is_no_more_is_left_out() -> None:
    known = Row(TIERS[-1].name, HOUR.name, HOUR.number(T0), Counts(3, 3, 3))
    book = SloBook(TIERS, 0.995, (known, replace(known, key="of yesterday"), replace(known, span="a fortnight")))
    assert [w.requests for w in book.windows(T0)[TIERS[-1].name]] == [3, 0, 0]
