"""Causes in the findings of the whole loop, and that the loop never depends on them."""

from __future__ import annotations

from math import fsum
from pathlib import Path

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog import core
from tailkeeper_watchdog.model import DRAIN, FindingKind
from tests.scenario.world import World


async def test_a_hung_backend_has_shares_from_the_tick_on_that_opens_its_finding(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.db")
    await world.run(20)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.loop.latest is not None
    (found,) = (f for f in world.loop.latest.findings if f.kind is FindingKind.HUNG)
    assert fsum(s.share for s in found.shares) == pytest.approx(1.0, abs=1e-9)
    assert "cause" in found.evidence
    assert world.admission("b") == DRAIN


async def test_a_fault_in_attribution_costs_the_causes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> core.Memory:
        raise ZeroDivisionError("as a bug would")

    monkeypatch.setattr(core, "attribute", broken)
    world = World(tmp_path / "ledger.db")
    await world.run(20)
    world.sick["b"].state = State.HUNG
    await world.run(1)
    assert world.loop.latest is not None
    assert world.loop.latest.error is None
    assert world.admission("b") == DRAIN
    assert all(f.shares == () for f in world.loop.latest.findings)
