"""The table that compares the demo with and without an acting watchdog: figures from the load's record, and nothing made up."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from tools.compare_demo import Request, Row, figures, p99, requests_of, table

OK = Request(start_s=100.0, end_s=103.0, judged_s=100.2, ttft_s=0.2, within=True, outcome="ok")
HUNG = Request(start_s=101.0, end_s=121.0, judged_s=102.2, ttft_s=None, within=False, outcome="timeout")
FAILED = Request(start_s=102.0, end_s=102.1, judged_s=102.1, ttft_s=None, within=False, outcome="error")


def test_a_line_that_is_still_being_written_is_left_out() -> None:
    line = json.dumps(asdict(OK))
    assert list(requests_of([line + "\n", line[:20]])) == [OK]


def test_a_request_counts_from_the_fault_to_the_end_of_the_story() -> None:
    before, after = replace(OK, start_s=99.0), replace(OK, judged_s=131.0)
    assert figures([before, OK, HUNG, FAILED, after], 100.0, 130.0)["requests"] == 3


def test_who_waited_in_vain_counts_with_that_wait_and_who_got_an_error_with_none() -> None:
    found = figures([OK, HUNG, FAILED], 100.0, 130.0)
    assert (found["within"], found["failed"], found["ttft_p99_s"]) == (1, 2, 20.0)
    assert found["missing_until_s"] == pytest.approx(2.2)
    assert found["to_the_end"] is False
    assert figures([OK, HUNG], 100.0, 122.0)["to_the_end"] is False
    assert figures([OK, FAILED], 100.0, 104.0)["to_the_end"] is True


def test_of_no_requests_nothing_is_said() -> None:
    found = figures([], 100.0, 130.0)
    assert (found["requests"], found["ttft_p99_s"], found["missing_until_s"]) == (0, None, None)


@pytest.mark.parametrize(("count", "expected"), [(1, 0), (100, 99), (200, 198), (1_000, 990)])
def test_the_p99_is_a_value_that_was_observed(count: int, expected: int) -> None:
    assert p99(list(range(count))) == expected


def test_the_table_has_both_sides_and_says_what_was_not_run() -> None:
    observed = Row("hang", "observe", 200, 180, 20, 19.9, 25.0, False, 0, 0, None, 1.0)
    acting = replace(observed, side="enforce", within=199, failed=1, missing_until_s=6.4, changes=12, given_back_s=41.0)
    lines = table([observed, replace(acting, within=0), acting]).splitlines()
    assert lines[2].startswith("| hang | 90.00% → 99.50% |")
    assert "25 s → 6 s" in lines[2]
    assert lines[2].endswith("| 12, 0 left, all back after 41 s |")
    assert "not run" in table([observed])
