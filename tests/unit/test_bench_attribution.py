"""The benchmark of attribution: its peer is the definition, and what it plants is found."""

from __future__ import annotations

import numpy as np
import pytest

from tailkeeper import bench_attribution
from tailkeeper.bench_attribution import SICK, attribution_bench, enumerated, finding
from tailkeeper_watchdog.attribution.segments import Values, segment_shift


def test_every_size_has_a_figure_and_the_planted_cause_is_named_where_there_are_enough_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_attribution, "SIZES", (10, 1_000))
    monkeypatch.setattr(bench_attribution, "PEER_SIZES", (100,))
    monkeypatch.setattr(bench_attribution, "PEER_ROUNDS", 1)
    result = attribution_bench(seed=1, rounds=1)
    assert [size["requests"] for size in result["sizes"]] == [10, 1_000]
    assert [size["compared"] for size in result["sizes"]] == [False, True]
    assert result["sizes"][1]["named_first"] == f"tenant {SICK}"
    (beside,) = result["segments"]
    assert beside["ratio"] == pytest.approx(beside["enumeration_ms"] / beside["ours_ms"], rel=0.2)


def test_enumeration_adds_up_to_the_whole_shift() -> None:
    given = finding(200, 7)
    assert given.baseline is not None
    assert given.current is not None
    before, now = (
        Values(sample.rows["ttft_s"].astype(np.float64), sample.rows["tenant"].astype(np.intp))
        for sample in (given.baseline, given.current)
    )
    names = given.current.names["tenant"]
    found = enumerated(before, now, [1, 2, 3, 4], names)
    ours = segment_shift(before, now, [1, 2, 3, 4], names)
    assert sum(map(sum, found.values())) == pytest.approx(sum(part.total for part in ours))


def test_a_disagreement_with_enumeration_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    true = bench_attribution.enumerated
    monkeypatch.setattr(
        bench_attribution,
        "enumerated",
        lambda *given: {name: (mix + 1e-3, within) for name, (mix, within) in true(*given).items()},
    )
    monkeypatch.setattr(bench_attribution, "PEER_ROUNDS", 1)
    with pytest.raises(RuntimeError, match="enumeration says"):
        bench_attribution._beside_enumeration(100, 1)
