"""What a source of observations is, and what both kinds share: remembering the last word until it is too old."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import EMPTY, BackendObservation


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request as the exporter recorded it. Seconds; None is unknown."""

    backend: str
    outcome: str | None
    ttft_s: float | None
    itl_s: float | None
    e2e_s: float | None


@dataclass(frozen=True, slots=True)
class Collected:
    """What one round of reading gave. ``error`` says that nothing at all could be read."""

    observations: Mapping[str, BackendObservation] = field(default_factory=lambda: EMPTY)
    records: tuple[RequestRecord, ...] = ()
    error: str | None = None


class Source(Protocol):
    async def collect(self, now: float, deadline_s: float) -> Collected:
        """Read everything once. ``now`` is monotonic. Never raises for what the other side does."""
        ...

    async def close(self) -> None: ...


class LastWord:
    """Keeps each backend's newest observation and ages it; past ``stale_after_s`` its state is unknown."""

    def __init__(self, backends: tuple[str, ...], stale_after_s: float) -> None:
        self._backends = backends
        self._stale_after_s = stale_after_s
        self._seen: dict[str, tuple[BackendObservation, float]] = {}

    def hear(self, observations: Mapping[str, BackendObservation], taken_at: Mapping[str, float]) -> None:
        """Take newer observations of configured backends; late ones (not newer than what is known) are left out."""
        for name in self._backends:
            seen = observations.get(name)
            if seen is not None and (name not in self._seen or taken_at[name] > self._seen[name][1]):
                self._seen[name] = (seen, taken_at[name])

    def tell(self, now: float, errors: Mapping[str, str], default_error: str) -> dict[str, BackendObservation]:
        """One observation per configured backend as of ``now``."""
        return {name: self._one(name, now, errors.get(name, default_error)) for name in self._backends}

    def _one(self, name: str, now: float, error: str) -> BackendObservation:
        known = self._seen.get(name)
        if known is None:
            return BackendObservation(name, State.UNKNOWN, None, error)
        seen, taken_at = known
        age = max(0.0, now - taken_at)
        if age > self._stale_after_s:
            return BackendObservation(name, State.UNKNOWN, age, error)
        return replace(seen, age_s=age)
