"""``block_e`` over request rows: what it finds, what it must not find, and what bad input does to it (nothing)."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log, nan

import numpy as np
import pytest
from scipy.stats import beta

from tailkeeper_watchdog.drift import AS_WRITTEN, BLOCK_E, COLUMNS, Baseline, BlockE, Rows, fit
from tailkeeper_watchdog.drift.evidence import EPOCH_BLOCKS, MOST_EVIDENCE, Evidence, p_values
from tests.drift_streams import joined, loaded, small_baseline, without_load

HOURS = 40_000
"""Rows: some 80 minutes."""


def rows_until_alarm(baseline: Baseline, rows: Rows) -> int | None:
    return next((alarm.row for alarm in BlockE(baseline).update_many(rows)), None)


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_no_drift_raises_no_alarm(seed: int) -> None:
    assert BlockE(small_baseline()).update_many(loaded(HOURS, seed)) == ()


@pytest.mark.parametrize(("ratio", "within"), [(1.2, 1_500), (1.5, 800), (3.0, 800)])
def test_latency_that_rose_by_a_ratio_is_found(ratio: float, within: int) -> None:
    found = rows_until_alarm(small_baseline(), loaded(8_000, 5, ratio))
    assert found is not None
    assert found <= within


@pytest.mark.parametrize("ratio", [0.5, 1.05])
def test_faster_and_within_the_dead_band_is_no_drift(ratio: float) -> None:
    assert rows_until_alarm(small_baseline(), loaded(HOURS, 6, ratio)) is None


def test_more_load_alone_is_no_drift() -> None:
    at_s, requests = loaded(8_000, 7).table, loaded(24_000, 8).table
    heavy = requests[requests[:, 2] + requests[:, 3] > 4_000][:8_000]
    rows = Rows(np.column_stack([at_s[: len(heavy), 0], heavy[:, 1:]]))
    assert rows_until_alarm(small_baseline(raw=True), rows) is not None, "to raw scores this is a drift"
    assert rows_until_alarm(small_baseline(), rows) is None


def test_evidence_starts_anew_after_an_alarm_and_raises_again_while_the_drift_lasts() -> None:
    test = BlockE(small_baseline())
    assert len(test.update_many(loaded(8_000, 9, 1.5))) > 5
    assert test.evidence.page_value > 1e9, "what a page is judged by goes on growing"


def test_no_rows_are_no_evidence() -> None:
    test = BlockE(small_baseline())
    assert test.update_many(Rows(np.empty((0, len(COLUMNS))))) == ()
    assert test.missing() is not None


def test_a_load_beyond_the_baseline_abstains_and_is_counted() -> None:
    rows = loaded(4_000, 13, 5.0)
    rows.table[:, COLUMNS.index("backlog_tokens")] = 1e6
    test = BlockE(small_baseline())
    assert test.update_many(rows) == ()
    assert test.counts.abstained == test.counts.scored == 4_000
    assert "load is beyond the baseline's in 4,000 of 4,000" in str(test.missing())


def test_a_block_whose_load_was_never_seen_is_no_evidence() -> None:
    rows = loaded(4_000, 13, 5.0)
    rows.table[::5, COLUMNS.index("backlog_tokens")] = 1e6
    test = BlockE(small_baseline())
    assert test.update_many(rows) == ()
    assert test.evidence.blocks == 0
    assert test.open_block.skipped > 40
    assert BlockE(small_baseline(design=AS_WRITTEN)).update_many(rows), "as first written, the other rows decide"


def test_blocks_of_a_slow_backend_last_longer() -> None:
    slow = fit(loaded(4_000, 1, rate_per_s=2.0), model_id="m", created_at_s=0.0)
    assert slow.block_s == pytest.approx(30.0, rel=0.1)
    assert small_baseline().block_s == 10.0


@pytest.mark.parametrize("rate_per_s", [1.0, 3.6, 8.0])
def test_a_spike_of_a_hundred_requests_never_alarms(rate_per_s: float) -> None:
    baseline = fit(loaded(6_000, 1, rate_per_s=rate_per_s), model_id="m", created_at_s=0.0)
    rows = loaded(10_000, 10, rate_per_s=rate_per_s)
    rows.table[5_000:5_100, 1] *= 100.0
    assert BlockE(baseline).update_many(rows) == ()


def test_rows_that_do_not_say_their_load_are_counted_not_judged() -> None:
    test = BlockE(small_baseline())
    assert test.update_many(without_load(loaded(4_000, 14, 5.0))) == ()
    assert (test.counts.scored, test.counts.without_load) == (0, 4_000)
    assert "do not say their load" in str(test.missing())


def test_a_baseline_without_load_is_raw_and_says_so() -> None:
    baseline = small_baseline(raw=True)
    assert baseline.is_raw
    assert baseline.fit_ratio is None
    assert "only observed" in str(baseline.why_raw)
    assert rows_until_alarm(baseline, without_load(loaded(8_000, 15, 2.0))) is not None


def test_a_load_that_explains_nothing_gives_raw_scores() -> None:
    rows = loaded(6_000, 16)
    rows.table[:, 1] = 0.1 * np.exp(np.random.default_rng(0).standard_normal(6_000))
    baseline = fit(rows, model_id="m", created_at_s=0.0)
    assert baseline.is_raw
    assert baseline.fit_ratio is not None
    assert baseline.fit_ratio < BLOCK_E.min_fit_ratio
    assert "explains only" in str(baseline.why_raw)


BAD_ROWS = {
    "no time": (nan, 0.1, 1.0, 1.0, 1.0, 1.0),
    "no latency": (1.0, nan, 1.0, 1.0, 1.0, 1.0),
    "negative latency": (1.0, -0.1, 1.0, 1.0, 1.0, 1.0),
    "zero latency": (1.0, 0.0, 1.0, 1.0, 1.0, 1.0),
    "latency of a day": (1.0, 1e6, 1.0, 1.0, 1.0, 1.0),
    "infinite time": (inf, 0.1, 1.0, 1.0, 1.0, 1.0),
    "negative load": (1.0, 0.1, -1.0, 1.0, 1.0, 1.0),
    "infinite load": (1.0, 0.1, inf, 1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_left_out(bad: tuple[float, ...]) -> None:
    test = BlockE(small_baseline())
    assert test.update_many(Rows.of([bad] * 5)) == ()
    assert test.update(bad) is None
    assert test.counts.unusable + test.counts.without_load == 6
    assert test.counts.scored == 0


def shuffled(rows: Rows) -> Rows:
    """Neighbours within some seconds change places."""
    order = np.argsort(rows.table[:, 0] + np.random.default_rng(0).uniform(0, 5, len(rows)))
    return Rows(rows.table[order])


def stepped(rows: Rows, step_s: float) -> Rows:
    table = rows.table.copy()
    table[len(table) // 2 :, 0] += step_s
    return Rows(table)


def torn(rows: Rows) -> Rows:
    table = rows.table.copy()
    table[::2, 0] += 1e9
    return Rows(table)


STRANGE = {
    "duplicated": lambda rows: Rows(np.repeat(rows.table, 2, axis=0)),
    "replayed": lambda rows: joined(rows, rows),
    "reordered": shuffled,
    "clock set back": lambda rows: stepped(rows, -7_200.0),
    "clock set forward": lambda rows: stepped(rows, 7_200.0),
    "two clocks": torn,
    "backwards": lambda rows: Rows(rows.table[::-1]),
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_strange_order_without_drift_raises_no_alarm(strange) -> None:  # type: ignore[no-untyped-def]
    assert BlockE(small_baseline()).update_many(strange(loaded(20_000, 17))) == ()


@pytest.mark.parametrize("rate_per_s", [1 / 60, 0.2, 10_000.0])
def test_other_rates_without_drift_raise_no_alarm(rate_per_s: float) -> None:
    rows = loaded(60_000, 18, rate_per_s=rate_per_s)
    assert BlockE(small_baseline()).update_many(rows) == ()


def test_one_request_a_minute_says_what_is_missing() -> None:
    test = BlockE(small_baseline())
    test.update_many(loaded(20, 19, rate_per_s=1 / 60))
    assert test.missing() == f"no block is complete yet: 20 of at least {small_baseline().min_rows} requests"


@pytest.mark.parametrize("baseline_blocks", [20, 250])
def test_p_values_are_the_clopper_pearson_bound(baseline_blocks: int) -> None:
    ranks = np.arange(baseline_blocks)
    expected = [*beta.ppf(0.9, ranks + 1, baseline_blocks - ranks), 1.0]
    assert p_values(baseline_blocks, 0.9) == pytest.approx(expected)


def test_evidence_is_bounded_whatever_comes() -> None:
    statistics = tuple(tuple(i / 100 for i in range(100)) for _ in BLOCK_E.anchors)
    evidence = Evidence(statistics, BLOCK_E)
    for _ in range(2_000):
        reached = evidence.add((2.0, 2.0, 2.0))
        assert evidence.value < BLOCK_E.alarm_evidence <= (reached or inf)
    assert evidence.page_value == MOST_EVIDENCE


def test_four_blocks_by_themselves_make_no_alarm_however_bad_and_large_the_baseline() -> None:
    statistics = tuple(tuple(i / 2_000 for i in range(2_000)) for _ in BLOCK_E.anchors)
    evidence = Evidence(statistics, BLOCK_E)
    assert [evidence.add((2.0, 2.0, 2.0)) for _ in range(4)] == [None] * 4
    assert evidence.add((2.0, 2.0, 2.0)) is not None, "five are enough"


def test_page_evidence_is_not_reset_by_alarms_and_starts_anew_after_a_page_and_a_week() -> None:
    statistics = tuple(tuple(i / 100 for i in range(100)) for _ in BLOCK_E.anchors)
    evidence, never_reset = Evidence(statistics, BLOCK_E), Evidence(statistics, replace(BLOCK_E, alarm_evidence=1e300))
    raised = 0
    for number in range(60):
        block = (0.97, 0.5 + number / 200, 0.9)
        raised += evidence.add(block) is not None
        assert never_reset.add(block) is None
        assert evidence.page_value == pytest.approx(never_reset.value)
    assert raised > 0
    evidence.start_page()
    assert (evidence.page_value, evidence.page_age_blocks) == (0.0, 0)
    evidence.page_age_blocks = EPOCH_BLOCKS
    evidence.add((0.0, 0.0, 0.0))
    assert evidence.page_age_blocks == 1
    assert evidence.page_value < 1.0


def test_the_dead_band_is_ten_per_cent() -> None:
    assert BLOCK_E.dead_band == pytest.approx(log(1.1))
