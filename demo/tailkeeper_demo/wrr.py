"""Smooth weighted round robin over named servers, as nginx does it: exact shares, evenly spread, no randomness.

Pure. Each pick adds every server's weight to its credit, takes the richest, and charges it the sum of weights.
"""

from __future__ import annotations

from dataclasses import dataclass

_STEPS = 10_000
"""Weights are compared in ten-thousandths, so that credits are whole numbers and shares exact; a smaller positive weight
counts as one step."""


@dataclass(slots=True)
class _Entry:
    weight_steps: int
    credit: int = 0


class WeightedRoundRobin:
    """Picks names in proportion to their weights, 0 to 1."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def set(self, name: str, weight: float) -> None:
        """Set a weight. Credits stay: starting anew at each change would favour the first name while weights ramp."""
        steps = max(1, round(weight * _STEPS)) if weight > 0 else 0
        self._entries.setdefault(name, _Entry(steps)).weight_steps = steps

    def pick(self, excluded: frozenset[str] = frozenset()) -> str | None:
        """The next name; None when every weight is 0 or excluded."""
        best: tuple[str, _Entry] | None = None
        total = 0
        for name, entry in self._entries.items():
            if not entry.weight_steps or name in excluded:
                continue
            entry.credit += entry.weight_steps
            total += entry.weight_steps
            if best is None or entry.credit > best[1].credit:
                best = name, entry
        if best is None:
            return None
        best[1].credit -= total
        return best[0]
