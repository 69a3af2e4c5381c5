"""The states of a backend, named once for exporter, watchdog, boards and rules. Pure."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What a backend is doing. Busy is not dead; unknown is not dead."""

    STARTING = "starting"
    SERVING = "serving"
    BUSY = "busy"
    HUNG = "hung"
    MISCONFIGURED = "misconfigured"
    DOWN = "down"
    UNKNOWN = "unknown"

    @property
    def is_dead(self) -> bool:
        return self in (State.HUNG, State.DOWN)

    @property
    def takes_work(self) -> bool:
        return self in (State.SERVING, State.BUSY)
