"""Whatever the records and gauges: shares in [0, 1] that add up to 1, nothing from what did not change, and no crash."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper_watchdog.attribution import words
from tailkeeper_watchdog.attribution.changes import Candidate
from tailkeeper_watchdog.attribution.combine import attribute
from tailkeeper_watchdog.attribution.hand_down import ERRORS, Given
from tailkeeper_watchdog.attribution.request_log import ROW, RequestLog
from tailkeeper_watchdog.attribution.resources import RESOURCES, STAGE_MEANS, compared, rank, stage_rises
from tailkeeper_watchdog.attribution.shapley import MAX_PLAYERS, shapley
from tailkeeper_watchdog.attribution.stages import Staged, stage_shift
from tailkeeper_watchdog.model import RequestRecord

seconds = st.none() | st.floats(0, 1e6) | st.just(0.0)
tokens = st.none() | st.floats(0, 1e9)
labels = st.none() | st.sampled_from(["", "x", "y", "other", "unlabelled"]) | st.text(max_size=3)
records = st.builds(
    RequestRecord,
    backend=st.just("a"),
    outcome=st.sampled_from([None, "ok", "ok", "ok", "error", "rejected", "aborted", "?"]),
    ttft_s=seconds,
    itl_s=seconds,
    e2e_s=seconds,
    start_unix_s=seconds,
    queue_s=seconds,
    prefill_s=seconds,
    prompt_tokens=tokens,
    cached_tokens=tokens,
    backlog_tokens=tokens,
    model=labels,
    tenant=labels,
    modality=labels,
    canary_revision=labels,
    operation=labels,
)
WIDTH = len(RESOURCES) + len(STAGE_MEANS)
lines = st.lists(st.floats(-1e12, 1e12) | st.just(nan), min_size=WIDTH, max_size=WIDTH).map(np.array)


def _given(signal: str, before: list[RequestRecord], now: list[RequestRecord], line: Any, usual: Any, change: float) -> Given:
    log = RequestLog()
    # A few different records many times: enough to be compared at all, and full of ties.
    log.extend(before * 40, 1.0, 10_000)
    log.extend(now * 20, 3.0, 10_000)
    many = np.stack([usual] * 6)
    return Given(
        signal,
        log.between(0.0, 2.0),
        log.between(2.0, 4.0),
        rank(compared(line, many, [usual, usual])),
        (Candidate("deploy", "canary_revision x", 1.0, change),),
        stage_rises(line, many),
    )


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["ttft", "itl", "e2e", ERRORS]),
    st.lists(records, max_size=4),
    st.lists(records, max_size=4),
    lines,
    lines,
    st.floats(0, 0.4),
)
def test_shares_add_up_to_one_whatever_was_read(
    signal: str, before: list[RequestRecord], now: list[RequestRecord], line: Any, usual: Any, change: float
) -> None:
    asked = _given(signal, before, now, line, usual, change)
    found = attribute(asked, 7)
    assert fsum(s.share for s in found.shares) == pytest.approx(1.0, abs=1e-9)
    assert all(0.0 <= s.share <= 1.0 + 1e-12 and 0.0 <= s.confidence <= 1.0 for s in found.shares)
    assert len({(s.dimension, s.value) for s in found.shares}) == len(found.shares)
    assert words.sentence(found, asked)
    _finite(words.evidence(found, asked))


def _finite(told: Any) -> None:
    if isinstance(told, Mapping):
        told = list(told.values())
    if isinstance(told, list):
        for part in told:
            _finite(part)
    elif isinstance(told, float):
        assert np.isfinite(told)


@given(st.integers(1, MAX_PLAYERS), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_shapley_values_add_up_and_players_that_do_the_same_get_the_same(players: int, seed: int) -> None:
    worth = np.random.default_rng(seed).normal(size=1 << players)
    masks = np.arange(worth.size)
    if players > 1:  # make the first two exchangeable
        swapped = masks & ~3 | (masks & 1) << 1 | (masks & 2) >> 1
        worth = (worth + worth[swapped]) / 2
    values = shapley(worth)
    assert fsum(values) == pytest.approx(worth[-1] - worth[0], abs=1e-9)
    if players > 1:
        assert values[0] == pytest.approx(values[1], abs=1e-9)


columns = st.integers(0, 2**32 - 1)


def _times(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(-2.0, 1.0, size)


@given(columns, columns, columns, st.integers(100, 400), st.sampled_from([1e-3, 7.0, 1e3]))
@settings(max_examples=25, deadline=None)
def test_units_do_not_matter_and_what_did_not_change_has_no_part(a: int, b: int, c: int, size: int, unit: float) -> None:
    queue, before, now = _times(a, size), _times(b, size), 2 * _times(c, size)
    rows = np.zeros(0, ROW)

    def shift(scale: float) -> Mapping[str, float]:
        then = Staged(rows, scale * (queue + before), {"queue": scale * queue, "prefill": scale * before})
        later = Staged(rows, scale * (queue + now), {"queue": scale * queue, "prefill": scale * now})
        return stage_shift(then, later, np.random.default_rng(1)).seconds

    plain, scaled = shift(1.0), shift(unit)
    assert plain["queue"] == 0.0
    assert scaled["prefill"] == pytest.approx(unit * plain["prefill"])


@given(columns, columns, st.integers(100, 400))
@settings(max_examples=30, deadline=None)
def test_stages_that_changed_alike_have_equal_parts(a: int, b: int, size: int) -> None:
    before, now = _times(a, size), _times(b, size)
    rows = np.zeros(0, ROW)
    found = stage_shift(
        Staged(rows, 2 * before, {"queue": before, "prefill": before}),
        Staged(rows, 2 * now, {"queue": now, "prefill": now}),
        np.random.default_rng(1),
    )
    assert found.seconds["queue"] == pytest.approx(found.seconds["prefill"])
