"""The benchmark of the ledger: what it times is really written, and what it says adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailkeeper import bench_ledger
from tailkeeper.bench_ledger import A_ROUND, HELD, TOGETHER, ledger_bench
from tailkeeper_watchdog.ledger import Ledger


def test_changes_and_lines_are_in_the_ledger_and_every_way_has_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_ledger, "USED_BEFORE", 10)
    seen: dict[str, int] = {}

    class Looked(Ledger):
        def close(self) -> None:
            seen["leases"], seen["decisions"] = len(self.leases()), len(self.decisions(limit=10_000))
            super().close()

    result = ledger_bench(tmp_path, rounds=1, open_ledger=Looked)
    assert seen == {"leases": HELD, "decisions": 2 * A_ROUND * TOGETHER}, "once before the clock runs, and one round"
    for way in ("intent", "change", "log_lines_together", "sqlite_full", "sqlite_off"):
        assert 0.0 < result[way]["p50_ms"] <= result[way]["p99_ms"] <= result[way]["max_ms"]
        assert result[way]["per_second"] > 0
    assert result["intent_against_sqlite_full"] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_bare_files_are_as_carefully_written_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ledger, "USED_BEFORE", 1)
    for name, expected in (("FULL", 2), ("OFF", 0)):
        connection = bench_ledger._bare(tmp_path / name, name)
        assert connection.execute("PRAGMA synchronous").fetchone() == (expected,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()
