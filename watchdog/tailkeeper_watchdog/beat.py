"""When the next tick is due, and how many were due and did not take place. Pure: monotonic seconds in, seconds out.

Ticks keep an even beat, so that what is missing can be counted: a small delay is not carried on from tick to tick. Beats that
passed while a tick took too long, or while the process stood still, are not made up for.
"""

from __future__ import annotations

from math import floor

CLOSEST_TICKS = 0.5
"""No tick begins sooner after the last one than this share of the beat: after a late one it is caught up with gently."""


class Beat:
    """One tick is due at ``now``, and the next ones every ``tick_s`` after it."""

    def __init__(self, tick_s: float, now: float) -> None:
        self._tick_s = tick_s
        self._due = self._started = now
        self.missed = 0
        """Ticks that were due and did not take place, since the start."""

    def begin(self, now: float) -> None:
        """A tick begins."""
        passed = max(0, floor((now - self._due) / self._tick_s))
        self.missed += passed
        self._due += (passed + 1) * self._tick_s
        self._started = now

    def rest_s(self, now: float) -> float:
        """How long to wait until the next tick; 0 where it is late already."""
        return max(0.0, self._due - now, self._started + CLOSEST_TICKS * self._tick_s - now)
