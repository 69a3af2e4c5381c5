"""A fleet that never stays the same, for as long as a day brings changes."""

from __future__ import annotations

from pathlib import Path

from tests.scenario.test_backends_come_and_go import churn


async def test_ten_thousand_ticks_of_names_that_come_and_go_leave_no_memory_behind(tmp_path: Path) -> None:
    await churn(tmp_path / "ledger.db", 10_000)
