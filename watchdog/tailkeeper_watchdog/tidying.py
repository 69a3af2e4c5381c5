"""Python's cycle collector kept out of the ticks, and its work done between them."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 5_000_000
"""So many new ones make Python collect within a tick after all: some fifteen ticks of 10,000 backends."""
WORTH_A_WALK = 200_000
"""New objects since the last collection: with fewer, a walk over them costs more than it brings."""
MIDDLE_EVERY_TICKS, ALL_EVERY_TICKS = 20, 2_000


def few_collections() -> None:
    """Keep Python's cycle collector out of the ticks: a tick makes some hundred thousand objects and hardly a cycle.

    With the default thresholds it walks the whole fleet's histories several times a tick (half of a tick at 10,000
    backends). Process-wide, so only a process that is a watchdog does it, and ``Tidying`` collects between the ticks.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_EVERY_TICKS, ALL_EVERY_TICKS // MIDDLE_EVERY_TICKS)


class Tidying:
    """Called between two ticks: collects what the last one made, at times what is older, and seldom everything."""

    def __init__(self) -> None:
        self._ticks = 0

    def __call__(self) -> None:
        if gc.get_count()[0] < WORTH_A_WALK:
            return
        self._ticks += 1
        if self._ticks % ALL_EVERY_TICKS == 0:
            gc.collect()
        else:
            gc.collect(1 if self._ticks % MIDDLE_EVERY_TICKS == 0 else 0)
