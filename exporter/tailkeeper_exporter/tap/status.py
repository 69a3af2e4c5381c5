"""How a tap stands at one moment, and who can be asked for it: what the rest of the exporter knows of the tap's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tailkeeper_exporter.settings import BackendSettings
from tailkeeper_exporter.tap.exchange import Exchange
from tailkeeper_exporter.tap.knobs import Knobs

SILENT_S = 5.0
"""A tap's process reports every second or oftener: without a report for so long nobody knows what is in force."""


@dataclass(frozen=True, slots=True)
class TapStatus:
    """One backend's tap. Times are monotonic seconds of this machine, which its processes share."""

    at_s: float
    """When this was so: an old one says that the tap's process no longer reports."""
    running: int
    """Requests at the backend whose first content token has come."""
    waiting: int
    """Requests at the backend whose first content token has not."""
    queued: int
    """Requests held in the tap by its concurrency limit."""
    progress_s: float | None
    """When the backend last sent a content token or finished an answer well."""
    answered_s: float | None
    """When the backend last sent any byte of an answer."""
    knobs: Knobs


class Taps(Protocol):
    """All taps of this exporter, by backend."""

    @property
    def statuses(self) -> Mapping[str, TapStatus]:
        """The last status that each tap reported; a backend without a tap is not there."""
        ...

    async def apply(self, backend: str, knobs: Knobs, deadline_s: float) -> None:
        """Turn the knobs; returns when the tap has confirmed them. Raises KeyError (no tap), TimeoutError, OSError."""
        ...


class RunningTaps(Taps, Protocol):
    """Taps whose process is held by this one."""

    def open(self) -> None:
        """Bind all addresses; `run` does so itself where it was not done before. Raises OSError that names the setting."""
        ...

    async def run(self) -> None:
        """Serve until cancelled."""
        ...


MakeTaps = Callable[[tuple[BackendSettings, ...], Callable[[Exchange], None]], RunningTaps]
"""The taps of those backends that have one, and who is told of each finished request, in the event loop."""
