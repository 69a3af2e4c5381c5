"""What a source of observations is, and what both kinds share: remembering the last word until it is too old."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tailkeeper_exporter.state import State
from tailkeeper_watchdog.model import EMPTY, BackendObservation, RequestRecord


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

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        """Look for these from now on. Of ``new`` ones nothing counts that was seen before ``now``, monotonic."""
        ...

    async def close(self) -> None: ...


class LastWord:
    """Keeps each backend's newest observation and ages it; past ``stale_after_s`` its state is unknown."""

    def __init__(self, backends: tuple[str, ...], stale_after_s: float) -> None:
        self._backends = backends
        self._stale_after_s = stale_after_s
        self._seen: dict[str, tuple[BackendObservation, float]] = {}
        self._since: dict[str, float] = {}

    def follow(self, backends: tuple[str, ...], new: frozenset[str], now: float) -> None:
        """Keep these. ``new`` ones are unknown until evidence of ``now`` or later: older word is about another backend."""
        self._backends = backends
        self._seen = {name: self._seen[name] for name in backends if name in self._seen and name not in new}
        self._since = {name: now if name in new else self._since[name] for name in backends if name in new or name in self._since}

    def hear(self, observations: Mapping[str, BackendObservation], taken_at: Mapping[str, float]) -> None:
        """Take newer observations of the backends that are looked for; late ones (not newer than what is known) are left out."""
        for name in self._backends:
            seen = observations.get(name)
            if seen is None or taken_at[name] < self._since.get(name, float("-inf")):
                continue
            if name not in self._seen or taken_at[name] > self._seen[name][1]:
                self._seen[name] = (seen, taken_at[name])

    def tell(self, now: float, errors: Mapping[str, str], default_error: str) -> dict[str, BackendObservation]:
        """One observation per backend that is looked for, as of ``now``."""
        return {name: self._one(name, now, errors.get(name, default_error)) for name in self._backends}

    def _one(self, name: str, now: float, error: str) -> BackendObservation:
        known = self._seen.get(name)
        if known is None:
            return BackendObservation(name, State.UNKNOWN, None, error)
        seen, taken_at = known
        age = max(0.0, now - taken_at)
        if age > self._stale_after_s:
            return BackendObservation(name, State.UNKNOWN, age, error)
        return seen.at_age(age)
