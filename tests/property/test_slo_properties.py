"""Whatever the requests are: shares stay in [0, 1], nothing is counted twice, and memory is bounded."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter.readings import Histogram
from tailkeeper_watchdog.model import EMPTY, Backend, FleetSnapshot, RequestRecord, Situation, Slo
from tailkeeper_watchdog.slo.bins import SPANS, Bins
from tailkeeper_watchdog.slo.compliance import SloBook, compliance
from tailkeeper_watchdog.slo.counters import Mark, between
from tailkeeper_watchdog.slo.tiers import Counts, judged, tier_of, tiers_of, worth

TIERS = tiers_of((("gold", {"tenant": "premium"}, 0.3), ("keen", {"model": "m", "sensitivity": "3"}, 0.1)), Slo())
SECONDS = st.none() | st.floats(0, 1e4)
RECORDS = st.builds(
    RequestRecord,
    backend=st.just("a"),
    outcome=st.sampled_from(("ok", "ok", "error", "rejected", "aborted", "odd", None)),
    ttft_s=SECONDS,
    itl_s=SECONDS,
    e2e_s=SECONDS,
    start_unix_s=st.none() | st.floats(0, 4e9),
    model=st.sampled_from(("m", "n", None)),
    tenant=st.sampled_from(("premium", "free", None)),
    operation=st.text(max_size=3) | st.none(),
    sensitivity=st.integers(-1, 6) | st.none(),
    modality=st.sampled_from(("text", "speech", "image", "other", None)),
)


@given(st.lists(st.tuples(st.lists(RECORDS, max_size=8), st.floats(0, 5_000)), max_size=8))
@settings(max_examples=60)
def test_every_request_counts_at_most_once_and_shares_are_shares(ticks: list[tuple[list[RequestRecord], float]]) -> None:
    book, now, told = SloBook(TIERS, 0.995), 2e9, 0
    for records, step in ticks:
        now += step
        told += sum(judged(r, tier_of(r, TIERS)).requests > 0 for r in records)
        snapshot = FleetSnapshot(1, now, now, (Backend("a"),), {})
        book.note(Situation(snapshot, EMPTY, EMPTY, EMPTY, Slo(), 3.0, EMPTY, {"a": tuple(records)}))
    windows = [w for of_tier in book.windows(now).values() for w in of_tier]
    assert sum(w.requests for w in windows if w.span.name == "30d") <= told
    for window in windows:
        assert 0 <= window.coverage <= 1
        if window.compliance is not None and window.weighted is not None:
            assert 0 <= window.compliance <= window.weighted <= 1
            assert window.budget_left is not None
            assert 0 <= window.budget_left <= 1


@given(st.lists(st.tuples(st.floats(0, 4e9), st.floats(0, 4e9)), max_size=60))
def test_bins_never_hold_more_than_their_spans_whatever_the_clock_does(events: list[tuple[float, float]]) -> None:
    bins = Bins("x")
    for at, now in events:
        bins.add(Counts(1.0), at, now)
        for span in SPANS:
            assert len(bins._counts[span.name]) <= span.bins
            assert bins.total(span, now).requests <= len(events)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e3), st.floats(1.001, 10))
def test_a_later_answer_is_never_worth_more(latency_s: float, limit_s: float, factor: float) -> None:
    value = worth(latency_s, limit_s, factor * limit_s)
    assert 0 <= worth(latency_s * 1.5, limit_s, factor * limit_s) <= value <= 1


@given(
    st.lists(st.integers(0, 50), min_size=4, max_size=4),
    st.lists(st.integers(0, 50), min_size=4, max_size=4),
    st.floats(0.01, 5),
    st.integers(0, 9),
    st.one_of(st.none(), st.integers(0, 9)),
)
def test_buckets_never_say_more_good_than_there_was(
    before: list[int], more: list[int], limit_s: float, failed: int, refused: int | None
) -> None:
    def total(counts: list[int]) -> tuple[float, ...]:
        return tuple(float(sum(counts[: i + 1])) for i in range(4))

    bounds = (0.5, 1.0, 2.0, inf)
    tier = tiers_of((), Slo(ttft_p99_s=limit_s))[-1]
    start = Mark(0.0, 0.0, 0.0, Histogram(bounds, total(before), 0.0), None)
    end = Mark(10.0, failed, refused, Histogram(bounds, total([a + b for a, b in zip(before, more, strict=True)]), 0.0), None)
    counts = between(start, end, tier)
    bad = failed + (0 if refused is None else refused)
    assert counts.requests == sum(more) + bad
    assert counts.good == sum(n for n, bound in zip(more, bounds, strict=True) if bound <= limit_s)
    assert counts.good <= counts.worth <= counts.requests - bad
    found = compliance(SPANS[0], counts, 0.995, 1.0)
    assert found.compliance is None or 0 <= found.compliance <= 1
