"""The load's own bookkeeping: what is counted when, and what the stats file says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_demo.load_stats import KEEP_BUCKETS, LoadStats, Outcome, quantile


def stats() -> LoadStats:
    return LoadStats(rate_per_s=10, slo_ttft_s=1.2, started_unix_s=1000.0)


def buckets(of: LoadStats, at_s: float) -> list[dict[str, object]]:
    document = of.document(at_s, done=False)
    rows = document["buckets"]
    assert isinstance(rows, list)
    return rows


def test_a_bucket_has_the_promised_fields_and_is_json() -> None:
    s = stats()
    s.sent(0.1)
    s.first_content(0.4, 0.3)
    s.verdict(0.4, within=True)
    s.ended(0.9, Outcome.OK)
    (row,) = json.loads(json.dumps(buckets(s, 0.95)))
    assert {"t", "sent", "ok", "errors", "timeouts", "within_slo", "ttft_p50", "ttft_p99", "in_flight"} <= set(row)
    assert (row["t"], row["sent"], row["ok"], row["within_slo"], row["ttft_p99"], row["in_flight"]) == (1000, 1, 1, 1, 0.3, 0)


def test_verdicts_are_told_apart_by_who_sent_the_request() -> None:
    s = stats()
    s.verdict(0.1, within=True)
    s.verdict(0.2, within=True, source="rollout")
    s.verdict(0.3, within=False, source="rollout")
    totals = s.document(1.0, done=True)["totals"]
    assert isinstance(totals, dict)
    assert totals["by_source"] == {
        "online": {"within_slo": 1, "missed_slo": 0},
        "rollout": {"within_slo": 1, "missed_slo": 1},
    }
    assert (totals["within_slo"], totals["missed_slo"]) == (2, 1)


def test_quiet_seconds_are_there_with_zero_counts_and_unknown_latency() -> None:
    s = stats()
    s.sent(0.5)
    rows = buckets(s, 5.5)
    assert [row["t"] for row in rows] == [1000, 1001, 1002, 1003, 1004, 1005]
    assert [row["sent"] for row in rows] == [1, 0, 0, 0, 0, 0]
    assert all(row["in_flight"] == 1 for row in rows)
    assert rows[3]["ttft_p99"] is None, "no sample is not a latency of zero"


def test_the_file_keeps_a_bounded_number_of_seconds() -> None:
    s = stats()
    for second in range(0, 3 * KEEP_BUCKETS, 7):
        s.sent(float(second))
    assert len(buckets(s, 3 * KEEP_BUCKETS)) == KEEP_BUCKETS
    s.sent(1e7)
    assert len(buckets(s, 1e7)) == KEEP_BUCKETS


@given(st.lists(st.sampled_from(list(Outcome)), max_size=40))
def test_every_request_ends_once_and_totals_add_up(outcomes: list[Outcome]) -> None:
    s = stats()
    for number, _ in enumerate(outcomes):
        s.sent(number * 0.1)
    for outcome in outcomes:
        s.ended(4.0, outcome, "http_500" if outcome is Outcome.ERROR else None)
    totals = s.document(5.0, done=True)["totals"]
    assert isinstance(totals, dict)
    assert totals["sent"] == len(outcomes)
    assert totals["ok"] + totals["errors"] + totals["timeouts"] + totals["aborted"] == len(outcomes)
    assert totals["in_flight"] == 0
    assert sum(totals["errors_by_kind"].values()) == outcomes.count(Outcome.ERROR)


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [([], 0.99, None), ([0.3], 0.99, 0.3), ([0.1, 0.2, 0.3, 0.4], 0.5, 0.2), ([3.0, 1.0, 2.0], 0.99, 2.0)],
)
def test_a_quantile_is_a_value_really_observed(values: list[float], q: float, expected: float | None) -> None:
    assert quantile(values, q) == expected
