"""How often a change waits for the disk: once before it is done, and once for all that is written down of it afterwards."""

from __future__ import annotations

from pathlib import Path

from tailkeeper_watchdog.decision_log import DecisionLog
from tailkeeper_watchdog.ledger import Ledger, LedgerError
from tailkeeper_watchdog.model import DRAIN, SERVE, Knob, Target
from tailkeeper_watchdog.plan import Change, ChangeKind
from tailkeeper_watchdog.reconcile import Reconciler
from tests.scenario.world import FakeGateway

TARGET = Target("edge", "a", "pool")


class Counted(Ledger):
    """Counts what SQLite commits, each of which waits for the disk; ``full`` is a disk without room for a line of the log."""

    def __init__(self, path: Path) -> None:
        self.commits, self.full = 0, False
        super().__init__(path)
        self._db.set_trace_callback(self._see)

    def _see(self, sql: str) -> None:
        writes = sql.lstrip().split(" ", 1)[0] in ("INSERT", "UPDATE", "DELETE")
        self.commits += sql == "COMMIT" or (writes and not self._db.in_transaction)

    def record(self, *args: object, **more: object) -> object:  # type: ignore[override]
        if self.full:
            raise LedgerError("the disk is full")
        return super().record(*args, **more)  # type: ignore[arg-type]


def change(kind: ChangeKind, ledger: Ledger) -> Change:
    lease = next(iter(ledger.leases()), None)
    value = DRAIN if kind is ChangeKind.APPLY else SERVE
    return Change(kind, "a", TARGET, Knob.ADMISSION, value, SERVE, "gpu_health_gate", "hung", lease)


async def test_a_change_is_written_down_before_it_is_done_and_once_after(tmp_path: Path) -> None:
    ledger, gateway = Counted(tmp_path / "ledger.db"), FakeGateway(("a",))
    reconciler = Reconciler({"edge": gateway}, ledger, DecisionLog(ledger, lambda: 1e9), 60.0, lambda: 1e9)
    for kind, commits in ((ChangeKind.APPLY, 2), (ChangeKind.RELEASE, 1)):
        ledger.commits = 0
        executed = await reconciler.execute((change(kind, ledger),), 1, 1.0)
        assert (len(executed.decisions), ledger.commits) == (1, commits)
    assert ledger.leases() == ()


async def test_the_end_of_a_lease_and_the_line_that_says_so_are_there_together_or_not_at_all(tmp_path: Path) -> None:
    ledger, gateway = Counted(tmp_path / "ledger.db"), FakeGateway(("a",))
    reconciler = Reconciler({"edge": gateway}, ledger, DecisionLog(ledger, lambda: 1e9), 60.0, lambda: 1e9)
    for kind, confirmed in ((ChangeKind.APPLY, False), (ChangeKind.APPLY, True), (ChangeKind.RELEASE, True)):
        ledger.full = kind is ChangeKind.RELEASE or not confirmed
        try:
            await reconciler.execute((change(kind, ledger),), 1, 1.0)
        except* LedgerError:
            assert ledger.full
        again = Ledger(tmp_path / "ledger.db")
        assert [lease.confirmed for lease in again.leases()] == [lease.confirmed for lease in ledger.leases()] == [confirmed]
        assert len(again.decisions(limit=9)) == confirmed
        again.close()
