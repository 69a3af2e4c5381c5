"""What is remembered of each backend in numbers, a line for each instead of an object. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Table:
    """Lines of numbers by name. Nobody changes one: a memory's next table is made of new ``lines``."""

    names: tuple[str, ...] = ()
    lines: Matrix = field(default_factory=lambda: np.zeros((0, 0)))

    def of(self, names: tuple[str, ...], blank: Sequence[float]) -> Matrix:
        """A copy of the lines of these names in this order; ``blank`` for one of which nothing is remembered."""
        if names and names == self.names:  # at nearly every tick
            return self.lines.copy()
        found = np.tile(np.array(blank, dtype=float), (len(names), 1))
        place_of = {name: place for place, name in enumerate(self.names)}
        known = [(row, place_of[name]) for row, name in enumerate(names) if name in place_of]
        if known:
            rows, places = zip(*known, strict=True)
            found[list(rows)] = self.lines[list(places)]
        return found

    def line(self, name: str) -> tuple[float, ...] | None:
        """What is remembered of one backend; None where nothing is."""
        return tuple(self.lines[self.names.index(name)].tolist()) if name in self.names else None

    def without(self, gone: frozenset[str]) -> Table:
        kept = [place for place, name in enumerate(self.names) if name not in gone]
        return self if len(kept) == len(self.names) else Table(tuple(self.names[place] for place in kept), self.lines[kept])

    def __len__(self) -> int:
        return len(self.names)
