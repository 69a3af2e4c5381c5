"""What people can switch: the kill switch (file, API, signal) and holds on single backends. Kept in the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tailkeeper_watchdog.ledger import Ledger

MAX_HOLD_S = 7 * 86_400.0
"""A hold that nobody remembers ends after a week."""

SETTLE_S = 30.0
"""All shards begin within some seconds of each other, and give back at their first tick; a gateway may need a few more."""
SHARDS_KEY = "shards"


@dataclass(frozen=True, slots=True)
class Hold:
    reason: str
    until_unix_s: float


class Switches:
    """Reads and writes the switches. ``wall`` gives epoch seconds."""

    def __init__(self, ledger: Ledger, pause_file: Path | None, wall: Callable[[], float]) -> None:
        self._ledger = ledger
        self._pause_file = pause_file
        self._wall = wall
        self.standing_by: str | None = None
        """Who leads instead of us; None where we lead. Not kept: it is found out anew each tick."""
        self.settles_until_unix_s = 0.0
        """Until then the other shards give back what was theirs; nothing new is done."""

    def paused(self) -> str | None:
        """Why nothing may be done now, or None. A pause file that cannot be looked at counts as there."""
        if self.standing_by is not None:
            return self.standing_by
        left_s = self.settles_until_unix_s - self._wall()
        if 0 < left_s <= SETTLE_S:  # more than that is a wall clock that was set back
            return f"the number of shards has changed: for {left_s:.0f} s more each gives back what is another's now"
        if self._pause_file is not None:
            try:
                if self._pause_file.exists():
                    return f"the pause file {self._pause_file} is there"
            except OSError as error:
                return f"the pause file {self._pause_file} cannot be looked at: {error.strerror}"
        return self._ledger.get_meta("paused")

    def settle(self, shards: int) -> None:
        """Where this ledger was last led by one of another number of shards, or by none, wait for the others before anything new.

        A pool that is ours since then may carry a change of the shard that had it: what is read there until that has given it
        back would be taken for what its gateway had before.
        """
        before, _, since = (self._ledger.get_meta(SHARDS_KEY) or "").partition(" ")
        begun = float(since or 0.0)
        if before != str(shards):
            begun = self._wall()
            self._ledger.set_meta(SHARDS_KEY, f"{shards} {begun:.3f}")
        self.settles_until_unix_s = begun + SETTLE_S

    def pause(self, why: str) -> None:
        self._ledger.set_meta("paused", why[:300])

    def resume(self) -> None:
        """Ends a pause by API or signal; a pause file must be removed by whoever put it there."""
        self._ledger.set_meta("paused", None)

    def holds(self) -> dict[str, Hold]:
        """Holds in force by backend."""
        rows = json.loads(self._ledger.get_meta("holds") or "{}")
        now = self._wall()
        return {name: Hold(row["reason"], row["until"]) for name, row in rows.items() if row["until"] > now}

    def hold(self, backend: str, reason: str, for_s: float) -> Hold:
        """The hold that is in force then: of two the one that ends later, so that nobody's is cut short by another's."""
        holds = self.holds()
        asked = Hold(reason[:300], self._wall() + min(for_s, MAX_HOLD_S))
        hold = max(asked, holds.get(backend, asked), key=lambda one: one.until_unix_s)
        self._save({**holds, backend: hold})
        return hold

    def unhold(self, backend: str) -> bool:
        """Whether there was one."""
        holds = self.holds()
        found = holds.pop(backend, None) is not None
        self._save(holds)
        return found

    def end_holds(self, backends: frozenset[str]) -> None:
        """The holds on these are over, where there are any."""
        holds = self.holds()
        kept = {name: hold for name, hold in holds.items() if name not in backends}
        if len(kept) < len(holds):
            self._save(kept)

    def _save(self, holds: dict[str, Hold]) -> None:
        self._ledger.set_meta("holds", json.dumps({n: {"reason": h.reason, "until": h.until_unix_s} for n, h in holds.items()}))
