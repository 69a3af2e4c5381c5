"""The weights of the HScore that are in force, who changed them, and which of two sources holds. Kept in the ledger.

A change by a person holds until the weights in the configuration file change; then the file holds. So after a restart the
last change still holds as long as the file says what it said when that was made. Every change is in the ledger before it is
in force: where it cannot be written, the old weights stay. Files and HTTP are other modules' affair.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import WeightsChange

BY_FILE = "file"
HISTORY_SHOWN = 100
_FILE_KEY = "hscore_weights_in_file"

Weights = Mapping[str, float]


class Weighing:
    """``file`` are the weights of the configuration file, valid ones; ``wall`` gives epoch seconds. Raises LedgerError."""

    def __init__(self, ledger: Ledger, file: Weights, wall: Callable[[], float]) -> None:
        self._ledger = ledger
        self._wall = wall
        self._file = file
        self.take_up()

    def take_up(self) -> None:
        """Go on from what the ledger says, at the start and where somebody else has led meanwhile."""
        file, self._file = self._file, self._known_file(self._file)
        last = self._ledger.weights_changes(1)
        self._in_force: Weights = dict(last[0].after) if last else self._file
        self.take_file(file)

    def _known_file(self, file: Weights) -> Weights:
        """What the file said when it was last looked at, in an earlier run; what it says now where there was none."""
        known = self._ledger.get_meta(_FILE_KEY)
        if known is None:
            self._remember(file)
            return dict(file)
        found: dict[str, float] = json.loads(known)
        return found

    def _remember(self, file: Weights) -> None:
        self._ledger.set_meta(_FILE_KEY, json.dumps(dict(file)))

    @property
    def in_force(self) -> Weights:
        """The weights by factor, as of now. A new mapping after each change, so that who holds one holds a moment."""
        return self._in_force

    def change(self, weights: Weights, by: str) -> None:
        """A person's change. Weights that are in force already are no change."""
        if weights != self._in_force:
            self._ledger.record_weights(self._wall(), by, self._in_force, weights)
            self._in_force = dict(weights)

    def take_file(self, weights: Weights) -> bool:
        """The file says this now; whether it says anything new, which then holds.

        The change is written before the file's word is remembered: a crash between the two repeats it without effect.
        """
        if weights == self._file:
            return False
        self.change(weights, BY_FILE)
        self._remember(weights)
        self._file = dict(weights)
        return True

    def history(self) -> tuple[WeightsChange, ...]:
        """The last changes, newest first."""
        return self._ledger.weights_changes(HISTORY_SHOWN)
