"""A line of the decision log that could not be written is written once it can be: it does not count as said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.ledger import LedgerError
from tailkeeper_watchdog.model import Mode
from tests.scenario.world import TICK_S, World


@pytest.mark.parametrize("statement", ["INSERT INTO decisions", "COMMIT"])
async def test_a_full_disk_loses_no_line_of_what_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    world = World(tmp_path / "ledger.db", mode=Mode.OBSERVE)
    await world.run(5)
    world.sick["b"].state = State.HUNG
    run = world.ledger._run

    def full(sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if sql.startswith(statement):
            raise LedgerError("database or disk is full")
        return run(sql, values)

    with monkeypatch.context() as patched:
        patched.setattr(world.ledger, "_run", full)
        world.clock.now += TICK_S
        assert "full" in str((await world.loop.tick()).error)
    assert world.verdicts("b") == []
    await world.run(5)

    assert world.verdicts("b") == ["observed"]
