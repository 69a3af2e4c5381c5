"""Values that need two moments, and our probes' share of an engine's counters: pure, on a fake clock."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_exporter import catalog
from tailkeeper_exporter.page import Labels
from tailkeeper_exporter.probe_share import EXPECTED_FOR_S, ProbeShare
from tailkeeper_exporter.readings import Histogram
from tailkeeper_exporter.windows import (
    MAX_MARKS,
    WARM_SAMPLES,
    GpuMemory,
    Mark,
    Warmth,
    Window,
    hit_ratios,
    memory_headroom,
    saturation,
    token_efficiency,
    vram_pressure,
)

Output = tuple[str, Labels]
M: Labels = (("model", "m"),)
BOUNDS = (0.1, 1.0, math.inf)
OK: Output = (catalog.REQUESTS.name, (("model", "m"), ("outcome", "ok")))
ERROR: Output = (catalog.REQUESTS.name, (("model", "m"), ("outcome", "error")))
GENERATED: Output = (catalog.GENERATED_TOKENS.name, M)
PROMPT: Output = (catalog.PROMPT_TOKENS.name, M)
QUERIES: Output = (catalog.KV_QUERIES.name, M)
HITS: Output = (catalog.KV_HITS.name, M)
TTFT: Output = (catalog.TTFT.name, M)


def window(*marks: tuple[float, Mapping[Output, float]], span_s: float = 60.0) -> Window:
    made = Window(span_s)
    for at_s, counters in marks:
        made.add(Mark(at_s, counters, {}))
    return made


def test_a_window_says_nothing_before_its_third_page() -> None:
    marks = [(float(t), {GENERATED: t * 10.0}) for t in range(4)]
    assert window(*marks[:2]).rate(catalog.GENERATED_TOKENS) is None
    assert window(*marks[:3]).rate(catalog.GENERATED_TOKENS) == 10.0


def test_only_the_last_span_counts() -> None:
    marks = [(float(t), {GENERATED: 0.0 if t < 100 else (t - 100) * 7.0}) for t in range(200)]
    assert window(*marks, span_s=10.0).rate(catalog.GENERATED_TOKENS) == 7.0


def test_a_gap_longer_than_the_window_starts_it_anew() -> None:
    marks = [(0.0, {GENERATED: 0.0}), (1.0, {GENERATED: 1.0}), (2.0, {GENERATED: 2.0}), (500.0, {GENERATED: 9_000.0})]
    assert window(*marks).rate(catalog.GENERATED_TOKENS) is None


def test_a_series_that_is_not_at_both_ends_is_not_growth() -> None:
    marks = [(0.0, {}), (1.0, {}), (2.0, {GENERATED: 15_000.0})]
    assert window(*marks).growth(catalog.GENERATED_TOKENS) is None


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=400))
def test_a_window_is_bounded_at_any_pace_and_keeps_the_newest(gaps: list[float]) -> None:
    made, at = Window(60.0), 0.0
    for gap in gaps:
        at += gap
        made.add(Mark(at, {GENERATED: at}, {}))
        assert len(made._marks) <= MAX_MARKS + 1
        assert made._marks[-1].at_s == at
    ends = made.ends()
    if ends is not None:
        assert ends[1].at_s - ends[0].at_s <= 60.0 + 5.0
        assert made.rate(catalog.GENERATED_TOKENS) == pytest.approx(1.0)


def test_a_hit_ratio_is_of_the_window_and_absent_without_a_query() -> None:
    marks = [
        (0.0, {QUERIES: 1_000.0, HITS: 900.0}),
        (1.0, {QUERIES: 1_050.0, HITS: 905.0}),
        (2.0, {QUERIES: 1_100.0, HITS: 925.0}),
    ]
    assert hit_ratios(window(*marks)) == {(catalog.KV_HIT_RATIO.name, M): 0.25}
    still = [(float(t), {QUERIES: 5.0, HITS: 5.0}) for t in range(4)]
    assert hit_ratios(window(*still)) == {}


def test_an_impossible_hit_ratio_is_no_ratio() -> None:
    marks = [(float(t), {QUERIES: t * 1.0, HITS: t * 2.0}) for t in range(4)]
    assert hit_ratios(window(*marks)) == {}


def histograms(*counts: tuple[float, ...]) -> Window:
    made = Window(60.0)
    for at_s, row in enumerate(counts):
        made.add(Mark(float(at_s), {}, {TTFT: Histogram(BOUNDS, row, 1.0)}))
    return made


@pytest.mark.parametrize(
    ("last", "expected"), [((0.0, 1.0, 100.0), {"ttft": True}), ((90.0, 100.0, 100.0), {"ttft": False}), ((0.0, 0.0, 0.0), {})]
)
def test_saturation_is_of_what_the_window_observed(last: tuple[float, ...], expected: dict[str, bool]) -> None:
    nothing = (0.0, 0.0, 0.0)
    assert saturation(histograms(nothing, nothing, last)) == expected


GB = 1e9


def gpu(used: float, total: float = 100.0, uuid: str = "GPU-1") -> GpuMemory:
    return GpuMemory(uuid, total * GB, used * GB)


def warmed(*devices: GpuMemory) -> Warmth:
    warmth = Warmth()
    for _ in range(WARM_SAMPLES):
        warmth.take(devices)
    return warmth


def test_an_engine_that_preallocates_is_measured_against_its_warm_baseline() -> None:
    warmth = warmed(gpu(92.0))
    assert memory_headroom((gpu(92.0),), warmth, True) == 1.0
    assert memory_headroom((gpu(96.0),), warmth, True) == pytest.approx(0.5)
    assert memory_headroom((gpu(50.0),), warmth, True) == 1.0
    assert memory_headroom((gpu(92.0),), warmth, False) == pytest.approx(0.08)


def test_before_the_baseline_is_warm_the_headroom_is_unknown() -> None:
    warmth = Warmth()
    for _ in range(WARM_SAMPLES - 1):
        warmth.take((gpu(92.0),))
    assert memory_headroom((gpu(92.0),), warmth, True) is None
    warmth.take((gpu(92.0),))
    assert memory_headroom((gpu(92.0),), warmth, True) == 1.0
    warmth.forget()
    assert memory_headroom((gpu(92.0),), warmth, True) is None


def test_a_baseline_that_is_all_rounding_is_no_baseline() -> None:
    assert memory_headroom((gpu(99.8),), warmed(gpu(99.8)), True) is None


def test_the_worst_device_counts() -> None:
    two = (gpu(90.0, uuid="1"), gpu(90.0, uuid="2"))
    now = (gpu(91.0, uuid="1"), gpu(98.0, uuid="2"))
    assert memory_headroom(now, warmed(*two), True) == pytest.approx(0.2)
    assert memory_headroom(now, Warmth(), False) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("devices", "kv", "preemptions", "expected"),
    [
        ((), None, None, None),
        ((), 0.4, None, 0.4),
        ((), 0.4, 0.7, 0.7),
        ((), 0.4, 9.0, 1.0),
        ((gpu(96.0),), 0.4, 0.0, 0.5),
        ((gpu(92.0),), 0.0, 0.0, 0.0),
    ],
)
def test_pressure_of_an_engine_that_preallocates_is_the_largest_of_what_is_known(
    devices: tuple[GpuMemory, ...], kv: float | None, preemptions: float | None, expected: float | None
) -> None:
    found = vram_pressure(devices, warmed(gpu(92.0)), True, kv, preemptions)
    assert found == (None if expected is None else pytest.approx(expected))


def test_pressure_of_another_engine_is_its_used_memory() -> None:
    assert vram_pressure((gpu(70.0),), Warmth(), False, 0.9, 1.0) == pytest.approx(0.7)
    assert vram_pressure((), Warmth(), False, 0.9, 1.0) is None


def test_token_efficiency_needs_tokens_and_memory() -> None:
    assert token_efficiency((gpu(50.0),), 100.0) == pytest.approx(200.0)
    assert token_efficiency((), 100.0) is None
    assert token_efficiency((gpu(50.0),), None) is None
    assert token_efficiency((gpu(50.0),), 0.0) == 0.0


# --- the probes' share ---


def counted(ok: float, generated: float, prompt: float, error: float = 0.0) -> dict[Output, float]:
    return {OK: ok, GENERATED: generated, PROMPT: prompt, ERROR: error}


def observed(count: float) -> dict[Output, Histogram]:
    return {TTFT: Histogram(BOUNDS, (count, count, count), count * 0.05)}


def test_what_a_probe_adds_to_an_idle_engine_is_not_published() -> None:
    share = ProbeShare()
    share.take(counted(65, 15_519, 4_212), observed(71), 0.0)
    share.expect(0.5)
    counters, found, own = share.take(counted(66, 15_520, 4_221), observed(72), 1.0)
    assert own
    assert counters == counted(65, 15_519, 4_212)
    assert found[TTFT].counts == (71.0, 71.0, 71.0)
    assert found[TTFT].sum == pytest.approx(71 * 0.05)


def test_the_share_is_kept_when_traffic_comes() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), observed(0), 0.0)
    share.expect(0.5)
    share.take(counted(1, 1, 9), observed(1), 1.0)
    counters, found, own = share.take(counted(11, 501, 909), observed(11), 2.0)
    assert not own
    assert counters == counted(10, 500, 900)
    assert found[TTFT].count == 10


def test_traffic_without_a_probe_is_published_whole() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), observed(0), 0.0)
    counters, _, own = share.take(counted(1, 1, 9), observed(1), 1.0)
    assert not own
    assert counters == counted(1, 1, 9)


def test_an_interval_with_more_than_the_probe_explains_is_left_alone() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), observed(0), 0.0)
    share.expect(0.5)
    counters, found, own = share.take(counted(3, 200, 900), observed(3), 1.0)
    assert not own
    assert counters == counted(3, 200, 900)
    assert found[TTFT].count == 3


def test_a_probe_answered_with_an_error_is_no_failed_request_of_a_user() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), {}, 0.0)
    share.expect(0.5)
    counters, _, own = share.take(counted(0, 0, 0, error=1), {}, 1.0)
    assert own
    assert counters[ERROR] == 0


def test_a_probe_that_never_reached_the_engine_explains_nothing() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), {}, 0.0)
    share.expect(0.5)
    share.forget(0.5)
    assert share.take(counted(1, 1, 9), {}, 1.0)[0] == counted(1, 1, 9)


def test_a_probe_is_expected_for_a_while_only() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), {}, 0.0)
    share.expect(0.5)
    share.take(counted(0, 0, 0), {}, 1.0)
    late = 0.5 + EXPECTED_FOR_S + 0.1
    assert share.take(counted(1, 1, 9), {}, late)[0] == counted(1, 1, 9)


def test_other_buckets_start_the_share_of_a_histogram_anew() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), observed(0), 0.0)
    share.expect(0.5)
    share.take(counted(1, 1, 9), observed(1), 1.0)
    other = {TTFT: Histogram((5.0, math.inf), (9.0, 9.0), 1.0)}
    assert share.take(counted(10, 100, 900), other, 2.0)[1][TTFT].count == 9


def test_without_a_count_of_requests_a_probe_is_over_when_its_token_is_counted() -> None:
    share, tokens, prompt = (
        ProbeShare(counts_requests=False),
        (catalog.GENERATED_TOKENS.name, ()),
        (catalog.PROMPT_TOKENS.name, ()),
    )
    share.take({tokens: 0.0, prompt: 0.0}, {}, 0.0, 0.0)
    share.expect(0.5)
    assert share.take({tokens: 0.0, prompt: 9.0}, {}, 1.0, 1.0)[0] == {tokens: 0.0, prompt: 0.0}
    assert share.take({tokens: 1.0, prompt: 9.0}, {}, 2.0, 1.0)[0] == {tokens: 0.0, prompt: 0.0}
    counters, _, own = share.take({tokens: 1.0, prompt: 49.0}, {}, 3.0, 2.0)
    assert (counters[prompt], own) == (40.0, False)


def test_without_a_count_of_requests_more_of_them_in_flight_than_probes_are_users() -> None:
    share, prompt = ProbeShare(counts_requests=False), (catalog.PROMPT_TOKENS.name, ())
    share.take({prompt: 0.0}, {}, 0.0, 100.0)
    share.expect(0.5)
    counters, _, own = share.take({prompt: 56.0}, {}, 1.0, 103.0, 4.0)
    assert (counters[prompt], own) == (56.0, False)


def test_a_prompt_with_more_steps_after_it_than_a_probe_takes_is_a_users() -> None:
    share, prompt = ProbeShare(counts_requests=False), (catalog.PROMPT_TOKENS.name, ())
    share.take({prompt: 0.0}, {}, 0.0, 100.0)
    share.expect(0.5)
    counters, _, own = share.take({prompt: 40.0}, {}, 1.0, 120.0)
    assert (counters[prompt], own) == (40.0, False)


STEPS = st.lists(st.tuples(st.sampled_from([0, 0, 1, 5]), st.booleans()), max_size=60)


@settings(deadline=None)
@given(STEPS)
def test_published_counters_never_fall_and_never_exceed_the_engines(steps: list[tuple[int, bool]]) -> None:
    share, real, probes = ProbeShare(), 0.0, 0.0
    published = share.take(counted(0, 0, 0), observed(0), 0.0)[0]
    for number, (requests, probed) in enumerate(steps, start=1):
        if probed:
            share.expect(number - 0.5)
            probes += 1
        real += requests
        whole = counted(real + probes, real * 20 + probes, real * 90 + probes * 9)
        before, (published, found, _) = published, share.take(whole, observed(real + probes), float(number))
        assert all(before[output] <= published[output] <= whole[output] for output in whole)
        assert published[OK] >= real, "no user's request is taken off"
        assert found[TTFT].count == published[OK]


def test_probes_beside_traffic_do_not_explain_a_short_request_later() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), {}, 0.0)
    for number in range(1, 13):
        share.expect(number - 0.5)
        share.take(counted(number * 6, number * 101, number * 459), {}, float(number))
    before = share.take(counted(72, 1_212, 5_508), {}, 13.0)[0]
    after = share.take(counted(73, 1_232, 5_598), {}, 14.0)[0]
    assert after[OK] - before[OK] == 1
    assert after[GENERATED] - before[GENERATED] == 20


def test_one_request_with_more_tokens_than_a_probe_has_is_somebody_elses() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), {}, 0.0)
    share.expect(0.5)
    assert share.take(counted(1, 20, 9), {}, 1.0)[0] == counted(1, 20, 9)


def test_probes_counted_among_traffic_are_not_waited_for() -> None:
    share = ProbeShare()
    share.take(counted(0, 0, 0), {}, 0.0)
    share.expect(0.5)
    share.take(counted(3, 200, 900), {}, 1.0)
    before, after = counted(3, 200, 900), share.take(counted(4, 201, 909), {}, 2.0)[0]
    assert after[OK] - before[OK] == 1, "a user's request of one token"
