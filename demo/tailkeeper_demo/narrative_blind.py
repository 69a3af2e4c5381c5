"""The story of a fault that calls for no action: an engine serves, and nobody can see how it is. Blind is not dead. Pure.

It went well when the loss was told, nothing was done to the engine, users felt nothing, and the finding closed by itself once
the engine could be seen again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailkeeper_demo.narrative import OBJECTIVE, Document, Event, Narrator, Seen, missed_since

_KIND = "telemetry_lost"


@dataclass(slots=True)
class BlindNarrator(Narrator):
    """``closed_at_s`` is when no finding of lost telemetry was open any more; ``missed`` and ``judged`` count users' requests."""

    closed_at_s: float | None = None
    missed: int = 0
    judged: int = 0

    @property
    def ended_well(self) -> bool:
        """Found, left alone, the SLA held throughout, and seen again."""
        told = self.found_at_s is not None and self.closed_at_s is not None
        return told and self.acted_at_s is None and self.sla_held

    @property
    def sla_held(self) -> bool:
        return self.judged > 0 and self.missed <= (1 - OBJECTIVE) * self.judged

    @property
    def over(self) -> bool:
        return self.closed_at_s is not None

    def feed(self, seen: Seen) -> list[Event]:
        self.missed, self.judged = missed_since(seen.load, self.injected_unix_s)
        mine = self._mine(seen)
        return [*self._found(seen, mine), *self._decided(seen, mine), *self._closed(seen)]

    def ending(self) -> list[str]:
        left_alone = "it was left alone" if self.acted_at_s is None else f"acted on {self._after(self.acted_at_s)}, wrongly"
        held = "users had the SLA throughout" if self.sla_held else "users lost the SLA"
        return [
            f"{self.fault} in {self.victim}: found {self._after(self.found_at_s)}; {left_alone}",
            held,
            f"finding closed by itself: {self._after(self.closed_at_s)}",
        ]

    def _lost(self, seen: Seen) -> Document | None:
        return next((f for f in seen.findings if f["backend"] == self.victim and f["kind"] == _KIND), None)

    def _found(self, seen: Seen, mine: list[Document]) -> Iterator[Event]:
        finding = self._lost(seen)
        if self.found_at_s is None and finding is not None:
            self.found_at_s = seen.at_s
            yield Event(seen.at_s, "found", finding["summary"])

    def _closed(self, seen: Seen) -> Iterator[Event]:
        if self.found_at_s is None or self.closed_at_s is not None or self._lost(seen) is not None:
            return
        self.closed_at_s = seen.at_s
        share = 1 - self.missed / self.judged if self.judged else 1.0
        yield Event(seen.at_s, "recovered", f"{self.victim} can be seen again and the finding is closed")
        yield Event(seen.at_s, "users", f"requests within SLA {share:.1%} throughout (n = {self.judged})")
