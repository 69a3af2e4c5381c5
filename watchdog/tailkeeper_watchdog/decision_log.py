"""The decision log: one line per change of mind. What is merely still so is not written again each tick.

Bounded: one remembered line per (policy, backend, knob, server), forgotten after a minute in which it did not recur.
"""

from __future__ import annotations

from collections.abc import Callable

from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Decision, Knob, KnobValue, Outcome

REPEATABLE = frozenset({Outcome.ALREADY, Outcome.OBSERVED, Outcome.ADVISED, Outcome.REFUSED, Outcome.FAILED})
FORGET_AFTER_S = 60.0

_Key = tuple[str, str, Knob, str]
Told = Callable[[Decision, str, str], None]
"""Called with each decision that is written down, its gateway and its server; both are empty where it is about neither."""


def _nobody(decision: Decision, gateway: str, server: str) -> None:
    return None


class DecisionLog:
    """Writes decisions to the ledger and counts them. ``wall`` gives epoch seconds. ``told`` must not raise nor wait."""

    def __init__(self, ledger: Ledger, wall: Callable[[], float], told: Told = _nobody) -> None:
        self._ledger = ledger
        self._wall = wall
        self._told = told
        self._said: dict[_Key, tuple[tuple[Outcome, str], float]] = {}
        self.counts: dict[tuple[str, Knob, Outcome], int] = {}

    def note(
        self,
        tick: int,
        policy: str,
        backend: str,
        knob: Knob,
        from_value: KnobValue | None,
        to_value: KnobValue,
        verdict: Outcome,
        reason: str,
        *,
        code: str = "",
        gateway: str = "",
        server: str = "",
        lease_expires: float | None = None,
    ) -> Decision | None:
        """Record a decision; None when the same was said already: the same ``code``, or the same value where that is empty."""
        now = self._wall()
        if verdict in REPEATABLE and self._said_already((policy, backend, knob, server), (verdict, code or str(to_value)), now):
            return None
        key = (policy, knob, verdict)
        self.counts[key] = self.counts.get(key, 0) + 1
        decision = self._ledger.record(now, tick, policy, backend, knob, from_value, to_value, verdict, reason, lease_expires)
        self._told(decision, gateway, server)
        return decision

    def _said_already(self, key: _Key, line: tuple[Outcome, str], now: float) -> bool:
        before = self._said.get(key)
        self._said[key] = (line, now)
        return before is not None and before[0] == line and now - before[1] < FORGET_AFTER_S

    def forget_backends(self, gone: frozenset[str]) -> None:
        """What was said of these counts no longer as said."""
        self._said = {key: said for key, said in self._said.items() if key[1] not in gone}

    def forget_all(self) -> None:
        """What was said last may not have been written: whatever is still so is said again."""
        self._said.clear()

    def forget_old(self) -> None:
        """Drop what did not recur; called once a tick."""
        now = self._wall()
        for key in [k for k, (_, at) in self._said.items() if now - at >= FORGET_AFTER_S]:
            del self._said[key]
