"""The packaged trace and how it becomes arrivals at a wanted rate."""

from __future__ import annotations

import itertools
from importlib import resources

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailkeeper_demo.trace import Caps, TraceRow, arrivals, load_trace

ROWS = load_trace()


def test_the_packaged_trace_is_small_ordered_and_carries_its_licence() -> None:
    folder = resources.files("tailkeeper_demo") / "traces"
    assert len((folder / "azure_llm_2023_thinned.csv").read_bytes()) <= 150_000
    assert "CC-BY-4.0" in (folder / "README.md").read_text(encoding="utf-8")
    assert len(ROWS) > 9000
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(ROWS))
    assert all(row.prompt_tokens > 0 and row.output_tokens > 0 for row in ROWS)


@given(rate=st.floats(0.5, 30), duration=st.floats(5, 300), seed=st.integers(0, 10_000))
@example(rate=0.5, duration=5.0, seed=7484)  # a window of two requests that came in the same millisecond
@settings(max_examples=40, deadline=None)
def test_arrivals_have_exactly_the_wanted_mean_rate_in_order_within_the_time(rate: float, duration: float, seed: int) -> None:
    rows = list(arrivals(ROWS, rate_per_s=rate, duration_s=duration, seed=seed))
    assert len(rows) == round(rate * duration)
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(rows))
    assert rows[0].at_s == 0.0
    assert rows[-1].at_s < duration


def test_a_run_longer_than_the_trace_ends_in_time_and_keeps_its_rate() -> None:
    rows = list(arrivals(ROWS, rate_per_s=50, duration_s=400, seed=1))
    assert rows[-1].at_s < 400
    assert len(rows) == pytest.approx(50 * 400, rel=0.2)


def test_lengths_are_capped_and_otherwise_those_of_the_trace() -> None:
    caps = Caps(prompt_tokens=500, output_tokens=50)
    rows = list(arrivals(ROWS, rate_per_s=10, duration_s=60, seed=4, caps=caps))
    assert max(row.prompt_tokens for row in rows) == 500
    assert max(row.output_tokens for row in rows) == 50
    assert len({row.prompt_tokens for row in rows}) > 50


def test_bursts_survive_the_stretching() -> None:
    """Gaps keep their proportions: the arrivals are the trace's own, not a Poisson stream at its rate."""
    window = list(arrivals(ROWS, rate_per_s=10, duration_s=30, seed=5))
    start = next(
        i
        for i in range(len(ROWS))
        if [(r.prompt_tokens, r.output_tokens) for r in ROWS[i : i + 5]]
        == [
            (r.prompt_tokens, r.output_tokens)
            for r in arrivals(ROWS, rate_per_s=10, duration_s=30, seed=5, caps=Caps(10**6, 10**6))
        ][:5]
    )
    original = ROWS[start : start + len(window)]
    factor = (original[-1].at_s - original[0].at_s) / window[-1].at_s
    for ours, theirs in zip(window, original, strict=True):
        assert ours.at_s * factor == pytest.approx(theirs.at_s - original[0].at_s, abs=1e-6)


def test_the_same_seed_gives_the_same_load_and_another_seed_another() -> None:
    def lengths(seed: int) -> list[int]:
        return [row.prompt_tokens for row in arrivals(ROWS, rate_per_s=10, duration_s=20, seed=seed)]

    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)


def test_a_run_without_end_goes_round_the_trace_at_the_wanted_rate() -> None:
    short = [TraceRow(float(n), n + 1, 1) for n in range(10)]
    rows = list(itertools.islice(arrivals(short, rate_per_s=2.0, duration_s=None, seed=1), 35))
    assert [row.prompt_tokens for row in rows[10:20]] == list(range(1, 11))
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(rows))
    assert len(rows) / rows[-1].at_s == pytest.approx(2.0, rel=0.1)
