"""Many backends at once: the same results as each alone, and pages by e-BH."""

from __future__ import annotations

import numpy as np
import pytest

from tailkeeper_watchdog.drift import AS_WRITTEN, BLOCK_E, BlockE, FleetE, Rows, discoveries, page_evidence, pages
from tailkeeper_watchdog.drift.evidence import EPOCH_BLOCKS
from tests.drift_streams import loaded, small_baseline, without_load

NAMES = ("a", "b", "raw", "old clock", "other design")


def new_tests() -> dict[str, BlockE]:
    designs = {"other design": AS_WRITTEN}
    return {name: BlockE(small_baseline(raw=name == "raw", design=designs.get(name, BLOCK_E))) for name in NAMES}


def streams() -> dict[str, Rows]:
    rows = {
        "a": loaded(3_000, 1),
        "b": loaded(3_000, 2, 1.5),
        "raw": without_load(loaded(2_000, 3, 2.0)),
        "old clock": loaded(900, 4),
    }
    rows["b"].table[::50, 1] = np.nan
    rows["b"].table[7::50, 5] = np.nan
    rows["old clock"].table[450:, 0] -= 50_000.0
    rows["other design"] = loaded(3_000, 5, 1.5)
    return rows


@pytest.mark.parametrize("step", [17, 400, 5_000])
def test_a_fleet_gives_what_each_backend_alone_gives(step: int) -> None:
    alone, together = new_tests(), new_tests()
    fleet = FleetE(together, BLOCK_E)
    for start in range(0, 3_000, step):
        batches = {name: rows[start : start + step] for name, rows in streams().items()}
        raised = fleet.update(batches | {"stranger": loaded(3, 1)})
        expected = {name: alone[name].update_many(rows) for name, rows in batches.items()}
        rows_of = {name: [alarm.row for alarm in alarms] for name, alarms in raised.items()}
        assert rows_of == {name: [alarm.row for alarm in alarms] for name, alarms in expected.items() if alarms}
    for name in NAMES:
        assert together[name].evidence.value == pytest.approx(alone[name].evidence.value)
        assert together[name].evidence.page_value == pytest.approx(alone[name].evidence.page_value)
        assert together[name].counts == alone[name].counts


def test_a_fleet_without_backends_or_rows_does_nothing() -> None:
    assert FleetE({}, BLOCK_E).update({"a": loaded(5, 1)}) == {}
    assert FleetE(new_tests(), BLOCK_E).update({}) == {}
    assert FleetE(new_tests(), BLOCK_E).update({"a": Rows.of([(None, None, None, None, None, None)])}) == {}


CASES = {
    "nobody": ({"a": 1.0, "b": 2.0}, 0.1, set()),
    "one alone needs the whole": ({"a": 20.0, "b": 1.0}, 0.1, {"a"}),
    "two together need half": ({"a": 10.0, "b": 10.0}, 0.1, {"a", "b"}),
    "a weak one is carried": ({"a": 1e9, "b": 10.0, "c": 0.0}, 0.1, {"a"}),
    "unknown says nothing and still counts": ({"a": 15.0, "b": None}, 0.1, set()),
    "no backends": ({}, 0.1, set()),
}


@pytest.mark.parametrize(("e_values", "alpha", "expected"), CASES.values(), ids=CASES)
def test_e_bh_finds(e_values: dict[str, float | None], alpha: float, expected: set[str]) -> None:
    assert discoveries(e_values, alpha) == expected


def test_a_page_of_a_fleet_needs_the_stated_evidence() -> None:
    alone = page_evidence(2_000)
    assert alone == EPOCH_BLOCKS * 2_000 / 0.5
    quiet = {f"b{i}": 5.0 for i in range(99)}
    assert pages({"a": alone, **quiet}, 2_000) == {"a"}
    assert pages({"a": alone * 0.99, **quiet}, 2_000) == frozenset()
    both = page_evidence(2_000, found=2)
    assert pages({"a": both, "b": both}, 2_000) == {"a", "b"}, "the size of the pool cancels"
    assert pages({}, 2_000) == frozenset()
    assert pages({"a": None}, 1) == frozenset()
