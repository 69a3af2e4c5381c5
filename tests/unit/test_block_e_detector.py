"""``block_e`` over a fleet: what is told, how loud, and which baseline it is told against."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter.readings import Histogram
from tailkeeper_exporter.state import State
from tailkeeper_watchdog.baseline_set import BaselineSet, Form
from tailkeeper_watchdog.detectors import Symptom, block_e
from tailkeeper_watchdog.detectors.block_e import rows_of, with_prompts
from tailkeeper_watchdog.drift import BucketE, BucketReading, Collector, page_evidence
from tailkeeper_watchdog.drift_watch import Watch, seen_of
from tailkeeper_watchdog.model import Severity
from tests.unit.baselines_at_hand import BLOCK_S, bucket_baseline_of, requests, rows_baseline
from tests.unit.watched_fleet import WALL_S, WatchedFleet, record


class SmallCollector(Collector):
    """Content with a tenth of the requests and half of the time."""

    def __init__(self, *, capacity: int) -> None:
        super().__init__(requests=6_000, seconds=1_200.0, capacity=capacity)


ROWS, RAW, BUCKETS = rows_baseline(), rows_baseline(load=False), bucket_baseline_of()


def fleet(*names: str, given: BaselineSet | None = None, restored: BaselineSet | None = None) -> WatchedFleet:
    watched = WatchedFleet(block_e.DETECTOR, names=names or ("a",))
    given = BaselineSet({}, {("m", Form.ROWS): ROWS}) if given is None else given
    watched.state = block_e.Memory(given=given, restored=restored or BaselineSet())
    return watched


def blocks(watched: WatchedFleet, count: int, rng: random.Random, **how: Any) -> tuple[Symptom, ...]:
    """So many blocks of the same kind at each backend named in ``sick`` (all others are well); the symptoms at the end."""
    symptoms: tuple[Symptom, ...] = ()
    sick = how.pop("sick", tuple(watched.seen))
    for _ in range(count):
        for name in watched.seen:
            own = how if name in sick else {}
            watched.told(*requests(rng, WALL_S + watched.now, name=name, **own))
        symptoms = watched.look(BLOCK_S)
    return symptoms


def test_without_drift_nothing_is_told() -> None:
    watched, rng = fleet(), random.Random(1)
    for _ in range(40):
        assert blocks(watched, 10, rng) == ()


def test_a_slower_engine_is_a_ticket_with_what_was_expected_and_what_was_seen() -> None:
    watched, rng = fleet(), random.Random(2)
    blocks(watched, 30, rng)
    began = WALL_S + watched.now
    found: tuple[Symptom, ...] = ()
    count = 0
    while not found and count < 20:
        found, count = blocks(watched, 1, rng, factor=1.5), count + 1
    (drift,) = found
    evidence = drift.evidence
    assert drift.severity is Severity.TICKET
    assert count <= 15
    found = blocks(watched, 10, rng, factor=1.5)
    assert found[0].evidence["ratio"] == pytest.approx(1.5, rel=0.1)
    assert found[0].evidence["seen_s"] > 1.3 * found[0].evidence["expected_s"]
    assert evidence["evidence"] >= evidence["limit"]
    assert abs(evidence["rising_since"] - began) <= 3 * BLOCK_S
    assert evidence["baseline"]["from"] == "watchdog.baselines"
    assert evidence["baseline"]["fit_ratio"] > 0.5
    assert evidence["abstained"] <= 0.03 * evidence["scored"]
    assert evidence["without_load"] == 0
    assert "where its load explains" in drift.summary


def test_more_load_by_itself_is_no_drift() -> None:
    watched, rng = fleet(), random.Random(3)
    blocks(watched, 20, rng, most_running=3)
    assert blocks(watched, 60, rng, most_running=10) == ()


def test_a_drift_that_lasts_pages_by_the_count_of_backends_that_are_looked_at() -> None:
    watched, rng = fleet("a", "b", "c"), random.Random(4)
    blocks(watched, 10, rng)
    severities = []
    for _ in range(40):
        severities += [s.severity for s in blocks(watched, 1, rng, factor=1.6, sick=("b",))]
    assert severities[0] is Severity.TICKET
    assert severities[-1] is Severity.PAGE
    (drift,) = blocks(watched, 1, rng)
    assert drift.backend == "b"
    assert drift.evidence["page_evidence"] > page_evidence(3)


def test_the_symptom_ends_a_quarter_of_an_hour_after_the_last_proof() -> None:
    watched, rng = fleet(), random.Random(5)
    assert blocks(watched, 20, rng, factor=1.6)
    assert blocks(watched, 60, rng)
    assert blocks(watched, 60, rng) == ()


def test_scores_that_know_no_load_are_for_information_only_however_strong() -> None:
    watched, rng = fleet(given=BaselineSet({}, {("m", Form.ROWS): RAW})), random.Random(6)
    found = blocks(watched, 60, rng, factor=3.0, load=False)
    assert [s.severity for s in found] == [Severity.INFO]
    assert "only observed" in found[0].evidence["observed_only"]


def test_requests_that_do_not_say_their_load_are_not_judged_by_a_load_model() -> None:
    watched, rng = fleet(), random.Random(7)
    assert blocks(watched, 40, rng, factor=3.0, load=False) == ()
    (watch,) = watched.state.of("a")[:1]
    assert "do not say their load" in watch.test.missing()


def test_while_a_baseline_is_gathered_it_says_what_is_missing() -> None:
    watched, rng = fleet(given=BaselineSet()), random.Random(8)
    assert blocks(watched, 10, rng, factor=3.0) == ()
    assert watched.state.gathering == {"a": "a baseline needs 20,000 requests and 40 min; so far 600 and 2 min"}


def test_a_gathered_baseline_is_fitted_once_and_named_by_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_e, "Collector", SmallCollector)
    watched, rng = fleet(given=BaselineSet()), random.Random(9)
    blocks(watched, 122, rng)
    assert watched.state.gathering == {}
    (key,) = watched.state.baselines.backends
    assert key == ("a", Form.ROWS)
    assert watched.state.baselines.backends[key].model_id == "m"
    assert blocks(watched, 25, rng, factor=1.6)


def test_a_restart_begins_a_new_baseline_and_one_of_the_configuration_stays() -> None:
    for given_, restored, stays in ((None, None, True), (BaselineSet(), BaselineSet({("a", Form.ROWS): ROWS}), False)):
        watched, rng = fleet(given=given_, restored=restored), random.Random(10)
        blocks(watched, 5, rng)
        assert watched.state.gathering == {}
        watched.seen["a"].state = State.STARTING
        watched.look()
        watched.seen["a"].state = State.SERVING
        blocks(watched, 5, rng)
        assert (watched.state.gathering == {}) is stays
        if not stays:
            assert "because the engine was restarted" in watched.state.gathering["a"]


def test_a_baseline_of_another_model_is_not_restored() -> None:
    watched, rng = (
        fleet(given=BaselineSet(), restored=BaselineSet({("a", Form.ROWS): rows_baseline(model="other")})),
        random.Random(11),
    )
    blocks(watched, 5, rng)
    assert "a" in watched.state.gathering


def test_a_shift_of_a_whole_day_is_taken_for_usual_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_e, "STABLE_S", 1_200.0)
    restored = BaselineSet({("a", Form.ROWS): ROWS})
    watched, rng = fleet(given=BaselineSet(), restored=restored), random.Random(12)
    found = blocks(watched, 40, rng, factor=1.6)
    assert found[0].evidence["taken_for_usual_at"] > WALL_S + watched.now
    assert blocks(watched, 120, rng, factor=1.6) == ()
    assert "taken for usual" in watched.state.gathering["a"]


def test_buckets_are_judged_where_there_are_no_records_and_left_alone_where_there_are() -> None:
    given_ = BaselineSet({}, {("m", Form.BUCKETS): BUCKETS, ("m", Form.ROWS): ROWS})
    watched, rng = fleet(given=given_), random.Random(13)
    for factor, count in ((1.0, 40), (3.0, 20)):
        for _ in range(count):
            watched.did(ttft_s=[factor * rng.lognormvariate(-1.6, 0.4) for _ in range(50)], tokens=100)
            found = watched.look(BLOCK_S)
        assert bool(found) is (factor > 1)
    (drift,) = found
    assert drift.evidence["form"] == "histogram buckets"
    assert any(share["seen"] > share["explained"] + 0.2 for share in drift.evidence["shares_above"])
    judged = drift.evidence["blocks_judged"]
    blocks(watched, 30, rng)
    assert watched.state.buckets["a"].test.evidence.blocks <= judged + 1


@pytest.mark.parametrize(
    "load", [{"running": None}, {"waiting": None}, {"tokens_total": None}, {"running": 3.0, "waiting": 0.0, "tokens_total": 1e3}]
)
def test_what_the_load_explains_is_told_only_where_the_load_is_known(load: dict[str, float | None]) -> None:
    watch = Watch(1, test=BucketE(BUCKETS))
    for at_s, count in ((0.0, 0.0), (10.0, 60.0)):
        counts = tuple(count * (bound >= 0.2) for bound in BUCKETS.bounds_s)
        known = {"running": 3.0, "waiting": 0.0, "tokens_total": 100.0 * at_s} | load
        watch.readings.append(BucketReading(at_s, Histogram(BUCKETS.bounds_s, counts, 0.2 * count), **known))
    seen = seen_of(watch, 0.0)
    assert (seen["requests"], seen["seconds"]) == (60.0, 10.0)
    assert ("shares_above" in seen) is (None not in load.values())


def test_no_more_than_so_many_gather_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_e, "MAX_GATHERING", 2)
    watched, rng = fleet("a", "b", "c", given=BaselineSet()), random.Random(14)
    blocks(watched, 3, rng)
    assert sorted("waits for a place" in why for why in watched.state.gathering.values()) == [False, False, True]


_BAD = st.one_of(st.none(), st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e300]), st.floats(0, 0.2))
_COUNT = st.one_of(st.none(), st.integers(0, 10**9))
_RECORDS = st.lists(
    st.builds(
        record,
        _BAD,
        outcome=st.sampled_from(["ok", "aborted", "error"]),
        start_unix_s=st.one_of(st.none(), st.floats(0, 2e9)),
        prompt_tokens=_COUNT,
        running=_COUNT,
        waiting=_COUNT,
        backlog_tokens=_COUNT,
    ),
    max_size=10,
)


@settings(max_examples=40)
@given(ticks=st.lists(st.tuples(st.floats(0, 100), _RECORDS), max_size=15))
def test_rows_of_any_kind_in_any_order_raise_nothing_and_page_nobody(ticks: list[tuple[float, Any]]) -> None:
    watched = fleet()
    for after_s, records in ticks:
        watched.told(*records, *reversed(records))
        assert all(s.severity is not Severity.PAGE for s in watched.look(after_s))


def test_a_request_counts_when_it_ended_because_it_is_told_of_then() -> None:
    """By first tokens a block would be open for as long as the slowest answer in it takes."""
    known = record(0.2, start_unix_s=100.0)
    assert rows_of([replace(known, e2e_s=8.0)], 0.0)[0][:2] == (108.0, 0.2)
    assert rows_of([replace(known, e2e_s=None)], 0.0)[0][:2] == (100.2, 0.2)
    assert rows_of([replace(known, start_unix_s=None)], 55.0)[0][:2] == (55.0, 0.2)


def test_who_gave_up_is_judged_by_the_usual_prompt() -> None:
    """An engine tells how long a prompt was at the end only. Without them only those that had it quick would be left."""
    told: list[tuple[float | None, ...]] = [(1.0, 0.1, prompt, 0.0, 2.0, 0.0) for prompt in (100.0, 300.0, 900.0)]
    gave_up: tuple[float | None, ...] = (2.0, 3.0, None, 5.0, 9.0, 1.0)
    assert with_prompts([gave_up], told) == [(2.0, 3.0, 300.0, 5.0, 9.0, 1.0)]
    assert with_prompts(told[:1], []) == told[:1]
    assert with_prompts([gave_up], []) == [gave_up]


def test_a_fleet_takes_turns_also_after_a_tick_that_took_long() -> None:
    watched = fleet(*(f"b{number}" for number in range(20)), given=BaselineSet({}, {("m", Form.BUCKETS): BUCKETS}))
    turns: list[int] = []
    for after_s in (5.0, 5.0, 30.0, 5.0, 5.0, 5.0, 5.0):
        before = {name: len(watch.readings) for name, watch in watched.state.buckets.items()}
        for seen in watched.seen.values():
            seen.ok += 1
        watched.look(after_s)
        turns.append(sum(len(watch.readings) > before.get(name, 0) for name, watch in watched.state.buckets.items()))
    assert turns[2] == 20, "everybody waited for longer than a block"
    assert turns[3:] == [10] * 4, "half of them at each tick of half a block's time"
