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

    is_dead: bool
    takes_work: bool

    def __init__(self, value: str) -> None:
        """Both are asked many times a tick of each backend: looked up, they cost a tenth of being worked out."""
        self.is_dead = value in ("hung", "down")
        self.takes_work = value in ("serving", "busy")
