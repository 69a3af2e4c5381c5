"""What holds for every split of a stream, and against a straightforward reference."""

from __future__ import annotations

import copy
from itertools import pairwise
from math import ceil, log, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from tailkeeper_watchdog.drift import COLUMNS, DESIGNS, Baseline, BlockE, Design, Rows, from_document
from tests.drift_streams import loaded, small_baseline

STREAM = loaded(5_000, 30)
STREAM.table[1_500:, 1] *= 1.5
STREAM.table[4_500:, 1] *= 5.0


def reference_alarms(baseline: Baseline, rows: Rows) -> tuple[list[int], float]:
    """The five steps, row by row and block by block, with lists."""
    model, design = baseline.model, baseline.design
    assert model.weights is not None
    blocks: dict[int, list[tuple[int, float]]] = {}
    newest = -1
    for index, (at_s, latency_s, prompt, backlog, running, waiting) in enumerate(rows.table.tolist()):
        tokens = prompt + backlog
        seen = [1.0, running, tokens / 1e3, ceil(tokens / 2048), tokens * running / 1e5, waiting]
        predicted_s = max(sum(w * f for w, f in zip(model.weights, seen, strict=True)), model.floor_s)
        place = sum(edge < predicted_s for edge in model.edges_s)
        score = (log(latency_s / predicted_s) - log(1.10) - model.medians[place]) / model.scales[place]
        newest = max(newest, int(at_s // 10))
        blocks.setdefault(newest, []).append((index, -99.0 if predicted_s > model.ceiling_s else score))
    alarms, cells = [], [[0.0] * len(design.kappas) for _ in design.anchors]
    ordered = sorted(blocks)
    for number, following in pairwise(ordered):
        assert len(blocks[number]) >= baseline.min_rows, "the stream has no thin block"
        for line, anchor, column in zip(cells, baseline.anchors, baseline.statistics, strict=True):
            excess = [min(max(score - anchor, 0.0), 2.0) for _, score in blocks[number]]
            statistic = round(sum(excess) / len(excess), 9)
            rank = sum(value >= statistic for value in column)
            u = 1.0 if rank == len(column) else max(beta.ppf(0.9, rank + 1, len(column) - rank), design.least_p)
            line[:] = [(1 + cell) * kappa * u ** (kappa - 1) for cell, kappa in zip(line, design.kappas, strict=True)]
        if np.mean(cells) >= 8640:
            alarms.append(blocks[following][0][0])
            cells = [[0.0] * len(design.kappas) for _ in design.anchors]
    return alarms, float(np.mean(cells))


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_batches_give_what_the_five_steps_give(design: Design) -> None:
    baseline = small_baseline(design=design)
    test = BlockE(baseline)
    raised = [alarm.row for alarm in test.update_many(STREAM)]
    expected, value = reference_alarms(baseline, STREAM)
    assert len(expected) > 2
    assert raised == expected
    assert test.evidence.value == pytest.approx(value)


def test_row_by_row_gives_what_batches_give() -> None:
    batch, online = BlockE(small_baseline()), BlockE(small_baseline())
    lines = [tuple(line) for line in STREAM.table.tolist()]
    raised = [index for index, line in enumerate(lines) if online.update(line)]
    assert raised == [alarm.row for alarm in batch.update_many(STREAM)]
    assert online.evidence.value == pytest.approx(batch.evidence.value)
    assert online.counts == batch.counts


def in_parts(rows: Rows, cuts: list[int]) -> tuple[list[int], BlockE]:
    test = BlockE(small_baseline())
    raised: list[int] = []
    edges = [0, *sorted(cuts), len(rows)]
    for start, end in pairwise(edges):
        raised.extend(start + alarm.row for alarm in test.update_many(rows[start:end]))
    return raised, test


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_gives_the_same_alarms(cuts: list[int]) -> None:
    whole, whole_test = in_parts(STREAM, [])
    raised, test = in_parts(STREAM, cuts)
    assert raised == whole
    assert test.evidence.value == pytest.approx(whole_test.evidence.value)
    assert test.counts == whole_test.counts


ANY = st.one_of(st.none(), st.just(nan), st.floats(), st.floats(-5, 5), st.floats(0, 4_000))


@given(table=st.lists(st.tuples(*[ANY] * len(COLUMNS)), max_size=60), cut=st.integers(0, 60))
def test_whatever_comes_nothing_is_raised_and_batches_are_as_single_rows(table: list[tuple[float | None, ...]], cut: int) -> None:
    batch, online = BlockE(small_baseline()), BlockE(small_baseline())
    rows = Rows.of(table)
    assert batch.update_many(rows[:cut]) == ()
    assert batch.update_many(rows[cut:]) == ()
    assert [online.update(line) for line in table] == [None] * len(table)
    assert batch.counts == online.counts
    assert batch.evidence.blocks == online.evidence.blocks


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DOCUMENT = small_baseline().document()
PLACES = [(name,) for name in DOCUMENT] + [("model", name) for name in DOCUMENT["model"]]


@given(place=st.sampled_from(PLACES), value=JSON)
def test_whatever_stands_in_a_document_is_refused_by_name_or_makes_a_baseline_that_works(
    place: tuple[str, ...], value: Any
) -> None:
    document = copy.deepcopy(DOCUMENT)
    *parents, name = place
    (document[parents[0]] if parents else document)[name] = value
    refused = ""
    try:
        BlockE(from_document(document)).update_many(STREAM[:1_000])
    except ValueError as error:
        refused = str(error)
    assert not refused or refused.startswith("baseline")
