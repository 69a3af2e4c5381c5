"""The support table of ``check-config`` in a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.support import MIN_REASON, aligned

REASON = "HAProxy's Runtime API is used for weight and admission only"
ROWS = (
    ("policy", "backend", "here", "because"),
    ("cache_offload", "a", "not enforceable", REASON),
    ("gpu_health_gate", "a", "observed", "mode is observe: what it would do is written down"),
)


def test_a_reason_goes_on_below_itself_where_the_terminal_is_narrow() -> None:
    assert list(aligned(ROWS[:2], 80)) == [
        "policy         backend  here             because",
        "cache_offload  a        not enforceable  HAProxy's Runtime API is used for",
        "                                         weight and admission only",
    ]


def test_where_nobody_looks_a_row_is_a_line() -> None:
    assert len(list(aligned(ROWS, None))) == len(ROWS)


@given(st.integers(1, 300))
def test_no_word_is_lost_at_any_width_and_lines_fit_where_they_can(width: int) -> None:
    lines = list(aligned(ROWS, width))
    assert sorted(" ".join(lines).split()) == sorted(" ".join(cell for row in ROWS for cell in row).split())
    beside = len("gpu_health_gate  backend  not enforceable  ")
    assert all(len(line) <= max(width, beside + MIN_REASON) for line in lines)
