"""Memory pressure is told by how grave it is."""

from __future__ import annotations

import pytest

from tailkeeper_watchdog.detectors import Symptom
from tailkeeper_watchdog.detectors.state import DETECTOR
from tailkeeper_watchdog.model import FindingKind, Severity
from tests.unit.situations import seen, situation, window


def looked(pressures: list[tuple[float, float | None]]) -> list[list[Symptom]]:
    """The symptoms at each (seconds, pressure)."""
    memory, found = DETECTOR.new_memory(), []
    for at, pressure in pressures:
        observed = seen("a") if pressure is None else seen("a", vram_pressure=pressure)
        memory, symptoms = DETECTOR.detect(
            situation(observed, now=1_000.0 + at, recent={"a": window(10.0, preemptions=5.0)}), memory
        )
        found.append([s for s in symptoms if s.kind is FindingKind.MEMORY_PRESSURE])
    return found


def test_eighty_percent_that_last_are_a_ticket_and_the_limit_is_one_at_once() -> None:
    none, still_none, risk, over = looked([(0, 0.8), (29, 0.9), (30, 0.85), (31, 0.93)])

    assert (none, still_none) == ([], [])
    assert (risk[0].severity, risk[0].summary) == (Severity.TICKET, "a: memory pressure 85% for 30 s, limit 80%")
    assert (over[0].severity, over[0].summary) == (Severity.TICKET, "a: memory pressure 93%, limit 92%")
    assert over[0].evidence["preemptions_per_s"] == pytest.approx(0.5)
    assert risk[0].key == over[0].key


@pytest.mark.parametrize("gap", [0.79, None])
def test_a_dip_or_a_gap_begins_the_wait_anew(gap: float | None) -> None:
    assert looked([(0, 0.85), (20, gap), (25, 0.85), (50, 0.85)]) == [[], [], [], []]
